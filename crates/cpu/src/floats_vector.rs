//! Float formats: weights widened eight outputs at a time, rows broadcast, sums in order.
#![allow(
    clippy::needless_range_loop,
    reason = "rows, panels and groups index several arrays at once, with constant bounds"
)]

use std::ops::Range;

use arith::format::Format;
use arith::linear::GROUPS;

use crate::lanes::*;
use crate::pack::{LANES, Linear};
use crate::project::{Inputs, Outputs, slice_values};
use crate::vector::put_groups;

/// Formats as constants of the kernels.
const F32: u8 = 0;
const F16: u8 = 1;
const BF16: u8 = 2;

/// Outputs of `panels` for `rows`.
///
/// # Safety
/// The CPU has AVX2, FMA and F16C; no other thread may write `panels` of `rows`.
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) unsafe fn project_f32_floats_vector(
    linear: &Linear,
    inputs: &Inputs<'_>,
    panels: Range<usize>,
    rows: Range<usize>,
    out: &Outputs<'_>,
) {
    let job = Job { linear, inputs, out };
    // SAFETY: passed on.
    unsafe {
        match linear.format {
            Format::F32 => job.all::<F32>(panels, rows),
            Format::F16 => job.all::<F16>(panels, rows),
            Format::Bf16 => job.all::<BF16>(panels, rows),
            format => unreachable!("{format} is no float"),
        }
    }
}

struct Job<'a> {
    linear: &'a Linear,
    inputs: &'a Inputs<'a>,
    out: &'a Outputs<'a>,
}

impl Job<'_> {
    /// Cuts a job into tiles with enough sums in flight to hide the latency of an fma.
    ///
    /// # Safety
    /// As [`project_f32_floats_vector`].
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
    unsafe fn all<const F: u8>(&self, panels: Range<usize>, rows: Range<usize>) {
        let mut row = rows.start;
        while row < rows.end {
            let many = rows.end - row >= 4;
            let mut panel = panels.start;
            while panel < panels.end {
                // SAFETY: passed on.
                unsafe {
                    panel += match (many, panels.end - panel) {
                        (true, 1) => self.tile::<F, 1, 4>(panel, row),
                        (true, _) => self.tile::<F, 2, 4>(panel, row),
                        (false, 1..=3) => self.tile::<F, 1, 1>(panel, row),
                        (false, _) => self.tile::<F, 4, 1>(panel, row),
                    };
                }
            }
            row += if many { 4 } else { 1 };
        }
    }

    /// R rows with P panels; gives P.
    ///
    /// # Safety
    /// As [`project_f32_floats_vector`].
    #[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
    unsafe fn tile<const F: u8, const P: usize, const R: usize>(
        &self,
        panel: usize,
        row: usize,
    ) -> usize {
        let cols = self.linear.cols;
        let w: [&[u8]; P] = std::array::from_fn(|p| self.linear.panel(panel + p));
        let x: [&[f32]; R] = std::array::from_fn(|r| self.inputs.x.row(row + r));
        let zero = zero();
        let mut groups = [[[zero; R]; P]; GROUPS];
        for (group, g) in groups.iter_mut().enumerate() {
            for slice in self.linear.groups.slices(group) {
                let mut acc = [[zero; R]; P];
                for k in slice_values(slice, cols) {
                    // SAFETY: k is below the K of the panels and of the rows.
                    unsafe {
                        let x: [F32s; R] = std::array::from_fn(|r| splat(*x[r].get_unchecked(k)));
                        for p in 0..P {
                            let w = widen::<F>(w[p].as_ptr(), k);
                            for r in 0..R {
                                acc[p][r] = fma(w, x[r], acc[p][r]);
                            }
                        }
                    }
                }
                for p in 0..P {
                    for r in 0..R {
                        g[p][r] = add(g[p][r], acc[p][r]);
                    }
                }
            }
        }
        for p in 0..P {
            let lanes = self.linear.lanes(panel + p);
            for r in 0..R {
                let end = self.linear.end(self.inputs.a16.spoilt[row + r]);
                // SAFETY: the caller's promise.
                let out = unsafe { self.out.panel(row + r, panel + p, lanes) };
                put_groups(std::array::from_fn(|k| groups[k][p][r]), end, out);
            }
        }
        P
    }
}

/// Value `k` of the eight outputs of a panel.
///
/// # Safety
/// The panel must have it.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
unsafe fn widen<const F: u8>(panel: *const u8, k: usize) -> F32s {
    // SAFETY: the caller's promise.
    unsafe {
        match F {
            F32 => load(panel.cast::<f32>().add(k * LANES)),
            F16 => load_halves(panel.add(2 * k * LANES)),
            _ => load_brains(panel.add(2 * k * LANES)),
        }
    }
}
