#![allow(clippy::unwrap_used, reason = "tests")]
use std::panic::{self, AssertUnwindSafe};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use super::Pool;

fn counts(pool: &Pool, count: usize) -> Vec<usize> {
    let hits: Vec<AtomicUsize> = (0..count).map(|_| AtomicUsize::new(0)).collect();
    pool.run(count, &|i| {
        hits[i].fetch_add(1, Ordering::Relaxed);
    });
    hits.into_iter().map(AtomicUsize::into_inner).collect()
}

#[test]
fn every_index_runs_once_whatever_the_thread_count() {
    for threads in [1, 2, 4, 7] {
        let pool = Pool::new(threads).unwrap();
        for round in 0..2_000 {
            let count = round % 37;
            assert_eq!(counts(&pool, count), vec![1; count]);
        }
    }
}

#[test]
fn parked_workers_wake_for_the_next_job() {
    let pool = Pool::new(3).unwrap();
    for _ in 0..3 {
        thread::sleep(Duration::from_millis(30));
        // Every index waits until three threads are inside the job, or gives up.
        let inside = Mutex::new(std::collections::HashSet::new());
        pool.run(3, &|_| {
            inside.lock().unwrap().insert(thread::current().id());
            let start = std::time::Instant::now();
            while inside.lock().unwrap().len() < 3 && start.elapsed().as_secs() < 20 {
                thread::sleep(Duration::from_millis(1));
            }
        });
        assert_eq!(inside.into_inner().unwrap().len(), 3);
    }
}

/// Whether `done` comes true in time.
fn wait(done: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !done() && start.elapsed().as_secs() < 20 {
        thread::sleep(Duration::from_millis(1));
    }
    done()
}

#[test]
fn a_thread_that_is_put_aside_delays_only_its_index() {
    const COUNT: usize = 64;
    let pool = Pool::new(2).unwrap();
    let caller = thread::current().id();
    for caller_sleeps in [false, true] {
        let (finished, inside) = (AtomicUsize::new(0), AtomicUsize::new(0));
        pool.run(COUNT, &|_| {
            inside.fetch_add(1, Ordering::SeqCst);
            // Both hold an index before either goes on.
            assert!(wait(|| inside.load(Ordering::SeqCst) > 1));
            if (thread::current().id() == caller) == caller_sleeps {
                let rest = || finished.load(Ordering::SeqCst) == COUNT - 1;
                assert!(wait(rest), "caller sleeps: {caller_sleeps}");
            }
            finished.fetch_add(1, Ordering::SeqCst);
        });
    }
}

#[test]
fn idle_workers_and_a_waiting_caller_park() {
    let pool = Pool::new(3).unwrap();
    assert_eq!(counts(&pool, 9), vec![1; 9]);
    assert!(wait(|| pool.shared.asleep.0.load(Ordering::SeqCst) == 2));
    let caller = thread::current().id();
    pool.run(2, &|_| {
        if thread::current().id() != caller {
            assert!(wait(|| pool.shared.waits.load(Ordering::SeqCst)));
        } else {
            assert!(wait(|| pool.shared.asleep.0.load(Ordering::SeqCst) < 2));
            thread::sleep(Duration::from_millis(2));
        }
    });
    assert_eq!(counts(&pool, 9), vec![1; 9]);
}

#[test]
fn a_panic_in_a_job_reaches_the_caller_and_the_pool_lives_on() {
    let pool = Pool::new(3).unwrap();
    for at in [0, 5, 99] {
        let run = || pool.run(100, &|i| assert_ne!(i, at, "planted"));
        let payload = panic::catch_unwind(AssertUnwindSafe(run)).unwrap_err();
        assert!(payload.downcast_ref::<String>().unwrap().contains("planted"));
        assert_eq!(counts(&pool, 10), vec![1; 10]);
    }
}

#[test]
fn callers_on_several_threads_and_jobs_inside_jobs_all_finish() {
    let pool = Pool::new(3).unwrap();
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..200 {
                    assert_eq!(counts(&pool, 23), vec![1; 23]);
                }
            });
        }
    });
    let total = AtomicUsize::new(0);
    pool.run(8, &|_| {
        pool.run(8, &|_| {
            total.fetch_add(1, Ordering::Relaxed);
        });
    });
    assert_eq!(total.into_inner(), 64);
}

#[test]
fn more_threads_than_cores_still_make_progress() {
    let pools: Vec<Pool> = (0..3).map(|_| Pool::new(4).unwrap()).collect();
    thread::scope(|scope| {
        for pool in &pools {
            scope.spawn(move || {
                for _ in 0..300 {
                    assert_eq!(counts(pool, 16), vec![1; 16]);
                }
            });
        }
    });
}
