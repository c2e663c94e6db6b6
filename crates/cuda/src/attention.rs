//! The paged cache on the card, where rows stand in it, and attention.

use std::ops::Range;
use std::sync::Arc;

use arith::attention::{Heads, KvDtype, scale};
use arith::base::{CHUNK_KEYS, TILE_KEYS};
use backend::{BackendError, RowMap};

use crate::device::{Buffer, Device, Params};
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
#[derive(Clone, Copy)]
struct Cache {
    k: u64,
    v: u64,
    tables: u64,
    pages: u64,
    positions: u64,
    half: i32,
    kv_heads: i32,
    dim: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Write {
    cache: Cache,
    k: u64,
    v: u64,
    rows: i32,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Attend {
    cache: Cache,
    q: u64,
    out: u64,
    parts: u64,
    rows: u64,
    heads: i32,
    pieces: i32,
    scale: f32,
}

#[repr(C)]
#[derive(Clone, Copy)]
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

/// Most tiles of a row and most rows that take a block a tile.
const TILES_MAX: usize = 2048;
const TILE_ROWS_MAX: usize = 64;
/// Query heads of a kv head that one block takes.
const GROUP_HEADS: usize = 8;
/// Rows of a stream that one block takes at most.
const SPAN_ROWS: usize = 64;
/// Rows of a stream from which on a block takes several.
const SPAN_ROWS_MIN: usize = 32;

/// A round's map on the card: for each row where its table starts and its position, then the pages
/// of all tables, the spans of rows that blocks take together and the rows that they take alone.
/// Uploaded when it changes.
pub(crate) struct Map {
    buffer: Buffer,
    words: Vec<i32>,
    rows: usize,
    spans: Range<usize>,
    alone: Range<usize>,
}

impl Map {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, BackendError> {
        let buffer = Buffer::new(device, "row map", 4096)?;
        Ok(Self { buffer, words: Vec::new(), rows: 0, spans: 0..0, alone: 0..0 })
    }

    /// Makes it this map's, checking every page against the cache.
    pub(crate) fn take(
        &mut self,
        device: &Arc<Device>,
        map: &RowMap,
        pages: usize,
    ) -> Result<(), BackendError> {
        let mut starts = Vec::with_capacity(map.tables.len());
        let mut start = 0;
        for table in &map.tables {
            starts.push(start);
            start += table.len() as i32;
        }
        let mut words = Vec::with_capacity(2 * map.rows.len() + start as usize);
        words.extend(map.rows.iter().map(|row| starts[row.table]));
        words.extend(map.rows.iter().map(|row| row.position as i32));
        for row in &map.rows {
            let table = &map.tables[row.table];
            assert!((row.position as usize) < table.len() * TILE_KEYS, "{row:?} of {table:?}");
        }
        for &page in map.tables.iter().flat_map(|table| table.iter()) {
            assert!((page as usize) < pages, "page {page} of {pages}");
            words.push(page as i32);
        }
        self.rows = map.rows.len();
        let (spans, alone) = spans(map);
        self.spans = words.len()..words.len() + 2 * spans.len();
        words.extend(spans.iter().flat_map(|span| [span.start as i32, span.len() as i32]));
        self.alone = words.len()..words.len() + alone.len();
        words.extend(alone.iter().map(|&row| row as i32));
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

    /// Keys that the row with the most sees, of those that blocks take alone.
    fn visible_max(&self) -> usize {
        let alone = self.words[self.alone.clone()].iter();
        let positions = alone.map(|&row| self.words[self.rows + row as usize]);
        positions.map(|p| p as usize + 1).max().unwrap_or(0)
    }

    /// As [`Map::visible_max`], of all rows.
    fn visible_most(&self) -> usize {
        let positions = &self.words[self.rows..2 * self.rows];
        positions.iter().map(|&p| p as usize + 1).max().unwrap_or(0)
    }

    /// The address of a word.
    fn word(&self, index: usize) -> u64 {
        self.buffer.at() + 4 * index as u64
    }

    fn cache(&self, kv: &Kv) -> Cache {
        let (at, rows) = (self.buffer.at(), self.rows as u64);
        Cache {
            k: kv.k.at(),
            v: kv.v.at(),
            tables: at,
            positions: at + 4 * rows,
            pages: at + 8 * rows,
            half: i32::from(kv.dtype == KvDtype::F16),
            kv_heads: kv.heads.kv as i32,
            dim: kv.heads.dim as i32,
        }
    }
}

/// Runs of rows at successive positions of a table, in spans, and the rows that are in none.
fn spans(map: &RowMap) -> (Vec<Range<usize>>, Vec<usize>) {
    let (mut spans, mut alone) = (Vec::new(), Vec::new());
    let mut first = 0;
    for end in 1..=map.rows.len() {
        let goes_on = map.rows.get(end).is_some_and(|row| {
            let before = map.rows[end - 1];
            row.table == before.table && row.position == before.position + 1
        });
        if goes_on {
            continue;
        }
        if end - first < SPAN_ROWS_MIN {
            alone.extend(first..end);
        } else {
            let starts = (first..end).step_by(SPAN_ROWS);
            spans.extend(starts.map(|start| start..end.min(start + SPAN_ROWS)));
        }
        first = end;
    }
    (spans, alone)
}

impl Kv {
    /// Pages of the cache.
    pub(crate) fn pages(&self) -> usize {
        self.pages
    }
}

pub(crate) fn kv_write(device: &Device, kv: &mut Kv, k: &Rows, v: &Rows, map: &Map) {
    let width = kv.heads.kv * kv.heads.dim;
    assert!(k.width == width && v.width == width, "keys {k:?}, values {v:?}");
    k.holds(map.rows);
    v.holds(map.rows);
    let write = Write { cache: map.cache(kv), k: k.at(), v: v.at(), rows: map.rows as i32 };
    device.launch("kv_write", blocks(map.rows * width, 256), 256, &write);
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
    q.holds(map.rows);
    out.holds(map.rows);
    let kernel = match dim {
        64 => "attend_rows_64",
        128 => "attend_rows_128",
        256 => "attend_rows_256",
        _ => "",
    };
    if map.spans.is_empty() || !device.has(kernel) {
        return alone(device, q, kv, map, 0..map.rows, parts, out);
    }
    let params = Prompt {
        cache: map.cache(kv),
        q: q.at(),
        out: out.at(),
        spans: map.word(map.spans.start),
        heads: query as i32,
        scale: scale(dim),
    };
    device.launch(kernel, [map.spans.len() as u32 / 2, query as u32, 1], 256, &params);
    alone(device, q, kv, map, map.alone.clone(), parts, out)
}

/// Attention of rows that stand alone: all, or those that the words `listed` name.
fn alone(
    device: &Arc<Device>,
    q: &Rows,
    kv: &Kv,
    map: &Map,
    listed: Range<usize>,
    parts: &mut Option<Buffer>,
    out: &mut Rows,
) -> Result<(), BackendError> {
    let Heads { query, dim, .. } = kv.heads;
    let (rows, all) = (listed.len(), listed.len() == map.rows);
    let visible = if all { map.visible_most() } else { map.visible_max() };
    let list = if all { 0 } else { map.word(listed.start) };
    let (tiles, chunks) = (visible.div_ceil(TILE_KEYS), visible.div_ceil(CHUNK_KEYS));
    let by_tiles = kv.dtype == KvDtype::F16 && tiles <= TILES_MAX && rows <= TILE_ROWS_MAX;
    let split = by_tiles || (chunks > 1 && rows * query < BLOCKS_WHOLE);
    let pieces = if by_tiles { tiles } else { chunks };
    let params = Attend {
        cache: map.cache(kv),
        q: q.at(),
        out: out.at(),
        parts: match split {
            true => room(device, parts, rows * query * pieces * (dim + 2) * 4)?,
            false => 0,
        },
        rows: list,
        heads: query as i32,
        pieces: pieces as i32,
        scale: scale(dim),
    };
    let (heads, rows) = (query as u32, rows as u32);
    if by_tiles {
        let groups = kv.heads.kv * (query / kv.heads.kv).div_ceil(GROUP_HEADS);
        device.launch("attend_tile", [tiles as u32, groups as u32, rows], 256, &params);
        device.launch("merge_tiles", [heads, rows, 1], 1024, &params);
        return Ok(());
    }
    let threads = dim.next_multiple_of(32).max(TILE_KEYS) as u32;
    device.launch("attend", [if split { chunks as u32 } else { 1 }, heads, rows], threads, &params);
    if split {
        device.launch("merge", [heads, rows, 1], threads, &params);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use backend::RowAt;

    #[test]
    fn spans_are_runs_of_one_table_and_short_runs_stay_alone() {
        let run = |table, from: u32, rows: u32| (from..from + rows).map(move |p| (table, p));
        let all = run(0, 5, 100).chain(run(1, 105, 7)).chain(run(1, 0, 32)).chain(run(0, 32, 1));
        let rows = all.map(|(table, position)| RowAt { table, position }).collect();
        let (spans, alone) = spans(&RowMap { rows, tables: Vec::new() });
        assert_eq!(spans, [0..64, 64..100, 107..139]);
        assert_eq!(alone, [100, 101, 102, 103, 104, 105, 106, 139]);
    }
}
