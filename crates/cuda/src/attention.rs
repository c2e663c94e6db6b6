//! The paged cache on the card, and attention.

use std::sync::Arc;

use arith::attention::{Heads, KvDtype, scale};
use arith::base::{CHUNK_KEYS, TILE_KEYS};
use backend::BackendError;

use crate::device::{Buffer, Device, Params};
use crate::fuse;
use crate::map::Map;
use crate::rows::{Rows, blocks};

/// Most values of a head.
pub const HEAD_DIM_MAX: usize = 256;
/// Blocks of attention from which on a block takes all keys of its row.
const BLOCKS_WHOLE: usize = 1024;

/// The cache of one layer.
pub struct Kv {
    pub(crate) heads: Heads,
    dtype: KvDtype,
    pages: usize,
    k: Buffer,
    v: Buffer,
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
        let values = [pages, kv, dim, TILE_KEYS].iter().fold(1_u128, |n, &x| n * x as u128);
        let side = || {
            let what = format!("kv cache of {pages} pages");
            Buffer::new(device, &what, values * dtype.bytes() as u128)
        };
        Ok(Self { heads, dtype, pages, k: side()?, v: side()? })
    }

    pub(crate) fn copy_page(&mut self, from: u32, to: u32) {
        let page = self.heads.kv * self.heads.dim * TILE_KEYS * self.dtype.bytes();
        let (from, to) = (from as usize * page, to as usize * page);
        for side in [&self.k, &self.v] {
            side.copy_from(side, from, to, page);
        }
    }
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
pub(crate) struct Cache {
    k: u64,
    v: u64,
    tables: u64,
    pages: u64,
    positions: u64,
    pub(crate) half: i32,
    pub(crate) kv_heads: i32,
    pub(crate) dim: i32,
}

impl Cache {
    /// Where tables, positions and pages of a map lie.
    pub(crate) fn new(kv: &Kv, [tables, positions, pages]: [u64; 3]) -> Self {
        let half = i32::from(kv.dtype == KvDtype::F16);
        let (kv_heads, dim) = (kv.heads.kv as i32, kv.heads.dim as i32);
        Self { k: kv.k.at(), v: kv.v.at(), tables, pages, positions, half, kv_heads, dim }
    }
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Write {
    cache: Cache,
    k: u64,
    v: u64,
    rows: i32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Attend {
    cache: Cache,
    q: u64,
    out: u64,
    parts: u64,
    rows: u64,
    clean: u64,
    heads: i32,
    pieces: i32,
    scale: f32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Windows {
    tiles: Attend,
    windows: u64,
    apart: i32,
}

#[repr(C)]
#[derive(Clone, Copy, PartialEq)]
struct Prompt {
    cache: Cache,
    q: u64,
    out: u64,
    spans: u64,
    heads: i32,
    scale: f32,
}

// SAFETY: as kernels/prompt.cu declares it.
unsafe impl Params for Prompt {}
// SAFETY: as kernels/attention.cu declares it.
unsafe impl Params for Write {}
// SAFETY: as kernels/attention.cu and kernels/tiles.cu declare it.
unsafe impl Params for Attend {}
// SAFETY: as kernels/tiles.cu declares it.
unsafe impl Params for Windows {}

/// Most tiles of a row and most rows that take a block a tile.
const TILES_MAX: usize = 2048;
pub(crate) const TILE_ROWS_MAX: usize = 64;
/// What tiles are launched in multiples of: blocks of tiles that no row has end at once, and a step
/// is the one before for so many tiles of keys more, which has it run as a graph.
const TILES_STEP: usize = 8;
/// Query heads of a kv head that one block takes.
const GROUP_HEADS: usize = 8;
/// Threads of a tile of keys of a window.
const SPAN_THREADS: u32 = 256;
/// Most rows of a window times query heads of a kv head.
const WINDOW_QUERIES: usize = 64;

impl Kv {
    /// Pages of the cache.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }
}

pub(crate) fn kv_write(device: &Device, kv: &mut Kv, k: &Rows, v: &Rows, map: &Map) {
    let width = kv.heads.kv * kv.heads.dim;
    assert!(k.width == width && v.width == width, "keys {k:?}, values {v:?}");
    k.holds(map.rows());
    v.holds(map.rows());
    if fuse::heads_write(device, kv, k, v, map) {
        return;
    }
    let write = Write { cache: map.cache(kv), k: k.at(), v: v.at(), rows: map.rows() as i32 };
    device.launch("kv_write", blocks(map.rows() * width, 256), 256, &write);
}

/// The address of `bytes` bytes for parts.
fn room(
    device: &Arc<Device>,
    parts: &mut Option<Buffer>,
    bytes: usize,
) -> Result<u64, BackendError> {
    if parts.as_ref().is_none_or(|parts| parts.bytes() < bytes) {
        *parts = None;
        let what = "parts of attention";
        *parts = Some(Buffer::new(device, what, bytes.next_power_of_two() as u128)?);
    }
    Ok(parts.as_ref().map_or(0, Buffer::at))
}

/// Attention of every row; `parts` holds what tiles or chunks leave for the merge, grown as needed.
pub(crate) fn attention(
    device: &Arc<Device>,
    q: &Rows,
    kv: &Kv,
    map: &Map,
    parts: &mut Option<Buffer>,
    out: &mut Rows,
) -> Result<(), BackendError> {
    let Heads { query, dim, .. } = kv.heads;
    assert!(q.width == query * dim && out.width == q.width, "{q:?} to {out:?}");
    q.holds(map.rows());
    out.holds(map.rows());
    let kernel = match (dim, kv.dtype) {
        (64, KvDtype::F16) => "attend_rows_64",
        (128, KvDtype::F16) => "attend_rows_128",
        (256, KvDtype::F16) => "attend_rows_256",
        (64, KvDtype::F32) => "attend_floats_64",
        (128, KvDtype::F32) => "attend_floats_128",
        (256, KvDtype::F32) => "attend_floats_256",
        _ => "",
    };
    let (spans, first) = map.spans();
    if spans == 0 || !device.has(kernel) {
        return few(device, q, kv, map, spans == 0, parts, out);
    }
    let params = Prompt {
        cache: map.cache(kv),
        q: q.at(),
        out: out.at(),
        spans: first,
        heads: query as i32,
        scale: scale(dim),
    };
    device.launch(kernel, [spans as u32, query as u32, 1], 256, &params);
    few(device, q, kv, map, true, parts, out)
}

/// Attention of the rows that are in no span, or of all.
fn few(
    device: &Arc<Device>,
    q: &Rows,
    kv: &Kv,
    map: &Map,
    listed: bool,
    parts: &mut Option<Buffer>,
    out: &mut Rows,
) -> Result<(), BackendError> {
    let Heads { query, dim, .. } = kv.heads;
    let (rows, first) = if listed { map.listed() } else { (map.rows(), 0) };
    let visible = if listed { map.visible_max() } else { map.visible_most() };
    let (tiles, chunks) = (visible.div_ceil(TILE_KEYS), visible.div_ceil(CHUNK_KEYS));
    let by_tiles = kv.dtype == KvDtype::F16 && tiles <= TILES_MAX && rows <= TILE_ROWS_MAX;
    let split = by_tiles || (chunks > 1 && rows * query < BLOCKS_WHOLE);
    let tiles = tiles.next_multiple_of(TILES_STEP);
    let pieces = if by_tiles { tiles } else { chunks };
    let params = Attend {
        cache: map.cache(kv),
        q: q.at(),
        out: out.at(),
        parts: match split {
            true => room(device, parts, rows * query * pieces * (dim + 2) * 4)?,
            false => 0,
        },
        rows: first,
        clean: map.clean(),
        heads: query as i32,
        pieces: pieces as i32,
        scale: scale(dim),
    };
    let heads = query as u32;
    if by_tiles {
        let group = query / kv.heads.kv;
        let alone = match by_windows(device, group, if listed { map.window_rows() } else { 0 }) {
            Some(kernel) => {
                let (count, windows) = map.windows();
                let tiles_at_once = kernel.tiles as u32;
                let params = Windows { tiles: params, windows, apart: kernel.apart.into() };
                let across = (tiles as u32).div_ceil(tiles_at_once);
                let grid = [across, kv.heads.kv as u32, count as u32];
                let threads = SPAN_THREADS * tiles_at_once;
                device.flush();
                device.launch_with(kernel.name, grid, threads, kernel.shared, &params);
                map.alone()
            }
            None => rows,
        };
        let groups = kv.heads.kv * group.div_ceil(GROUP_HEADS);
        device.launch("attend_tile", [tiles as u32, groups as u32, alone as u32], 256, &params);
        // Blocks of all threads would take turns where they are more than multiprocessors.
        let many = heads * rows as u32 > device.multiprocessors();
        let threads = if many { 512 } else { 1024 };
        device.launch("merge_tiles", [heads, rows as u32, 1], threads, &params);
        return Ok(());
    }
    let (threads, rows) = (dim.next_multiple_of(32).max(TILE_KEYS) as u32, rows as u32);
    device.launch("attend", [if split { chunks as u32 } else { 1 }, heads, rows], threads, &params);
    if split {
        device.launch("merge", [heads, rows, 1], threads, &params);
    }
    Ok(())
}

/// How windows are taken.
struct ByWindows {
    name: &'static str,
    /// Tiles of a block.
    tiles: usize,
    /// Whether keys and values lie apart.
    apart: bool,
    shared: u32,
}

/// The kernel of windows of up to `rows` rows, if there are any and the card has room for it.
fn by_windows(device: &Device, group: usize, rows: usize) -> Option<ByWindows> {
    let (own, name) = match (rows * group).div_ceil(WINDOW_QUERIES / 4) {
        1 => (2, "attend_span_2"),
        2 => (4, "attend_span_4"),
        3 => (6, "attend_span_6"),
        4 => (8, "attend_span_8"),
        _ => return None,
    };
    let most = device.has(name).then(|| device.most_shared(name))?;
    let keys = 2 * HEAD_DIM_MAX * TILE_KEYS;
    let (queries, weights) = (8 * own * 4 * (HEAD_DIM_MAX + 4), 8 * own * 4 * (TILE_KEYS + 4));
    [(2, true), (1, true), (1, false)].into_iter().find_map(|(tiles, apart)| {
        let shared = (queries + tiles * (keys + if apart { keys } else { weights })) as u32;
        (shared <= most).then_some(ByWindows { name, tiles, apart, shared })
    })
}
