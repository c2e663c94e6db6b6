//! The contract between a stage and whoever drives it.

use std::ops::Range;

use arith::base::{Round, StreamId};
use arith::candidates;
use wire::plan::Plan;

use crate::StageError;

pub use backend::Over;
pub use wire::control::{Offer, Shapes};
pub use wire::slot::SlotState;

/// What a stage computes a round from.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// Rank 0: a token id a row.
    Tokens(&'a [u32]),
    /// Other ranks: `rows * hidden` values from the boundary.
    Rows(&'a [f32]),
    /// The same, which lie in a berth of this rank's device.
    Berth(u32),
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
            // The frame that named it said of how many rows.
            Self::Berth(_) => return Ok(()),
        };
        if most == found {
            return Ok(());
        }
        Err(StageError::OtherShape { what, most: most as u64, found: found as u64 })
    }
}

/// What the draft head does for one stream: takes rows in, then guesses a chain of tokens.
#[derive(Clone, Debug)]
pub struct Chain<'a> {
    /// The stream.
    pub id: StreamId,
    /// Position of its first row.
    pub first: u32,
    /// Its rows among the given ones, as they came back from the last stage.
    pub rows: Range<usize>,
    /// What the stream's next entry settles its window by, where it is known: a tree's rows lie on
    /// the pages of their path.
    pub accepted: u32,
    /// The token after each of them.
    pub tokens: &'a [u32],
    /// Tokens to guess behind the last of `tokens`; 0 only takes the rows in.
    pub length: u32,
}

/// Draws a guess: the chain's place among the given ones, the token's position, its logits.
pub type Pick<'a> = &'a mut dyn FnMut(usize, u32, &[f32]) -> u32;

/// Wakes whoever drives an engine.
pub type Wake = Box<dyn Fn() + Send + Sync>;

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
    /// Has `over` asked, from any thread, while this engine's device waits for a neighbour's:
    /// whether the epoch is over. Called before an epoch's [`Engine::berths`] and
    /// [`Engine::reach`].
    fn heed(&mut self, over: Over) {
        drop(over);
    }
    /// Makes `count` **berths** on this rank's device for rows of the agreed rounds, which come
    /// there from the device of the rank before by itself, and says by what it finds them. They
    /// serve this epoch alone. `None` where nobody may be asked, or the reason in words.
    fn berths(&mut self, count: u32) -> Result<Option<Offer>, String> {
        let _ = count;
        Ok(None)
    }
    /// Finds the berths of the rank after, for the rows of this epoch; in words by what way. Waits
    /// for that rank's device a while where it must.
    ///
    /// # Errors
    /// Why this rank's device does not find them, in words: rows go over the link.
    fn reach(&mut self, offer: &Offer) -> Result<String, String> {
        let _ = offer;
        Err("this rank's device gives rows to its host alone".into())
    }
    /// As [`Engine::step`], but where the rank after has berths that were reached, the rows may lie
    /// in that of `round` when it ends: its number, and `out` is empty. A berth is that of every
    /// so manieth round, as many as there are, and rounds in flight are no more.
    fn step_on(
        &mut self,
        round: Round,
        plan: &Plan,
        input: Input<'_>,
        out: &mut Vec<f32>,
    ) -> Result<Option<u32>, StageError> {
        let _ = round;
        self.step(plan, input, out).map(|()| None)
    }
    /// Rank 0: final norm and head of rows that came back; `out` becomes `rows * vocab` logits, of
    /// a group on the first member alone.
    fn logits(&mut self, rows: &[f32], out: &mut Vec<f32>) -> Result<(), StageError>;
    /// The same where only so many of the best logits of row `i` are needed as `best[i]` says, 0
    /// for all of them: `out` becomes what [`candidates::pack`] makes of each row.
    fn best_logits(
        &mut self,
        rows: &[f32],
        best: &[u32],
        out: &mut Vec<f32>,
    ) -> Result<(), StageError> {
        self.logits(rows, out)?;
        *out = candidates::pack_rows(out, best);
        Ok(())
    }
    /// Rows whose time a prompt's chunk takes this rank's device beside that of its own rows, where
    /// that is more than a round takes whatever its rows.
    fn chunk_cost_rows(&self) -> u32 {
        0
    }
    /// Whether this rank holds a draft head.
    fn drafts(&self) -> bool {
        false
    }
    /// Rank 0, with a draft head: takes rows in and guesses; the tokens of each chain. `rows` are
    /// `hidden` values each. Guesses move no byte of a reply.
    fn draft(
        &mut self,
        chains: &[Chain<'_>],
        rows: &[f32],
        pick: Pick<'_>,
    ) -> Result<Vec<Vec<u32>>, StageError> {
        let _ = (rows, pick);
        Ok(vec![Vec::new(); chains.len()])
    }
    /// The stream's rows in later plans are computed as zeros, until its cancel or close entry.
    fn skip(&mut self, id: StreamId);
    /// Forgets every stream and the berths that were reached (a new epoch); weights stay.
    fn reset(&mut self);
    /// For each keep of the last plan, whether it was held; what a stage answers in the plan that
    /// it forwards. Empty where the stage keeps nothing.
    fn held(&self) -> &[bool] {
        &[]
    }
    /// S and tail of a stream's recurrent state in a layer after its last row, `[values, key_dim,
    /// value_dim]` and `[taps - 1, channels]`; `None` where there is no such stream, layer or
    /// state.
    fn state(&self, id: StreamId, layer: u32) -> Option<(Vec<f32>, Vec<f32>)> {
        let _ = (id, layer);
        None
    }
    /// The table, by ascending id.
    fn table(&self) -> Vec<SlotState>;
    /// Has `wake` called when it turns out between calls that the engine can't go on.
    fn watch(&mut self, wake: Wake) {
        drop(wake);
    }
    /// Why the engine can't go on, where that turned out since it was prepared or reset.
    fn check(&self) -> Result<(), StageError> {
        Ok(())
    }
}
