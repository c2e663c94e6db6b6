//! The job at work: handed out, run by all threads, waited for; and how a thread sleeps between.

use std::any::Any;
use std::panic::{self, AssertUnwindSafe};
use std::sync::PoisonError;

use super::seat::Seat;
use super::sync::{
    AtomicBool, AtomicUsize, Mutex, Ordering, Thread, current, fence, park, set_inside, spin,
    spin_loop,
};

/// Keeps what one side writes often off the lines that the other reads.
#[repr(align(128))]
#[derive(Default)]
pub(super) struct Padded<T>(pub(super) T);

type Call = unsafe fn(*const (), usize);

pub(super) struct Shared {
    /// The caller's, then one a worker.
    seats: Vec<Padded<Seat>>,
    /// All seats have their share of the job at work.
    open: AtomicBool,
    /// Indices of the job at work that are not finished.
    left: Padded<AtomicUsize>,
    /// The caller is parked until the job is finished.
    pub(super) waits: AtomicBool,
    caller: Mutex<Option<Thread>>,
    /// A caller is inside `run`.
    pub(super) busy: AtomicBool,
    pub(super) stop: AtomicBool,
    /// An index panicked; the rest of the job is skipped.
    failed: AtomicBool,
    payload: Mutex<Option<Payload>>,
    pub(super) asleep: Padded<AtomicUsize>,
    pub(super) sleeping: Vec<AtomicBool>,
}

/// What a panic carries.
type Payload = Box<dyn Any + Send>;

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
    /// What a caller and `workers` workers share.
    pub(super) fn new(workers: usize) -> Self {
        Self {
            seats: (0..=workers).map(|_| Padded::default()).collect(),
            open: AtomicBool::new(false),
            left: Padded::default(),
            waits: AtomicBool::new(false),
            caller: Mutex::new(None),
            busy: AtomicBool::new(false),
            stop: AtomicBool::new(false),
            failed: AtomicBool::new(false),
            payload: Mutex::new(None),
            asleep: Padded::default(),
            sleeping: (0..workers).map(|_| AtomicBool::new(false)).collect(),
        }
    }

    /// What an index of the finished job panicked with.
    pub(super) fn failure(&self) -> Option<Payload> {
        let failed = self.failed.swap(false, Ordering::Relaxed);
        let payload = || self.payload.lock().unwrap_or_else(PoisonError::into_inner).take();
        failed.then(payload).flatten()
    }

    /// Hands job `f` out; gives how many seats have a share. All seats are empty, since the job
    /// before is finished.
    pub(super) fn publish<F: Fn(usize) + Sync>(&self, count: usize, f: &F) -> usize {
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
    pub(super) fn work(&self, me: usize) {
        set_inside(true);
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
                spin_loop();
            }
        }
        set_inside(false);
        // The closure and the results are the caller's again once `left` is 0.
        if finished > 0 && self.left.0.fetch_sub(finished, Ordering::AcqRel) == finished {
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
    pub(super) fn join(&self) {
        if spin(|| self.left.0.load(Ordering::Acquire) == 0) {
            return;
        }
        let caller = || self.caller.lock().unwrap_or_else(PoisonError::into_inner);
        *caller() = Some(current());
        self.waits.store(true, Ordering::Release);
        // The flag before `left`: see `report`.
        fence(Ordering::SeqCst);
        while self.left.0.load(Ordering::Acquire) != 0 {
            park();
        }
        self.waits.store(false, Ordering::Relaxed);
        *caller() = None;
    }

    /// Wakes the caller of a job that is finished. `join` has its flag up before it reads `left`
    /// again and `work` writes `left` before the flag is read here, each with a fence between, so
    /// one of the two sees the other.
    fn report(&self) {
        fence(Ordering::SeqCst);
        if self.waits.load(Ordering::Acquire) {
            let caller = self.caller.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(caller) = &*caller {
                caller.unpark();
            }
        }
    }

    /// A worker's life.
    pub(super) fn serve(&self, me: usize) {
        let seat = &self.seats[me].0;
        let stop = || self.stop.load(Ordering::Acquire);
        while !stop() {
            if spin(|| !seat.is_empty() || stop()) {
                self.work(me);
            } else {
                self.sleep(me);
            }
        }
    }

    /// Parks unless there is work. The flag is up before the seat is read again and `publish`
    /// writes seats before flags are read, each with a fence between, so one of the two sees the
    /// other.
    fn sleep(&self, me: usize) {
        let flag = &self.sleeping[me - 1];
        self.asleep.0.fetch_add(1, Ordering::Relaxed);
        flag.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        if self.seats[me].0.is_empty() && !self.stop.load(Ordering::Acquire) {
            park();
        }
        flag.store(false, Ordering::Relaxed);
        self.asleep.0.fetch_sub(1, Ordering::Relaxed);
    }
}
