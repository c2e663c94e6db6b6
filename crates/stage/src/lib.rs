//! One layer range on one backend: weights, paged KV, streams' tables and the layer program.
//!
//! A round enters as a [`wire::plan::Plan`] and rows (or, on rank 0, token ids) and leaves as the
//! rows of the next boundary. [`Slots`] is the bookkeeping alone; [`model`] holds one file a
//! family; [`Stage`] joins the two; [`Fake`] keeps the same contract without a model.
mod engine;
mod error;
pub mod exchange;
mod fake;
mod fault;
mod guess;
pub mod model;
mod pairs;
mod pass;
pub mod slots;
mod stage;

pub use engine::{Chain, Engine, Input, Offer, Over, Pick, Shapes, SlotState, Wake};
pub use error::StageError;
pub use exchange::{Exchange, ExchangeError, Member};
pub use fake::{Fake, FakeConfig};
pub use fault::Fault;
pub use model::{Choice, Share, Split, Traffic, Way};
pub use pairs::PAIR_ROWS_MIN;
pub use slots::{Slots, WINDOW_ROWS_MAX};
pub use stage::{HEAD_ROWS_MAX, KEEP_BYTES_MAX, PIECE_ROWS_MAX, Stage, StageConfig};
pub use stage::{choices, draft_need_bytes, need_bytes, share_draft_need_bytes, share_need_bytes};
