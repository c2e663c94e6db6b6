//! A rank's berths, and those of the rank after.

use std::sync::Arc;

use backend::{Backend, Offer, Over};

use crate::StageError;

/// Sets of berths that a rank keeps in its life, at most, one an epoch. None serves two: the device
/// of a rank that was given up may still write to those of its epoch, whenever it wakes. Where it
/// can't, they are freed.
const SETS_MAX: usize = 4;

/// Berths by the device's own ways.
pub(super) struct Berths<B: Backend> {
    backend: Arc<B>,
    /// Those of each epoch; rows come to the last.
    own: Vec<B::Berths>,
    after: Option<B::Berths>,
}

impl<B: Backend> Berths<B> {
    pub(super) fn new(backend: Arc<B>) -> Self {
        Self { backend, own: Vec::new(), after: None }
    }

    /// New ones of this rank's own for an epoch, as many, of `rows` rows of `width`.
    pub(super) fn have(
        &mut self,
        (count, rows, width): (usize, usize, usize),
        over: Over,
    ) -> Result<Offer, String> {
        if self.own.len() == SETS_MAX {
            return Err(format!(
                "this rank had berths in {SETS_MAX} lives of the ring, as often as may be; it has \
                 some again once it is started anew"
            ));
        }
        let (berths, offer) = self.backend.berths(count, rows, width, over)?;
        self.own.push(berths);
        Ok(offer)
    }

    /// Those of the rank after, each of `rows` rows of `width`; how many.
    pub(super) fn reach(
        &mut self,
        offer: &Offer,
        (rows, width): (usize, usize),
        over: Over,
    ) -> Result<u32, String> {
        let (berths, count) = self.backend.reach(offer, rows, width, over)?;
        self.after = Some(berths);
        Ok(count)
    }

    /// Ends both ways before anything is freed: a device may wait for either.
    pub(super) fn leave(&mut self) {
        let after = self.after.take();
        after.iter().for_each(|after| {
            self.backend.part(after);
        });
        self.own.retain(|own| !self.backend.part(own));
    }

    /// This rank's own.
    pub(super) fn own(&self) -> &B::Berths {
        self.own.last().expect("rows come to berths that were offered")
    }

    fn after(&self) -> &B::Berths {
        self.after.as_ref().expect("rows go to berths that were reached")
    }

    /// Waits for the values of a round in one of this rank's own.
    pub(super) fn come(&self, berth: u32, values: usize) -> Result<(), StageError> {
        self.backend.come(self.own(), berth, values).map_err(lost(berth))
    }

    /// Puts rows to one of the rank after.
    pub(super) fn put(
        &self,
        from: &B::Rows,
        rows: (usize, usize),
        (berth, at): (u32, usize),
    ) -> Result<(), StageError> {
        self.backend.put(from, rows, self.after(), (berth, at)).map_err(lost(berth))
    }

    /// Has the values of a round, which were put, go to the rank after.
    pub(super) fn send(&self, berth: u32, values: usize) -> Result<(), StageError> {
        self.backend.send(self.after(), berth, values).map_err(lost(berth))
    }
}

fn lost(berth: u32) -> impl FnOnce(String) -> StageError {
    move |reason| StageError::BerthLost { berth, reason }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use backend::scalar::Scalar;

    use super::*;

    fn berths() -> Berths<Scalar> {
        Berths::new(Arc::new(Scalar::default()))
    }

    fn never() -> Over {
        Arc::new(|| false)
    }

    #[test]
    fn berths_serve_one_epoch_and_no_more_are_made_than_may_be() {
        let mut berths = berths();
        let mut offers = Vec::new();
        for _ in 0..SETS_MAX {
            let offer = berths.have((2, 8, 4), never()).unwrap();
            assert!(!offers.contains(&offer), "berths of an epoch before");
            offers.push(offer);
            berths.leave();
        }
        let error = berths.have((2, 8, 4), never()).unwrap_err();
        assert!(error.contains("in 4 lives of the ring"), "{error}");
    }

    #[test]
    fn a_rank_that_was_given_up_writes_to_no_berth_of_the_next_epoch() {
        let scalar = Scalar::default();
        let (mut before, mut own) = (berths(), berths());
        let offer = own.have((1, 1, 2), never()).unwrap();
        before.reach(&offer, (1, 2), never()).unwrap();
        own.have((1, 1, 2), never()).unwrap();
        let mut late = scalar.rows(1, 2).unwrap();
        scalar.upload(&[7.0, 7.0], &mut late);
        before.put(&late, (0, 1), (0, 0)).unwrap();
        before.send(0, 2).unwrap();
        let error = own.come(0, 2).unwrap_err().to_string();
        assert!(error.starts_with("BerthLost: berth 0: no rows were sent"), "{error}");
    }
}
