//! Gated DeltaNet on any CPU.

use arith::exp::silu;
use arith::float::flush;
use arith::gdn;

use crate::gdn::{Heads, Strip};

/// The taps of [`gdn::convolve`], then silu, flushed.
#[inline(always)]
pub(crate) fn convolve_f32_scalar(taps: &[&[f32]], rows: &[&[f32]], out: &mut [f32]) {
    for (c, out) in out.iter_mut().enumerate() {
        let each = taps.iter().zip(rows);
        *out = flush(silu(each.fold(0.0, |sum, (taps, row)| taps[c].mul_add(row[c], sum))));
    }
}

/// [`gdn::beta`] and [`gdn::decay`] of every head.
pub(crate) fn gates_f32_scalar(heads: Heads<'_>, beta: &mut [f32], decay: &mut [f32]) {
    for (h, (beta, decay)) in beta.iter_mut().zip(decay).enumerate() {
        *beta = gdn::beta(heads.b[h]);
        *decay = gdn::decay(heads.a[h], heads.dt_bias[h], heads.amplitude[h]);
    }
}

/// [`gdn::step`] of every row of a strip, in a copy of its part of S.
///
/// # Safety
/// No other thread may have the strip.
pub(crate) unsafe fn delta_f32_scalar(strip: &Strip<'_>, tile: &mut [f32]) {
    let (width, stride) = (strip.columns.len(), strip.shape.value_dim);
    let tile = &mut tile[..strip.shape.key_dim * width];
    match strip.walk.from {
        Some(from) => {
            for (k, tile) in tile.chunks_exact_mut(width).enumerate() {
                // SAFETY: the strip's own columns; walks write no other's `from`.
                let s = unsafe { strip.s.shared(strip.at(from) + k * stride, width) };
                tile.copy_from_slice(s);
            }
        }
        None => tile.fill(0.0),
    }
    for r in strip.walk.rows.clone() {
        let step = strip.step(r);
        // SAFETY: the strip's own columns, of one row at a time.
        let out = unsafe { strip.out(r) };
        gdn::step(tile, step.query, step.key, step.value, step.gates, out);
    }
    for (k, tile) in tile.chunks_exact(width).enumerate() {
        // SAFETY: the strip's own columns.
        let s = unsafe { strip.s.slice(strip.at(strip.walk.to) + k * stride, width) };
        s.copy_from_slice(tile);
    }
}
