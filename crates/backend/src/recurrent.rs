//! What recurrent layers ask on every device: of a shape, and of the walks of a round.

use arith::gdn::{Gdn, KEY_LANES};

use crate::{BackendError, Walk};

/// In [`Owners::words`]: no walk, and no state before a walk.
pub const NONE: u32 = u32::MAX;

/// Refuses a shape that kernels of at most `taps_max` taps, and of key heads of at most
/// `key_dim_max` dims where they have a limit, can't run.
///
/// # Errors
/// [`BackendError::Shape`], which names the size.
pub fn check(shape: &Gdn, taps_max: usize, key_dim_max: Option<usize>) -> Result<(), BackendError> {
    let refused = |what: &str, expected: String, found: usize| {
        let (what, found) = (what.to_owned(), found.to_string());
        Err(BackendError::Shape { what, expected, found })
    };
    if !(2..=taps_max).contains(&shape.taps) {
        return refused("taps of a convolution", format!("2 to {taps_max}"), shape.taps);
    }
    let dims = 1..=key_dim_max.unwrap_or(usize::MAX);
    if !dims.contains(&shape.key_dim) || !shape.key_dim.is_multiple_of(KEY_LANES) {
        let up_to = key_dim_max.map_or(String::new(), |max| format!(" up to {max}"));
        let expected = format!("a multiple of {KEY_LANES}{up_to}");
        return refused("dims of a key head", expected, shape.key_dim);
    }
    if shape.keys == 0 || !shape.values.is_multiple_of(shape.keys) {
        return refused("value heads", format!("a multiple of {}", shape.keys), shape.values);
    }
    Ok(())
}

/// Which walk each row of a round is of. Grown at first use, then kept.
#[derive(Debug, Default)]
pub struct Owners {
    rows: Vec<Option<usize>>,
    written: Vec<bool>,
}

impl Owners {
    /// Takes the walks of a round over `places` places.
    ///
    /// Asserts that no row is in two of them, and that none writes a place of another.
    pub fn fill(&mut self, walks: &[Walk], places: usize) {
        self.rows.clear();
        self.rows.resize(walks.iter().map(|walk| walk.rows.end).max().unwrap_or(0), None);
        self.written.clear();
        self.written.resize(places, false);
        for (w, walk) in walks.iter().enumerate() {
            assert!(!self.written[walk.to], "{walk:?} writes the place of another");
            self.written[walk.to] = true;
            for owner in &mut self.rows[walk.rows.clone()] {
                assert!(owner.is_none(), "{walk:?} has a row of another");
                *owner = Some(w);
            }
        }
        for walk in walks {
            let own = |from: usize| from == walk.to || !self.written[from];
            assert!(walk.from.is_none_or(own), "{walk:?} reads what another writes");
        }
    }

    /// The last row of any walk, and one.
    pub fn end(&self) -> usize {
        self.rows.len()
    }

    /// The walk of a row.
    pub fn of(&self, row: usize) -> Option<usize> {
        self.rows[row]
    }

    /// Whether every row is in a walk.
    pub fn is_whole(&self) -> bool {
        self.rows.iter().all(Option::is_some)
    }

    /// What cards are told of the walks that it was filled with: first row, end, place before or
    /// [`NONE`], place after, a walk each; then the walk of each row, or [`NONE`].
    pub fn words(&self, walks: &[Walk]) -> Vec<u32> {
        let word = |n: Option<usize>| n.map_or(NONE, |n| n as u32);
        let mut words = Vec::with_capacity(4 * walks.len() + self.rows.len());
        for Walk { rows, from, to } in walks {
            words.extend([rows.start as u32, rows.end as u32, word(*from), *to as u32]);
        }
        words.extend(self.rows.iter().copied().map(word));
        words
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn cards_are_told_walks_then_owners() {
        let mut owners = Owners::default();
        let walks =
            [Walk { rows: 3..4, from: Some(1), to: 1 }, Walk { rows: 0..2, from: None, to: 2 }];
        owners.fill(&walks, 3);
        assert_eq!(owners.words(&walks), [3, 4, 1, 1, 0, 2, NONE, 2, 1, 1, NONE, 0]);
        assert!(!owners.is_whole() && owners.end() == 4 && owners.of(3) == Some(0));
        owners.fill(&walks[1..], 3);
        assert!(owners.is_whole());
        assert_eq!(owners.words(&[]), [0, 0]);
    }

    #[test]
    #[should_panic(expected = "reads what another writes")]
    fn a_walk_keeps_off_what_another_writes() {
        let walks =
            [Walk { rows: 0..1, from: None, to: 0 }, Walk { rows: 1..2, from: Some(0), to: 1 }];
        Owners::default().fill(&walks, 2);
    }
}
