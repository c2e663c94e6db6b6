//! What can't be placed.

use crate::{LAYERS_MAX, NODES_MAX};

/// Why there is no placement.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// None, or too many to look at.
    #[error("nodes: expected 1..{NODES_MAX}, found {found}; leave some out with --exclude")]
    Nodes {
        /// How many.
        found: usize,
    },
    /// None, or too many.
    #[error("layers of the model: expected 1..{LAYERS_MAX}, found {found}")]
    Layers {
        /// How many.
        found: usize,
    },
    /// Nothing that was measured.
    #[error("{what}: {found}; probe the node again")]
    BadCost {
        /// Which curve.
        what: String,
        /// What stands there.
        found: String,
    },
    /// A table of other links.
    #[error("links: {found}; probe the nodes again")]
    BadLinks {
        /// What stands there.
        found: String,
    },
    /// Facts that this plan can't use.
    #[error("{node}: {what}: expected {expected}, found {found}; run `baton probe` there again")]
    OtherFacts {
        /// Whose.
        node: String,
        /// Which of them.
        what: String,
        /// What this plan is for.
        expected: String,
        /// What stands there.
        found: String,
    },
    /// A name that no node has.
    #[error("no node is called {name:?}; there are {known}")]
    UnknownNode {
        /// What was asked.
        name: String,
        /// The names.
        known: String,
    },
    /// Layers that a user gave and that are no cut of the model.
    #[error("--layers: expected ranges that follow each other from 0 to {layers}, found {found}")]
    BadCut {
        /// Layers of the model.
        layers: usize,
        /// What was given.
        found: String,
    },
    /// A node of a given placement that is too small.
    #[error(
        "{node} needs {} MiB and has {}: {} MiB are missing; give it fewer layers, or lower \
         --context or --streams",
        mib(*need_bytes), have_bytes >> 20, mib(need_bytes - have_bytes)
    )]
    TooSmall {
        /// Its name.
        node: String,
        /// What it would hold.
        need_bytes: u64,
        /// What it has.
        have_bytes: u64,
    },
    /// No cut fits.
    #[error(
        "the model does not fit: {} MiB more on each of {nodes} nodes would do{}",
        mib(*missing_bytes),
        context.map(|context| format!(", or --context {context}")).unwrap_or_default()
    )]
    NoRoom {
        /// Nodes that were looked at.
        nodes: usize,
        /// The least that each node lacks.
        missing_bytes: u64,
        /// The longest context that fits, if any does.
        context: Option<u32>,
    },
    /// Nodes that would do together but do not reach each other.
    #[error("no ring of these nodes is possible: {from} does not reach {to}")]
    NoLink {
        /// One end.
        from: String,
        /// The other.
        to: String,
    },
}

/// Whole MiB, up.
fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}
