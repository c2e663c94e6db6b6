//! Gated DeltaNet kernels: eight channels, heads or value columns a vector.

use arith::gdn::KEY_LANES;

use crate::gdn::{Heads, Step, Strip};
use crate::gdn_scalar;
use crate::lanes::*;
use crate::vector::{exp, flush, sigmoid, silu, softplus};

/// Rows of S that are asked of memory before their turn.
const AHEAD: usize = 32;

/// The taps of [`arith::gdn::convolve`], then silu, flushed.
///
/// # Safety
/// The CPU has the features of [`crate::lanes`].
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) unsafe fn convolve_f32_vector(taps: &[&[f32]], rows: &[&[f32]], out: &mut [f32]) {
    let n = out.len();
    assert!(taps.iter().chain(rows).all(|each| each.len() == n) && taps.len() == rows.len());
    let whole = n / 8 * 8;
    for c in (0..whole).step_by(8) {
        // SAFETY: eight of the `n` values of each from `c` on.
        unsafe {
            let mut sum = zero();
            for (taps, row) in taps.iter().zip(rows) {
                let tap = load(taps.as_ptr().add(c));
                sum = fma(tap, load(row.as_ptr().add(c)), sum);
            }
            store(out.as_mut_ptr().add(c), flush(silu(sum)));
        }
    }
    for c in whole..n {
        let each = taps.iter().zip(rows);
        let sum = each.fold(0.0, |sum, (taps, row)| taps[c].mul_add(row[c], sum));
        out[c] = arith::float::flush(arith::exp::silu(sum));
    }
}

/// [`arith::gdn::beta`] and [`arith::gdn::decay`] of every head.
///
/// # Safety
/// The CPU has the features of [`crate::lanes`].
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) unsafe fn gates_f32_vector(heads: Heads<'_>, beta: &mut [f32], decay: &mut [f32]) {
    let eight = |from: &[f32], at: usize| {
        let mut values = [0.0; 8];
        let from = &from[at..from.len().min(at + 8)];
        values[..from.len()].copy_from_slice(from);
        // SAFETY: eight values.
        unsafe { load(values.as_ptr()) }
    };
    for (i, (beta, decay)) in beta.chunks_mut(8).zip(decay.chunks_mut(8)).enumerate() {
        let at = 8 * i;
        let taken = flush(sigmoid(eight(heads.b, at)));
        let step = softplus(add(eight(heads.a, at), eight(heads.dt_bias, at)));
        let kept = flush(exp(negate(mul(eight(heads.amplitude, at), step))));
        for (to, from) in [(beta, taken), (decay, kept)] {
            let mut values = [0.0; 8];
            // SAFETY: eight values.
            unsafe { store(values.as_mut_ptr(), from) };
            to.copy_from_slice(&values[..to.len()]);
        }
    }
}

/// [`arith::gdn::step`] of every row of a strip.
///
/// # Safety
/// No other thread may have the strip.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) unsafe fn delta_f32_vector(strip: &Strip<'_>, tile: &mut [f32]) {
    let mut left = strip.columns.clone();
    while !left.is_empty() {
        let part = |n: usize| Strip { columns: left.start..left.start + n, ..strip.clone() };
        // SAFETY: parts of the strip, one after the other.
        let done = unsafe {
            match left.len() {
                rest if rest < 8 || strip.walk.rows.is_empty() => {
                    gdn_scalar::delta_f32_scalar(&part(rest), tile);
                    rest
                }
                ..16 => columns::<1>(&part(8), tile),
                16..32 => columns::<2>(&part(16), tile),
                _ => columns::<4>(&part(32), tile),
            }
        };
        left.start += done;
    }
}

/// N vectors of columns, one a lane of sums over the dims of a key.
type Sums<const N: usize> = [[F32s; N]; KEY_LANES];

/// All rows of 8 N columns; gives the columns done. Between two rows S stays in `tile`, and one
/// pass over it ends a row and begins the next.
///
/// # Safety
/// No other thread may have the strip; it has 8 N columns and a row.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
unsafe fn columns<const N: usize>(strip: &Strip<'_>, tile: &mut [f32]) -> usize {
    let (dims, stride, rows) = (strip.shape.key_dim, strip.shape.value_dim, &strip.walk.rows);
    assert!(strip.columns.len() == 8 * N && !rows.is_empty());
    assert!(tile.len() >= dims * 8 * N && dims.is_multiple_of(KEY_LANES));
    let span = (dims - 1) * stride + 8 * N;
    let to = strip.s.pointer(strip.at(strip.walk.to), span);
    let tile = tile.as_mut_ptr();
    let (from, from_stride) = match strip.walk.from {
        Some(from) => (strip.s.pointer(strip.at(from), span).cast_const(), stride),
        None => {
            // SAFETY: `dims` rows of 8 N values.
            unsafe { tile.write_bytes(0, dims * 8 * N) };
            (tile.cast_const(), 8 * N)
        }
    };
    let mut step = strip.step(rows.start);
    // SAFETY: `span` values from `from` and `to` on, and the tile, are the strip's own.
    unsafe {
        let mut m = begin::<N>(&step, from, from_stride, tile);
        for r in rows.clone() {
            let delta = delta::<N>(&step, &m);
            let y;
            if r + 1 < rows.end {
                let next = strip.step(r + 1);
                (y, m) = turn::<N>(&step, &next, &delta, tile);
                step = next;
            } else {
                y = end::<N>(&step, &delta, tile, to, stride);
            }
            let out = strip.out(r);
            for (j, &y) in fold(&y).iter().enumerate() {
                store(out.as_mut_ptr().add(8 * j), flush(y));
            }
        }
    }
    8 * N
}

/// Folds four lanes by 2, then 1.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
fn fold<const N: usize>(sums: &Sums<N>) -> [F32s; N] {
    std::array::from_fn(|j| {
        let a = add(sums[0][j], sums[2][j]);
        add(a, add(sums[1][j], sums[3][j]))
    })
}

/// `z(beta * (value - m))`.
///
/// # Safety
/// The step has 8 N values.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
unsafe fn delta<const N: usize>(step: &Step<'_>, m: &Sums<N>) -> [F32s; N] {
    let (m, beta) = (fold(m), splat(step.gates.beta));
    std::array::from_fn(|j| {
        // SAFETY: the caller's promise.
        let value = unsafe { load(step.value.as_ptr().add(8 * j)) };
        flush(mul(beta, sub(value, m[j])))
    })
}

/// The first row's decay, from `from` to `tile`, and its m.
///
/// # Safety
/// `from` has a row of 8 N values each `stride` for every dim of the key, and `tile` dense ones.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
unsafe fn begin<const N: usize>(
    step: &Step<'_>,
    from: *const f32,
    stride: usize,
    tile: *mut f32,
) -> Sums<N> {
    let decay = splat(step.gates.decay);
    let ahead = AHEAD * stride;
    let mut sums = [[zero(); N]; KEY_LANES];
    for (lane, sums) in sums.iter_mut().enumerate() {
        let mut m = [zero(); N];
        // SAFETY: the caller's promise; a prefetch may go past the end.
        unsafe {
            let (mut key, mut from) = (step.key.as_ptr().add(lane), from.add(lane * stride));
            let mut tile = tile.add(lane * 8 * N);
            for _ in 0..step.key.len() / KEY_LANES {
                for line in 0..N.div_ceil(2) {
                    prefetch(from.wrapping_add(ahead + 16 * line));
                }
                let x = splat(*key);
                for (j, m) in m.iter_mut().enumerate() {
                    let s = flush(mul(load(from.add(8 * j)), decay));
                    store(tile.add(8 * j), s);
                    *m = fma(s, x, *m);
                }
                key = key.wrapping_add(KEY_LANES);
                from = from.wrapping_add(KEY_LANES * stride);
                tile = tile.wrapping_add(KEY_LANES * 8 * N);
            }
        }
        *sums = m;
    }
    sums
}

/// A row's update and read, then the next one's decay and m.
///
/// # Safety
/// `tile` has a row of 8 N values for every dim of the key.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
unsafe fn turn<const N: usize>(
    step: &Step<'_>,
    next: &Step<'_>,
    delta: &[F32s; N],
    tile: *mut f32,
) -> (Sums<N>, Sums<N>) {
    let decay = splat(next.gates.decay);
    let mut ys = [[zero(); N]; KEY_LANES];
    let mut ms = ys;
    for (lane, (ys, ms)) in ys.iter_mut().zip(&mut ms).enumerate() {
        let (mut y, mut m) = ([zero(); N], [zero(); N]);
        // SAFETY: the caller's promise; queries and keys have one length.
        unsafe {
            let (mut key, mut query) = (step.key.as_ptr().add(lane), step.query.as_ptr().add(lane));
            let mut after = next.key.as_ptr().add(lane);
            let mut tile = tile.add(lane * 8 * N);
            for _ in 0..step.key.len() / KEY_LANES {
                let (k, q) = (splat(*key), splat(*query));
                let n = splat(*after);
                for j in 0..N {
                    let at = tile.add(8 * j);
                    let s = flush(fma(k, delta[j], load(at)));
                    y[j] = fma(s, q, y[j]);
                    let s = flush(mul(s, decay));
                    m[j] = fma(s, n, m[j]);
                    store(at, s);
                }
                key = key.wrapping_add(KEY_LANES);
                query = query.wrapping_add(KEY_LANES);
                after = after.wrapping_add(KEY_LANES);
                tile = tile.wrapping_add(KEY_LANES * 8 * N);
            }
        }
        (*ys, *ms) = (y, m);
    }
    (ys, ms)
}

/// The last row's update, from `tile` to `to`, and read.
///
/// # Safety
/// `to` has a row of 8 N values each `stride` for every dim of the key, and `tile` dense ones.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
unsafe fn end<const N: usize>(
    step: &Step<'_>,
    delta: &[F32s; N],
    tile: *const f32,
    to: *mut f32,
    stride: usize,
) -> Sums<N> {
    let mut sums = [[zero(); N]; KEY_LANES];
    for (lane, sums) in sums.iter_mut().enumerate() {
        let mut y = [zero(); N];
        // SAFETY: the caller's promise; queries and keys have one length.
        unsafe {
            let (mut key, mut query) = (step.key.as_ptr().add(lane), step.query.as_ptr().add(lane));
            let (mut tile, mut to) = (tile.add(lane * 8 * N), to.add(lane * stride));
            for _ in 0..step.key.len() / KEY_LANES {
                let (k, q) = (splat(*key), splat(*query));
                for j in 0..N {
                    let s = load(tile.add(8 * j));
                    let s = flush(fma(k, delta[j], s));
                    store(to.add(8 * j), s);
                    y[j] = fma(s, q, y[j]);
                }
                key = key.wrapping_add(KEY_LANES);
                query = query.wrapping_add(KEY_LANES);
                tile = tile.wrapping_add(KEY_LANES * 8 * N);
                to = to.wrapping_add(KEY_LANES * stride);
            }
        }
        *sums = y;
    }
    sums
}
