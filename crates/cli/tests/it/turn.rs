//! Turns: a test waits for its turn, so that few processes share the cores and what measures time
//! runs alone.

use std::sync::{Condvar, Mutex, PoisonError};

/// Tests at once that measure no time.
const AT_ONCE: u32 = 2;

static TAKEN: Mutex<u32> = Mutex::new(0);
static GIVEN_BACK: Condvar = Condvar::new();

/// Held while a test runs.
pub struct Turn(u32);

impl Turn {
    /// Beside another test.
    pub fn shared() -> Self {
        Self::take(1)
    }

    /// With no other test.
    pub fn alone() -> Self {
        Self::take(AT_ONCE)
    }

    fn take(places: u32) -> Self {
        let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
        while *taken + places > AT_ONCE {
            taken = GIVEN_BACK.wait(taken).unwrap_or_else(PoisonError::into_inner);
        }
        *taken += places;
        Self(places)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        *TAKEN.lock().unwrap_or_else(PoisonError::into_inner) -= self.0;
        GIVEN_BACK.notify_all();
    }
}
