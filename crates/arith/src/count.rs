//! Counts subnormal results, so that tests can show that there are none (section 0).
//!
//! The count is a thread's own and off by default. Every op of the reference notes its f32
//! results, except those that its own flush or rounding to an integer takes to zero.

use std::cell::Cell;

thread_local! {
    static COUNT: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs `work` and counts the subnormal results that the reference produces meanwhile on this
/// thread. Counts nest: an inner count does not add to the outer one.
pub fn subnormals<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let outer = COUNT.replace(Some(0));
    let value = work();
    let found = COUNT.replace(outer).unwrap_or(0);
    (value, found)
}

/// Passes a result through, counting it where it is subnormal and a count is on.
#[inline]
pub fn note(x: f32) -> f32 {
    // The common case costs one comparison: the thread's cell is touched by subnormals alone.
    if x.is_subnormal() {
        add();
    }
    x
}

#[cold]
fn add() {
    COUNT.set(COUNT.get().map(|n| n + 1));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subnormals_count_only_while_asked() {
        let tiny = f32::from_bits(1);
        note(tiny);
        let (value, n) = subnormals(|| note(tiny) + note(0.0) + note(f32::MIN_POSITIVE));
        assert!(value > 0.0);
        assert_eq!(n, 1);
        let (_, n) = subnormals(|| note(f32::NAN));
        assert_eq!(n, 0);
    }
}
