//! The cache and attention over it.

use std::sync::Arc;

use arith::attention::{Heads, KvDtype, attend};
use backend::{Backend, RowAt, RowMap};

use crate::{Random, assert_same, backends, download, upload};

/// A stream: its keys and values `[length, kv heads * dim]` and the pages that hold them.
struct Stream {
    k: Vec<f32>,
    v: Vec<f32>,
    table: Arc<[u32]>,
}

fn streams(random: &mut Random, heads: Heads, lengths: &[usize]) -> (Vec<Stream>, usize) {
    let width = heads.kv * heads.dim;
    let pages: usize = lengths.iter().map(|n| n.div_ceil(64)).sum();
    let mut free: Vec<u32> = (0..pages as u32).collect();
    let mut stream = |&n: &usize| {
        let table = (0..n.div_ceil(64)).map(|_| free.swap_remove(random.below(free.len())));
        let table: Vec<u32> = table.collect();
        let mut k = random.values(n * width, 3.0);
        // Values that saturate, vanish and round up to the least normal f16.
        k[0] = 1e6;
        k[1] = -1e-6;
        k[2] = 2.0_f32.powi(-14) - 2.0_f32.powi(-26);
        let mut v = random.values(n * width, 3.0);
        // Dims so small that the sums of some tiles flush and those of others don't.
        v.iter_mut().skip(4).step_by(5).for_each(|v| *v *= 2.0_f32.powi(-35));
        v[..4].copy_from_slice(&[-1e6, 65519.0, 3e-5, 2.0_f32.powi(-14) - 2.0_f32.powi(-25)]);
        Stream { k, v, table: table.into() }
    };
    (lengths.iter().map(&mut stream).collect(), pages)
}

/// What the reference gives for a row at `position`.
fn expected(s: &Stream, heads: Heads, dtype: KvDtype, q: &[f32], position: usize) -> Vec<f32> {
    let Heads { query, kv, dim } = heads;
    let mut out = vec![0.0; query * dim];
    let head = |all: &[f32], head: usize| -> Vec<f32> {
        let rows = all.chunks_exact(kv * dim).take(position + 1);
        let values = rows.flat_map(|row| row[head * dim..(head + 1) * dim].iter());
        values.map(|&x| dtype.round(x)).collect()
    };
    for h in 0..query {
        let (k, v) = (head(&s.k, h / (query / kv)), head(&s.v, h / (query / kv)));
        let part = h * dim..(h + 1) * dim;
        attend(&q[part.clone()], &k, &v, dim, &mut out[part]);
    }
    out
}

/// Writes whole streams in rounds of `cut` rows each, then asks for attention of some positions.
fn check(heads: Heads, lengths: &[usize], cut: usize, seed: u64) {
    let mut random = Random(seed);
    let (streams, pages) = streams(&mut random, heads, lengths);
    let tables: Vec<_> = streams.iter().map(|s| Arc::clone(&s.table)).collect();
    let all = lengths
        .iter()
        .enumerate()
        .flat_map(|(table, &n)| (0..n as u32).map(move |position| RowAt { table, position }));
    let all: Vec<_> = all.collect();
    let mut asked: Vec<RowAt> = lengths
        .iter()
        .enumerate()
        .map(|(table, &n)| RowAt { table, position: n as u32 - 1 })
        .collect();
    asked.extend((0..30).map(|_| all[random.below(all.len())]));
    asked.extend(&all[all.len() - 11.min(all.len())..]);
    let (kv_width, q_width) = (heads.kv * heads.dim, heads.query * heads.dim);
    let q = random.values(asked.len() * q_width, 2.0);
    for dtype in [KvDtype::F16, KvDtype::F32] {
        let rows = asked.iter().zip(q.chunks_exact(q_width));
        let expected: Vec<f32> = rows
            .flat_map(|(at, q)| expected(&streams[at.table], heads, dtype, q, at.position as usize))
            .collect();
        for (name, cpu) in backends() {
            let case = format!("{name}: {heads:?} {dtype:?} {lengths:?} by {cut}");
            let mut kv = cpu.kv(dtype, pages, heads).unwrap();
            for rows in all.chunks(cut) {
                let map = RowMap { rows: rows.to_vec(), tables: tables.clone() };
                let gather = |of: fn(&Stream) -> &Vec<f32>| -> Vec<f32> {
                    let row = |at: &RowAt| {
                        let from = at.position as usize * kv_width;
                        of(&streams[at.table])[from..from + kv_width].to_vec()
                    };
                    rows.iter().flat_map(row).collect()
                };
                let k = upload(&cpu, &gather(|s| &s.k), kv_width);
                let v = upload(&cpu, &gather(|s| &s.v), kv_width);
                cpu.kv_write(&mut kv, &k, &v, &map);
            }
            let map = RowMap { rows: asked.clone(), tables: tables.clone() };
            let q = upload(&cpu, &q, q_width);
            let mut out = cpu.rows(asked.len(), q_width).unwrap();
            cpu.attention(&q, &kv, &map, &mut out);
            assert_same(&download(&cpu, &out, expected.len()), &expected, &case);
        }
    }
}

#[test]
fn attention_equals_the_reference_for_every_head_shape() {
    for (query, kv, dim) in
        [(9, 3, 64), (2, 2, 32), (4, 1, 40), (2, 1, 128), (3, 3, 12), (2, 1, 96)]
    {
        check(Heads { query, kv, dim }, &[70, 1, 9], 50, 21);
    }
}

#[test]
fn attention_equals_the_reference_at_the_edges_of_tiles_and_chunks() {
    let heads = Heads { query: 2, kv: 1, dim: 16 };
    for n in [1, 2, 31, 32, 33, 63, 64, 65, 128, 511, 512, 513, 577, 1024, 1100] {
        check(heads, &[n], 300, 22);
    }
}

#[test]
fn attention_does_not_depend_on_how_the_cache_was_filled() {
    let heads = Heads { query: 6, kv: 2, dim: 24 };
    for cut in [1, 7, 64, 1000] {
        check(heads, &[130, 65], cut, 23);
    }
}

#[test]
fn a_row_never_reads_what_a_later_row_of_its_round_wrote() {
    let heads = Heads { query: 4, kv: 2, dim: 32 };
    let (q_width, kv_width, rows) = (4 * 32, 2 * 32, 70);
    let mut random = Random(24);
    let (q, mut k) = (random.values(rows * q_width, 2.0), random.values(rows * kv_width, 3.0));
    let mut v = random.values(rows * kv_width, 3.0);
    let good = rows - 1;
    k[good * kv_width..].fill(f32::NAN);
    v[good * kv_width..].fill(f32::NAN);
    let stream = Stream { k, v, table: vec![1, 0].into() };
    let map = RowMap {
        rows: (0..rows as u32).map(|position| RowAt { table: 0, position }).collect(),
        tables: vec![Arc::clone(&stream.table)],
    };
    for dtype in [KvDtype::F16, KvDtype::F32] {
        let each = q.chunks_exact(q_width).take(good).enumerate();
        let expected: Vec<f32> =
            each.flat_map(|(at, q)| expected(&stream, heads, dtype, q, at)).collect();
        for (name, cpu) in backends() {
            let mut kv = cpu.kv(dtype, 2, heads).unwrap();
            let k = upload(&cpu, &stream.k, kv_width);
            let v = upload(&cpu, &stream.v, kv_width);
            cpu.kv_write(&mut kv, &k, &v, &map);
            let q = upload(&cpu, &q, q_width);
            let mut out = cpu.rows(rows, q_width).unwrap();
            cpu.attention(&q, &kv, &map, &mut out);
            let found = download(&cpu, &out, rows * q_width);
            let (found, last) = found.split_at(good * q_width);
            assert_same(found, &expected, &format!("{name}: {dtype:?}"));
            assert!(last.iter().all(|x| x.is_nan()), "{name}: {dtype:?}");
        }
    }
}
