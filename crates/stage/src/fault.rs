//! Faults that tests plant to prove that a check can turn red.

use wire::plan::Plan;

use crate::slots::Slots;

/// A defect of a stage, from planting on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// The layer of this absolute index is left out.
    SkipLayer(u32),
    /// A settle moves the position back, the state (keys, recurrence) stays where it was.
    PositionOnly,
    /// A settle moves the position and the keys back, the recurrent state stays.
    StateStays,
    /// A tree is taken as one chain: its other paths' rows see their siblings' keys.
    SiblingSeen,
    /// A settle keeps the whole window, whatever was accepted.
    DropRollback,
    /// A change of a stream's state is not counted.
    DropGeneration,
    /// The pages of a stream that ended are given back once more with the next plan.
    FreedTwice,
    /// The convolution's tail misses the last row of every window of two and more.
    StaleTail,
    /// Value heads go with the key heads of the other order. Planted at load.
    OtherHeads,
    /// 1 is added to norm weights that have it already. Planted at load.
    TwiceShifted,
    /// Queries and gates are split as two halves, not head by head. Planted at load.
    HalvedGate,
    /// A member adds the group's nodes from the second one on, the first last. Planted at load.
    OtherTree,
    /// A member joins pieces from the second member's on, the first one's last. Planted at load.
    SwappedPieces,
    /// Of equal logits the one of the highest id stays. Planted at load.
    HigherTie,
    /// The second half of a paired piece starts from what its buffer held. Planted at load.
    StaleTwin,
    /// A member's share of K begins a group of slices off. Planted at load.
    ShiftedShare,
}

/// The plan as a stage takes it that keeps every window whole.
pub(crate) fn missed_rollback(plan: &Plan, slots: &Slots) -> Plan {
    let (mut plan, table) = (plan.clone(), slots.table());
    for entry in &mut plan.entries {
        if let Some(state) = table.iter().find(|state| state.id == entry.id) {
            entry.accepted = state.rows;
        }
    }
    plan
}

#[cfg(any(test, feature = "faults"))]
pub(crate) use planted::Plant;

#[cfg(any(test, feature = "faults"))]
mod planted {
    use std::borrow::Cow;
    use std::collections::BTreeMap;

    use arith::base::{StreamId, TILE_KEYS};
    use wire::plan::Plan;

    use super::{Fault, missed_rollback};
    use crate::slots::{Effects, Slots};

    /// The fault of a stage and what it remembers.
    #[derive(Debug, Default)]
    pub(crate) struct Plant {
        fault: Option<Fault>,
        /// Rejected rows that a stream's keys still count.
        stale: BTreeMap<StreamId, u32>,
    }

    impl Plant {
        pub(crate) fn new(fault: Fault) -> Self {
            Self { fault: Some(fault), stale: BTreeMap::new() }
        }

        pub(crate) fn skips(&self, layer: u32) -> bool {
            self.fault == Some(Fault::SkipLayer(layer))
        }

        /// The plan as the faulty stage takes it.
        pub(crate) fn before<'a>(&self, plan: &'a Plan, slots: &Slots) -> Cow<'a, Plan> {
            if self.fault != Some(Fault::DropRollback) {
                return Cow::Borrowed(plan);
            }
            Cow::Owned(missed_rollback(plan, slots))
        }

        /// Disturbs what a plan left behind.
        pub(crate) fn after(&mut self, effects: &mut Effects, slots: &mut Slots) {
            match self.fault {
                Some(Fault::PositionOnly) => {
                    self.keep_keys(effects);
                    keep_states(effects);
                }
                Some(Fault::StateStays) => keep_states(effects),
                Some(Fault::SiblingSeen) => see_siblings(effects),
                Some(Fault::DropGeneration) => {
                    effects.spans.iter().for_each(|span| slots.forget_generation(span.id));
                }
                _ => {}
            }
        }

        /// Rows go on behind the rejected ones, as far as their last page reaches.
        fn keep_keys(&mut self, effects: &mut Effects) {
            for settled in &effects.settled {
                *self.stale.entry(settled.id).or_default() +=
                    settled.rows.saturating_sub(settled.accepted);
            }
            effects.closed.iter().for_each(|id| {
                self.stale.remove(id);
            });
            for row in &mut effects.map.rows {
                let stale = self.stale.get(&effects.spans[row.table].id).copied().unwrap_or(0);
                let keys = effects.map.tables[row.table].len() * TILE_KEYS;
                row.position = (row.position + stale).min(keys as u32 - 1);
            }
        }
    }

    /// Windows go on from the place that the whole last window left.
    fn keep_states(effects: &mut Effects) {
        for settled in &mut effects.settled {
            let rejected = settled.accepted == 0;
            (settled.accepted, settled.is_side) = (settled.rows, false);
            if let Some(span) = effects.spans.iter_mut().find(|span| span.id == settled.id)
                && rejected
            {
                span.track.from = Some(span.track.to);
            }
        }
    }

    /// Each other path of a tree stands behind the first one's rows, in its pages.
    fn see_siblings(effects: &mut Effects) {
        let spans = effects.spans.clone();
        for (at, span) in spans.iter().enumerate() {
            let first = (at + 1..spans.len()).take_while(|next| spans[*next].id == span.id).last();
            let Some(first) = first else { continue };
            let keys = (effects.map.tables[first].len() * TILE_KEYS) as u32;
            let behind = spans[first].rows.len() as u32;
            let end = span.first + behind + span.rows.len() as u32;
            for row in effects.map.rows[span.rows.clone()].iter_mut().filter(|_| end <= keys) {
                (row.table, row.position) = (first, row.position + behind);
            }
        }
    }
}
