//! Threads that compute masks beside the rounds.

use std::fmt;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Threads: one that computes, and one for when it takes long.
const THREADS: usize = 2;

/// Tells whoever waits for masks that one is ready.
#[derive(Clone)]
pub(crate) struct Wake(pub Arc<dyn Fn() + Send + Sync>);

impl fmt::Debug for Wake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Wake")
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// The threads' queue; they end with it. It holds one job a running reply at most.
#[derive(Debug)]
pub(crate) struct Workers {
    jobs: Sender<Job>,
    /// Has the scheduler look again.
    wake: OnceLock<Wake>,
    masks: AtomicU64,
    waited_ns: AtomicU64,
    cut_ns: AtomicU64,
}

/// What masks have cost the rounds so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Cost {
    /// Masks that cut a logits row.
    pub masks: u64,
    /// What rounds waited for masks that were not ready.
    pub waited: Duration,
    /// What the cutting took.
    pub cut: Duration,
}

impl Workers {
    pub fn start() -> io::Result<Self> {
        let (jobs, queue) = channel::<Job>();
        let queue = Arc::new(Mutex::new(queue));
        for n in 0..THREADS {
            let queue = queue.clone();
            let name = format!("baton-mask-{n}");
            std::thread::Builder::new().name(name).spawn(move || work(&queue))?;
        }
        let [masks, waited_ns, cut_ns] = [0; 3].map(AtomicU64::new);
        Ok(Self { jobs, wake: OnceLock::new(), masks, waited_ns, cut_ns })
    }

    /// Sets what is told of masks that somebody waits for; the first call counts.
    pub fn wake_through(&self, wake: Wake) {
        let _ = self.wake.set(wake);
    }

    /// A mask that somebody waits for is ready.
    pub fn ready(&self) {
        if let Some(Wake(wake)) = self.wake.get() {
            wake();
        }
    }

    /// Whether anybody can be told; without, a slow mask is waited for where it is.
    pub fn can_wake(&self) -> bool {
        self.wake.get().is_some()
    }

    /// A round waited so long for a mask.
    pub fn waited(&self, time: Duration) {
        self.waited_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    /// A mask cut a row, which took so long.
    pub fn cut(&self, time: Duration) {
        self.masks.fetch_add(1, Ordering::Relaxed);
        self.cut_ns.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
    }

    pub fn cost(&self) -> Cost {
        let time = |ns: &AtomicU64| Duration::from_nanos(ns.load(Ordering::Relaxed));
        Cost {
            masks: self.masks.load(Ordering::Relaxed),
            waited: time(&self.waited_ns),
            cut: time(&self.cut_ns),
        }
    }

    /// Runs `work` on one of the threads; its result, or a closed channel where it panicked. Calls
    /// `told` once either can be had.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
        told: impl FnOnce() + Send + 'static,
    ) -> Receiver<T> {
        let (done, result) = channel();
        let told = Told(Some(told));
        let job = Box::new(move || {
            // Dropped last, also where the work panics.
            let _told = told;
            let done = done;
            let _ = done.send(work());
        });
        // Without threads the result's channel closes, which says so.
        let _ = self.jobs.send(job);
        result
    }
}

/// Calls what it holds when it is dropped.
struct Told<F: FnOnce()>(Option<F>);

impl<F: FnOnce()> Drop for Told<F> {
    fn drop(&mut self) {
        if let Some(told) = self.0.take() {
            told();
        }
    }
}

fn work(queue: &Mutex<Receiver<Job>>) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
    }
}
