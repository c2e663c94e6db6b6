//! kv_write and attention: contexts across tile and chunk edges, several streams, scattered pages.

use std::sync::Arc;

use arith::attention::{Heads, KvDtype, attend};
use arith::base::TILE_KEYS;

use super::input::Noise;
use super::rowwise::{poisoned, read_back};
use super::{Checks, Level};
use crate::{Backend, RowAt, RowMap};

/// One stream: keys before the round, rows in it.
type Stream = (usize, usize);

/// What keys, values and queries are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taste {
    /// Weights spread over many keys.
    Normal,
    /// 2^-40 to 2^-10: most of it below what binary16 holds.
    Tiny,
    /// Some keys and values beyond binary16, some far below it.
    Wild,
    /// Small values, and every other tile so small that its sums are flushed.
    Faint,
    /// Queries of zero: all weights equal.
    Zero,
    /// A NaN key early in the first stream, a NaN query in the second.
    Nan,
}

const fn heads(query: usize, kv: usize, dim: usize) -> Heads {
    Heads { query, kv, dim }
}

const SMOL: Heads = heads(9, 3, 64);
const SMALL: Heads = heads(2, 1, 32);
const ODD: Heads = heads(3, 3, 20);

/// Streams whose contexts end on, before and after the edges of tiles and of the first chunk.
const EDGES: &[Stream] = &[(0, 1), (62, 1), (63, 1), (64, 3), (127, 2), (510, 4)];
/// One row of a second chunk of several tiles, beside a prompt chunk.
const LONG: &[Stream] = &[(700, 1), (30, 9), (1087, 2)];
const PROMPT: &[Stream] = &[(0, 70)];

pub(super) fn run<B: Backend>(checks: &mut Checks<'_, B>) {
    use KvDtype::{F16, F32};
    for dtype in [F16, F32] {
        case(checks, SMALL, dtype, Taste::Normal, EDGES);
        case(checks, SMALL, dtype, Taste::Normal, LONG);
        case(checks, SMOL, dtype, Taste::Normal, &[(60, 7), (5, 1), (129, 1)]);
        for taste in [Taste::Tiny, Taste::Wild, Taste::Faint, Taste::Zero, Taste::Nan] {
            case(checks, ODD, dtype, taste, &[(80, 5), (3, 2), (190, 1)]);
        }
        case(checks, ODD, dtype, Taste::Normal, PROMPT);
        case(checks, heads(2, 1, 64), dtype, Taste::Normal, &[(500, 40), (0, 66)]);
    }
    if checks.level == Level::Full {
        full(checks);
    }
}

fn full<B: Backend>(checks: &mut Checks<'_, B>) {
    use KvDtype::{F16, F32};
    for dtype in [F16, F32] {
        for heads in [SMOL, heads(4, 1, 128), heads(2, 2, 256), heads(1, 1, 8), heads(5, 1, 80)] {
            case(checks, heads, dtype, Taste::Normal, EDGES);
            case(checks, heads, dtype, Taste::Normal, LONG);
            case(checks, heads, dtype, Taste::Normal, &[(1500, 40), (0, 128), (447, 66)]);
            case(checks, heads, dtype, Taste::Wild, &[(600, 9), (0, 66)]);
        }
        case(checks, SMALL, dtype, Taste::Normal, &[(4090, 9)]);
        for &rows in Level::Full.row_counts() {
            // One stream's prompt chunk, then as many streams with a row each.
            for before in [0, 1, 63, 500] {
                case(checks, SMALL, dtype, Taste::Normal, &[(before, rows)]);
            }
            let streams: Vec<Stream> = (0..rows.min(128)).map(|i| (i * 29 % 700, 1)).collect();
            case(checks, SMALL, dtype, Taste::Normal, &streams);
        }
    }
}

/// Keys, values and queries of one stream, `[before + rows, width]` each.
struct Values {
    k: Vec<f32>,
    v: Vec<f32>,
    q: Vec<f32>,
}

impl Values {
    fn new(noise: &mut Noise, heads: Heads, taste: Taste, stream: usize, rows: usize) -> Self {
        let width = heads.kv * heads.dim;
        let mut fill = |n: usize, what: fn(&mut Noise, Taste) -> f32| -> Vec<f32> {
            (0..n).map(|_| what(noise, taste)).collect()
        };
        let mut k = fill(rows * width, stored);
        let mut v = fill(rows * width, stored);
        let mut q = fill(rows * heads.query * heads.dim, query);
        if taste == Taste::Faint {
            for (i, v) in v.iter_mut().enumerate() {
                let even = (i / width / TILE_KEYS).is_multiple_of(2);
                *v = if even { noise.spread(-26, -24) } else { noise.spread(-42, -37) };
            }
        }
        if taste == Taste::Nan && stream == 0 {
            k[2 * width..3 * width].fill(f32::NAN);
        }
        if taste == Taste::Nan && stream == 1 {
            let last = q.len() - heads.query * heads.dim;
            q[last..].fill(f32::NAN);
        }
        Self { k, v, q }
    }
}

fn stored(noise: &mut Noise, taste: Taste) -> f32 {
    match (taste, noise.below(40)) {
        (Taste::Tiny, _) => noise.spread(-40, -10),
        (Taste::Wild, 0) => noise.spread(15, 18),
        (Taste::Wild, 1..=9) => noise.spread(-26, -12),
        _ => noise.normal(),
    }
}

fn query(noise: &mut Noise, taste: Taste) -> f32 {
    match taste {
        Taste::Tiny => noise.spread(-36, -10),
        Taste::Wild => noise.spread(-20, -14),
        Taste::Zero => 0.0,
        _ => 2.0 * noise.normal(),
    }
}

fn case<B: Backend>(
    checks: &mut Checks<'_, B>,
    heads: Heads,
    dtype: KvDtype,
    taste: Taste,
    streams: &[Stream],
) {
    if checks.over() {
        return;
    }
    let Heads { query, kv, dim } = heads;
    let shown: &[Stream] = &streams[..streams.len().min(8)];
    let name = format!(
        "attention {query}/{kv} x {dim}, {} cache, {taste:?}, (keys before, rows) {shown:?}",
        dtype.name()
    );
    let mut noise = Noise::new(streams.len() as u64 * 97 + dim as u64);
    let values: Vec<Values> = streams
        .iter()
        .enumerate()
        .map(|(s, &(before, rows))| Values::new(&mut noise, heads, taste, s, before + rows))
        .collect();
    let want = checks.reference(&name, || reference(heads, dtype, streams, &values));
    let pages: usize = streams.iter().map(|&(b, n)| (b + n).div_ceil(TILE_KEYS)).sum();
    let tables = tables(&mut noise, streams, pages);

    let made = checks.backend.kv(dtype, 2 * pages, heads);
    let Some(mut cache) = checks.made(&name, made) else {
        return;
    };
    let mut round = Round { heads, name: &name, tables: &tables };
    if round.litter(checks, &mut cache, &mut noise, 2 * pages).is_none() {
        return;
    }
    // The history, in rounds of all streams, then the round that is checked.
    let mut written = vec![0; streams.len()];
    let longest = streams.iter().map(|s| s.0).max().unwrap_or(0);
    let mut upto = 0;
    while upto < longest {
        upto += 1 + noise.below(32);
        let spans = streams.iter().zip(&written).map(|(s, &w)| (w, s.0.min(upto)));
        let spans: Vec<_> = spans.map(|(from, to)| (from, to.max(from))).collect();
        if round.write(checks, &mut cache, &values, &spans).is_none() {
            return;
        }
        spans.iter().zip(&mut written).for_each(|(span, w)| *w = span.1);
    }
    let spans: Vec<_> = streams.iter().map(|&(before, rows)| (before, before + rows)).collect();
    let Some(map) = round.write(checks, &mut cache, &values, &spans) else {
        return;
    };
    round.attend(checks, &cache, &values, &map, &want);
    for page in 0..pages as u32 {
        checks.backend.copy_page(&mut cache, page, pages as u32 + page);
    }
    let moved = |table: &Arc<[u32]>| table.iter().map(|page| page + pages as u32).collect();
    let map = RowMap { tables: tables.iter().map(moved).collect(), ..map };
    let all: Vec<usize> = (0..map.rows.len()).collect();
    round.attend_batch(checks, &cache, &values, &map, &want, &all);
}

/// Page tables over pages in scattered order.
fn tables(noise: &mut Noise, streams: &[Stream], pages: usize) -> Vec<Arc<[u32]>> {
    let mut order: Vec<u32> = (0..pages as u32).collect();
    noise.shuffle(&mut order);
    let mut order = order.into_iter();
    let table = |&(before, rows): &Stream| {
        order.by_ref().take((before + rows).div_ceil(TILE_KEYS)).collect()
    };
    streams.iter().map(table).collect()
}

/// Attention of the checked round's rows, in plan order.
fn reference(heads: Heads, dtype: KvDtype, streams: &[Stream], values: &[Values]) -> Vec<f32> {
    let Heads { query, kv, dim } = heads;
    let mut want = Vec::new();
    for (&(before, rows), values) in streams.iter().zip(values) {
        let head = |all: &[f32], h: usize| -> Vec<f32> {
            let head = all.chunks_exact(kv * dim).flat_map(|row| &row[h * dim..(h + 1) * dim]);
            head.map(|&x| dtype.round(x)).collect()
        };
        let keys: Vec<_> = (0..kv).map(|h| (head(&values.k, h), head(&values.v, h))).collect();
        for position in before..before + rows {
            let seen = (position + 1) * dim;
            for h in 0..query {
                let (k, v) = &keys[h / (query / kv)];
                let q = &values.q[(position * query + h) * dim..][..dim];
                let at = want.len();
                want.resize(at + dim, 0.0);
                attend(q, &k[..seen], &v[..seen], dim, &mut want[at..]);
            }
        }
    }
    want
}

/// The rounds of one case.
struct Round<'a> {
    heads: Heads,
    name: &'a str,
    tables: &'a [Arc<[u32]>],
}

impl Round<'_> {
    /// Leaves what earlier streams may have left in every page: numbers, and NaN.
    fn litter<B: Backend>(
        &mut self,
        checks: &mut Checks<'_, B>,
        cache: &mut B::Kv,
        noise: &mut Noise,
        pages: usize,
    ) -> Option<()> {
        let width = self.heads.kv * self.heads.dim;
        let rows = pages * TILE_KEYS;
        let spoilt = |r: usize| r % 5 == 4;
        let mut values = |_| -> Vec<f32> {
            (0..rows * width)
                .map(|i| if spoilt(i / width) { f32::NAN } else { 4.0 * noise.normal() })
                .collect()
        };
        let table: Arc<[u32]> = (0..pages as u32).collect();
        let at = |position| RowAt { table: 0, position };
        let map = RowMap { rows: (0..rows as u32).map(at).collect(), tables: vec![table] };
        let [k, v] = [0, 1].map(&mut values).map(|data| uploaded(checks, self.name, width, &data));
        checks.backend.kv_write(cache, &k?, &v?, &map);
        Some(())
    }

    /// Writes positions `spans` of the streams as one round and gives its rows.
    fn write<B: Backend>(
        &mut self,
        checks: &mut Checks<'_, B>,
        cache: &mut B::Kv,
        values: &[Values],
        spans: &[(usize, usize)],
    ) -> Option<RowMap> {
        let width = self.heads.kv * self.heads.dim;
        let mut map = RowMap { rows: Vec::new(), tables: self.tables.to_vec() };
        let (mut k, mut v) = (Vec::new(), Vec::new());
        for (table, (values, &(from, to))) in values.iter().zip(spans).enumerate() {
            map.rows.extend((from..to).map(|p| RowAt { table, position: p as u32 }));
            k.extend(&values.k[from * width..to * width]);
            v.extend(&values.v[from * width..to * width]);
        }
        if !map.rows.is_empty() {
            let k = uploaded(checks, self.name, width, &k)?;
            let v = uploaded(checks, self.name, width, &v)?;
            checks.backend.kv_write(cache, &k, &v, &map);
        }
        Some(map)
    }

    /// The checked round: all rows at once, then split in two, then each row alone.
    fn attend<B: Backend>(
        &mut self,
        checks: &mut Checks<'_, B>,
        cache: &B::Kv,
        values: &[Values],
        map: &RowMap,
        want: &[f32],
    ) {
        let rows = map.rows.len();
        let alone = checks.level.pick(8, 40);
        let mut batches = vec![(0..rows).collect::<Vec<_>>(), (0..rows).rev().collect()];
        if rows > 1 {
            batches.extend([(0..rows / 2).collect(), (rows / 2..rows).collect()]);
        }
        batches.extend((0..rows).step_by(rows.div_ceil(alone)).map(|r| vec![r]));
        for batch in batches {
            if self.attend_batch(checks, cache, values, map, want, &batch).is_none() {
                return;
            }
        }
    }

    /// One check: attention of some rows of the round.
    fn attend_batch<B: Backend>(
        &self,
        checks: &mut Checks<'_, B>,
        cache: &B::Kv,
        values: &[Values],
        map: &RowMap,
        want: &[f32],
        batch: &[usize],
    ) -> Option<()> {
        let width = self.heads.query * self.heads.dim;
        let part = RowMap {
            rows: batch.iter().map(|&r| map.rows[r]).collect(),
            tables: map.tables.clone(),
        };
        let q: Vec<f32> = part
            .rows
            .iter()
            .flat_map(|at| &values[at.table].q[at.position as usize * width..][..width])
            .copied()
            .collect();
        let q = uploaded(checks, self.name, width, &q)?;
        let mut out = sized(checks, self.name, batch.len(), width)?;
        checks.backend.attention(&q, cache, &part, &mut out);
        let got = read_back(checks, &out, batch.len(), width);
        checks.compare(self.name, width, want, batch, &got);
        Some(())
    }
}

/// A buffer that holds exactly `data`.
fn uploaded<B: Backend>(
    checks: &mut Checks<'_, B>,
    case: &str,
    width: usize,
    data: &[f32],
) -> Option<B::Rows> {
    let made = checks.backend.rows(data.len() / width, width);
    let mut rows = checks.made(case, made)?;
    checks.backend.upload(data, &mut rows);
    Some(rows)
}

/// A poisoned buffer for `rows` rows and two more.
fn sized<B: Backend>(
    checks: &mut Checks<'_, B>,
    case: &str,
    rows: usize,
    width: usize,
) -> Option<B::Rows> {
    if rows <= checks.level.pool_rows() {
        return poisoned(checks, case, width);
    }
    uploaded(checks, case, width, &vec![super::input::POISON; (rows + 2) * width])
}
