//! Attention of a round's rows over the paged cache ([`arith::attention`]).
//!
//! A job is a block of rows of one stream with query heads of one kv head: every tile of 64 keys is
//! read once for all of them, which walk the tiles together, each with its own sums.

use std::cell::RefCell;
use std::ops::Range;

use arith::attention::{Heads, scale};
use arith::base::{CHUNK_KEYS, TILE_KEYS};
use backend::RowMap;

use crate::Level;
#[cfg(target_arch = "x86_64")]
use crate::attention_avx512;
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
/// Dims are padded to a multiple of this, the lanes of the widest kernels.
pub(crate) const PADDING: usize = 16;
/// Multiply-adds below which nothing is handed to other threads.
const POOL_MACS: usize = 1 << 16;
/// Jobs a thread should have, if more query heads share a kv head than that takes.
const THREAD_JOBS: usize = 2;

/// Largest score and sum of weights of some keys.
#[derive(Clone, Copy, Default)]
pub(crate) struct Weights {
    pub(crate) m: f32,
    pub(crate) l: f32,
}

/// What some queries have of the keys so far.
#[derive(Default)]
pub(crate) struct Sums {
    /// Largest score and sum of weights of each.
    pub(crate) weights: Vec<Weights>,
    /// Weighted values, `[queries][padded dim]`.
    pub(crate) o: Vec<f32>,
}

/// A query that sees keys of the tile at work.
#[derive(Clone, Copy)]
pub(crate) struct Asked {
    /// Where its values are in the buffer of queries.
    pub(crate) q: usize,
    /// Keys that it sees, the first ones of the tile.
    pub(crate) visible: usize,
    /// Its place in [`Sums`].
    pub(crate) sum: usize,
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
    /// The queries of the tile at work.
    asked: Vec<Asked>,
    /// Of the running chunk, and of the chunks before it.
    chunk: Sums,
    total: Sums,
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
        // Few jobs are cut again, into some query heads each: the same sums on more threads.
        let pieces = (pool.threads() * THREAD_JOBS).div_ceil((blocks.len() * kv_heads).max(1));
        let pieces = if pool.threads() > 1 { pieces.min(group) } else { 1 };
        let heads_a_job = group.div_ceil(pieces);
        let jobs_a_group = group.div_ceil(heads_a_job);
        let jobs_a_block = kv_heads * jobs_a_group;
        let job = |index: usize| {
            // Later rows see more keys: the longest jobs start first.
            let block = blocks.len() - 1 - index / jobs_a_block;
            let (kv_head, piece) =
                (index % jobs_a_block / jobs_a_group, index % jobs_a_group * heads_a_job);
            let first = kv_head * group + piece;
            let job = Job {
                level,
                q,
                kv,
                map,
                out: &cells,
                rows: blocks[block].clone(),
                heads: first..first + heads_a_job.min(group - piece),
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
    fn run(&self, s: &mut Scratch) {
        let dim = self.kv.heads.dim;
        let padded = dim.next_multiple_of(PADDING);
        s.grow(dim, padded, self.rows.len() * self.heads.len());
        let at = &self.map.rows[self.rows.clone()];
        let table = &self.map.tables[at[0].table];
        let kv_head = self.heads.start / (self.kv.heads.query / self.kv.heads.kv);
        let last = at.iter().map(|at| at.position as usize).max().unwrap_or(0) / TILE_KEYS;
        for tile in 0..=last {
            self.ask(tile, s);
            if tile < last {
                self.prefetch(self.kv.tile(table[tile + 1], kv_head));
            }
            self.attend(self.kv.tile(table[tile], kv_head), tile, padded, s);
            for i in 0..s.asked.len() {
                let sum = s.asked[i].sum;
                let row = self.rows.start + sum / self.heads.len();
                let ends = self.map.rows[row].position as usize / TILE_KEYS == tile;
                if ends || (tile + 1).is_multiple_of(CHUNK_TILES) {
                    self.end_chunk(tile, sum, padded, s);
                }
                if ends {
                    // SAFETY: one job has each head of each row.
                    let out = unsafe { self.out.slice(s.asked[i].q, dim) };
                    self.finish(sum, padded, s, out);
                }
            }
        }
    }

    /// The queries that see keys of tile `tile`.
    fn ask(&self, tile: usize, s: &mut Scratch) {
        s.asked.clear();
        let mut sum = 0;
        for row in self.rows.clone() {
            let visible =
                (self.map.rows[row].position as usize + 1).saturating_sub(tile * TILE_KEYS);
            for head in self.heads.clone() {
                if visible > 0 {
                    let q = row * self.q.width + head * self.kv.heads.dim;
                    s.asked.push(Asked { q, visible: visible.min(TILE_KEYS), sum });
                }
                sum += 1;
            }
        }
    }

    /// Asks memory for a tile: at decode it is read but once, and pages are too short for the
    /// processor to see them coming.
    fn prefetch(&self, tile: Tile<'_>) {
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        if self.level != Level::Scalar {
            // SAFETY: the level says that the CPU has the features.
            unsafe {
                match tile {
                    Tile::F16(k, v) => {
                        attention_vector::prefetch_vector(k);
                        attention_vector::prefetch_vector(v);
                    }
                    Tile::F32(k, v) => {
                        attention_vector::prefetch_vector(k);
                        attention_vector::prefetch_vector(v);
                    }
                }
            }
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let _ = tile;
    }

    /// Adds a tile to the chunks of the queries that see it.
    fn attend(&self, tile: Tile<'_>, index: usize, padded: usize, s: &mut Scratch) {
        let dim = self.kv.heads.dim;
        let Scratch { k, v, tile: o, asked, chunk, .. } = s;
        let stored = match tile {
            Tile::F32(..) => padded == dim,
            #[cfg(target_arch = "x86_64")]
            Tile::F16(..) => {
                self.level == Level::Avx512
                    && padded == dim
                    && asked.len() <= attention_avx512::QUERIES
            }
            #[cfg(not(target_arch = "x86_64"))]
            Tile::F16(..) => false,
        };
        let tile = if stored {
            tile
        } else {
            widen(self.level, tile, dim, k, v);
            Tile::F32(k, v)
        };
        let first = index.is_multiple_of(CHUNK_TILES);
        #[cfg(target_arch = "x86_64")]
        if self.level == Level::Avx512 {
            let (q, scale) = (&self.q.data[..], self.scale);
            let shared = attention_avx512::Shared { tile, q, dim, padded, scale, first };
            // SAFETY: the level says that the CPU has the features; `grow` made room, and a tile
            // that is read as it is stored has no padding.
            return unsafe { attention_avx512::attend_tile_f32_avx512(shared, asked, chunk) };
        }
        let Tile::F32(k, v) = tile else { unreachable!("other levels read f32") };
        for &Asked { q, visible, sum } in &*asked {
            let q = &self.q.data[q..q + dim];
            let weights = self.tile(q, k, v, visible, &mut o[..padded]);
            let to = &mut chunk.o[sum * padded..(sum + 1) * padded];
            if first {
                to.copy_from_slice(&o[..padded]);
                chunk.weights[sum] = weights;
            } else {
                merge(self.level, &mut chunk.weights[sum], to, weights, &o[..padded]);
            }
        }
    }

    /// One tile's partial into `o`.
    fn tile(&self, q: &[f32], k: &[f32], v: &[f32], visible: usize, o: &mut [f32]) -> Weights {
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

    /// Adds the chunk that ends with tile `tile` to the total.
    fn end_chunk(&self, tile: usize, sum: usize, padded: usize, s: &mut Scratch) {
        let part = sum * padded..(sum + 1) * padded;
        let (chunk, total) = (&s.chunk.o[part.clone()], &mut s.total.o[part]);
        if tile < CHUNK_TILES {
            total.copy_from_slice(chunk);
            s.total.weights[sum] = s.chunk.weights[sum];
        } else {
            let into = &mut s.total.weights[sum];
            merge(self.level, into, total, s.chunk.weights[sum], chunk);
        }
    }

    /// `o * (1 / l)`, flushed.
    fn finish(&self, sum: usize, padded: usize, s: &Scratch, out: &mut [f32]) {
        let r = 1.0 / s.total.weights[sum].l;
        for (out, o) in out.iter_mut().zip(&s.total.o[sum * padded..]) {
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
        self.asked.reserve(sums);
        for Sums { weights, o } in [&mut self.chunk, &mut self.total] {
            to(o, sums * padded);
            weights.resize(weights.len().max(sums), Weights::default());
        }
    }
}

/// Widens a tile into the scratch. Rows of values are padded to whole vectors.
fn widen(level: Level, tile: Tile<'_>, dim: usize, k: &mut [f32], v: &mut [f32]) {
    match level {
        Level::Scalar => attention_scalar::widen_tile_scalar(tile, dim, k, v),
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        // SAFETY: the level says that the CPU has the features.
        _ => unsafe { attention_vector::widen_tile_vector(tile, dim, k, v) },
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
