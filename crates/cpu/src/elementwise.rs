//! Ops that take each value by itself, or a pair: rotation, gates, sum, lookup.
//!
//! Bodies without order over values are written once and compiled twice: every step is correctly
//! rounded, so a wider vector changes no bit.

use arith::float::flush;
use arith::rope::{Pairing, RopeRows};

use crate::Level;
use crate::pack::Linear;
use crate::pool::Pool;
use crate::rows::{Cells, Rows, for_rows};

/// Row `row` of a job's output.
///
/// # Safety
/// No other thread may hold the row.
unsafe fn row_of<'a>(cells: &Cells<'a, f32>, row: usize, width: usize) -> &'a mut [f32] {
    // SAFETY: rows are disjoint; the rest is the caller's promise.
    unsafe { cells.slice(row * width, width) }
}

pub(crate) fn rope(
    pool: &Pool,
    level: Level,
    x: &mut Rows,
    heads: usize,
    dim: usize,
    pairing: Pairing,
    rope: &RopeRows,
) {
    let (width, rows) = (x.width, rope.rows());
    assert!(heads * dim == width && rows <= x.rows_max, "{rows} rows, {heads} x {dim} of {x:?}");
    assert!(rope.dims <= dim && rope.sin.len() == rope.cos.len());
    let cells = Cells::new(&mut x.data);
    for_rows(pool, rows, width, |r| {
        let pairs = rope.dims / 2;
        let (cos, sin) = (&rope.cos[r * pairs..][..pairs], &rope.sin[r * pairs..][..pairs]);
        // SAFETY: one job has each row; the level says that the CPU has the features.
        unsafe {
            let row = row_of(&cells, r, width);
            match level {
                Level::Scalar => rotate(row, dim, pairing, cos, sin),
                #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
                _ => wide::rotate_f32_vector(row, dim, pairing, cos, sin),
            }
        }
    });
}

/// [`arith::rope::rotate`] for one row.
#[inline(always)]
fn rotate(row: &mut [f32], dim: usize, pairing: Pairing, cos: &[f32], sin: &[f32]) {
    let turn = |a: &mut f32, b: &mut f32, cos: f32, sin: f32| {
        let (x, y) = (*a, *b);
        *a = flush(x.mul_add(cos, -(y * sin)));
        *b = flush(y.mul_add(cos, x * sin));
    };
    for head in row.chunks_exact_mut(dim) {
        let head = &mut head[..2 * cos.len()];
        let angles = cos.iter().zip(sin);
        match pairing {
            Pairing::Adjacent => {
                for (pair, (&cos, &sin)) in head.chunks_exact_mut(2).zip(angles) {
                    let (a, b) = pair.split_at_mut(1);
                    turn(&mut a[0], &mut b[0], cos, sin);
                }
            }
            Pairing::Halves => {
                let (a, b) = head.split_at_mut(cos.len());
                for ((a, b), (&cos, &sin)) in a.iter_mut().zip(b).zip(angles) {
                    turn(a, b, cos, sin);
                }
            }
        }
    }
}

pub(crate) fn silu_mul(
    pool: &Pool,
    level: Level,
    gate: &Rows,
    up: &Rows,
    rows: usize,
    out: &mut Rows,
) {
    let width = gate.width;
    assert!(up.width == width && out.width == width, "{gate:?} by {up:?} to {out:?}");
    assert!(rows <= gate.rows_max && rows <= up.rows_max && rows <= out.rows_max);
    let cells = Cells::new(&mut out.data);
    for_rows(pool, rows, width, |r| {
        // SAFETY: one job has each row.
        let out = unsafe { row_of(&cells, r, width) };
        silu_mul_values(level, gate.row(r), up.row(r), out);
    });
}

/// Some values of a row of [`silu_mul`].
pub(crate) fn silu_mul_values(level: Level, gate: &[f32], up: &[f32], out: &mut [f32]) {
    // SAFETY: the level says that the CPU has the features.
    unsafe {
        match level {
            Level::Scalar => silu_mul_f32_scalar(gate, up, out),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512 => silu_mul_f32_avx512(gate, up, out),
            #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
            _ => wide::silu_mul_f32_vector(gate, up, out),
        }
    }
}

/// Sixteen values a step, the last step by mask.
///
/// # Safety
/// The CPU has the features.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn silu_mul_f32_avx512(gate: &[f32], up: &[f32], out: &mut [f32]) {
    use std::arch::x86_64::*;

    use crate::vector_avx512::{flush, silu};

    let n = gate.len().min(up.len()).min(out.len());
    for at in (0..n).step_by(16) {
        let lanes = u16::MAX >> 16_usize.saturating_sub(n - at);
        // SAFETY: the mask holds for no more values than there are from `at` on.
        unsafe {
            let gate = _mm512_maskz_loadu_ps(lanes, gate.as_ptr().add(at));
            let up = _mm512_maskz_loadu_ps(lanes, up.as_ptr().add(at));
            let y = flush(_mm512_mul_ps(silu(gate), up));
            _mm512_mask_storeu_ps(out.as_mut_ptr().add(at), lanes, y);
        }
    }
}

fn silu_mul_f32_scalar(gate: &[f32], up: &[f32], out: &mut [f32]) {
    for ((out, &gate), &up) in out.iter_mut().zip(gate).zip(up) {
        *out = flush(arith::exp::silu(gate) * up);
    }
}

/// `x = z(x * sigmoid(gate))`.
pub(crate) fn gate(pool: &Pool, level: Level, x: &mut Rows, gate: &Rows, rows: usize) {
    let width = x.width;
    assert!(gate.width == width, "{x:?} by {gate:?}");
    assert!(rows <= x.rows_max && rows <= gate.rows_max, "{rows} rows of {x:?} by {gate:?}");
    let cells = Cells::new(&mut x.data);
    for_rows(pool, rows, width, |r| {
        // SAFETY: one job has each row; the level says that the CPU has the features.
        unsafe {
            let x = row_of(&cells, r, width);
            match level {
                Level::Scalar => gate_f32_scalar(x, gate.row(r)),
                #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
                _ => wide::gate_f32_vector(x, gate.row(r)),
            }
        }
    });
}

#[inline(always)]
fn gate_f32_scalar(x: &mut [f32], gate: &[f32]) {
    for (x, &gate) in x.iter_mut().zip(gate) {
        *x = flush(*x * arith::exp::sigmoid(gate));
    }
}

pub(crate) fn add(pool: &Pool, x: &mut Rows, y: &Rows, rows: usize) {
    let width = x.width;
    assert!(y.width == width && rows <= x.rows_max && rows <= y.rows_max, "{x:?} plus {y:?}");
    let cells = Cells::new(&mut x.data);
    for_rows(pool, rows, width, |r| {
        // SAFETY: one job has each row.
        let x = unsafe { row_of(&cells, r, width) };
        for (x, y) in x.iter_mut().zip(y.row(r)) {
            *x = flush(*x + y);
        }
    });
}

pub(crate) fn embed(pool: &Pool, level: Level, table: &Linear, ids: &[u32], out: &mut Rows) {
    let width = table.cols;
    assert!(out.width == width && ids.len() <= out.rows_max, "{} ids to {out:?}", ids.len());
    let cells = Cells::new(&mut out.data);
    for_rows(pool, ids.len(), width, |r| {
        // SAFETY: one job has each row; the level says that the CPU has the features.
        unsafe {
            let out = row_of(&cells, r, width);
            match level {
                Level::Scalar => table.read_row(ids[r] as usize, out),
                #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
                _ => wide::embed_row_vector(table, ids[r] as usize, out),
            }
        }
    });
}

#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod wide {
    use super::*;
    use crate::lanes::*;
    use crate::vector;

    /// # Safety
    /// The CPU has the features of [`crate::lanes`].
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
    pub(super) unsafe fn rotate_f32_vector(
        row: &mut [f32],
        dim: usize,
        pairing: Pairing,
        cos: &[f32],
        sin: &[f32],
    ) {
        rotate(row, dim, pairing, cos, sin);
    }

    /// # Safety
    /// The CPU has the features of [`crate::lanes`].
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
    pub(super) unsafe fn embed_row_vector(table: &Linear, row: usize, out: &mut [f32]) {
        table.read_row(row, out);
    }

    /// # Safety
    /// The CPU has the features of [`crate::lanes`].
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
    pub(super) unsafe fn gate_f32_vector(x: &mut [f32], gate: &[f32]) {
        let (eights, tail) = x.as_chunks_mut::<8>();
        let (gates, gate_tail) = gate.as_chunks::<8>();
        for (x, gate) in eights.iter_mut().zip(gates) {
            // SAFETY: eight values each.
            unsafe {
                let gate = vector::sigmoid(load(gate.as_ptr()));
                let y = mul(load(x.as_ptr()), gate);
                store(x.as_mut_ptr(), vector::flush(y));
            }
        }
        gate_f32_scalar(tail, gate_tail);
    }

    /// # Safety
    /// The CPU has the features of [`crate::lanes`].
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
    pub(super) unsafe fn silu_mul_f32_vector(gate: &[f32], up: &[f32], out: &mut [f32]) {
        let n = gate.len().min(up.len()).min(out.len());
        let eight = |gate: &[f32; 8], up: &[f32; 8], out: &mut [f32; 8]| {
            // SAFETY: eight values each.
            unsafe {
                let gate = vector::silu(load(gate.as_ptr()));
                let y = mul(gate, load(up.as_ptr()));
                store(out.as_mut_ptr(), vector::flush(y));
            }
        };
        let (gates, gate_tail) = gate[..n].as_chunks();
        let (ups, up_tail) = up[..n].as_chunks();
        let (outs, out_tail) = out[..n].as_chunks_mut();
        for ((gate, up), out) in gates.iter().zip(ups).zip(outs) {
            eight(gate, up, out);
        }
        if !gate_tail.is_empty() {
            let (mut gate, mut up, mut last) = ([0.0; 8], [0.0; 8], [0.0; 8]);
            gate[..gate_tail.len()].copy_from_slice(gate_tail);
            up[..up_tail.len()].copy_from_slice(up_tail);
            eight(&gate, &up, &mut last);
            out_tail.copy_from_slice(&last[..gate_tail.len()]);
        }
    }
}
