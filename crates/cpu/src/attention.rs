//! Attention of a round's rows over the paged cache ([`arith::attention`]).
//!
//! A job is a block of rows of one stream with one kv head: every tile of 64 keys is widened once
//! for all its rows and query heads, which walk the tiles together, each with its own sums.

use std::cell::RefCell;
use std::ops::Range;

use arith::attention::{Heads, scale};
use arith::base::{CHUNK_KEYS, TILE_KEYS};
use backend::RowMap;

use crate::Level;
use crate::attention_scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
use crate::attention_vector;
use crate::kv::Kv;
use crate::pool::Pool;
use crate::rows::{Cells, Rows};

/// Rows of a job.
const BLOCK_ROWS: usize = 8;
/// Tiles of a chunk.
const CHUNK_TILES: usize = CHUNK_KEYS / TILE_KEYS;
/// Multiply-adds below which nothing is handed to other threads.
const POOL_MACS: usize = 1 << 16;

/// Largest score and sum of weights of some keys.
#[derive(Clone, Copy, Default)]
pub(crate) struct Weights {
    pub(crate) m: f32,
    pub(crate) l: f32,
}

/// A job's own memory, kept by its thread, grown at first use.
#[derive(Default)]
struct Scratch {
    /// One tile's keys, `[dim][64]`.
    k: Vec<f32>,
    /// One tile's values, `[64][padded dim]`.
    v: Vec<f32>,
    /// The sums of a tile, `[padded dim]`.
    tile: Vec<f32>,
    /// The sums of the running chunk and of the chunks before it, `[rows * heads][padded dim]`.
    chunk: Vec<f32>,
    total: Vec<f32>,
    /// Their weights.
    chunk_weights: Vec<Weights>,
    total_weights: Vec<Weights>,
}

thread_local! {
    static SCRATCH: RefCell<Scratch> = RefCell::default();
    static BLOCKS: RefCell<Vec<Range<usize>>> = const { RefCell::new(Vec::new()) };
}

/// Keys and values of one kv head of one page, as stored.
#[derive(Clone, Copy)]
pub(crate) enum Tile<'a> {
    F16(&'a [u16], &'a [u16]),
    F32(&'a [f32], &'a [f32]),
}

impl Kv {
    fn tile(&self, page: u32, head: usize) -> Tile<'_> {
        let at = self.start(page, head);
        let range = at..at + self.head_values();
        match &self.store {
            crate::kv::Store::F16 { k, v } => Tile::F16(&k[range.clone()], &v[range]),
            crate::kv::Store::F32 { k, v } => Tile::F32(&k[range.clone()], &v[range]),
        }
    }
}

/// Cuts the rows of a round into blocks of neighbours of one stream.
fn cut(map: &RowMap, blocks: &mut Vec<Range<usize>>) {
    blocks.clear();
    for (r, at) in map.rows.iter().enumerate() {
        match blocks.last_mut() {
            Some(last) if last.len() < BLOCK_ROWS && map.rows[last.start].table == at.table => {
                last.end = r + 1;
            }
            _ => blocks.push(r..r + 1),
        }
    }
}

/// Attention of every row of the round.
pub(crate) fn attention(
    pool: &Pool,
    level: Level,
    q: &Rows,
    kv: &Kv,
    map: &RowMap,
    out: &mut Rows,
) {
    let Heads { query, kv: kv_heads, dim } = kv.heads;
    let rows = map.rows.len();
    assert!(q.width == query * dim && out.width == q.width, "queries {q:?}, out {out:?}");
    assert!(rows <= q.rows_max && rows <= out.rows_max, "{rows} rows of {q:?}, {out:?}");
    let cells = Cells::new(&mut out.data);
    let group = query / kv_heads;
    BLOCKS.with_borrow_mut(|blocks| {
        cut(map, blocks);
        // Few jobs are cut again, a query head each: the same sums on more threads.
        let split = if blocks.len() * kv_heads < pool.threads() { group } else { 1 };
        let heads_a_job = group / split;
        let jobs_a_block = kv_heads * split;
        let job = |index: usize| {
            // Later rows see more keys: the longest jobs start first.
            let block = blocks.len() - 1 - index / jobs_a_block;
            let first = index % jobs_a_block * heads_a_job;
            let job = Job {
                level,
                q,
                kv,
                map,
                out: &cells,
                rows: blocks[block].clone(),
                heads: first..first + heads_a_job,
                scale: scale(dim),
            };
            SCRATCH.with_borrow_mut(|scratch| job.run(scratch));
        };
        let keys: usize = map.rows.iter().map(|at| at.position as usize + 1).sum();
        let jobs = blocks.len() * jobs_a_block;
        if 2 * keys * query * dim < POOL_MACS {
            (0..jobs).for_each(job);
        } else {
            pool.run(jobs, &job);
        }
    });
}

/// Some rows of one stream with query heads that share a kv head.
struct Job<'a> {
    level: Level,
    q: &'a Rows,
    kv: &'a Kv,
    map: &'a RowMap,
    out: &'a Cells<'a, f32>,
    rows: Range<usize>,
    heads: Range<usize>,
    scale: f32,
}

impl Job<'_> {
    fn run(&self, scratch: &mut Scratch) {
        let dim = self.kv.heads.dim;
        let padded = dim.next_multiple_of(8);
        let sums = self.rows.len() * self.heads.len();
        scratch.grow(dim, padded, sums);
        let at = &self.map.rows[self.rows.clone()];
        let table = &self.map.tables[at[0].table];
        let kv_head = self.heads.start / (self.kv.heads.query / self.kv.heads.kv);
        let last = at.iter().map(|at| at.position as usize).max().unwrap_or(0) / TILE_KEYS;
        for tile in 0..=last {
            widen(self.level, self.kv.tile(table[tile], kv_head), dim, scratch);
            for (r, row) in self.rows.clone().enumerate() {
                let position = at[r].position as usize;
                if position < tile * TILE_KEYS {
                    continue;
                }
                let visible = (position + 1 - tile * TILE_KEYS).min(TILE_KEYS);
                let ends = position / TILE_KEYS == tile;
                for (h, head) in self.heads.clone().enumerate() {
                    let q = &self.q.row(row)[head * dim..(head + 1) * dim];
                    let sum = r * self.heads.len() + h;
                    if r == 0 && tile < last {
                        self.prefetch(self.kv.tile(table[tile + 1], kv_head), h);
                    }
                    let weights = self.tile(q, visible, padded, scratch);
                    self.merge(tile, ends, sum, padded, weights, scratch);
                    if ends {
                        let at = row * self.q.width + head * dim;
                        // SAFETY: one job has each head of each row.
                        let out = unsafe { self.out.slice(at, dim) };
                        self.finish(sum, padded, scratch, out);
                    }
                }
            }
        }
    }

    /// Asks memory for the share of the job's query head `h` in a tile: at decode a tile is read
    /// but once, and pages are too short for the processor to see them coming.
    fn prefetch(&self, tile: Tile<'_>, h: usize) {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        if self.level != Level::Scalar {
            let share = (h, self.heads.len());
            // SAFETY: the level says that the CPU has the features.
            unsafe {
                match tile {
                    Tile::F16(k, v) => {
                        attention_vector::prefetch_share_vector(k, share);
                        attention_vector::prefetch_share_vector(v, share);
                    }
                    Tile::F32(k, v) => {
                        attention_vector::prefetch_share_vector(k, share);
                        attention_vector::prefetch_share_vector(v, share);
                    }
                }
            }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = (tile, h);
    }

    /// One tile's partial into `scratch.tile`.
    fn tile(&self, q: &[f32], visible: usize, padded: usize, s: &mut Scratch) -> Weights {
        let (k, v, o) = (&s.k[..], &s.v[..], &mut s.tile[..padded]);
        match self.level {
            Level::Scalar => {
                attention_scalar::attend_tile_f32_scalar(q, k, v, visible, self.scale, o)
            }
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            // SAFETY: the level says that the CPU has the features; `grow` made room.
            _ => unsafe {
                attention_vector::attend_tile_f32_vector(q, k, v, visible, self.scale, o)
            },
        }
    }

    /// Adds a tile to its chunk and, at the end of either, the chunk to the total.
    fn merge(
        &self,
        tile: usize,
        ends: bool,
        sum: usize,
        padded: usize,
        weights: Weights,
        s: &mut Scratch,
    ) {
        let part = sum * padded..(sum + 1) * padded;
        let chunk = &mut s.chunk[part.clone()];
        if tile.is_multiple_of(CHUNK_TILES) {
            chunk.copy_from_slice(&s.tile[..padded]);
            s.chunk_weights[sum] = weights;
        } else {
            let into = &mut s.chunk_weights[sum];
            merge(self.level, into, chunk, weights, &s.tile[..padded]);
        }
        if ends || (tile + 1).is_multiple_of(CHUNK_TILES) {
            let total = &mut s.total[part];
            if tile < CHUNK_TILES {
                total.copy_from_slice(chunk);
                s.total_weights[sum] = s.chunk_weights[sum];
            } else {
                let into = &mut s.total_weights[sum];
                merge(self.level, into, total, s.chunk_weights[sum], chunk);
            }
        }
    }

    /// `o * (1 / l)`, flushed.
    fn finish(&self, sum: usize, padded: usize, s: &Scratch, out: &mut [f32]) {
        let r = 1.0 / s.total_weights[sum].l;
        for (out, o) in out.iter_mut().zip(&s.total[sum * padded..]) {
            *out = arith::float::flush(o * r);
        }
    }
}

impl Scratch {
    fn grow(&mut self, dim: usize, padded: usize, sums: usize) {
        let to = |v: &mut Vec<f32>, len: usize| v.resize(v.len().max(len), 0.0);
        to(&mut self.k, dim * TILE_KEYS);
        to(&mut self.v, padded * TILE_KEYS);
        to(&mut self.tile, padded);
        to(&mut self.chunk, sums * padded);
        to(&mut self.total, sums * padded);
        let weights = |v: &mut Vec<Weights>| v.resize(v.len().max(sums), Weights::default());
        weights(&mut self.chunk_weights);
        weights(&mut self.total_weights);
    }
}

/// Widens a tile into the scratch. Rows of values are padded to whole vectors.
fn widen(level: Level, tile: Tile<'_>, dim: usize, s: &mut Scratch) {
    match level {
        Level::Scalar => attention_scalar::widen_tile_scalar(tile, dim, &mut s.k, &mut s.v),
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        // SAFETY: the level says that the CPU has the features.
        _ => unsafe { attention_vector::widen_tile_vector(tile, dim, &mut s.k, &mut s.v) },
    }
}

/// [`arith::attention::Partial::merge`].
fn merge(level: Level, into: &mut Weights, o1: &mut [f32], next: Weights, o2: &[f32]) {
    let m = into.m.max(next.m);
    let f1 = arith::exp::exp(into.m - m);
    let f2 = arith::exp::exp(next.m - m);
    into.m = m;
    into.l = into.l.mul_add(f1, next.l * f2);
    match level {
        Level::Scalar => attention_scalar::merge_f32(o1, f1, o2, f2),
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        // SAFETY: the level says that the CPU has the features.
        _ => unsafe { attention_vector::merge_f32_vector(o1, f1, o2, f2) },
    }
}
