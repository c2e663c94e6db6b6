//! The paged cache on the card, where rows stand in it, and attention.

use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;

use arith::attention::{Heads, KvDtype, scale};
use arith::base::{CHUNK_KEYS, TILE_KEYS};
use backend::{BackendError, RowAt, RowMap};

use crate::device::{Buffer, Device, Params};
use crate::fuse;
use crate::rows::{Rows, blocks};
use crate::twice::Twice;

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
const TILE_ROWS_MAX: usize = 64;
/// Query heads of a kv head that one block takes.
const GROUP_HEADS: usize = 8;
/// Rows of a stream that one block takes at most.
const SPAN_ROWS: usize = 64;
/// Rows of a stream from which on a block takes so many; shorter runs go in windows.
const SPAN_ROWS_MIN: usize = 32;
/// Most rows of a window, and most rows times query heads of a kv head.
const WINDOW_ROWS: usize = 8;
/// Threads of a tile of keys of a window.
const SPAN_THREADS: u32 = 256;
const WINDOW_QUERIES: usize = 64;

/// A round's map on the card: for each row where its table starts and its position, then the pages
/// of all tables, the spans of rows that blocks take together, the rows that stand alone with those
/// of windows behind them, and the windows. Uploaded when it changes.
pub(crate) struct Map {
    words: Twice<Vec<i32>>,
    rows: usize,
    spans: Range<usize>,
    alone: Range<usize>,
    /// Those that stand alone and those of windows.
    listed: Range<usize>,
    windows: Range<usize>,
    /// Of each row of a round of few, tiles at its start that the round writes nothing to.
    clean: Option<usize>,
}

impl Map {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, BackendError> {
        Ok(Self {
            words: Twice::new(device, "row map")?,
            rows: 0,
            spans: 0..0,
            alone: 0..0,
            listed: 0..0,
            windows: 0..0,
            clean: None,
        })
    }

    /// Makes it this map's, checking every page against the cache.
    pub(crate) fn take(&mut self, map: &RowMap, pages: usize) -> Result<(), BackendError> {
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
        let Runs { spans, alone, windows } = Runs::of(map);
        self.spans = words.len()..words.len() + 2 * spans.len();
        words.extend(spans.iter().flat_map(|span| [span.start as i32, span.len() as i32]));
        self.alone = words.len()..words.len() + alone.len();
        words.extend(alone.iter().map(|&row| row as i32));
        words.extend(windows.iter().flat_map(|rows| rows.clone().map(|row| row as i32)));
        self.listed = self.alone.start..words.len();
        self.windows = words.len()..words.len() + 3 * windows.len();
        let mut part = alone.len();
        for rows in windows {
            words.extend([rows.start as i32, rows.len() as i32, part as i32]);
            part += rows.len();
        }
        self.clean = (map.rows.len() <= TILE_ROWS_MAX).then_some(words.len());
        if self.clean.is_some() {
            words.extend(clean_tiles(map));
        }
        self.words.take(&words, 4 * words.len(), |buffer| buffer.upload(0, &words))
    }

    /// Keys that the row with the most sees, of those that are listed.
    fn visible_max(&self) -> usize {
        let words = self.words.key();
        let listed = words[self.listed.clone()].iter();
        let positions = listed.map(|&row| words[self.rows + row as usize]);
        positions.map(|p| p as usize + 1).max().unwrap_or(0)
    }

    /// As [`Map::visible_max`], of all rows.
    fn visible_most(&self) -> usize {
        let positions = &self.words.key()[self.rows..2 * self.rows];
        positions.iter().map(|&p| p as usize + 1).max().unwrap_or(0)
    }

    /// Rows of the largest window, 0 if there is none.
    fn window_rows(&self) -> usize {
        let rows =
            self.words.key()[self.windows.clone()].chunks(3).map(|window| window[1] as usize);
        rows.max().unwrap_or(0)
    }

    /// The address of a word.
    fn word(&self, index: usize) -> u64 {
        self.words.buffer().at() + 4 * index as u64
    }

    /// Rows of the round.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    pub(crate) fn cache(&self, kv: &Kv) -> Cache {
        let (at, rows) = (self.words.buffer().at(), self.rows as u64);
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

/// Of each row, how many tiles come before the first that a row of this round writes to: their keys
/// may be read while ops of this round still run.
fn clean_tiles(map: &RowMap) -> impl Iterator<Item = i32> {
    let page = |row: &RowAt| map.tables[row.table][row.position as usize / TILE_KEYS];
    let written: HashSet<u32> = map.rows.iter().map(page).collect();
    let clean: Vec<i32> = map
        .tables
        .iter()
        .map(|table| table.iter().take_while(|page| !written.contains(page)).count() as i32)
        .collect();
    map.rows.iter().map(move |row| clean[row.table])
}

/// Rows at successive positions of a table: long runs in spans, short ones in windows, and the rows
/// that are in neither.
#[derive(Debug, Default, PartialEq, Eq)]
struct Runs {
    spans: Vec<Range<usize>>,
    windows: Vec<Range<usize>>,
    alone: Vec<usize>,
}

impl Runs {
    fn of(map: &RowMap) -> Self {
        let mut runs = Self::default();
        let mut first = 0;
        for end in 1..=map.rows.len() {
            let goes_on = map.rows.get(end).is_some_and(|row| {
                let before = map.rows[end - 1];
                row.table == before.table && row.position == before.position + 1
            });
            if goes_on {
                continue;
            }
            let cut = |rows: usize| {
                (first..end).step_by(rows).map(move |start| start..end.min(start + rows))
            };
            match end - first {
                1 => runs.alone.push(first),
                2..SPAN_ROWS_MIN => runs.windows.extend(cut(WINDOW_ROWS)),
                _ => runs.spans.extend(cut(SPAN_ROWS)),
            }
            first = end;
        }
        runs
    }
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
    if fuse::heads_write(device, kv, k, v, map) {
        return;
    }
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
    let kernel = match (dim, kv.dtype) {
        (64, KvDtype::F16) => "attend_rows_64",
        (128, KvDtype::F16) => "attend_rows_128",
        (256, KvDtype::F16) => "attend_rows_256",
        (64, KvDtype::F32) => "attend_floats_64",
        (128, KvDtype::F32) => "attend_floats_128",
        (256, KvDtype::F32) => "attend_floats_256",
        _ => "",
    };
    if map.spans.is_empty() || !device.has(kernel) {
        return few(device, q, kv, map, map.spans.is_empty(), parts, out);
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
    let rows = if listed { map.listed.len() } else { map.rows };
    let visible = if listed { map.visible_max() } else { map.visible_most() };
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
        rows: if listed { map.word(map.listed.start) } else { 0 },
        clean: map.clean.map_or(0, |clean| map.word(clean)),
        heads: query as i32,
        pieces: pieces as i32,
        scale: scale(dim),
    };
    let heads = query as u32;
    if by_tiles {
        let group = query / kv.heads.kv;
        let alone = match by_windows(device, group, if listed { map.window_rows() } else { 0 }) {
            Some(kernel) => {
                let windows = map.word(map.windows.start);
                let tiles_at_once = kernel.tiles as u32;
                let params = Windows { tiles: params, windows, apart: kernel.apart.into() };
                let across = (tiles as u32).div_ceil(tiles_at_once);
                let grid = [across, kv.heads.kv as u32, map.windows.len() as u32 / 3];
                let threads = SPAN_THREADS * tiles_at_once;
                device.flush();
                device.launch_with(kernel.name, grid, threads, kernel.shared, &params);
                map.alone.len()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_of_one_table_are_spans_or_windows_by_their_length() {
        let run = |table, from: u32, rows: u32| (from..from + rows).map(move |p| (table, p));
        let all = run(0, 5, 100).chain(run(1, 105, 7)).chain(run(1, 0, 32)).chain(run(0, 32, 1));
        let all = all.chain(run(2, 60, 9));
        let rows = all.map(|(table, position)| RowAt { table, position }).collect();
        let Runs { spans, windows, alone } = Runs::of(&RowMap { rows, tables: Vec::new() });
        assert_eq!(spans, [0..64, 64..100, 107..139]);
        assert_eq!(windows, [100..107, 140..148, 148..149]);
        assert_eq!(alone, [139]);
    }
}
