//! A rank's berths, and those of the rank after.

use backend::{Backend, Offer};

/// Sets of berths that a rank makes in its life, at most: the rank before may still write to one
/// whose rounds are over.
const SETS_MAX: usize = 4;

/// Berths by the device's own ways.
pub(super) struct Berths<B: Backend> {
    /// Each of its own size.
    own: Vec<Set<B>>,
    /// Which of them rows come to.
    at: usize,
    after: Option<B::Berths>,
}

struct Set<B: Backend> {
    size: (usize, usize),
    berths: B::Berths,
    offer: Offer,
}

impl<B: Backend> Berths<B> {
    pub(super) fn new() -> Self {
        Self { own: Vec::new(), at: 0, after: None }
    }

    /// As many of this rank's own, of `rows` rows of `width`.
    pub(super) fn have(
        &mut self,
        backend: &B,
        (count, rows, width): (usize, usize, usize),
    ) -> Result<Offer, String> {
        let size = (count, rows);
        self.at = match self.own.iter().position(|set| set.size == size) {
            Some(at) => at,
            None if self.own.len() == SETS_MAX => {
                return Err(format!("{SETS_MAX} sizes of berths were made before"));
            }
            None => {
                let (berths, offer) = backend.berths(count, rows, width)?;
                self.own.push(Set { size, berths, offer });
                self.own.len() - 1
            }
        };
        Ok(self.own[self.at].offer)
    }

    /// Those of the rank after, each of `rows` rows of `width`; how many.
    pub(super) fn reach(
        &mut self,
        backend: &B,
        offer: &Offer,
        (rows, width): (usize, usize),
    ) -> Result<u32, String> {
        let (berths, count) = backend.reach(offer, rows, width)?;
        self.after = Some(berths);
        Ok(count)
    }

    pub(super) fn leave(&mut self) {
        self.after = None;
    }

    /// This rank's own.
    pub(super) fn own(&self) -> &B::Berths {
        &self.own.get(self.at).expect("rows come to berths that were offered").berths
    }

    /// Those of the rank after.
    pub(super) fn after(&self) -> &B::Berths {
        self.after.as_ref().expect("rows go to berths that were reached")
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use backend::scalar::Scalar;

    use super::*;

    #[test]
    fn berths_are_used_again_and_no_more_sizes_are_made_than_may_be() {
        let (scalar, mut berths) = (Scalar::default(), Berths::new());
        let first = berths.have(&scalar, (2, 8, 4)).unwrap();
        assert_ne!(berths.have(&scalar, (3, 8, 4)).unwrap(), first);
        assert_eq!(berths.have(&scalar, (2, 8, 4)).unwrap(), first);
        assert!((2..SETS_MAX).all(|rows| berths.have(&scalar, (2, rows, 4)).is_ok()));
        assert!(berths.have(&scalar, (2, 9, 4)).is_err());
        assert_eq!(berths.have(&scalar, (2, 8, 4)).unwrap(), first);
    }
}
