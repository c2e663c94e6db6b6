//! A fork-join pool: persistent workers that spin briefly, then park.
//!
//! A job is a function over the indices `0 .. count`. Each thread gets a run of neighbours in a
//! seat of its own and takes them in order; when it has none left it moves the later half of
//! another's run to its own seat, the caller included: a worker that the system has put aside
//! delays nothing but the index it holds. Runs let every thread read memory in one stream, and
//! threads meet on a cache line only where work is handed over: a line's way between cores costs as
//! much as a small index. The fast path takes no lock and allocates nothing. What an index computes
//! depends on the index alone, so results never depend on who ran it.

use std::any::Any;
use std::cell::Cell;
use std::io;
use std::ops::Range;
use std::panic::{self, AssertUnwindSafe};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle, Thread};
use std::time::{Duration, Instant};

/// How long whoever waits polls without a yield: longer than what is serial between two
/// projections of a layer.
const SPIN: Duration = Duration::from_micros(15);
/// How long an idle worker polls before it parks, and the caller at a job that others hold: longer
/// than what is serial between two tokens, short beside a turn of the system's scheduler.
const WAIT: Duration = Duration::from_micros(150);
/// Polls between two looks at the clock.
const POLLS: u32 = 32;

thread_local! {
    /// Set inside a job: a job that starts another runs it by itself.
    static INSIDE: Cell<bool> = const { Cell::new(false) };
}

/// Keeps what one side writes often off the lines that the other reads.
#[repr(align(128))]
#[derive(Default)]
struct Padded<T>(T);

type Call = unsafe fn(*const (), usize);

/// A thread's share of a job, and the job: one cache line brings both.
///
/// The fields of a job are written while the seat is empty, before `run` is, and read only after an
/// index was claimed from `run`: whoever claims one has those of the job at work, however long it
/// slept before, and the job waits for it.
#[derive(Default)]
struct Seat {
    /// The run's first index in the upper half, its end in the lower; see [`indices`].
    run: AtomicU64,
    /// `Call` of the job.
    call: AtomicPtr<()>,
    /// Its closure.
    context: AtomicPtr<()>,
}

#[derive(Default)]
struct Shared {
    /// The caller's, then one a worker.
    seats: Vec<Padded<Seat>>,
    /// All seats have their share of the job at work.
    open: AtomicBool,
    /// Indices of the job at work that are not finished.
    left: Padded<AtomicUsize>,
    /// The caller is parked until the job is finished.
    waits: AtomicBool,
    caller: Mutex<Option<Thread>>,
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
            seats: (0..=workers).map(|_| Padded::default()).collect(),
            sleeping: (0..workers).map(|_| AtomicBool::new(false)).collect(),
            ..Shared::default()
        });
        let mut pool = Self { shared: Arc::clone(&shared), workers: Vec::with_capacity(workers) };
        for me in 0..workers {
            let shared = Arc::clone(&shared);
            let worker = thread::Builder::new()
                .name(format!("baton-cpu-{}", me + 1))
                .spawn(move || shared.serve(me + 1))?;
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
        assert!(u32::try_from(count).is_ok(), "a job of {count} indices");
        let shared = &*self.shared;
        let alone = count <= 1 || self.workers.is_empty() || INSIDE.get();
        if alone || shared.busy.swap(true, Ordering::Acquire) {
            (0..count).for_each(f);
            return;
        }
        let seats = shared.publish(count, f);
        self.wake(seats - 1);
        shared.work(0);
        shared.join();
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

    /// Unparks those of the first `wanted` workers that sleep.
    fn wake(&self, wanted: usize) {
        let shared = &*self.shared;
        if shared.asleep.0.load(Ordering::SeqCst) == 0 {
            return;
        }
        for (flag, worker) in shared.sleeping.iter().zip(&self.workers).take(wanted) {
            if flag.swap(false, Ordering::SeqCst) {
                worker.thread().unpark();
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

/// The indices of a [`Seat::run`].
fn indices(run: u64) -> Range<u64> {
    run >> 32..run & u64::from(u32::MAX)
}

impl Seat {
    /// Takes what `split` leaves of the run: the run that stays and the indices that are taken.
    /// `None` where the run is empty.
    fn take(&self, split: impl Fn(Range<u64>) -> (Range<u64>, Range<u64>)) -> Option<Range<u64>> {
        let mut run = self.run.load(Ordering::Relaxed);
        loop {
            let all = indices(run);
            if all.is_empty() {
                return None;
            }
            let (stays, taken) = split(all);
            let stays = stays.start << 32 | stays.end;
            let order = (Ordering::AcqRel, Ordering::Relaxed);
            match self.run.compare_exchange_weak(run, stays, order.0, order.1) {
                Ok(_) => return Some(taken),
                Err(found) => run = found,
            }
        }
    }

    /// Claims the first index.
    fn claim(&self) -> Option<usize> {
        let first = self.take(|all| (all.start + 1..all.end, all.start..all.start + 1))?;
        Some(first.start as usize)
    }

    /// Claims the last index.
    fn claim_last(&self) -> Option<usize> {
        let last = self.take(|all| (all.start..all.end - 1, all.end - 1..all.end))?;
        Some(last.start as usize)
    }

    /// Moves the later half of the run to `to`, an empty seat that is the thread's own; whether
    /// there was any.
    fn move_half(&self, to: &Self) -> bool {
        let half = |all: Range<u64>| {
            let middle = (all.start + all.end) / 2;
            (all.start..middle, middle..all.end)
        };
        let Some(taken) = self.take(half) else { return false };
        // The job waits for what was taken, so these are its fields still.
        to.call.store(self.call.load(Ordering::Relaxed), Ordering::Relaxed);
        to.context.store(self.context.load(Ordering::Relaxed), Ordering::Relaxed);
        to.run.store(taken.start << 32 | taken.end, Ordering::Release);
        true
    }

    fn is_empty(&self) -> bool {
        indices(self.run.load(Ordering::SeqCst)).is_empty()
    }
}

impl Shared {
    /// Hands job `f` out; gives how many seats have a share. All seats are empty, since the job
    /// before is finished.
    fn publish<F: Fn(usize) + Sync>(&self, count: usize, f: &F) -> usize {
        let call: Call = call_index::<F>;
        let context = std::ptr::from_ref(f).cast::<()>().cast_mut();
        self.open.store(false, Ordering::Relaxed);
        self.left.0.store(count, Ordering::Relaxed);
        let seats = self.seats.len().min(count);
        let start = |seat: usize| (seat * count / seats) as u64;
        // The caller's last, so that the workers see theirs first.
        for (seat, Padded(to)) in self.seats[..seats].iter().enumerate().rev() {
            to.call.store(call as *mut (), Ordering::Relaxed);
            to.context.store(context, Ordering::Relaxed);
            to.run.store(start(seat) << 32 | start(seat + 1), Ordering::Release);
        }
        self.open.store(true, Ordering::Release);
        // Runs before flags: see `sleep`.
        fence(Ordering::SeqCst);
        seats
    }

    /// Runs indices of the seat, then of others' until none is left.
    fn work(&self, me: usize) {
        INSIDE.set(true);
        let (before, rest) = self.seats.split_at(me);
        let own = &rest[0].0;
        let others = rest[1..].iter().chain(before);
        let mut finished = 0;
        loop {
            while let Some(index) = own.claim() {
                self.call(own, index);
                finished += 1;
            }
            // Only who has finished an index and not said so keeps the job from its end, and the
            // next one from being written to this seat while a half is moved there.
            if finished > 0 {
                if !others.clone().any(|other| other.0.move_half(own)) {
                    break;
                }
                continue;
            }
            let last = others.clone().find_map(|other| Some((&other.0, other.0.claim_last()?)));
            let Some((other, index)) = last else { break };
            self.call(other, index);
            finished += 1;
            while !self.open.load(Ordering::Acquire) {
                std::hint::spin_loop();
            }
        }
        INSIDE.set(false);
        // The closure and the results are the caller's again once `left` is 0.
        if finished > 0 && self.left.0.fetch_sub(finished, Ordering::SeqCst) == finished {
            self.report();
        }
    }

    fn call(&self, seat: &Seat, index: usize) {
        if self.failed.load(Ordering::Relaxed) {
            return;
        }
        let call = seat.call.load(Ordering::Relaxed);
        let context = seat.context.load(Ordering::Relaxed);
        let run = || {
            // SAFETY: the index was claimed from the seat, so its fields are those of the job at
            // work, written by `publish` from a `Call`; its caller waits for this index in `join`,
            // so the closure lives.
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

    /// Waits for the indices that others hold. A parked caller leaves its core to a worker that
    /// the system has put aside.
    fn join(&self) {
        if spin(|| self.left.0.load(Ordering::Acquire) == 0) {
            return;
        }
        let caller = || self.caller.lock().unwrap_or_else(PoisonError::into_inner);
        *caller() = Some(thread::current());
        self.waits.store(true, Ordering::SeqCst);
        while self.left.0.load(Ordering::SeqCst) != 0 {
            thread::park();
        }
        self.waits.store(false, Ordering::SeqCst);
        *caller() = None;
    }

    /// Wakes the caller of a job that is finished. The flag is up before `left` is read again and
    /// `work` writes `left` before it reads the flag, so one of the two sees the other.
    fn report(&self) {
        if self.waits.load(Ordering::SeqCst) {
            let caller = self.caller.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(caller) = &*caller {
                caller.unpark();
            }
        }
    }

    /// A worker's life.
    fn serve(&self, me: usize) {
        let seat = &self.seats[me].0;
        let stop = || self.stop.load(Ordering::SeqCst);
        while !stop() {
            if spin(|| !seat.is_empty() || stop()) {
                self.work(me);
            } else {
                self.sleep(me);
            }
        }
    }

    /// Parks unless there is work. The flag is up before the seat is read again and `publish`
    /// writes seats before flags are read, so one of the two sees the other.
    fn sleep(&self, me: usize) {
        let flag = &self.sleeping[me - 1];
        self.asleep.0.fetch_add(1, Ordering::SeqCst);
        flag.store(true, Ordering::SeqCst);
        if self.seats[me].0.is_empty() && !self.stop.load(Ordering::SeqCst) {
            thread::park();
        }
        flag.store(false, Ordering::SeqCst);
        self.asleep.0.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Polls `done` for a while, soon with yields between, since whoever is waited for may want this
/// core; whether it came true.
fn spin(done: impl Fn() -> bool) -> bool {
    let polls = || {
        (0..POLLS).any(|_| {
            std::hint::spin_loop();
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
            thread::yield_now();
        }
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
}
