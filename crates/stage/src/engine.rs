//! The contract between a stage and whoever drives it.

use arith::base::StreamId;
use wire::plan::Plan;

use crate::StageError;

pub use wire::control::Shapes;
pub use wire::slot::SlotState;

/// What a stage computes a round from.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Rank 0: a token id a row.
    Tokens(&'a [u32]),
    /// Other ranks: `rows * hidden` values from the boundary.
    Rows(&'a [f32]),
}

impl Input<'_> {
    /// Refuses anything but `rows` rows, and tokens outside the vocabulary. Asserts that tokens
    /// come only to a rank that holds the ends (`vocab` above 0).
    pub fn check(&self, rows: usize, hidden: usize, vocab: usize) -> Result<(), StageError> {
        let (what, most, found) = match self {
            Self::Tokens(ids) => {
                assert!(vocab > 0, "tokens came to a rank without the ends");
                if let Some(&id) = ids.iter().find(|&&id| id as usize >= vocab) {
                    let (most, found) = (vocab as u64 - 1, id.into());
                    return Err(StageError::OtherShape { what: "token id", most, found });
                }
                ("tokens of a round", rows, ids.len())
            }
            Self::Rows(values) => ("values of a round", rows * hidden, values.len()),
        };
        if most == found {
            return Ok(());
        }
        Err(StageError::OtherShape { what, most: most as u64, found: found as u64 })
    }
}

/// A stage as the ring drives it, whatever its backend and family.
pub trait Engine: Send {
    /// Width of a boundary row.
    fn hidden(&self) -> usize;
    /// Logits a row; 0 where this rank has no head.
    fn vocab(&self) -> usize;
    /// Allocates KV and buffers for the agreed shapes and runs every kernel once.
    fn prepare(&mut self, shapes: &Shapes) -> Result<(), StageError>;
    /// Settles, then computes the plan's rows; `out` becomes `rows * hidden` values.
    fn step(&mut self, plan: &Plan, input: Input<'_>, out: &mut Vec<f32>)
    -> Result<(), StageError>;
    /// Rank 0: final norm and head of rows that came back; `out` becomes `rows * vocab` logits.
    fn logits(&mut self, rows: &[f32], out: &mut Vec<f32>) -> Result<(), StageError>;
    /// The stream's rows in later plans are computed as zeros, until its cancel or close entry.
    fn skip(&mut self, id: StreamId);
    /// Forgets every stream (a new epoch); weights stay.
    fn reset(&mut self);
    /// For each keep of the last plan, whether it was held; what a stage answers in the plan that
    /// it forwards. Empty where the stage keeps nothing.
    fn held(&self) -> &[bool] {
        &[]
    }
    /// The table, by ascending id.
    fn table(&self) -> Vec<SlotState>;
}
