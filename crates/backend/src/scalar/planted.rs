//! The ops as a given [`Defect`] has them; ops that it leaves alone are the reference's.

use std::ops::Range;

use arith::a16::{A16, Q_MAX, quantise_slice};
use arith::attention::{KvDtype, Partial, scale};
use arith::base::{Arith, CHUNK_KEYS, SLICE_VALUES, TILE_KEYS};
use arith::candidates::{are_few, pack};
use arith::exp::{sigmoid, silu};
use arith::float::{SPOILT, f16_to_f32, f32_to_f16, flush, fma, is_spoilt};
use arith::format::{Affine, Format, Matrix, read_float};
use arith::linear::{GROUPS, Groups, tree};
use arith::norm::LANES;

use super::{Defect, planted_a8};
use crate::{RowAt, RowMap};

/// What stands for one row of logits.
pub(super) fn candidates(
    defect: Option<Defect>,
    row: &[f32],
    first: u32,
    best: u32,
    to: &mut Vec<f32>,
) {
    let few = are_few(row.len(), best) && !row.iter().any(|x| x.is_nan());
    let mut ids: Vec<u32> = (0..row.len() as u32).collect();
    let value = |id: &u32| row[*id as usize] + 0.0;
    match defect {
        Some(Defect::LastOfEqual) if few && !is_spoilt(row) => {
            ids.sort_by(|a, b| value(b).total_cmp(&value(a)).then(b.cmp(a)));
        }
        Some(Defect::UnseenSpoilt) if few => {
            ids.sort_by(|a, b| value(b).total_cmp(&value(a)).then(a.cmp(b)));
        }
        Some(Defect::OwnIds) => return pack(row, 0, best, to),
        _ => return pack(row, first, best, to),
    }
    let best = ids.iter().take(best as usize);
    to.extend(best.flat_map(|id| [f32::from_bits(first + id), value(id)]));
}

/// Which row of how many an op computes.
#[derive(Clone, Copy)]
pub(super) struct Row {
    pub row: usize,
    pub rows: usize,
}

/// One row through a matrix.
pub(super) fn linear(
    arith: Arith,
    defect: Defect,
    (m, groups): &(Matrix<'_>, Groups),
    at: Row,
    x: &[f32],
    out: &mut [f32],
) {
    if defect == Defect::StaleRow && at.rows % 4 == 3 && at.row + 1 == at.rows {
        return;
    }
    let spoilt = match defect {
        Defect::HugeRow => x.iter().any(|x| !x.is_finite()),
        _ => is_spoilt(x),
    };
    if spoilt {
        return out.fill(SPOILT);
    }
    let one = quantise(defect, x);
    let two = planted_a8::quantise(defect, x);
    let add = |n: usize, slice: usize, values: Range<usize>, g: f32| match arith {
        _ if m.format.is_float() => g + slice_float(defect, m, n, values, x),
        Arith::One => fma(slice_block(defect, m, n, values, &one.q), one.d[slice], g),
        Arith::Two => planted_a8::add_slice(defect, m, n, values, &two, g),
    };
    for (n, out) in out.iter_mut().enumerate() {
        let sum = dot(defect, m.cols, groups, at, |slice, values, g| add(n, slice, values, g));
        let flushed = match groups.is_node() {
            true => defect == Defect::FlushedNode,
            false => defect != Defect::UnflushedLinear,
        };
        *out = if flushed { flush(sum) } else { sum };
    }
}

fn quantise(defect: Defect, x: &[f32]) -> A16 {
    let mut all = A16::default();
    for x in x.chunks(SLICE_VALUES) {
        let mut q = vec![0; x.len()];
        let d = quantise_slice(x, &mut q);
        if defect == Defect::TieAway && d > 0.0 {
            let amax = x.iter().fold(0.0f32, |m, x| m.max(x.abs()));
            let inv = f32::from(Q_MAX) / amax;
            q = x.iter().map(|x| (x * inv).round() as i16).collect();
        }
        all.q.extend(q);
        all.d.push(d);
    }
    all
}

/// Groups and tree over slices, `add` giving a group's next sum.
fn dot(
    defect: Defect,
    cols: usize,
    groups: &Groups,
    at: Row,
    add: impl Fn(usize, Range<usize>, f32) -> f32,
) -> f32 {
    let slices = cols.div_ceil(SLICE_VALUES);
    // The share as if it were a K of its own.
    let groups = if defect == Defect::OwnGroups { &Groups::of(cols) } else { groups };
    let mut g = [0.0; GROUPS];
    for (group, g) in g.iter_mut().enumerate() {
        for slice in groups.slices(group) {
            if defect == Defect::DroppedSlice && slice > 0 && slice + 1 == slices {
                continue;
            }
            let from = slice * SLICE_VALUES;
            *g = add(slice, from..cols.min(from + SLICE_VALUES), *g);
        }
    }
    let swapped = match defect {
        Defect::SwappedTree => true,
        Defect::BatchOrder => at.rows >= 8,
        _ => false,
    };
    if swapped {
        g = [g[0], g[2], g[1], g[3], g[4], g[6], g[5], g[7]];
    }
    tree(&g)
}

pub(super) fn multiply_add(defect: Defect, a: f32, b: f32, c: f32) -> f32 {
    if defect == Defect::UnfusedDot { a * b + c } else { fma(a, b, c) }
}

fn slice_float(defect: Defect, m: &Matrix<'_>, n: usize, values: Range<usize>, x: &[f32]) -> f32 {
    let row = m.row(n);
    values.fold(0.0, |acc, i| multiply_add(defect, read_float(m.format, row, i), x[i], acc))
}

fn slice_block(defect: Defect, m: &Matrix<'_>, n: usize, values: Range<usize>, q: &[i16]) -> f32 {
    let width = m.format.block_values();
    let mut w = vec![0; width];
    let (mut acc, mut apart) = (0.0, 0.0);
    for from in values.step_by(width) {
        let mut affine = m.read_block(m.row(n), from / width, &mut w);
        misread(defect, m, n, from / width, &mut w, &mut affine);
        let q = &q[from..from + width];
        let dot: i32 = w.iter().zip(q).map(|(&w, &q)| i32::from(w) * i32::from(q)).sum();
        let sum: i32 = q.iter().map(|&q| i32::from(q)).sum();
        acc = multiply_add(defect, dot as f32, affine.a, acc);
        if let Some(c) = affine.c {
            let to = if defect == Defect::OffsetsApart { &mut apart } else { &mut acc };
            *to = multiply_add(defect, sum as f32, c, *to);
        }
    }
    acc + apart
}

/// What the defect makes of a block that was read right.
pub(super) fn misread(
    defect: Defect,
    m: &Matrix<'_>,
    n: usize,
    block: usize,
    w: &mut [i16],
    affine: &mut Affine,
) {
    match (defect, m.format) {
        (Defect::SubnormalScale, _) if affine.a.abs() < f32::from_bits(0x3880_0000) => {
            affine.a = 0.0;
        }
        (Defect::NoZeroPoint, Format::Q4_0) => w.iter_mut().for_each(|w| *w += 8),
        (Defect::NoZeroPoint, Format::Q5_0) => w.iter_mut().for_each(|w| *w += 16),
        (Defect::NoZeroPoint, Format::Q6K) => w.iter_mut().for_each(|w| *w += 32),
        (Defect::NoFifthBit, Format::Q5_1 | Format::Q5K) => w.iter_mut().for_each(|w| *w &= 15),
        (Defect::UnsignedFactor, Format::Q6K) => {
            let unit = &m.row(n)[block / 16 * 210..][..210];
            let scale = f16_to_f32(u16::from_le_bytes([unit[208], unit[209]]));
            affine.a = scale * f32::from(unit[192 + block % 16]);
        }
        (Defect::SwappedAffine, Format::Mlx(_)) => {
            let c = affine.c.replace(affine.a);
            affine.a = c.unwrap_or(0.0);
        }
        (Defect::CutCode, Format::Mlx(mlx)) => {
            for (i, w) in w.iter_mut().enumerate() {
                *w &= 0xff >> (i * usize::from(mlx.bits) % 8);
            }
        }
        _ => {}
    }
}

/// One row through the norm.
pub(super) fn rms_norm(defect: Defect, x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    let n = x.len() as f32;
    if !matches!(defect, Defect::WrongFold | Defect::NormDivides) || is_spoilt(x) {
        return arith::norm::rms_norm(x, w, eps, out);
    }
    let mut lanes = [0.0; LANES];
    for (i, &x) in x.iter().enumerate() {
        lanes[i % LANES] = fma(x, x, lanes[i % LANES]);
    }
    let mean = if defect == Defect::WrongFold {
        let mut step = 1;
        while step < LANES {
            for j in (0..LANES).step_by(2 * step) {
                lanes[j] += lanes[j + step];
            }
            step *= 2;
        }
        fma(lanes[0], 1.0 / n, eps)
    } else {
        arith::norm::fold(lanes) / n + eps
    };
    let r = 1.0 / mean.sqrt();
    for ((out, x), w) in out.iter_mut().zip(x).zip(w) {
        *out = flush((x * r) * w);
    }
}

/// A key or value as the cache gives it back.
pub(super) fn store(defect: Option<Defect>, dtype: KvDtype, x: f32) -> f32 {
    match (defect, dtype) {
        (Some(Defect::SubnormalHalf), KvDtype::F16) if x.abs() < 6.1e-5 => {
            (x * 16_777_216.0).round_ties_even() / 16_777_216.0
        }
        (Some(Defect::InfiniteHalf), KvDtype::F16) if f32_to_f16(x) & 0x7fff == 0x7bff => {
            if x.abs() < 65520.0 { dtype.round(x) } else { x.signum() * f32::INFINITY }
        }
        _ => dtype.round(x),
    }
}

/// The page table of a row and how many keys it sees.
pub(super) fn visible(defect: Option<Defect>, map: &RowMap, at: RowAt) -> (&[u32], usize) {
    let table = if defect == Some(Defect::FirstTable) { 0 } else { at.table };
    let table = &map.tables[table];
    let visible = at.position as usize + 1;
    let seen = match defect {
        Some(Defect::StaleTail) => visible.next_multiple_of(TILE_KEYS),
        _ => visible,
    };
    (table, seen.min(table.len() * TILE_KEYS))
}

/// One query head over its keys.
pub(super) fn attend(defect: Defect, q: &[f32], k: &[f32], v: &[f32], out: &mut [f32]) {
    let dim = q.len();
    let (first, chunk) = match defect {
        Defect::NoChunks => (TILE_KEYS, usize::MAX),
        Defect::UnflushedTile => (TILE_KEYS, CHUNK_KEYS),
        Defect::ShiftedTiles => (TILE_KEYS / 2, CHUNK_KEYS),
        _ => return arith::attention::attend(q, k, v, dim, out),
    };
    let keys = k.len() / dim;
    let mut whole: Option<Partial> = None;
    let mut part: Option<Partial> = None;
    let mut from = 0;
    while from < keys {
        let to = keys.min(if from == 0 { first } else { from + TILE_KEYS });
        let (k, v) = (&k[from * dim..to * dim], &v[from * dim..to * dim]);
        let mut tile = Partial::tile(q, k, v, scale(dim));
        if defect == Defect::UnflushedTile {
            tile.o = unflushed(q, k, v, tile.m);
        }
        push(&mut part, tile);
        if to.is_multiple_of(chunk) || to == keys {
            push(&mut whole, part.take().unwrap_or_else(|| unreachable!("a tile was pushed")));
        }
        from = to;
    }
    if let Some(whole) = whole {
        whole.finish(out);
    }
}

/// The weighted sums of a tile whose largest score is `m`, as they are before the flush.
fn unflushed(q: &[f32], k: &[f32], v: &[f32], m: f32) -> Vec<f32> {
    let dim = q.len();
    let mut o = vec![0.0; dim];
    for (k, v) in k.chunks_exact(dim).zip(v.chunks_exact(dim)) {
        let s = q.iter().zip(k).fold(0.0, |s, (&q, &k)| fma(q, k, s)) * scale(dim);
        let p = arith::exp::exp(s - m);
        o.iter_mut().zip(v).for_each(|(o, &v)| *o = fma(p, v, *o));
    }
    o
}

fn push(sum: &mut Option<Partial>, next: Partial) {
    match sum {
        Some(sum) => sum.merge(&next),
        None => *sum = Some(next),
    }
}

/// The gate's activation.
pub(super) fn gate(defect: Option<Defect>, x: f32) -> f32 {
    match defect {
        Some(Defect::SiluTail) => x * sigmoid(x),
        Some(Defect::OtherExp) => {
            let x = f64::from(x);
            (x / (1.0 + (-x).exp())) as f32
        }
        _ => silu(x),
    }
}

/// An embedding row without its offsets.
pub(super) fn embed(m: &Matrix<'_>, id: usize, out: &mut [f32]) {
    if m.format.is_float() {
        return;
    }
    let mut w = vec![0; m.format.block_values()];
    for (block, out) in out.chunks_exact_mut(w.len()).enumerate() {
        let a = m.read_block(m.row(id), block, &mut w).a;
        for (out, w) in out.iter_mut().zip(&w) {
            *out = flush(f32::from(*w) * a);
        }
    }
}
