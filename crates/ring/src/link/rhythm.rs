//! When the next round is due, by how long the last ones were waited for.

use std::ops::Range;
use std::time::Duration;

/// Waits that are looked at.
const WAITS: usize = 4;
/// Shorter waits are pieces of a round that came in pieces, and say nothing.
const LEAST: Duration = Duration::from_micros(200);
/// Beside a longer wait a wake-up is nothing.
const MOST: Duration = Duration::from_millis(20);
/// Longest time that is spent looking out for a round.
const LOOKOUT_MAX: Duration = Duration::from_micros(400);
/// A thread is up so much of a wait before its end, within bounds: a timer's slack and a core's
/// way out of its sleep.
const AHEAD_PART: u32 = 12;
const AHEAD_LEAST: Duration = Duration::from_micros(60);
const AHEAD_MOST: Duration = Duration::from_micros(200);

/// The pace at which rounds come, where there is one.
///
/// A reply's rounds come back at a steady pace. A thread that its own timer wakes just before the
/// next is due, and that looks out for it until it is overdue, takes it at once, while one that the
/// socket wakes first has to get a sleeping core going: as much as everything else that a hop
/// costs. A ring that waits for nothing has no pace, and sleeps.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Rhythm {
    lately: [Duration; WAITS],
    next: usize,
}

impl Rhythm {
    /// Something came after such a wait.
    pub(crate) fn came(&mut self, waited: Duration) {
        if waited >= LEAST {
            self.lately[self.next] = waited;
            self.next = (self.next + 1) % WAITS;
        }
    }

    /// From when until when the next is looked out for, from the wait's begin.
    pub(crate) fn due(&self) -> Option<Range<Duration>> {
        let (first, last) = (self.lately.iter().min()?, self.lately.iter().max()?);
        let is_steady = *first >= LEAST && *last <= MOST && *last - *first <= *first / 4;
        is_steady.then(|| {
            let ahead = (*first / AHEAD_PART).clamp(AHEAD_LEAST, AHEAD_MOST);
            let from = *first - ahead;
            from..(*last + ahead).min(from + LOOKOUT_MAX)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(waits: &[u64]) -> Option<Range<u128>> {
        let mut rhythm = Rhythm::default();
        waits.iter().for_each(|&us| rhythm.came(Duration::from_micros(us)));
        rhythm.due().map(|due| due.start.as_micros()..due.end.as_micros())
    }

    #[test]
    fn a_steady_pace_is_looked_out_for_around_its_end() {
        assert_eq!(after(&[2400, 2400, 2400]), None, "three are no pace");
        assert_eq!(after(&[2400; 4]), Some(2200..2600));
        assert_eq!(after(&[9000, 50, 2400, 2450, 30, 2400, 2500]), Some(2200..2600));
        assert_eq!(after(&[240; 4]), Some(180..300));
    }

    #[test]
    fn what_comes_now_and_then_or_seldom_is_slept_for() {
        assert_eq!(after(&[2400, 2400, 3100, 2400]), None);
        assert_eq!(after(&[30_000; 4]), None);
        assert_eq!(after(&[100; 9]), None);
    }

    #[test]
    fn no_lookout_is_long() {
        for us in [200, 500, 2_000, 7_000, 20_000] {
            let due = after(&[us, us * 5 / 4, us, us]).unwrap_or_default();
            assert!(due.end - due.start <= LOOKOUT_MAX.as_micros(), "{due:?}");
        }
    }
}
