//! Norms of rows and of heads: RMSNorm, gated RMSNorm, L2 norm.

use arith::float::{SPOILT, flush};
use arith::gdn::L2_EPS;
use arith::norm::{LANES, fold};

use crate::Level;
use crate::pool::Pool;
use crate::quantise::is_spoilt;
use crate::rows::{Cells, Rows, for_rows};

pub(crate) fn rms_norm(
    pool: &Pool,
    level: Level,
    x: &Rows,
    w: &[f32],
    eps: f32,
    rows: usize,
    out: &mut Rows,
) {
    let width = x.width;
    assert!(w.len() == width && out.width == width, "{x:?} by {} weights to {out:?}", w.len());
    assert!(rows <= x.rows_max && rows <= out.rows_max, "{rows} rows of {x:?} to {out:?}");
    let cells = Cells::new(&mut out.data);
    for_rows(pool, rows, width, |r| {
        // SAFETY: one job has each row.
        norm_row(level, x.row(r), w, eps, unsafe { cells.slice(r * width, width) });
    });
}

/// One row of [`rms_norm`].
pub(crate) fn norm_row(level: Level, x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    match level {
        Level::Scalar => norm_f32_scalar(x, w, eps, out),
        #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
        // SAFETY: the level says that the CPU has the features.
        _ => unsafe { wide::norm_f32_vector(x, w, eps, out) },
    }
}

/// Norms every head of `w.len()` values in place.
pub(crate) fn head_norm(pool: &Pool, level: Level, x: &mut Rows, w: &[f32], eps: f32, rows: usize) {
    let width = x.width;
    assert!(rows <= x.rows_max && width.is_multiple_of(w.len()), "{} a head of {x:?}", w.len());
    let cells = Cells::new(&mut x.data);
    for_rows(pool, rows, width, |r| {
        // SAFETY: one job has each row.
        let row = unsafe { cells.slice(r * width, width) };
        for x in row.chunks_exact_mut(w.len()) {
            match level {
                Level::Scalar => head_norm_f32_scalar(x, w, eps),
                #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
                // SAFETY: the level says that the CPU has the features.
                _ => unsafe { wide::head_norm_f32_vector(x, w, eps) },
            }
        }
    });
}

/// Norms every head of `w.len()` values and multiplies by silu of the same place of `z`, in place.
pub(crate) fn gated_norm(
    pool: &Pool,
    level: Level,
    x: &mut Rows,
    w: &[f32],
    z: &Rows,
    eps: f32,
    rows: usize,
) {
    let width = x.width;
    assert!(z.width == width && width.is_multiple_of(w.len()), "{} a head of {x:?}", w.len());
    assert!(rows <= x.rows_max && rows <= z.rows_max, "{rows} rows of {x:?} by {z:?}");
    let cells = Cells::new(&mut x.data);
    for_rows(pool, rows, width, |r| {
        // SAFETY: one job has each row.
        let row = unsafe { cells.slice(r * width, width) };
        let heads = row.chunks_exact_mut(w.len());
        for (x, z) in heads.zip(z.row(r).chunks_exact(w.len())) {
            match level {
                Level::Scalar => gated_norm_f32_scalar(x, w, z, eps),
                #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
                // SAFETY: the level says that the CPU has the features.
                _ => unsafe { wide::gated_norm_f32_vector(x, w, z, eps) },
            }
        }
    });
}

/// Adds the squares of up to 32 values to their lanes.
#[inline(always)]
fn add_squares(x: &[f32], lanes: &mut [f32; LANES]) {
    for (lane, x) in lanes.iter_mut().zip(x) {
        *lane = x.mul_add(*x, *lane);
    }
}

fn squares_f32_scalar(x: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    for x in x.chunks(LANES) {
        add_squares(x, &mut lanes);
    }
    fold(lanes)
}

/// `1 / sqrt(fma(sum, 1/n, eps))`.
#[inline(always)]
fn reciprocal_root(sum: f32, n: usize, eps: f32) -> f32 {
    1.0 / sum.mul_add(1.0 / n as f32, eps).sqrt()
}

fn norm_f32_scalar(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
    if is_spoilt(x) {
        return out.fill(SPOILT);
    }
    let r = reciprocal_root(squares_f32_scalar(x), x.len(), eps);
    for ((out, x), w) in out.iter_mut().zip(x).zip(w) {
        *out = flush((x * r) * w);
    }
}

fn head_norm_f32_scalar(x: &mut [f32], w: &[f32], eps: f32) {
    if is_spoilt(x) {
        return x.fill(SPOILT);
    }
    let r = reciprocal_root(squares_f32_scalar(x), x.len(), eps);
    scale_by(x, r, w);
}

/// `x = z((x * r) * w)`.
#[inline(always)]
fn scale_by(x: &mut [f32], r: f32, w: &[f32]) {
    for (x, w) in x.iter_mut().zip(w) {
        *x = flush((*x * r) * w);
    }
}

fn gated_norm_f32_scalar(x: &mut [f32], w: &[f32], z: &[f32], eps: f32) {
    if is_spoilt(x) {
        return x.fill(SPOILT);
    }
    let r = reciprocal_root(squares_f32_scalar(x), x.len(), eps);
    for ((x, w), &z) in x.iter_mut().zip(w).zip(z) {
        *x = flush(((*x * r) * w) * arith::exp::silu(z));
    }
}

/// The factor of [`arith::gdn::l2_norm`] from the sum of squares.
#[inline(always)]
fn l2_factor(sum: f32) -> f32 {
    1.0 / (sum + L2_EPS).sqrt()
}

/// `x = z(x * r)`, with `scale` `x = z((x * r) * scale)`.
#[inline(always)]
fn l2_scale(x: &mut [f32], r: f32, scale: Option<f32>) {
    match scale {
        Some(scale) => x.iter_mut().for_each(|x| *x = flush((*x * r) * scale)),
        None => x.iter_mut().for_each(|x| *x = flush(*x * r)),
    }
}

/// [`arith::gdn::l2_norm`].
pub(crate) fn l2_norm_f32_scalar(x: &mut [f32], scale: Option<f32>) {
    if is_spoilt(x) {
        return x.fill(SPOILT);
    }
    l2_scale(x, l2_factor(squares_f32_scalar(x)), scale);
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
pub(crate) use wide::l2_norm_f32_vector;

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod wide {
    use super::*;
    use crate::lanes::*;
    use crate::vector;

    /// The sum of squares in 32 strided lanes.
    #[inline]
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
    fn squares_f32_vector(x: &[f32]) -> f32 {
        let mut acc = [zero(); 4];
        let whole = x.chunks_exact(LANES);
        let tail = whole.remainder();
        for x in whole {
            for (j, acc) in acc.iter_mut().enumerate() {
                // SAFETY: 8 of the chunk's 32 values.
                let x = unsafe { load(x.as_ptr().add(8 * j)) };
                *acc = fma(x, x, *acc);
            }
        }
        if !tail.is_empty() {
            let mut lanes = [0.0; LANES];
            for (j, acc) in acc.iter_mut().enumerate() {
                // SAFETY: 8 of 32 lanes.
                unsafe { store(lanes.as_mut_ptr().add(8 * j), *acc) };
            }
            add_squares(tail, &mut lanes);
            for (j, acc) in acc.iter_mut().enumerate() {
                // SAFETY: 8 of 32 lanes.
                *acc = unsafe { load(lanes.as_ptr().add(8 * j)) };
            }
        }
        vector::fold(acc)
    }

    /// # Safety
    /// The CPU has the features of [`crate::lanes`].
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
    pub(super) unsafe fn norm_f32_vector(x: &[f32], w: &[f32], eps: f32, out: &mut [f32]) {
        if is_spoilt(x) {
            return out.fill(SPOILT);
        }
        let r = reciprocal_root(squares_f32_vector(x), x.len(), eps);
        for ((out, x), w) in out.iter_mut().zip(x).zip(w) {
            *out = flush((x * r) * w);
        }
    }

    /// # Safety
    /// The CPU has the features of [`crate::lanes`].
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
    pub(super) unsafe fn head_norm_f32_vector(x: &mut [f32], w: &[f32], eps: f32) {
        if is_spoilt(x) {
            return x.fill(SPOILT);
        }
        let r = reciprocal_root(squares_f32_vector(x), x.len(), eps);
        scale_by(x, r, w);
    }

    /// # Safety
    /// The CPU has the features of [`crate::lanes`].
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
    pub(super) unsafe fn gated_norm_f32_vector(x: &mut [f32], w: &[f32], z: &[f32], eps: f32) {
        if is_spoilt(x) {
            return x.fill(SPOILT);
        }
        let r = reciprocal_root(squares_f32_vector(x), x.len(), eps);
        let n = x.len().min(w.len()).min(z.len());
        let whole = n / 8 * 8;
        for i in (0..whole).step_by(8) {
            // SAFETY: eight values of each from `i` on.
            unsafe {
                let at = x.as_mut_ptr().add(i);
                let y = mul(load(at), splat(r));
                let y = mul(y, load(w.as_ptr().add(i)));
                let z = vector::silu(load(z.as_ptr().add(i)));
                store(at, vector::flush(mul(y, z)));
            }
        }
        for i in whole..n {
            x[i] = flush(((x[i] * r) * w[i]) * arith::exp::silu(z[i]));
        }
    }

    /// [`arith::gdn::l2_norm`].
    ///
    /// # Safety
    /// The CPU has the features of [`crate::lanes`].
    #[inline]
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
    pub(crate) unsafe fn l2_norm_f32_vector(x: &mut [f32], scale: Option<f32>) {
        if is_spoilt(x) {
            return x.fill(SPOILT);
        }
        l2_scale(x, l2_factor(squares_f32_vector(x)), scale);
    }
}
