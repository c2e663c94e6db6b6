//! The paged cache on the device, where rows stand in it, and attention.

use std::sync::Arc;

use arith::attention::{Heads, KvDtype, scale};
use arith::base::{CHUNK_KEYS, TILE_KEYS};
use backend::{BackendError, RowMap};

use crate::buffer::Buffer;
use crate::built::Kernel;
use crate::device::Device;
use crate::forms::Unit;
use crate::rows::{Rows, each};

/// Most values of a head.
pub const HEAD_DIM_MAX: usize = 256;
/// Workgroups of attention from which on one takes all keys of its row.
const GROUPS_WHOLE: usize = 1024;

/// Most bytes that tiles of their own leave for the merge.
const PARTS_BYTES_MAX: usize = 16 << 20;

/// What pieces leave for the merge; grown as needed.
pub(crate) struct Parts {
    buffer: Buffer,
    tiles_bytes_max: usize,
}

impl Parts {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, BackendError> {
        let buffer = Buffer::new(device, "parts of attention", 4096)?;
        Ok(Self { buffer, tiles_bytes_max: PARTS_BYTES_MAX })
    }

    /// Has tiles of their own leave up to `bytes` instead of [`PARTS_BYTES_MAX`].
    pub(crate) fn limit(&mut self, bytes: usize) {
        self.tiles_bytes_max = bytes;
    }
}

/// How keys are cut.
#[derive(Clone, Copy)]
struct Pieces {
    /// Of the row with the most; 0 where a workgroup finishes its rows.
    count: usize,
    /// Tiles of one.
    span: usize,
}

impl Pieces {
    /// Single tiles where few workgroups would walk along many, chunks where those are too many.
    fn of(visible: usize, groups: usize, piece_bytes: usize, tiles_bytes_max: usize) -> Self {
        let (tiles, chunks) = (visible.div_ceil(TILE_KEYS), visible.div_ceil(CHUNK_KEYS));
        if tiles <= 1 || groups >= GROUPS_WHOLE {
            Self { count: 0, span: 1 }
        } else if tiles * piece_bytes <= tiles_bytes_max {
            Self { count: tiles, span: 1 }
        } else {
            Self { count: chunks, span: CHUNK_KEYS / TILE_KEYS }
        }
    }
}

/// The cache of one layer.
pub struct Kv {
    heads: Heads,
    dtype: KvDtype,
    pages: usize,
    k: Buffer,
    v: Buffer,
    /// A page on its way from one number to another.
    page: Buffer,
}

impl Kv {
    pub(crate) fn new(
        device: &Arc<Device>,
        dtype: KvDtype,
        pages: usize,
        heads: Heads,
    ) -> Result<Self, BackendError> {
        let Heads { query, kv, dim } = heads;
        if kv == 0 || query == 0 || !query.is_multiple_of(kv) || !(1..=HEAD_DIM_MAX).contains(&dim)
        {
            return Err(BackendError::Shape {
                what: "attention heads".into(),
                expected: format!(
                    "query heads a multiple of kv heads, 1 to {HEAD_DIM_MAX} values a head"
                ),
                found: format!("{query} query heads, {kv} kv heads of {dim}"),
            });
        }
        let page = page_bytes(heads, dtype) as u128;
        let what = format!("kv cache of {pages} pages");
        let side = || Buffer::new(device, &what, pages as u128 * page);
        let page = Buffer::new(device, "a page of the kv cache", page)?;
        Ok(Self { heads, dtype, pages, k: side()?, v: side()?, page })
    }

    pub(crate) fn copy_page(&mut self, from: u32, to: u32) {
        let bytes = page_bytes(self.heads, self.dtype);
        for side in [&self.k, &self.v] {
            self.page.copy_from(side, from as usize * bytes, 0, bytes);
            side.copy_from(&self.page, 0, to as usize * bytes, bytes);
        }
    }

    /// Pages of the cache.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }

    /// Words of a head's key.
    fn words(&self) -> usize {
        words(self.heads, self.dtype)
    }
}

fn words(heads: Heads, dtype: KvDtype) -> usize {
    if dtype == KvDtype::F16 { heads.dim.div_ceil(2) } else { heads.dim }
}

fn page_bytes(heads: Heads, dtype: KvDtype) -> usize {
    heads.kv * words(heads, dtype) * TILE_KEYS * 4
}

/// A round's map on the device: for each row where its table starts and its position, then the
/// pages of all tables. Uploaded when it changes.
pub(crate) struct Map {
    buffer: Buffer,
    words: Vec<u32>,
    rows: usize,
    /// Keys that the row with the most sees.
    visible: usize,
}

impl Map {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, BackendError> {
        let buffer = Buffer::new(device, "row map", 4096)?;
        Ok(Self { buffer, words: Vec::new(), rows: 0, visible: 0 })
    }

    /// Makes it this map's, checking every page against the cache.
    pub(crate) fn take(
        &mut self,
        device: &Arc<Device>,
        map: &RowMap,
        pages: usize,
    ) -> Result<(), BackendError> {
        map.check(pages);
        let positions = map.rows.iter().map(|row| row.position);
        let words: Vec<u32> = map.starts().chain(positions).chain(map.pages()).collect();
        self.rows = map.rows.len();
        self.visible = map.rows.iter().map(|row| row.position as usize + 1).max().unwrap_or(0);
        if words != self.words {
            if words.len() * 4 > self.buffer.bytes() {
                let bytes = (words.len() * 4).next_power_of_two();
                self.buffer = Buffer::new(device, "row map", bytes as u128)?;
            }
            self.buffer.upload(0, &words);
            self.words = words;
        }
        Ok(())
    }

    /// The parameters of kernels/cache.wgsl.
    fn params(&self, kv: &Kv, pieces: Pieces, [count, across]: [u32; 2]) -> [u32; 11] {
        let Heads { query, kv: kv_heads, dim } = kv.heads;
        let half = u32::from(kv.dtype == KvDtype::F16);
        let Pieces { count: pieces, span } = pieces;
        let [rows, query, kv_heads, dim, pieces, span] =
            [self.rows, query, kv_heads, dim, pieces, span].map(|n| n as u32);
        let scale = scale(kv.heads.dim).to_bits();
        [rows, 0, query, kv_heads, dim, half, pieces, span, scale, count, across]
    }
}

pub(crate) fn kv_write(device: &Device, kv: &mut Kv, k: &Rows, v: &Rows, map: &Map) {
    let width = kv.heads.kv * kv.heads.dim;
    assert!(k.width == width && v.width == width, "keys {k:?}, values {v:?}");
    k.holds(map.rows);
    v.holds(map.rows);
    let (grid, each) = each(map.rows * kv.heads.kv * kv.words());
    let buffers = [(1, &map.buffer), (2, &k.buffer), (3, &v.buffer), (4, &kv.k), (5, &kv.v)];
    if map.rows > 0 {
        let params = map.params(kv, Pieces { count: 0, span: 1 }, each);
        device.launch(&Kernel::new(Unit::KvWrite, "kv_write"), &buffers, &params, grid);
    }
}

/// Attention of every row.
pub(crate) fn attention(
    device: &Arc<Device>,
    q: &Rows,
    kv: &Kv,
    map: &Map,
    parts: &mut Parts,
    out: &mut Rows,
) -> Result<(), BackendError> {
    let Heads { query, dim, .. } = kv.heads;
    assert!(q.width == query * dim && out.width == q.width, "{q:?} to {out:?}");
    q.holds(map.rows);
    out.holds(map.rows);
    if map.rows == 0 {
        return Ok(());
    }
    let piece_bytes = map.rows * query * (dim + 2) * 4;
    let Parts { buffer: parts, tiles_bytes_max } = parts;
    let pieces = Pieces::of(map.visible, map.rows * query, piece_bytes, *tiles_bytes_max);
    let bytes = piece_bytes * pieces.count;
    if parts.bytes() < bytes {
        *parts = Buffer::new(device, "parts of attention", bytes.next_power_of_two() as u128)?;
    }
    let params = map.params(kv, pieces, [0, 0]);
    let buffers =
        [(0, &out.buffer), (1, &map.buffer), (2, &q.buffer), (3, &kv.k), (4, &kv.v), (5, &*parts)];
    let grid = [query as u32, map.rows as u32, pieces.count.max(1) as u32];
    device.launch(&Kernel::new(Unit::Attention, "attend"), &buffers, &params, grid);
    if pieces.count > 0 {
        let grid = [query as u32, map.rows as u32, 1];
        let buffers = [(0, &out.buffer), (1, &map.buffer), (5, &*parts)];
        device.launch(&Kernel::new(Unit::Attention, "merge"), &buffers, &params, grid);
    }
    Ok(())
}
