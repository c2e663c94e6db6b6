//! The delta rule for AVX-512: sixteen value columns a vector and all lanes of the sums over a
//! key's dims at once, so that S is walked as it lies in memory.
//!
//! A row alone reads S once and writes it once, and asks for the next strip while it writes. A
//! state that goes to another place is written past the caches: the weights of a step would have
//! it out of them before it is read again, and a write that misses them reads the line first.
#![allow(
    clippy::needless_range_loop,
    reason = "lanes and vectors index several arrays at once, with constant bounds"
)]

use std::arch::x86_64::*;

use arith::gdn::KEY_LANES;

use crate::gdn::{Step, Strip};
use crate::gdn_vector::delta_f32_vector;
use crate::vector_avx512::flush;

/// Columns of a vector.
const LANES: usize = 16;

/// N vectors of columns, one a lane of sums over the dims of a key.
type Sums<const N: usize> = [[__m512; N]; KEY_LANES];

/// [`arith::gdn::step`] of every row of a strip.
///
/// # Safety
/// The CPU has the features; no other thread may have the strip.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
pub(crate) unsafe fn delta_f32_avx512(strip: &Strip<'_>, tile: &mut [f32]) {
    let mut left = strip.columns.clone();
    while !left.is_empty() {
        let part = |n: usize| Strip { columns: left.start..left.start + n, ..strip.clone() };
        // SAFETY: parts of the strip, one after the other.
        let done = unsafe {
            match (left.len() / LANES, strip.walk.rows.len()) {
                (0, _) | (_, 0) => {
                    delta_f32_vector(&part(left.len()), tile);
                    left.len()
                }
                (1, _) => columns::<1>(&part(LANES), tile),
                (4.., 1) => columns::<4>(&part(4 * LANES), tile),
                _ => columns::<2>(&part(2 * LANES), tile),
            }
        };
        left.start += done;
    }
    // What went past the caches is there for whoever waits for the job.
    _mm_sfence();
}

/// All rows of `16 N` columns; gives the columns done. Between two rows S stays in `tile`, and one
/// pass over it ends a row and begins the next.
///
/// # Safety
/// No other thread may have the strip; it has `16 N` columns and a row.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn columns<const N: usize>(strip: &Strip<'_>, tile: &mut [f32]) -> usize {
    let width = const { LANES * N };
    let (dims, stride, rows) = (strip.shape.key_dim, strip.shape.value_dim, &strip.walk.rows);
    assert!(strip.columns.len() == width && !rows.is_empty());
    assert!(tile.len() >= dims * width && dims.is_multiple_of(KEY_LANES));
    let span = (dims - 1) * stride + width;
    let to = strip.s.pointer(strip.at(strip.walk.to), span);
    let tile = tile.as_mut_ptr();
    let (from, from_stride) = match strip.walk.from {
        Some(from) => (strip.s.pointer(strip.at(from), span).cast_const(), stride),
        None => {
            // SAFETY: `dims` rows of `16 N` values.
            unsafe { tile.write_bytes(0, dims * width) };
            (tile.cast_const(), width)
        }
    };
    let lines = to.addr().is_multiple_of(64) && (stride * 4).is_multiple_of(64);
    let past_caches = lines && strip.walk.from != Some(strip.walk.to);
    // The strip beside this one, or the first of the next head: whose turn is next.
    let next = from.wrapping_add(match strip.columns.end < stride {
        true => width,
        false => dims * stride - strip.columns.start,
    });
    let mut step = strip.step(rows.start);
    // SAFETY: `span` values from `from` and `to` on, and the tile, are the strip's own.
    unsafe {
        let mut m = begin::<N>(&step, (from, from_stride), tile);
        for r in rows.clone() {
            let delta = delta::<N>(&step, &m);
            let y;
            if r + 1 < rows.end {
                let next = strip.step(r + 1);
                (y, m) = turn::<N>(&step, &next, &delta, tile);
                step = next;
            } else if past_caches {
                y = end::<N, true>(&step, &delta, tile, (to, stride), next);
            } else {
                y = end::<N, false>(&step, &delta, tile, (to, stride), next);
            }
            let out = strip.out(r);
            for (j, y) in fold(&y).into_iter().enumerate() {
                _mm512_storeu_ps(out.as_mut_ptr().add(LANES * j), flush(y));
            }
        }
    }
    width
}

/// Folds four lanes by 2, then 1.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn fold<const N: usize>(sums: &Sums<N>) -> [__m512; N] {
    let mut folded = sums[0];
    for j in 0..N {
        let (a, b) = (_mm512_add_ps(sums[0][j], sums[2][j]), _mm512_add_ps(sums[1][j], sums[3][j]));
        folded[j] = _mm512_add_ps(a, b);
    }
    folded
}

/// `z(beta * (value - m))`.
///
/// # Safety
/// The step has `16 N` values.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn delta<const N: usize>(step: &Step<'_>, m: &Sums<N>) -> [__m512; N] {
    let (mut deltas, beta) = (fold(m), _mm512_set1_ps(step.gates.beta));
    for (j, delta) in deltas.iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        let value = unsafe { _mm512_loadu_ps(step.value.as_ptr().add(LANES * j)) };
        *delta = flush(_mm512_mul_ps(beta, _mm512_sub_ps(value, *delta)));
    }
    deltas
}

/// The first row's decay, from `from` to `tile`, and its m.
///
/// # Safety
/// `from` has a row of `16 N` values each `stride` for every dim of the key, and `tile` dense ones.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn begin<const N: usize>(
    step: &Step<'_>,
    (from, stride): (*const f32, usize),
    tile: *mut f32,
) -> Sums<N> {
    let decay = _mm512_set1_ps(step.gates.decay);
    let mut m = [[_mm512_setzero_ps(); N]; KEY_LANES];
    for k in (0..step.key.len()).step_by(KEY_LANES) {
        for lane in 0..KEY_LANES {
            // SAFETY: the caller's promise.
            unsafe {
                let x = _mm512_set1_ps(*step.key.as_ptr().add(k + lane));
                for j in 0..N {
                    let s = _mm512_loadu_ps(from.add((k + lane) * stride + LANES * j));
                    let s = flush(_mm512_mul_ps(s, decay));
                    _mm512_storeu_ps(tile.add(((k + lane) * N + j) * LANES), s);
                    m[lane][j] = _mm512_fmadd_ps(s, x, m[lane][j]);
                }
            }
        }
    }
    m
}

/// A row's update and read, then the next one's decay and m.
///
/// # Safety
/// `tile` has a row of `16 N` values for every dim of the key.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn turn<const N: usize>(
    step: &Step<'_>,
    next: &Step<'_>,
    delta: &[__m512; N],
    tile: *mut f32,
) -> (Sums<N>, Sums<N>) {
    let decay = _mm512_set1_ps(next.gates.decay);
    let mut y = [[_mm512_setzero_ps(); N]; KEY_LANES];
    let mut m = y;
    for k in (0..step.key.len()).step_by(KEY_LANES) {
        for lane in 0..KEY_LANES {
            // SAFETY: the caller's promise; queries and keys have one length.
            unsafe {
                let key = _mm512_set1_ps(*step.key.as_ptr().add(k + lane));
                let query = _mm512_set1_ps(*step.query.as_ptr().add(k + lane));
                let after = _mm512_set1_ps(*next.key.as_ptr().add(k + lane));
                for j in 0..N {
                    let at = tile.add(((k + lane) * N + j) * LANES);
                    let s = flush(_mm512_fmadd_ps(key, delta[j], _mm512_loadu_ps(at)));
                    y[lane][j] = _mm512_fmadd_ps(s, query, y[lane][j]);
                    let s = flush(_mm512_mul_ps(s, decay));
                    m[lane][j] = _mm512_fmadd_ps(s, after, m[lane][j]);
                    _mm512_storeu_ps(at, s);
                }
            }
        }
    }
    (y, m)
}

/// The last row's update, from `tile` to `to`, and read. Asks for as much from `next` on.
///
/// # Safety
/// `to` has a row of `16 N` values each `stride` for every dim of the key, and `tile` dense ones;
/// where they go past the caches they fill whole lines.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn end<const N: usize, const PAST_CACHES: bool>(
    step: &Step<'_>,
    delta: &[__m512; N],
    tile: *const f32,
    (to, stride): (*mut f32, usize),
    next: *const f32,
) -> Sums<N> {
    let mut y = [[_mm512_setzero_ps(); N]; KEY_LANES];
    for k in (0..step.key.len()).step_by(KEY_LANES) {
        for lane in 0..KEY_LANES {
            // SAFETY: the caller's promise; queries and keys have one length, and a prefetch of
            // any address is harmless.
            unsafe {
                let key = _mm512_set1_ps(*step.key.as_ptr().add(k + lane));
                let query = _mm512_set1_ps(*step.query.as_ptr().add(k + lane));
                for j in 0..N {
                    let place = (k + lane) * stride + LANES * j;
                    _mm_prefetch::<_MM_HINT_T1>(next.wrapping_add(place).cast());
                    let s = _mm512_loadu_ps(tile.add(((k + lane) * N + j) * LANES));
                    let s = flush(_mm512_fmadd_ps(key, delta[j], s));
                    match PAST_CACHES {
                        true => _mm512_stream_ps(to.add(place), s),
                        false => _mm512_storeu_ps(to.add(place), s),
                    }
                    y[lane][j] = _mm512_fmadd_ps(s, query, y[lane][j]);
                }
            }
        }
    }
    y
}
