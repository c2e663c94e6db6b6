//! What happened, as a hash always and as lines where somebody reads them.

use std::collections::VecDeque;
use std::fmt;

use arith::sample::mix;

/// Lines that are kept.
const LINES: usize = 400;

/// A run's trace.
#[derive(Debug, Default)]
pub struct Trace {
    /// Of all that happened so far.
    pub hash: u64,
    lines: Option<VecDeque<String>>,
}

impl Trace {
    /// With lines, or the hash alone.
    pub fn new(with_lines: bool) -> Self {
        Self { hash: 0, lines: with_lines.then(VecDeque::new) }
    }

    /// Notes what happened; `at` in nanoseconds.
    pub fn note(&mut self, at: u64, what: u64, line: impl FnOnce() -> String) {
        self.hash = mix(self.hash ^ at.rotate_left(32) ^ mix(what));
        if let Some(lines) = &mut self.lines {
            if lines.len() == LINES {
                lines.pop_front();
            }
            lines.push_back(format!("{:>16.6} ms  {}", at as f64 / 1e6, line()));
        }
    }
}

impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.lines.iter().flatten().try_for_each(|line| writeln!(f, "{line}"))
    }
}
