//! The functions of `libcuda.so.1`, those that Baton calls. Their callers give pointers as the
//! vendor's header has them, which is all that is trusted of them.

mod device;
mod launch;
mod memory;
mod stream;

use super::code::{Code, INVALID_VALUE};

/// Writes what a call gives.
///
/// # Safety
/// Null, or a place for a `T`.
unsafe fn put<T>(at: *mut T, value: T) -> Result<(), Code> {
    if at.is_null() {
        return Err(INVALID_VALUE);
    }
    // SAFETY: the caller's word.
    unsafe { at.write(value) };
    Ok(())
}
