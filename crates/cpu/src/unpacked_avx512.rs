//! A slice of the panels of a job over many rows, unpacked once for all of them: codes as the
//! arithmetic multiplies them, and scales as floats. It stays in the first cache.

use std::arch::x86_64::*;
use std::ops::Range;

use arith::base::SLICE_VALUES;

use crate::codes_avx512::{Twin, heads, joined, quad, scales};
use crate::kinds::{self, by_kind};
use crate::layout::{BLOCK_MIN, Layout, strip_values};
use crate::pack::{LANES, Linear};
use crate::quantise_a8::BIAS;

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
/// Bytes of a line of a cache.
const LINE: usize = 64;
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
    /// As many integers that the dots of bytes begin at, for formats that have none.
    pub(crate) starts: [i32; BLOCKS * BLOCK_SCALES],
}

impl Unpacked {
    pub(crate) const fn new() -> Self {
        Self {
            codes: [0; SLICE_VALUES / PAIR * STEP_BYTES],
            scales: [0.0; BLOCKS * BLOCK_SCALES],
            offsets: [0.0; BLOCKS * BLOCK_SCALES],
            starts: [0; BLOCKS * BLOCK_SCALES],
        }
    }

    /// Unpacks slice `slice` of at most [`PANELS`] `panels`, `VALUES` values a lane: [`PAIR`] or
    /// [`FIELD`].
    ///
    /// # Safety
    /// The CPU has the features.
    #[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
    pub(crate) unsafe fn fill<const VALUES: usize>(
        &mut self,
        linear: &Linear,
        panels: Range<usize>,
        slice: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe { by_kind!(linear, unpack::<VALUES>(self, linear, panels, slice)) };
    }
}

/// The bytes of a slice of the panels of a job, asked for in parts while another slice is at work:
/// it is too short for the hardware to foresee the next.
pub(crate) struct Ahead<'a> {
    panels: [&'a [u8]; PANELS],
    /// Bytes of a part of a panel.
    part: usize,
}

impl<'a> Ahead<'a> {
    /// Those of slice `slice` of `panels` in `parts`, or after the last slice those of the first
    /// one of the job that follows.
    pub(crate) fn of(linear: &'a Linear, panels: Range<usize>, slice: usize, parts: usize) -> Self {
        let over = slice * SLICE_VALUES >= linear.cols;
        let (panel, slice) = if over { (panels.end, 0) } else { (panels.start, slice) };
        let layout = linear.layout();
        let bytes = SLICE_VALUES / layout.unit_values() * layout.record_bytes();
        let panels = std::array::from_fn(|i| {
            let panel = if panel + i < linear.panels { linear.panel(panel + i) } else { &[] };
            &panel[panel.len().min(slice * bytes)..panel.len().min((slice + 1) * bytes)]
        });
        Self { panels, part: bytes.div_ceil(parts).next_multiple_of(LINE) }
    }

    /// Asks for part `part`.
    pub(crate) fn ask(&self, part: usize) {
        for panel in self.panels {
            for at in (part * self.part..panel.len().min((part + 1) * self.part)).step_by(LINE) {
                // SAFETY: a prefetch of any address is harmless.
                unsafe { _mm_prefetch::<_MM_HINT_T0>(panel.as_ptr().wrapping_add(at).cast()) };
            }
        }
    }
}

/// [`Unpacked::fill`] for a layout of kind `KIND`.
///
/// # Safety
/// As there.
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn unpack<const BITS: usize, const KIND: usize, const VALUES: usize>(
    to: &mut Unpacked,
    linear: &Linear,
    panels: Range<usize>,
    slice: usize,
) {
    let layout = kinds::layout::<KIND>(linear.layout());
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
        for record in 0..records.len() {
            // SAFETY: both panels are whole and hold the record, which ends with its heads.
            unsafe {
                let at = from.add(record * layout.record_bytes());
                let heads = heads(layout, at);
                for block in 0..layout.blocks {
                    let at = at.add(block * layout.block_bytes());
                    let block = record * layout.blocks + block;
                    unpack_block::<BITS, KIND, VALUES>(to, layout, at, heads, (block, twin));
                }
            }
        }
    }
}

/// One block of a pair of panels, number `block` of its slice.
///
/// # Safety
/// The CPU has the features; `from` points to two blocks of `layout`.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn unpack_block<const BITS: usize, const KIND: usize, const VALUES: usize>(
    to: &mut Unpacked,
    layout: Layout,
    from: Twin,
    heads: [__m512; 2],
    (block, twin): (usize, usize),
) {
    let layout = kinds::layout::<KIND>(layout);
    let place = block * BLOCK_SCALES + twin * FLOATS;
    let codes = &mut to.codes[block * (layout.block / VALUES * STEP_BYTES)..];
    let codes = codes[..layout.block / VALUES * STEP_BYTES][twin * BYTES..].as_mut_ptr();
    // SAFETY: the caller's promise; sixteen floats or integers are sixteen lanes.
    unsafe {
        let at = from.add(layout.codes_bytes());
        let put =
            |all: &mut [f32], x: __m512| _mm512_storeu_ps(all[place..][..FLOATS].as_mut_ptr(), x);
        put(&mut to.scales, scales(layout.scales, at, heads[0]));
        if layout.offsets {
            let at = at.add(layout.scales_bytes());
            put(&mut to.offsets, scales(layout.scales, at, heads[1]));
        }
        if VALUES == PAIR {
            unpack_pairs::<BITS>(layout, from, codes);
        } else {
            let starts = unpack_fields::<BITS>(layout, from, codes);
            if layout.zero != 0 {
                let to = to.starts[place..][..FLOATS].as_mut_ptr();
                _mm512_storeu_si512(to.cast(), starts);
            }
        }
    }
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

/// The codes of one block, a vector a field, these [`STEP_BYTES`] apart: unsigned in formats whose
/// code for 0 is 0, in others less that code. What the dots of these with integers that are
/// [`BIAS`] too large begin at comes back: it takes the excess off.
///
/// # Safety
/// `block` points to two blocks of `layout`, `to` has room for its vectors.
#[inline]
#[target_feature(enable = "avx512f,avx512bw,avx512vl,avx512dq,avx512vnni")]
unsafe fn unpack_fields<const BITS: usize>(layout: Layout, block: Twin, to: *mut u8) -> __m512i {
    let (width, fields) = const { (strip_values(BITS), strip_values(BITS) / FIELD) };
    let zero = _mm512_set1_epi8(layout.zero as i8);
    let bias = _mm512_set1_epi8(BIAS as i8);
    let mut excess = _mm512_setzero_si512();
    for strip in 0..layout.block / width {
        for i in 0..fields {
            // SAFETY: the caller's promise.
            unsafe {
                let mut w = joined::<BITS>(block.add(strip * width * BITS), i);
                if layout.zero != 0 {
                    w = _mm512_sub_epi8(w, zero);
                    excess = _mm512_dpbusd_epi32(excess, bias, w);
                }
                _mm512_storeu_si512(to.add((strip * fields + i) * STEP_BYTES).cast(), w);
            }
        }
    }
    _mm512_sub_epi32(_mm512_setzero_si512(), excess)
}
