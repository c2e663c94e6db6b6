//! A cache on the host.

use arith::attention::{Heads, KvDtype};
use arith::base::TILE_KEYS;

/// Keys and values of one layer, `[pages, 64, kv heads * dim]`, as they are read back.
#[derive(Clone, Debug)]
pub struct Kv {
    pub(super) dtype: KvDtype,
    pub(super) heads: Heads,
    pub(super) k: Vec<f32>,
    pub(super) v: Vec<f32>,
    /// Keys before rounding, for [`super::Defect::UnroundedOwnKey`] alone.
    pub(super) unrounded: Vec<f32>,
}

impl Kv {
    pub(super) fn width(&self) -> usize {
        self.heads.kv * self.heads.dim
    }

    /// Where the row of absolute position `position` begins.
    pub(super) fn at(&self, table: &[u32], position: usize) -> usize {
        let page = table[position / TILE_KEYS] as usize;
        (page * TILE_KEYS + position % TILE_KEYS) * self.width()
    }

    /// Rows 0 .. `visible` of one head, contiguous.
    pub(super) fn head(
        &self,
        values: &[f32],
        table: &[u32],
        visible: usize,
        head: usize,
    ) -> Vec<f32> {
        let from = head * self.heads.dim;
        (0..visible)
            .flat_map(|p| &values[self.at(table, p) + from..][..self.heads.dim])
            .copied()
            .collect()
    }
}
