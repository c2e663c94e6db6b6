//! Which share of every layer a part holds.

use std::fmt;

/// How the members of a group divide their layers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Split {
    /// Tensor parallel: where whole groups of K align with the heads and widths before them, a
    /// block ends in nodes of the tree, one exchange a block.
    #[default]
    Shards,
    /// Every member reduces the whole K for its own outputs; no sum crosses a link.
    Rows,
}

/// `shards` or `rows`, as layouts have it.
impl fmt::Display for Split {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Shards => "shards",
            Self::Rows => "rows",
        })
    }
}

/// Which share of every layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Share {
    /// Which member's, below `count`.
    pub index: usize,
    /// Members of the group; 1 for whole layers.
    pub count: usize,
    /// How they divide their layers.
    pub split: Split,
}

impl Default for Share {
    fn default() -> Self {
        Self { index: 0, count: 1, split: Split::Shards }
    }
}
