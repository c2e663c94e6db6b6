//! Why nothing fits, in numbers that help.

use crate::choose::is_possible;
use crate::problem::Problem;
use crate::{Ask, Link, Links, Node, PlacementError, Stage};

/// A link that is in nothing's way, to see whether links are all that is missing.
const FREE: Link = Link { latency_s: 0.0, bytes_per_s: 1e12 };

impl Problem<'_> {
    /// What is missing where [`crate::choose()`] found nothing.
    pub(crate) fn refusal(&self) -> PlacementError {
        let links = Links::alike(self.nodes.len(), FREE);
        let linked = Problem { links: &links, ..*self };
        if is_possible(&linked) {
            return self.missing_link();
        }
        let with_more = |more: u64| {
            let roomier = |node: &Node| {
                let memory_bytes = node.memory_bytes.saturating_add(more);
                Node { memory_bytes, ..node.clone() }
            };
            let nodes: Vec<Node> = self.nodes.iter().map(roomier).collect();
            is_possible(&Problem { nodes: &nodes, ..linked })
        };
        let with_context = |context: u32| {
            let ask = Ask { context, ..self.ask.clone() };
            is_possible(&Problem { ask: &ask, ..linked })
        };
        let asked = self.ask.context;
        let less = |less: u64| with_context(asked - less as u32);
        let shorter = asked > 1 && with_context(1);
        PlacementError::NoRoom {
            nodes: (0..self.nodes.len()).filter(|node| self.ask.allows(*node)).count(),
            missing_bytes: least(self.whole_bytes(), with_more),
            context: shorter.then(|| asked - least(u64::from(asked - 1), less) as u32),
        }
    }

    /// What one node would need to hold all of it.
    fn whole_bytes(&self) -> u64 {
        let layers = 0..self.model.layers.len();
        let whole = Stage { nodes: vec![0], split: None, layers };
        let of = |node| self.memory(&whole, true, node).total_bytes();
        (0..self.nodes.len()).map(of).max().unwrap_or(0)
    }

    /// The first two allowed nodes without a link.
    pub(crate) fn missing_link(&self) -> PlacementError {
        let allowed = || (0..self.nodes.len()).filter(|node| self.ask.allows(*node));
        let pairs = allowed().flat_map(|from| allowed().map(move |to| (from, to)));
        let without =
            |(from, to): &(usize, usize)| from != to && self.links.get(*from, *to).is_none();
        let (from, to) = pairs.into_iter().find(without).unwrap_or_default();
        let name = |node: usize| self.nodes[node].name.clone();
        PlacementError::NoLink { from: name(from), to: name(to) }
    }
}

/// The least number up to `most` for which `holds`, which holds for all above it and for `most`.
fn least(most: u64, holds: impl Fn(u64) -> bool) -> u64 {
    let (mut below, mut above) = (0, most);
    while below < above {
        let middle = below + (above - below) / 2;
        match holds(middle) {
            true => above = middle,
            false => below = middle + 1,
        }
    }
    above
}
