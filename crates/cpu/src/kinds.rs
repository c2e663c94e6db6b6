//! Kinds of packed layouts that the GEMV kernels of x86-64 are compiled for.

use arith::format::{Format, Mlx, Scales};

use crate::layout::Layout;

/// Formats whose kernels know their whole layout when compiled; those of others know their bits.
pub(crate) const KNOWN: [Format; 8] = [
    Format::Q4_0,
    Format::Q4_1,
    Format::Q8_0,
    Format::Q4K,
    Format::Q5K,
    Format::Q6K,
    Format::Mlx(Mlx { bits: 4, group: 64, scales: Scales::Bf16 }),
    Format::Mlx(Mlx { bits: 4, group: 64, scales: Scales::F16 }),
];
/// No index of [`KNOWN`].
pub(crate) const OTHER: usize = KNOWN.len();

/// The layout of kind `kind`; any for [`OTHER`].
pub(crate) const fn layout_of(kind: usize) -> Layout {
    Layout::of(KNOWN[kind % KNOWN.len()])
}

/// The layout of a matrix of kind `KIND`: a constant, but that which was `found` for [`OTHER`].
#[inline(always)]
pub(crate) fn layout<const KIND: usize>(found: Layout) -> Layout {
    if KIND == OTHER { found } else { const { layout_of(KIND) } }
}

/// Calls `kernel::<BITS, KIND>` for the layout of a matrix: one of [`KNOWN`] by its index, of which
/// the whole layout is a constant, or [`OTHER`], of which the bits of a code are. `::<_>` is for a
/// type that the kernel takes besides.
macro_rules! by_kind {
    ($linear:expr, $kernel:ident$(::<$rest:tt>)?($($argument:expr),*)) => {{
        let linear = $linear;
        let known = $crate::kinds::KNOWN.iter().position(|&format| format == linear.format);
        match (known, linear.layout().bits) {
            (Some(0), _) => $kernel::<4, 0 $(, $rest)?>($($argument),*),
            (Some(1), _) => $kernel::<4, 1 $(, $rest)?>($($argument),*),
            (Some(2), _) => $kernel::<8, 2 $(, $rest)?>($($argument),*),
            (Some(3), _) => $kernel::<4, 3 $(, $rest)?>($($argument),*),
            (Some(4), _) => $kernel::<5, 4 $(, $rest)?>($($argument),*),
            (Some(5), _) => $kernel::<6, 5 $(, $rest)?>($($argument),*),
            (Some(6), _) => $kernel::<4, 6 $(, $rest)?>($($argument),*),
            (Some(7), _) => $kernel::<4, 7 $(, $rest)?>($($argument),*),
            (_, 2) => $kernel::<2, { $crate::kinds::OTHER } $(, $rest)?>($($argument),*),
            (_, 3) => $kernel::<3, { $crate::kinds::OTHER } $(, $rest)?>($($argument),*),
            (_, 4) => $kernel::<4, { $crate::kinds::OTHER } $(, $rest)?>($($argument),*),
            (_, 5) => $kernel::<5, { $crate::kinds::OTHER } $(, $rest)?>($($argument),*),
            (_, 6) => $kernel::<6, { $crate::kinds::OTHER } $(, $rest)?>($($argument),*),
            _ => $kernel::<8, { $crate::kinds::OTHER } $(, $rest)?>($($argument),*),
        }
    }};
}
pub(crate) use by_kind;
