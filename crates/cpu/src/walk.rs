//! How every kernel over block formats goes through rows and along K.

use arith::base::SLICE_VALUES;
use arith::linear::{GROUPS, Groups};

/// The sums of some outputs in some rows, as an instruction set and an arithmetic keep them.
///
/// All methods want a CPU that has the kernel's instructions, and the steps that they are asked
/// for in the weights and rows behind the sums.
pub(crate) trait Sums {
    /// Adds step `step` of K to the sums of the slice.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn step(&mut self, step: usize);

    /// Adds the sums of slice `slice` to those of the group, and begins another slice.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn end_slice(&mut self, slice: usize);

    /// Puts the sums of group `group` aside, which are +0 where it is `empty`, and begins another.
    ///
    /// # Safety
    /// As the trait says.
    unsafe fn end_group(&mut self, group: usize, empty: bool);
}

/// Walks the `cols` values of K in steps of `values`, a slice's own divisor, in the order that the
/// arithmetic gives the sums of `groups`.
///
/// # Safety
/// As [`Sums`] says, for `cols / values` steps.
#[inline(always)]
pub(crate) unsafe fn walk(sums: &mut impl Sums, groups: &Groups, cols: usize, values: usize) {
    let (steps, slice_steps) = (cols / values, SLICE_VALUES / values);
    for group in 0..GROUPS {
        let slices = groups.slices(group);
        let empty = slices.is_empty();
        for slice in slices {
            for step in slice * slice_steps..steps.min((slice + 1) * slice_steps) {
                // SAFETY: the caller's promise.
                unsafe { sums.step(step) };
            }
            // SAFETY: the caller's promise.
            unsafe { sums.end_slice(slice) };
        }
        // SAFETY: the caller's promise.
        unsafe { sums.end_group(group, empty) };
    }
}

/// Cuts `rows` into tiles of at most as many rows as the last of the counts, as equal as can be,
/// and evaluates `$tile` for each, `$row` its first and the constant `$R` its number of rows.
macro_rules! by_rows {
    ($rows:expr, [$($count:literal)+], |$row:ident, $R:ident| $tile:expr) => {{
        let rows = $rows;
        let most = [$($count),+].len();
        let mut $row = rows.start;
        while $row < rows.end {
            let left = rows.end - $row;
            let tile = left.div_ceil(left.div_ceil(most));
            match tile {
                $($count => {
                    const $R: usize = $count;
                    $tile
                })+
                other => unreachable!("a tile of {other} rows"),
            }
            $row += tile;
        }
    }};
}
pub(crate) use by_rows;

/// Evaluates `$call` with the constant `$BITS` as the bits of a code.
macro_rules! by_bits {
    ($bits:expr, |$BITS:ident| $call:expr) => {
        $crate::walk::by_bits!(@each $bits, $BITS, $call, 2 3 4 5 6 8)
    };
    (@each $bits:expr, $BITS:ident, $call:expr, $($width:literal)+) => {
        match $bits {
            $($width => {
                const $BITS: usize = $width;
                $call
            })+
            other => unreachable!("codes of {other} bits"),
        }
    };
}
pub(crate) use by_bits;
