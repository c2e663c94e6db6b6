//! What a token costs: the weights that are read and the products that are made.

use arith::format::Format;
use weights::{Checkpoint, TensorInfo};

/// Of one token of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    /// Weight bytes of the file that a decoded token reads: all but the table that it is looked up
    /// in, unless that is the head as well.
    pub read_bytes: u64,
    /// Multiply-adds of the layers' linears for a row, a prompt's greatest part: without attention
    /// and without the head, which one row of a prompt needs.
    pub multiply_adds: u64,
}

impl Work {
    /// Of a whole model.
    pub fn of(checkpoint: &Checkpoint) -> Self {
        let config = checkpoint.config();
        let all = || checkpoint.part(0..config.layers(), true);
        let table = |t: &&TensorInfo| t.name == "token_embd.weight" && !config.tied();
        let layers = || checkpoint.part(0..config.layers(), false);
        // A convolution's taps and other small tables are F32, as norms are.
        let linear = |t: &&TensorInfo| t.rows > 1 && t.format != Format::F32;
        Self {
            read_bytes: all().filter(|t| !table(t)).map(|t| t.bytes as u64).sum(),
            multiply_adds: layers().filter(linear).map(|t| t.rows as u64 * t.cols as u64).sum(),
        }
    }
}
