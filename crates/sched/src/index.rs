//! A radix tree over token prefixes: which of them have a kept state.
//!
//! Every leaf has one, so the tree holds no more tokens than the kept pages do.

use std::collections::BTreeMap;

/// Prefixes by their tokens.
#[derive(Debug)]
pub(crate) struct Index {
    /// The first is the root.
    nodes: Vec<Node>,
    spare: Vec<NodeId>,
}

/// A place in the tree; it stays while its key does.
pub(crate) type NodeId = usize;

const ROOT: NodeId = 0;

#[derive(Debug, Default)]
struct Node {
    parent: NodeId,
    /// Tokens from the parent's prefix to this one's; at least one but for the root.
    edge: Vec<u32>,
    /// By the first token of their edges.
    children: BTreeMap<u32, NodeId>,
    key: Option<u64>,
}

impl Index {
    pub fn new() -> Self {
        Self { nodes: vec![Node::default()], spare: Vec::new() }
    }

    /// The keys of `tokens`' prefixes, shortest first, and how many tokens some prefix shares.
    pub fn find(&self, tokens: &[u32]) -> (Vec<u64>, u32) {
        let (mut keys, mut at, mut matched) = (Vec::new(), ROOT, 0);
        while let Some(&next) =
            tokens.get(matched).and_then(|first| self.nodes[at].children.get(first))
        {
            let node = &self.nodes[next];
            let shared = shared(&node.edge, &tokens[matched..]);
            matched += shared;
            if shared < node.edge.len() {
                break;
            }
            keys.extend(node.key);
            at = next;
        }
        (keys, matched as u32)
    }

    /// Puts a key at a prefix; `None` where it has one already.
    pub fn insert(&mut self, mut tokens: &[u32], key: u64) -> Option<NodeId> {
        assert!(!tokens.is_empty(), "nothing is kept of no tokens");
        let mut at = ROOT;
        while let Some(first) = tokens.first() {
            at = match self.nodes[at].children.get(first) {
                None => self.add(at, tokens.to_vec()),
                Some(&child) => {
                    let shared = shared(&self.nodes[child].edge, tokens);
                    if shared < self.nodes[child].edge.len() {
                        self.split(child, shared)
                    } else {
                        child
                    }
                }
            };
            tokens = &tokens[self.nodes[at].edge.len()..];
        }
        let node = &mut self.nodes[at];
        if node.key.is_some() {
            return None;
        }
        node.key = Some(key);
        Some(at)
    }

    /// Takes a key away, and the nodes that led to it alone.
    pub fn remove(&mut self, mut at: NodeId) {
        self.nodes[at].key = None;
        while at != ROOT && self.nodes[at].key.is_none() {
            let parent = self.nodes[at].parent;
            match self.nodes[at].children.len() {
                0 => {
                    let gone = std::mem::take(&mut self.nodes[at]);
                    self.nodes[parent].children.remove(&gone.edge[0]);
                    self.spare.push(at);
                    at = parent;
                }
                1 => {
                    self.join(at);
                    return;
                }
                _ => return,
            }
        }
    }

    fn add(&mut self, parent: NodeId, edge: Vec<u32>) -> NodeId {
        let first = edge[0];
        let node = Node { parent, edge, ..Node::default() };
        let id = match self.spare.pop() {
            Some(id) => {
                self.nodes[id] = node;
                id
            }
            None => {
                self.nodes.push(node);
                self.nodes.len() - 1
            }
        };
        self.nodes[parent].children.insert(first, id);
        id
    }

    /// Puts a node above `child`, `at` tokens after its parent.
    fn split(&mut self, child: NodeId, at: usize) -> NodeId {
        let below = self.nodes[child].edge.split_off(at);
        let above = std::mem::replace(&mut self.nodes[child].edge, below);
        let upper = self.add(self.nodes[child].parent, above);
        let first = self.nodes[child].edge[0];
        self.nodes[upper].children.insert(first, child);
        self.nodes[child].parent = upper;
        upper
    }

    /// Lets a node's only child take its place.
    fn join(&mut self, at: NodeId) {
        let mut gone = std::mem::take(&mut self.nodes[at]);
        let (_, child) = gone.children.pop_first().expect("it has one child");
        let first = gone.edge[0];
        gone.edge.append(&mut self.nodes[child].edge);
        self.nodes[child].edge = gone.edge;
        self.nodes[child].parent = gone.parent;
        self.nodes[gone.parent].children.insert(first, child);
        self.spare.push(at);
    }
}

/// Tokens that both begin with.
fn shared(a: &[u32], b: &[u32]) -> usize {
    a.iter().zip(b).take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn random_prefixes_are_found_as_a_plain_map_finds_them() {
        let (mut index, mut plain) = (Index::new(), BTreeMap::new());
        let mut state = 1u64;
        let mut random = |below: u64| {
            state = arith::sample::mix(state.wrapping_add(0x9e37_79b9_7f4a_7c15));
            (state % below) as usize
        };
        for key in 0..4000 {
            let tokens: Vec<u32> = (0..1 + random(9)).map(|_| random(2) as u32).collect();
            if random(2) == 0 {
                let taken = plain.contains_key(&tokens);
                let node = index.insert(&tokens, key);
                assert_eq!(node.is_none(), taken);
                if let Some(node) = node {
                    plain.insert(tokens, (key, node));
                }
            } else if let Some((_, node)) = plain.remove(&tokens) {
                index.remove(node);
            }
            let asked: Vec<u32> = (0..10).map(|_| random(2) as u32).collect();
            let prefixes = (1..=asked.len()).filter_map(|n| plain.get(&asked[..n]));
            let keys: Vec<u64> = prefixes.map(|(key, _)| *key).collect();
            let longest = plain.keys().map(|tokens| shared(tokens, &asked)).max();
            assert_eq!(index.find(&asked), (keys, longest.unwrap_or(0) as u32));
            let live = index.nodes.len() - index.spare.len();
            assert!(live <= 1 + 2 * plain.len(), "{live} nodes for {} keys", plain.len());
        }
        assert!(plain.len() > 50);
        plain.into_values().for_each(|(_, node)| index.remove(node));
        assert_eq!(index.nodes.len() - index.spare.len(), 1, "the root alone is left");
    }
}
