//! A slice of the panels of a job over many rows, unpacked once for all of them: codes as the
//! arithmetic multiplies them, and scales as floats. It stays in the first cache.

use std::arch::x86_64::*;
use std::ops::Range;

use arith::base::SLICE_VALUES;

use crate::codes_avx512::{Twin, heads, joined, quad, scales};
use crate::layout::{BLOCK_MIN, Layout, strip_values};
use crate::pack::{LANES, Linear};
use crate::walk::by_bits;

/// Panels of a job, which share their broadcasts.
pub(crate) const PANELS: usize = 2 * TWINS;
/// Pairs of panels of a job, a vector each.
pub(crate) const TWINS: usize = 2;
/// Bytes of a vector.
pub(crate) const BYTES: usize = 64;
/// Bytes of the codes of a vector's lane of values, of all panels of a job.
pub(crate) const STEP_BYTES: usize = TWINS * BYTES;
/// Scales of a vector.
pub(crate) const FLOATS: usize = 2 * LANES;
/// Scales of a block of all panels of a job.
pub(crate) const BLOCK_SCALES: usize = TWINS * FLOATS;

/// Values of a lane of 16-bit integers, less the format's zero.
pub(crate) const PAIR: usize = 2;
/// Values of a lane of bytes, a field of the packed codes.
pub(crate) const FIELD: usize = 4;

/// Values of a [`quad`].
const QUAD: usize = 8;
/// Blocks of a slice, at most.
const BLOCKS: usize = SLICE_VALUES / BLOCK_MIN;

/// Kept by its thread.
#[repr(C, align(64))]
pub(crate) struct Unpacked {
    /// `[values of a lane][TWINS][BYTES]`.
    pub(crate) codes: [u8; SLICE_VALUES / PAIR * STEP_BYTES],
    /// `[blocks][TWINS][FLOATS]`.
    pub(crate) scales: [f32; BLOCKS * BLOCK_SCALES],
    /// As many, for formats that have offsets.
    pub(crate) offsets: [f32; BLOCKS * BLOCK_SCALES],
}

impl Unpacked {
    pub(crate) const fn new() -> Self {
        Self {
            codes: [0; SLICE_VALUES / PAIR * STEP_BYTES],
            scales: [0.0; BLOCKS * BLOCK_SCALES],
            offsets: [0.0; BLOCKS * BLOCK_SCALES],
        }
    }

    /// Unpacks slice `slice` of at most [`PANELS`] `panels`, `values` values a lane: [`PAIR`] or
    /// [`FIELD`].
    ///
    /// # Safety
    /// The CPU has the features.
    pub(crate) unsafe fn fill(
        &mut self,
        values: usize,
        linear: &Linear,
        panels: Range<usize>,
        slice: usize,
    ) {
        let layout = linear.layout();
        let (units, a_slice) =
            (linear.cols / layout.unit_values(), SLICE_VALUES / layout.unit_values());
        let records = slice * a_slice..units.min((slice + 1) * a_slice);
        for twin in 0..TWINS {
            // Where panels are missing others stand in; nobody reads their outputs.
            let first = (panels.start + 2 * twin).min(panels.end - 1);
            let second = (first + 1).min(panels.end - 1);
            let panel = linear.panel(first);
            let from = &panel[records.start * layout.record_bytes()..];
            let from = Twin { at: from.as_ptr(), gap: (second - first) * panel.len() };
            let ahead = PANELS * panel.len();
            let count = records.len();
            // SAFETY: the caller's promise; both panels are whole.
            by_bits!(layout.bits, |BITS| unsafe {
                self.unpack::<BITS>(values, layout, from, count, (twin, ahead));
            });
        }
    }

    /// # Safety
    /// `from` points to so many records of `layout` in two panels.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    unsafe fn unpack<const BITS: usize>(
        &mut self,
        values: usize,
        layout: Layout,
        from: Twin,
        records: usize,
        (twin, ahead): (usize, usize),
    ) {
        let mut codes = self.codes.chunks_exact_mut(layout.block / values * STEP_BYTES);
        let mut parts = self
            .scales
            .chunks_exact_mut(BLOCK_SCALES)
            .zip(self.offsets.chunks_exact_mut(BLOCK_SCALES));
        for record in 0..records {
            // SAFETY: the panels hold the record, which ends with its heads.
            let (record, heads) = unsafe {
                let record = from.add(record * layout.record_bytes());
                (record, heads(layout, record))
            };
            let blocks = (0..layout.blocks).zip(codes.by_ref().zip(parts.by_ref()));
            for (block, (codes, (a, c))) in blocks {
                // SAFETY: a record holds its blocks, a block its codes and scales; `codes` has
                // room for all panels of a block.
                unsafe {
                    let block = record.add(block * layout.block_bytes());
                    block.prefetch(layout.block_bytes(), ahead);
                    let at = block.add(layout.codes_bytes());
                    put(scales(layout.scales, at, heads[0]), twin, a);
                    if layout.offsets {
                        let at = at.add(layout.scales_bytes());
                        put(scales(layout.scales, at, heads[1]), twin, c);
                    }
                    let to = codes[twin * BYTES..].as_mut_ptr();
                    match values {
                        PAIR => unpack_pairs::<BITS>(layout, block, to),
                        _ => unpack_fields::<BITS>(layout, block, to),
                    }
                }
            }
        }
    }
}

/// Writes the scales of a pair of panels.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
fn put(x: __m512, twin: usize, to: &mut [f32]) {
    // SAFETY: sixteen floats are sixteen lanes.
    unsafe { _mm512_storeu_ps(to[twin * FLOATS..][..FLOATS].as_mut_ptr(), x) };
}

/// The integers of one block, a vector a pair of values, these [`STEP_BYTES`] apart.
///
/// # Safety
/// `block` points to two blocks of `layout`, `to` has room for its vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn unpack_pairs<const BITS: usize>(layout: Layout, block: Twin, to: *mut u8) {
    let zero = _mm512_set1_epi16(layout.zero);
    let width = const { strip_values(BITS) };
    for strip in 0..layout.block / width {
        for v in 0..width / QUAD {
            // SAFETY: the caller's promise.
            unsafe {
                let quad = quad::<BITS>(block.add(strip * width * BITS), v);
                for (t, w) in quad.into_iter().enumerate() {
                    let to = to.add(((strip * width + QUAD * v) / PAIR + t) * STEP_BYTES);
                    _mm512_storeu_si512(to.cast(), _mm512_sub_epi16(w, zero));
                }
            }
        }
    }
}

/// The codes of one block, a vector a field, these [`STEP_BYTES`] apart.
///
/// # Safety
/// `block` points to two blocks of `layout`, `to` has room for its vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn unpack_fields<const BITS: usize>(layout: Layout, block: Twin, to: *mut u8) {
    let (width, fields) = const { (strip_values(BITS), strip_values(BITS) / FIELD) };
    for strip in 0..layout.block / width {
        for i in 0..fields {
            // SAFETY: the caller's promise.
            unsafe {
                let w = joined::<BITS>(block.add(strip * width * BITS), i);
                _mm512_storeu_si512(to.add((strip * fields + i) * STEP_BYTES).cast(), w);
            }
        }
    }
}
