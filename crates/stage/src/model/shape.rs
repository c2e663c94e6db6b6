//! What the blocks of a family need of buffers, caches and ops.

use arith::attention::Heads;
use arith::base::TILE_KEYS;
use arith::gdn::Gdn;
use arith::rope::Pairing;
use weights::config::Mixer;

use super::{Part, Sizes};
use crate::slots::WINDOW_ROWS_MAX;

/// A model's shape; widths in values.
#[derive(Clone, Debug)]
pub(super) struct Shape {
    /// What each layer mixes rows with.
    pub(super) mixers: Vec<Mixer>,
    pub(super) hidden: usize,
    pub(super) intermediate: usize,
    pub(super) vocab: usize,
    pub(super) heads: Heads,
    /// Whether attention's outputs are gated.
    pub(super) gated: bool,
    /// Shape of the recurrent layers.
    pub(super) gdn: Option<Gdn>,
    pub(super) eps: f32,
    pub(super) theta: f64,
    pub(super) rope_dims: usize,
    pub(super) pairing: Pairing,
    /// Whether the head is the embedding table.
    pub(super) tied: bool,
}

impl Shape {
    pub(super) fn query_width(&self) -> usize {
        self.heads.query * self.heads.dim
    }

    pub(super) fn kv_width(&self) -> usize {
        self.heads.kv * self.heads.dim
    }

    /// Layers of a part with this mixer.
    pub(super) fn count(&self, part: &Part, mixer: Mixer) -> usize {
        let range = part.range.start as usize..part.range.end as usize;
        self.mixers[range].iter().filter(|found| **found == mixer).count()
    }

    /// Bytes of the caches of a part.
    pub(super) fn kv_bytes(&self, part: &Part, sizes: Sizes) -> u64 {
        let keys = self.count(part, Mixer::Attention) * sizes.pages * TILE_KEYS;
        (keys * 2 * self.kv_width() * part.kv.bytes()) as u64
    }

    /// Bytes of the keys and the rows of a draft head.
    pub(super) fn draft_bytes(&self, part: &Part, sizes: Sizes) -> u64 {
        let keys = (sizes.pages + sizes.slots) * TILE_KEYS;
        (keys * 2 * self.kv_width() * part.kv.bytes() + 8 * sizes.rows_max * self.hidden) as u64
    }

    /// Bytes of the recurrent states of a part, and of the rows kept beside them.
    pub(super) fn state_bytes(&self, part: &Part, sizes: Sizes) -> u64 {
        let Some(gdn) = self.gdn else { return 0 };
        let kept = WINDOW_ROWS_MAX as usize * (gdn.channels() + 2 * gdn.values);
        let slot = 2 * (gdn.state_values() + gdn.tail_values()) + kept;
        (4 * self.count(part, Mixer::Recurrent) * sizes.slots * slot) as u64
    }

    /// Bytes of one kept recurrent state of a part.
    pub(super) fn keep_bytes(&self, part: &Part) -> u64 {
        let state = self.gdn.map_or(0, |gdn| gdn.state_values() + gdn.tail_values());
        (4 * self.count(part, Mixer::Recurrent) * state) as u64
    }

    /// Bytes of the row buffers of a part's layers.
    pub(super) fn buffers_bytes(&self, part: &Part, sizes: Sizes) -> u64 {
        let mut row = 3 * self.hidden + 3 * self.intermediate;
        if self.count(part, Mixer::Attention) > 0 {
            let queries = if self.gated { 3 } else { 2 };
            row += queries * self.query_width() + 2 * self.kv_width();
        }
        if let Some(gdn) = self.gdn.filter(|_| self.count(part, Mixer::Recurrent) > 0) {
            row += 2 * gdn.channels() + 2 * gdn.value_width() + 4 * gdn.values;
        }
        4 * (sizes.rows_max * row) as u64
    }
}
