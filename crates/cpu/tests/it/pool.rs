//! The pool under a model checker: all orders of its steps with few preemptions, and of what weak
//! memory lets a thread read. A wake-up that is lost shows as a deadlock.
#![allow(dead_code, reason = "the library's own modules, of which a model takes a part")]

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicUsize, Ordering};

use loom::sync::{Condvar, Mutex};

#[path = "../../src/pool/job.rs"]
mod job;
#[path = "../../src/pool/seat.rs"]
mod seat;
#[path = "../../src/pool/workers.rs"]
mod workers;

/// The checker's primitives in place of the system's.
mod sync {
    use std::cell::Cell;
    pub(super) use std::sync::Arc;

    pub(super) use loom::hint::spin_loop;
    pub(super) use loom::sync::Mutex;
    pub(super) use loom::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
    pub(super) use loom::thread::{Builder, JoinHandle, Thread, current, park};

    loom::thread_local! {
        static INSIDE: Cell<bool> = Cell::new(false);
    }

    thread_local! {
        /// Leaves fences out: the fault that a model must find.
        pub(super) static UNFENCED: Cell<bool> = const { Cell::new(false) };
    }

    pub(super) fn fence(order: Ordering) {
        if !UNFENCED.get() {
            loom::sync::atomic::fence(order);
        }
    }

    pub(super) fn inside() -> bool {
        INSIDE.with(Cell::get)
    }

    pub(super) fn set_inside(inside: bool) {
        INSIDE.with(|cell| cell.set(inside));
    }

    /// No patience at all: whoever waits goes to sleep.
    pub(super) fn spin(done: impl Fn() -> bool) -> bool {
        done()
    }
}

/// Whether the indices of a job meet inside it, which takes a thread for each.
#[derive(Clone, Copy, PartialEq)]
enum Indices {
    Apart,
    Meet,
}

/// Runs two jobs of two indices on two threads, in every order with at most two preemptions.
fn check(indices: Indices) {
    let mut model = loom::model::Builder::new();
    model.preemption_bound = Some(2);
    model.check(move || {
        // A deadlock's panic must not join the workers.
        let pool = ManuallyDrop::new(workers::Pool::new(2).unwrap());
        for _ in 0..2 {
            let hits = [const { AtomicUsize::new(0) }; 2];
            let (inside, second) = (Mutex::new(0), Condvar::new());
            pool.run(2, &|i| {
                if indices == Indices::Meet {
                    let mut inside = inside.lock().unwrap();
                    *inside += 1;
                    second.notify_all();
                    while *inside < 2 {
                        inside = second.wait(inside).unwrap();
                    }
                }
                hits[i].fetch_add(1, Ordering::Relaxed);
            });
            assert_eq!(hits.map(AtomicUsize::into_inner), [1, 1]);
        }
        drop(ManuallyDrop::into_inner(pool));
    });
}

#[test]
fn whatever_order_the_pools_steps_take_its_caller_wakes_and_each_index_ran_once() {
    check(Indices::Apart);
}

#[test]
fn whatever_order_the_pools_steps_take_its_worker_wakes() {
    check(Indices::Meet);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_pool_without_its_fences_does_not_wake_its_caller() {
    sync::UNFENCED.set(true);
    check(Indices::Apart);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_pool_without_its_fences_does_not_wake_its_worker() {
    sync::UNFENCED.set(true);
    check(Indices::Meet);
}
