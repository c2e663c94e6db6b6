//! Row buffers and the disjoint parts of them that the threads of a job write.

use std::fmt;
use std::marker::PhantomData;

use crate::pool::Pool;

/// `[rows_max, width]` f32.
pub struct Rows {
    pub(crate) data: Vec<f32>,
    pub(crate) rows_max: usize,
    pub(crate) width: usize,
}

impl Rows {
    /// Row `row`.
    pub(crate) fn row(&self, row: usize) -> &[f32] {
        &self.data[row * self.width..(row + 1) * self.width]
    }
}

impl fmt::Debug for Rows {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Rows[{}, {}]", self.rows_max, self.width)
    }
}

/// A slice that the indices of a job write in disjoint parts.
#[derive(Clone, Copy)]
pub(crate) struct Cells<'a, T> {
    start: *mut T,
    len: usize,
    life: PhantomData<&'a mut [T]>,
}

// SAFETY: `slice` obliges its callers to write disjoint parts, so sharing is sending parts.
unsafe impl<T: Send> Sync for Cells<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Send for Cells<'_, T> {}

impl<'a, T> Cells<'a, T> {
    pub(crate) fn new(slice: &'a mut [T]) -> Self {
        Self { start: slice.as_mut_ptr(), len: slice.len(), life: PhantomData }
    }

    /// Values `at .. at + len`.
    ///
    /// # Safety
    /// While the result lives no other part that overlaps it may.
    #[inline]
    pub(crate) unsafe fn slice(&self, at: usize, len: usize) -> &'a mut [T] {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: inside the slice that `new` borrowed, and exclusive by the caller's promise.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(at), len) }
    }

    /// Values `at .. at + len`, to read.
    ///
    /// # Safety
    /// While the result lives no part that overlaps it may be written.
    #[inline]
    pub(crate) unsafe fn shared(&self, at: usize, len: usize) -> &'a [T] {
        // SAFETY: inside the slice that `new` borrowed, and not written by the caller's promise.
        unsafe { std::slice::from_raw_parts(self.pointer(at, len), len) }
    }

    /// Where values `at .. at + len` begin, for kernels that step through them.
    #[inline]
    pub(crate) fn pointer(&self, at: usize, len: usize) -> *mut T {
        assert!(at <= self.len && len <= self.len - at);
        // SAFETY: inside the slice that `new` borrowed.
        unsafe { self.start.add(at) }
    }
}

/// Rows of one job of [`for_rows`].
const ROWS_A_JOB: usize = 4;
/// Values below which rows are handled by the caller alone.
pub(crate) const VALUES_MIN: usize = 1 << 14;

/// Calls `f` for each of `rows` rows of about `values` values, on the pool if there are enough.
pub(crate) fn for_rows(pool: &Pool, rows: usize, values: usize, f: impl Fn(usize) + Sync) {
    if rows * values < VALUES_MIN {
        return (0..rows).for_each(f);
    }
    pool.run(rows.div_ceil(ROWS_A_JOB), &|job| {
        let first = job * ROWS_A_JOB;
        (first..rows.min(first + ROWS_A_JOB)).for_each(&f);
    });
}
