//! A rank's berths, and those of the rank after.

use backend::{Backend, Offer};

/// Sets of berths that a rank makes in its life, at most, one an epoch. None serves two: the device
/// of a rank that was given up may still write to those of its epoch, whenever it wakes.
const SETS_MAX: usize = 4;

/// Berths by the device's own ways.
pub(super) struct Berths<B: Backend> {
    /// Those of each epoch; rows come to the last.
    own: Vec<B::Berths>,
    after: Option<B::Berths>,
}

impl<B: Backend> Berths<B> {
    pub(super) fn new() -> Self {
        Self { own: Vec::new(), after: None }
    }

    /// New ones of this rank's own for an epoch, as many, of `rows` rows of `width`.
    pub(super) fn have(
        &mut self,
        backend: &B,
        (count, rows, width): (usize, usize, usize),
    ) -> Result<Offer, String> {
        if self.own.len() == SETS_MAX {
            return Err(format!(
                "this rank had berths in {SETS_MAX} lives of the ring, as often as may be; it has \
                 some again once it is started anew"
            ));
        }
        let (berths, offer) = backend.berths(count, rows, width)?;
        self.own.push(berths);
        Ok(offer)
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
        self.own.last().expect("rows come to berths that were offered")
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
    fn berths_serve_one_epoch_and_no_more_are_made_than_may_be() {
        let (scalar, mut berths) = (Scalar::default(), Berths::new());
        let mut offers = Vec::new();
        for _ in 0..SETS_MAX {
            let offer = berths.have(&scalar, (2, 8, 4)).unwrap();
            assert!(!offers.contains(&offer), "berths of an epoch before");
            offers.push(offer);
        }
        let error = berths.have(&scalar, (2, 8, 4)).unwrap_err();
        assert!(error.contains("in 4 lives of the ring"), "{error}");
    }

    #[test]
    fn a_rank_that_was_given_up_writes_to_no_berth_of_the_next_epoch() {
        let scalar = Scalar::default();
        let (mut before, mut own) = (Berths::new(), Berths::new());
        let offer = own.have(&scalar, (1, 1, 2)).unwrap();
        before.reach(&scalar, &offer, (1, 2)).unwrap();
        own.have(&scalar, (1, 1, 2)).unwrap();
        let mut late = scalar.rows(1, 2).unwrap();
        scalar.upload(&[7.0, 7.0], &mut late);
        scalar.put(&late, (0, 1), before.after(), (0, 0));
        let mut came = scalar.rows(1, 2).unwrap();
        scalar.fetch(own.own(), 0, (0, 1), &mut came, 0);
        let mut values = [1.0; 2];
        scalar.download(&came, 0, &mut values);
        assert_eq!(values, [0.0; 2]);
    }
}
