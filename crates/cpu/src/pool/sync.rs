//! What the pool takes from the system. A model checker puts its own in this module's place.

use std::cell::Cell;
use std::time::{Duration, Instant};

pub(super) use std::hint::spin_loop;
pub(super) use std::sync::atomic::{
    AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence,
};
pub(super) use std::sync::{Arc, Mutex};
pub(super) use std::thread::{Builder, JoinHandle, Thread, current, park};

/// How long whoever waits polls without a yield: longer than what is serial between two
/// projections of a layer.
const SPIN: Duration = Duration::from_micros(15);
/// How long an idle worker polls before it parks, and the caller at a job that others hold: longer
/// than what is serial between two tokens, short beside a turn of the system's scheduler.
const WAIT: Duration = Duration::from_micros(150);
/// Polls between two looks at the clock.
const POLLS: u32 = 32;

thread_local! {
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Whether this thread is inside a job: one that starts another runs it by itself.
pub(super) fn inside() -> bool {
    INSIDE.get()
}

/// Says whether this thread is inside a job.
pub(super) fn set_inside(inside: bool) {
    INSIDE.set(inside);
}

/// Polls `done` for a while, soon with yields between, since whoever is waited for may want this
/// core; whether it came true.
pub(super) fn spin(done: impl Fn() -> bool) -> bool {
    let polls = || {
        (0..POLLS).any(|_| {
            spin_loop();
            done()
        })
    };
    if done() || polls() {
        return true;
    }
    let start = Instant::now();
    loop {
        if polls() {
            return true;
        }
        let waited = start.elapsed();
        if waited > WAIT {
            return false;
        }
        if waited > SPIN {
            std::thread::yield_now();
        }
    }
}
