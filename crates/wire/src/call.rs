//! What the leader of a group has its members do, and what they report. `docs/wire.md`, "Groups".

use std::borrow::Cow;

use arith::base::{Generation, StreamId};

use crate::bytes::Take;
use crate::describe::Shapes;
use crate::error::WireError;
use crate::limit::{KEEPS_MAX, PLAN_BYTES_MAX, TABLE_STREAMS_MAX};
use crate::plan::Plan;
use crate::rows;
use crate::slot::SlotState;

/// Bytes that shared memory begins with.
pub const TOKEN_BYTES: usize = 16;
/// Longest place of shared memory.
pub const PLACE_BYTES_MAX: usize = 64;

/// One call of the leader's: every member does the same on its own share.
#[derive(Clone, Debug, PartialEq)]
pub enum Call<'a> {
    /// Allocates for the shapes; each member reports `Ready`.
    Prepare(Shapes),
    /// Computes a round. Members report `Held` where the plan has keeps.
    Step {
        /// What to do.
        plan: Cow<'a, Plan>,
        /// From what.
        input: Input<'a>,
    },
    /// Head of rows, for the leader.
    Logits {
        /// How many of the best logits are needed of each row; 0 for all of them.
        best: Cow<'a, [u32]>,
        /// The rows.
        rows: Cow<'a, [f32]>,
    },
    /// The stream's later rows are zeros.
    Skip(StreamId),
    /// Forgets every stream.
    Reset,
    /// Asks for the table; each member reports `Table`.
    Table,
    /// Offers memory of the leader's machine to exchange through; each member reports `Met`.
    Meet {
        /// Where a process of that machine finds it.
        place: String,
        /// What it begins with.
        token: [u8; TOKEN_BYTES],
    },
    /// Says which members exchange through the memory that was offered, a bit each.
    Met(u8),
}

/// What a round is computed from.
#[derive(Clone, Debug, PartialEq)]
pub enum Input<'a> {
    /// A token id a row.
    Tokens(Cow<'a, [u32]>),
    /// The rows of the boundary.
    Rows(Cow<'a, [f32]>),
}

/// What a member reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Report {
    /// Loaded (number 0), or prepared.
    Ready,
    /// For each keep of the plan, whether it was held.
    Held(Vec<bool>),
    /// The table, by ascending id.
    Table(Vec<SlotState>),
    /// Whether it reaches the memory that was offered.
    Met(bool),
}

impl Call<'_> {
    /// The call's bytes.
    ///
    /// # Errors
    /// The plan's.
    pub fn encode(&self) -> Result<Vec<u8>, WireError> {
        let mut out = vec![self.tag(), 0, 0, 0];
        match self {
            Self::Prepare(shapes) => shapes.put_into(&mut out),
            Self::Step { plan, input } => {
                let plan = plan.encode()?;
                let kind: u32 = if matches!(input, Input::Tokens(_)) { 1 } else { 2 };
                out.extend(kind.to_le_bytes());
                out.extend((plan.len() as u32).to_le_bytes());
                out.extend(plan);
                match input {
                    Input::Tokens(ids) => put_ids(&mut out, ids),
                    Input::Rows(values) => out.extend(rows::encode(values)),
                }
            }
            Self::Logits { best, rows } => {
                out.extend((best.len() as u32).to_le_bytes());
                put_ids(&mut out, best);
                out.extend(rows::encode(rows));
            }
            Self::Skip(id) => out.extend(id.0.to_le_bytes()),
            Self::Reset | Self::Table => {}
            Self::Meet { place, token } => {
                out.extend(token);
                out.extend(place.as_bytes());
            }
            Self::Met(here) => out.push(*here),
        }
        Ok(out)
    }

    fn tag(&self) -> u8 {
        match self {
            Self::Prepare(_) => 1,
            Self::Step { .. } => 2,
            Self::Logits { .. } => 3,
            Self::Skip(_) => 4,
            Self::Reset => 5,
            Self::Table => 6,
            Self::Meet { .. } => 7,
            Self::Met(_) => 8,
        }
    }
}

impl Call<'static> {
    /// Reads a call.
    ///
    /// # Errors
    /// `OtherMessage`, those of a plan, `OtherRows` for values that are not whole rows.
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let mut take = Take::new("call", payload);
        let tag = take.u8("call")?;
        take.zeros::<3>("reserved")?;
        let call = match tag {
            1 => Self::Prepare(Shapes::take_from(&mut take)?),
            2 => step(&mut take)?,
            3 => logits(&mut take)?,
            4 => Self::Skip(StreamId(take.u32("stream")?)),
            5 => Self::Reset,
            6 => Self::Table,
            7 => meet(&mut take)?,
            8 => Self::Met(take.u8("here")?),
            other => return Err(WireError::OtherMessage(take.fault("call", "1..8", other))),
        };
        take.end()?;
        Ok(call)
    }
}

fn step(take: &mut Take<'_>) -> Result<Call<'static>, WireError> {
    let kind = take.u32("input")?;
    let bytes = take.u32("plan")?;
    take.at_most("plan", PLAN_BYTES_MAX as u64, bytes.into())?;
    let plan = Plan::decode(take.bytes("plan", bytes as usize)?)?;
    let input = match kind {
        1 => {
            let (expected, left) = (plan.rows() * 4, take.left());
            if left != expected {
                let expected = format!("{expected} bytes of tokens");
                return Err(WireError::OtherRows(take.fault("tokens", expected, left)));
            }
            Input::Tokens(take_ids(take, "tokens", plan.rows())?.into())
        }
        2 => {
            let values = take_values(take)?;
            let is_whole = match plan.rows() {
                0 => values.is_empty(),
                rows => values.len() % rows == 0,
            };
            if !is_whole {
                let expected = format!("values of {} rows", plan.rows());
                return Err(WireError::OtherRows(take.fault("rows", expected, values.len())));
            }
            Input::Rows(values.into())
        }
        other => return Err(WireError::BadValue(take.fault("input", "1 or 2", other))),
    };
    Ok(Call::Step { plan: Cow::Owned(plan), input })
}

fn logits(take: &mut Take<'_>) -> Result<Call<'static>, WireError> {
    let count = take.u32("rows")?;
    take.at_most("rows", take.left() as u64 / 4, count.into())?;
    let best = take_ids(take, "best", count as usize)?;
    let rows = take_values(take)?;
    let is_whole = match best.len() {
        0 => rows.is_empty(),
        count => rows.len() % count == 0,
    };
    if !is_whole {
        let expected = format!("values of {count} rows");
        return Err(WireError::OtherRows(take.fault("rows", expected, rows.len())));
    }
    Ok(Call::Logits { best: best.into(), rows: rows.into() })
}

fn meet(take: &mut Take<'_>) -> Result<Call<'static>, WireError> {
    let mut token = [0; TOKEN_BYTES];
    token.copy_from_slice(take.bytes("token", TOKEN_BYTES)?);
    take.at_most("place", PLACE_BYTES_MAX as u64, take.left() as u64)?;
    let bytes = take.bytes("place", take.left())?;
    match std::str::from_utf8(bytes) {
        Ok(place) => Ok(Call::Meet { place: place.into(), token }),
        Err(_) => Err(WireError::BadText(take.fault("place", "UTF-8", "other bytes"))),
    }
}

fn put_ids(out: &mut Vec<u8>, ids: &[u32]) {
    out.extend(ids.iter().flat_map(|id| id.to_le_bytes()));
}

fn take_ids(take: &mut Take<'_>, field: &str, count: usize) -> Result<Vec<u32>, WireError> {
    let (ids, _) = take.bytes(field, count * 4)?.as_chunks::<4>();
    Ok(ids.iter().map(|&id| u32::from_le_bytes(id)).collect())
}

/// All that is left, as f32.
fn take_values(take: &mut Take<'_>) -> Result<Vec<f32>, WireError> {
    let left = take.left();
    rows::decode(take.bytes("values", left)?, left / 4, 1)
}

impl Report {
    /// The report's bytes.
    pub fn encode(&self) -> Vec<u8> {
        match self {
            Self::Ready => vec![1, 0, 0, 0],
            Self::Held(held) => {
                let mut out = vec![2, 0, 0, 0];
                out.extend((held.len() as u32).to_le_bytes());
                out.extend(held.iter().map(|&held| u8::from(held)));
                out
            }
            Self::Met(yes) => vec![4, 0, 0, 0, u8::from(*yes)],
            Self::Table(slots) => {
                let mut out = vec![3, 0, 0, 0];
                out.extend((slots.len() as u32).to_le_bytes());
                for slot in slots {
                    let SlotState { id, generation, first, rows, pages } = *slot;
                    put_ids(&mut out, &[id.0, generation.0, first, rows, pages]);
                }
                out
            }
        }
    }

    /// Reads a report.
    ///
    /// # Errors
    /// `OtherMessage`, `TooLarge`, `BadValue` for a keep that is neither held nor not.
    pub fn decode(payload: &[u8]) -> Result<Self, WireError> {
        let mut take = Take::new("report", payload);
        let tag = take.u8("report")?;
        take.zeros::<3>("reserved")?;
        let report = match tag {
            1 => Self::Ready,
            2 => {
                let count = take.u32("keeps")?;
                take.at_most("keeps", KEEPS_MAX as u64, count.into())?;
                let held = take.bytes("keeps", count as usize)?;
                if let Some(&other) = held.iter().find(|&&held| held > 1) {
                    return Err(WireError::BadValue(take.fault("keeps", "0 or 1", other)));
                }
                Self::Held(held.iter().map(|&held| held == 1).collect())
            }
            3 => {
                let count = take.u32("streams")?;
                take.at_most("streams", TABLE_STREAMS_MAX.into(), count.into())?;
                let mut slots = Vec::new();
                for _ in 0..count {
                    slots.push(SlotState {
                        id: StreamId(take.u32("stream")?),
                        generation: Generation(take.u32("generation")?),
                        first: take.u32("first")?,
                        rows: take.u32("rows")?,
                        pages: take.u32("pages")?,
                    });
                }
                Self::Table(slots)
            }
            4 => match take.u8("met")? {
                yes @ 0..=1 => Self::Met(yes == 1),
                other => return Err(WireError::BadValue(take.fault("met", "0 or 1", other))),
            },
            other => return Err(WireError::OtherMessage(take.fault("report", "1..4", other))),
        };
        take.end()?;
        Ok(report)
    }
}
