//! Scales of packed blocks, eight outputs a vector.

use crate::lanes::*;
use crate::layout::{Layout, Scales};

/// The unit's own scales and offsets, which factors multiply; zeros in formats without factors.
///
/// # Safety
/// `record` points to a record of `layout`.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) unsafe fn heads(layout: Layout, record: *const u8) -> [F32s; 2] {
    let mut heads = [zero(); 2];
    if layout.scales == Scales::Factors {
        // SAFETY: the caller's promise.
        unsafe {
            heads[0] = load_halves(record.add(layout.head_at()));
            if layout.offsets {
                heads[1] = load_halves(record.add(layout.head_at() + 16));
            }
        }
    }
    heads
}

/// Eight scales or offsets of a block, `head` the unit's own.
///
/// # Safety
/// `at` points to them.
#[inline]
#[cfg_attr(target_arch = "x86_64", target_feature(enable = "avx2,fma,f16c"))]
pub(crate) unsafe fn scales(scales: Scales, at: *const u8, head: F32s) -> F32s {
    // SAFETY: the caller's promise.
    unsafe {
        match scales {
            Scales::F16 => load_halves(at),
            Scales::Bf16 => load_brains(at),
            Scales::F32 => load(at.cast()),
            Scales::Factors => mul(head, load_bytes(at)),
        }
    }
}
