//! The panels of a job over many rows, unpacked once: codes as the arithmetic multiplies them, and
//! scales as floats.

use std::arch::x86_64::*;
use std::ops::Range;

use crate::bytes_avx2::taken;
use crate::codes_avx2::{QUAD, joined, quad};
use crate::layout::{Layout, strip_values};
use crate::pack::{LANES, Linear};
use crate::project::GEMM_PANELS;
use crate::scales_vector::{heads, scales};
use crate::walk::by_bits;

/// Bytes of a vector.
pub(crate) const BYTES: usize = 32;
/// Bytes of the codes of a vector's lane of values, of all panels of a job.
pub(crate) const STEP_BYTES: usize = GEMM_PANELS * BYTES;
/// Scales of a block of all panels of a job.
pub(crate) const BLOCK_SCALES: usize = GEMM_PANELS * LANES;

/// Values of a lane of 16-bit integers, less the format's zero.
pub(crate) const PAIR: usize = 2;
/// Values of a lane of bytes, as [`crate::bytes_avx2::pairs`] takes them.
pub(crate) const FIELD: usize = 4;

/// Kept by its thread, grown at first use. A lane has `VALUES` values: [`PAIR`] or [`FIELD`].
#[derive(Default)]
pub(crate) struct Unpacked<const VALUES: usize> {
    /// `[K / VALUES][GEMM_PANELS][BYTES]`.
    pub(crate) codes: Vec<u8>,
    /// `[blocks][GEMM_PANELS][LANES]`.
    pub(crate) scales: Vec<f32>,
    /// As many, for formats that have offsets.
    pub(crate) offsets: Vec<f32>,
}

impl<const VALUES: usize> Unpacked<VALUES> {
    /// Unpacks at most [`GEMM_PANELS`] `panels`.
    ///
    /// # Safety
    /// The CPU has AVX2, FMA and F16C.
    pub(crate) unsafe fn fill(&mut self, linear: &Linear, panels: Range<usize>) {
        assert!(panels.len() <= GEMM_PANELS);
        let layout = linear.layout();
        let (lanes, blocks) = (linear.cols / VALUES, linear.cols / layout.block);
        self.codes.resize(self.codes.len().max(lanes * STEP_BYTES), 0);
        self.scales.resize(self.scales.len().max(blocks * BLOCK_SCALES), 0.0);
        self.offsets.resize(self.offsets.len().max(blocks * BLOCK_SCALES), 0.0);
        for (p, panel) in panels.enumerate() {
            let panel = linear.panel(panel);
            // SAFETY: the caller's promise.
            by_bits!(layout.bits, |BITS| unsafe { self.unpack::<BITS>(layout, panel, p) });
        }
    }

    #[target_feature(enable = "avx2,fma,f16c")]
    fn unpack<const BITS: usize>(&mut self, layout: Layout, panel: &[u8], p: usize) {
        let mut codes = self.codes.chunks_exact_mut(layout.block / VALUES * STEP_BYTES);
        let mut parts = self
            .scales
            .chunks_exact_mut(BLOCK_SCALES)
            .zip(self.offsets.chunks_exact_mut(BLOCK_SCALES));
        for record in panel.chunks_exact(layout.record_bytes()) {
            // SAFETY: a record ends with its heads.
            let heads = unsafe { heads(layout, record.as_ptr()) };
            let blocks = record[..layout.head_at()].chunks_exact(layout.block_bytes());
            for (block, (codes, (a, c))) in blocks.zip(codes.by_ref().zip(parts.by_ref())) {
                let put = |at: usize, head: __m256, to: &mut [f32]| {
                    // SAFETY: a block holds its scales; `to` has room for panel `p`.
                    unsafe {
                        let scales = scales(layout.scales, block.as_ptr().add(at), head);
                        _mm256_storeu_ps(to[p * LANES..][..LANES].as_mut_ptr(), scales);
                    }
                };
                put(layout.codes_bytes(), heads[0], a);
                if layout.offsets {
                    put(layout.codes_bytes() + layout.scales_bytes(), heads[1], c);
                }
                let (block, to) = (block.as_ptr(), codes[p * BYTES..].as_mut_ptr());
                // SAFETY: a block holds its codes; `codes` has room for all panels.
                unsafe {
                    match VALUES {
                        PAIR => unpack_pairs::<BITS>(layout, block, to),
                        _ => unpack_fields::<BITS>(layout, block, to),
                    }
                }
            }
        }
    }
}

/// The integers of one block, a vector a pair of values, these [`STEP_BYTES`] apart.
///
/// # Safety
/// `block` holds a block of `layout`, `to` has room for its vectors.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack_pairs<const BITS: usize>(layout: Layout, block: *const u8, to: *mut u8) {
    let zero = _mm256_set1_epi16(layout.zero);
    let width = const { strip_values(BITS) };
    for strip in 0..layout.block / width {
        for v in 0..width / QUAD {
            // SAFETY: the caller's promise.
            unsafe {
                let quad = quad::<BITS>(block.add(strip * width * BITS), v);
                for (t, w) in quad.into_iter().enumerate() {
                    let to = to.add(((strip * width + QUAD * v) / PAIR + t) * STEP_BYTES);
                    _mm256_storeu_si256(to.cast(), _mm256_sub_epi16(w, zero));
                }
            }
        }
    }
}

/// The codes of one block, a vector a field, these [`STEP_BYTES`] apart.
///
/// # Safety
/// `block` holds a block of `layout`, `to` has room for its vectors.
#[target_feature(enable = "avx2,fma,f16c")]
unsafe fn unpack_fields<const BITS: usize>(layout: Layout, block: *const u8, to: *mut u8) {
    let (width, fields) = const { (strip_values(BITS), strip_values(BITS) / FIELD) };
    for strip in 0..layout.block / width {
        for i in 0..fields {
            // SAFETY: the caller's promise.
            unsafe {
                let w = taken::<BITS>(joined::<BITS>(block.add(strip * width * BITS), i));
                _mm256_storeu_si256(to.add((strip * fields + i) * STEP_BYTES).cast(), w);
            }
        }
    }
}
