//! A fork-join pool: persistent workers that spin briefly, then park.
//!
//! A job is a function over the indices `0 .. count`; whoever is free claims the next index, the
//! caller included, so a worker that the system has put aside delays nothing but the index it
//! holds. The fast path takes no lock and allocates nothing. What an index computes depends on the
//! index alone, so results never depend on who ran it.

use std::any::Any;
use std::cell::Cell;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Low bits of a ticket: the next index. The rest: the number of the job.
const INDEX_BITS: u32 = 24;
const INDEX_MASK: u64 = (1 << INDEX_BITS) - 1;
/// The index of a ticket whose job is being written.
const CLOSED: u64 = INDEX_MASK;
/// Polls before an idle worker starts to yield: some tens of microseconds, longer than the serial
/// ops between two projections of a layer.
const SPINS: u32 = 2_000;
/// Yields after the spins, before a park.
const YIELDS: u32 = 16;
/// How long the caller naps between looks at a job that others hold.
const NAP: Duration = Duration::from_micros(50);

thread_local! {
    /// Set inside a job: a job that starts another runs it by itself.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Keeps what one side writes often off the lines that the other reads.
#[repr(align(128))]
#[derive(Default)]
struct Padded<T>(T);

type Call = unsafe fn(*const (), usize);

#[derive(Default)]
struct Shared {
    /// Job number and next index, see [`INDEX_BITS`].
    ticket: Padded<AtomicU64>,
    /// Finished indices of the running job.
    done: Padded<AtomicUsize>,
    /// `Call` of the running job.
    call: AtomicPtr<()>,
    /// Its closure.
    context: AtomicPtr<()>,
    count: AtomicUsize,
    /// A caller is inside `run`.
    busy: AtomicBool,
    stop: AtomicBool,
    /// An index panicked; the rest of the job is skipped.
    failed: AtomicBool,
    payload: Mutex<Option<Box<dyn Any + Send>>>,
    asleep: Padded<AtomicUsize>,
    sleeping: Vec<AtomicBool>,
}

/// The pool. Dropping it joins the workers.
pub(crate) struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool in which `threads` threads compute: the caller and `threads - 1` workers.
    pub(crate) fn new(threads: usize) -> io::Result<Self> {
        let workers = threads.saturating_sub(1);
        let shared = Arc::new(Shared {
            sleeping: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            ..Shared::default()
        });
        let mut pool = Self { shared: Arc::clone(&shared), workers: Vec::with_capacity(workers) };
        for me in 0..workers {
            let shared = Arc::clone(&shared);
            let worker = thread::Builder::new()
                .name(format!("baton-cpu-{}", me + 1))
                .spawn(move || shared.serve(me))?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Threads that compute, the caller included.
    pub(crate) fn threads(&self) -> usize {
        self.workers.len() + 1
    }

    /// Runs `f(0) .. f(count - 1)`, each once, and returns when all are done. A panic in one of
    /// them is raised here once no thread is inside the job. A second caller, or a job inside a
    /// job, runs its indices itself.
    pub(crate) fn run<F: Fn(usize) + Sync>(&self, count: usize, f: &F) {
        assert!((count as u64) < CLOSED, "a job of {count} indices");
        let shared = &*self.shared;
        let alone = count <= 1 || self.workers.is_empty() || INSIDE.get();
        if alone || shared.busy.swap(true, Ordering::Acquire) {
            (0..count).for_each(f);
            return;
        }
        let job = (shared.ticket.0.load(Ordering::Relaxed) >> INDEX_BITS) + 1;
        shared.publish(job, count, f);
        self.wake(count - 1);
        shared.work(job);
        shared.join(count);
        let failed = shared.failed.swap(false, Ordering::Relaxed);
        let payload = failed.then(|| {
            let mut slot = shared.payload.lock().unwrap_or_else(PoisonError::into_inner);
            slot.take()
        });
        shared.busy.store(false, Ordering::Release);
        if let Some(Some(payload)) = payload {
            panic::resume_unwind(payload);
        }
    }

    /// Unparks up to `wanted` sleepers.
    fn wake(&self, wanted: usize) {
        let shared = &*self.shared;
        if shared.asleep.0.load(Ordering::SeqCst) == 0 {
            return;
        }
        let mut left = wanted;
        for (flag, worker) in shared.sleeping.iter().zip(&self.workers) {
            if left == 0 {
                break;
            }
            if flag.swap(false, Ordering::SeqCst) {
                worker.thread().unpark();
                left -= 1;
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its jobs, so it ends without one.
            let _ = worker.join();
        }
    }
}

/// Calls the closure behind `context`.
///
/// # Safety
/// `context` must point to a live `F`.
unsafe fn call_index<F: Fn(usize) + Sync>(context: *const (), index: usize) {
    // SAFETY: the caller vouches for the type and the life of `context`.
    let f = unsafe { &*context.cast::<F>() };
    f(index);
}

impl Shared {
    /// Opens job `job`. The ticket is closed first, so that nobody who still holds an older
    /// ticket can claim an index with the fields written here (those are release stores: who reads
    /// one of them also sees the closed ticket, and its claim fails).
    fn publish<F: Fn(usize) + Sync>(&self, job: u64, count: usize, f: &F) {
        let call: Call = call_index::<F>;
        self.ticket.0.store(job << INDEX_BITS | CLOSED, Ordering::SeqCst);
        self.done.0.store(0, Ordering::Relaxed);
        self.call.store(call as *mut (), Ordering::Release);
        let context = std::ptr::from_ref(f).cast::<()>().cast_mut();
        self.context.store(context, Ordering::Release);
        self.count.store(count, Ordering::Release);
        self.ticket.0.store(job << INDEX_BITS, Ordering::SeqCst);
    }

    /// Claims and runs indices of job `job` until none is left.
    fn work(&self, job: u64) {
        INSIDE.set(true);
        loop {
            let ticket = self.ticket.0.load(Ordering::Acquire);
            let call = self.call.load(Ordering::Acquire);
            let context = self.context.load(Ordering::Acquire);
            let index = (ticket & INDEX_MASK) as usize;
            let over = index >= self.count.load(Ordering::Acquire);
            if ticket >> INDEX_BITS != job || over {
                break;
            }
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            let claim = self.ticket.0.compare_exchange_weak(ticket, ticket + 1, order.0, order.1);
            if claim.is_err() {
                std::hint::spin_loop();
                continue;
            }
            if !self.failed.load(Ordering::Relaxed) {
                let run = || {
                    // SAFETY: the claim succeeded, so the fields are those of this job, written
                    // by `publish` from a `Call`; its caller waits for this index in `join`, so
                    // the closure lives.
                    unsafe {
                        let call = std::mem::transmute::<*mut (), Call>(call);
                        call(context, index);
                    }
                };
                if let Err(payload) = panic::catch_unwind(AssertUnwindSafe(run)) {
                    let mut slot = self.payload.lock().unwrap_or_else(PoisonError::into_inner);
                    slot.get_or_insert(payload);
                    self.failed.store(true, Ordering::Relaxed);
                }
            }
            self.done.0.fetch_add(1, Ordering::AcqRel);
        }
        INSIDE.set(false);
    }

    /// Waits for the indices that others hold.
    fn join(&self, count: usize) {
        let mut turns = 0_u32;
        while self.done.0.load(Ordering::Acquire) != count {
            turns = turns.saturating_add(1);
            match turns {
                0..SPINS => std::hint::spin_loop(),
                SPINS..4_000 => thread::yield_now(),
                _ => thread::sleep(NAP),
            }
        }
    }

    /// A worker's life.
    fn serve(&self, me: usize) {
        let mut last = 0;
        while let Some(job) = self.next_job(me, last) {
            self.work(job);
            last = job;
        }
    }

    /// Waits for a job other than `last`; `None` when the pool is dropped.
    fn next_job(&self, me: usize, last: u64) -> Option<u64> {
        let mut turns = 0;
        loop {
            let ticket = self.ticket.0.load(Ordering::SeqCst);
            let job = ticket >> INDEX_BITS;
            if job != last && ticket & INDEX_MASK != CLOSED {
                return Some(job);
            }
            if self.stop.load(Ordering::SeqCst) {
                return None;
            }
            turns += 1;
            if turns < SPINS {
                std::hint::spin_loop();
            } else if turns < SPINS + YIELDS {
                thread::yield_now();
            } else {
                self.sleep(me, ticket);
                turns = 0;
            }
        }
    }

    /// Parks unless the ticket has moved on. The flag is up before the ticket is read again and
    /// `publish` writes the ticket before it reads flags, so one of the two sees the other.
    fn sleep(&self, me: usize, seen: u64) {
        self.asleep.0.fetch_add(1, Ordering::SeqCst);
        self.sleeping[me].store(true, Ordering::SeqCst);
        let moved = self.ticket.0.load(Ordering::SeqCst) != seen;
        if !moved && !self.stop.load(Ordering::SeqCst) {
            thread::park();
        }
        self.sleeping[me].store(false, Ordering::SeqCst);
        self.asleep.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

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
}
