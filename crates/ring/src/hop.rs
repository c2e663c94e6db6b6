//! One hop of a round: the plan, then the rows that the next rank is owed.

use arith::base::Round;
use wire::frame::{Frame, Kind};
use wire::plan::Plan;

use crate::error::RingError;
use crate::link::{LinkError, Outbound};
use crate::step::{Action, Computed};

/// Which rows a hop carries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hop {
    /// To the next stage: every row.
    Onward,
    /// From the last rank back to rank 0: the wanted rows only.
    Back,
}

impl Hop {
    /// The hop that `rank` of `world` sends.
    pub fn of(rank: u32, world: u32) -> Self {
        if rank + 1 == world { Self::Back } else { Self::Onward }
    }

    /// Rows of the plan that this hop carries.
    pub fn rows(self, plan: &Plan) -> usize {
        match self {
            Self::Onward => plan.rows(),
            Self::Back => plan.wanted().len(),
        }
    }
}

/// What goes on from a stage: the frames of its hop, and room of rows that goes nowhere.
pub(crate) fn onward(
    round: Round,
    plan: &Plan,
    payload: Vec<u8>,
    hop: Hop,
    computed: Computed,
    hidden: usize,
) -> Vec<Action> {
    let Computed { values, berth, .. } = computed;
    let (frames, room) = match berth {
        None => frames(round, plan, payload, hop, values, hidden),
        Some(berth) => {
            let rows = u32::try_from(plan.rows()).expect("a round has no more rows than its limit");
            (vec![Frame::plan(round, payload), Frame::berth(round, rows, berth)], Some(values))
        }
    };
    let room = room.filter(|room| room.capacity() > 0);
    frames.into_iter().map(Action::Send).chain(room.map(Action::Free)).collect()
}

/// The frames of a hop: the plan (its encoded bytes go on as they came) and the hop's rows, where
/// they lie among all the plan's `rows`. Where none go on, the room of `rows` is given back.
pub fn frames(
    round: Round,
    plan: &Plan,
    payload: Vec<u8>,
    hop: Hop,
    mut rows: Vec<f32>,
    hidden: usize,
) -> (Vec<Frame>, Option<Vec<f32>>) {
    let mut frames = vec![Frame::plan(round, payload)];
    if hop == Hop::Back {
        let wanted = plan.wanted();
        // They ascend, so that none is written over before it is moved.
        for (at, row) in wanted.iter().enumerate() {
            rows.copy_within(row * hidden..(row + 1) * hidden, at * hidden);
        }
        rows.truncate(wanted.len() * hidden);
    }
    if rows.is_empty() {
        return (frames, Some(rows));
    }
    let count = u32::try_from(hop.rows(plan)).expect("a hop carries no more than its plan");
    frames.push(Frame::rows(round, count, rows));
    (frames, None)
}

/// Sends [`frames`].
///
/// # Errors
/// A broken link.
pub fn send(
    outbound: &Outbound,
    round: Round,
    plan: &Plan,
    payload: Vec<u8>,
    hop: Hop,
    rows: Vec<f32>,
    hidden: usize,
) -> Result<(), LinkError> {
    let (frames, _) = frames(round, plan, payload, hop, rows, hidden);
    frames.into_iter().try_for_each(|frame| outbound.send(frame))
}

/// Checks that a frame is the one that is due.
///
/// # Errors
/// `OutOfTurn` with both.
pub fn expect(frame: &Frame, kind: Kind, round: Round) -> Result<(), RingError> {
    if frame.kind == kind && frame.round == round {
        return Ok(());
    }
    Err(RingError::OutOfTurn {
        expected: format!("{kind:?} of round {round}"),
        found: format!("{:?} of round {}", frame.kind, frame.round),
    })
}
