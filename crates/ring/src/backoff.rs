//! Growing pauses between attempts.

use std::time::Duration;

/// First pause.
pub const FIRST: Duration = Duration::from_millis(100);
/// Longest pause: a ring whose cause of failure is gone is to serve again within seconds.
pub const LONGEST: Duration = Duration::from_secs(2);

/// Doubles its pause from [`FIRST`] up to [`LONGEST`].
#[derive(Clone, Copy, Debug)]
pub struct Backoff(Duration);

impl Default for Backoff {
    fn default() -> Self {
        Self(FIRST)
    }
}

impl Backoff {
    /// The pause before the next attempt.
    pub fn next_pause(&mut self) -> Duration {
        let pause = self.0;
        self.0 = (self.0 * 2).min(LONGEST);
        pause
    }

    /// Starts over after a success.
    pub fn reset(&mut self) {
        *self = Self::default();
    }
}
