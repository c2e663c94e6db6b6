//! Special tokens inside a text: leftmost, then longest.

use std::collections::BTreeMap;

/// A stretch of a text.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Part<'t> {
    /// Ordinary text, not empty.
    Text(&'t str),
    /// A special token.
    Token(u32),
}

/// A tree over the bytes of the special tokens.
pub(crate) struct Specials {
    nodes: Vec<Node>,
}

#[derive(Default)]
struct Node {
    next: BTreeMap<u8, usize>,
    /// The token that ends here, and whether it is a control token.
    end: Option<(u32, bool)>,
}

impl Specials {
    /// Tokens as (text, id, whether it is a control token). Empty texts are left out.
    pub(crate) fn new<'a>(tokens: impl Iterator<Item = (&'a str, u32, bool)>) -> Self {
        let mut nodes = vec![Node::default()];
        for (text, id, control) in tokens.filter(|(text, ..)| !text.is_empty()) {
            let mut at = 0;
            for &byte in text.as_bytes() {
                let fresh = nodes.len();
                at = *nodes[at].next.entry(byte).or_insert(fresh);
                if at == fresh {
                    nodes.push(Node::default());
                }
            }
            nodes[at].end.get_or_insert((id, control));
        }
        Self { nodes }
    }

    /// Length and id of the longest token at the start of `bytes`.
    fn longest(&self, bytes: &[u8], control: bool) -> Option<(usize, u32)> {
        let (mut at, mut found) = (0, None);
        for (read, byte) in bytes.iter().enumerate() {
            let Some(&next) = self.nodes[at].next.get(byte) else {
                break;
            };
            at = next;
            if let Some((id, is_control)) = self.nodes[at].end
                && (control || !is_control)
            {
                found = Some((read + 1, id));
            }
        }
        found
    }

    /// Cuts `text` at its special tokens; at control tokens only where `control`.
    pub(crate) fn split<'t>(&self, text: &'t str, control: bool) -> Vec<Part<'t>> {
        let (mut parts, mut start, mut at) = (Vec::new(), 0, 0);
        while at < text.len() {
            let Some((length, id)) = self.longest(&text.as_bytes()[at..], control) else {
                at += 1;
                continue;
            };
            if start < at {
                parts.push(Part::Text(&text[start..at]));
            }
            parts.push(Part::Token(id));
            at += length;
            start = at;
        }
        if start < text.len() {
            parts.push(Part::Text(&text[start..]));
        }
        parts
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_leftmost_then_longest_token_is_taken() {
        let specials = Specials::new(
            [("<a>", 1, true), ("<a>>", 2, true), ("b", 3, false), ("", 4, true)].into_iter(),
        );
        let cut = |text, control| specials.split(text, control);
        assert_eq!(cut("<a>>x", true), [Part::Token(2), Part::Text("x")]);
        assert_eq!(
            cut("é<a>b<a", true),
            [Part::Text("é"), Part::Token(1), Part::Token(3), Part::Text("<a")]
        );
        assert_eq!(cut("<a>b", false), [Part::Text("<a>"), Part::Token(3)]);
        assert_eq!(cut("", true), []);
    }
}
