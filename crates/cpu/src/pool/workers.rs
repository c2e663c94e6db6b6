//! The pool's threads, and the way in.

use std::io;
use std::panic;

use super::job::Shared;
use super::sync::{Arc, Builder, JoinHandle, Ordering, inside};

/// The pool. Dropping it joins the workers.
pub(crate) struct Pool {
    pub(super) shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl Pool {
    /// A pool in which `threads` threads compute: the caller and `threads - 1` workers.
    pub(crate) fn new(threads: usize) -> io::Result<Self> {
        let workers = threads.saturating_sub(1);
        let shared = Arc::new(Shared::new(workers));
        let mut pool = Self { shared: Arc::clone(&shared), workers: Vec::with_capacity(workers) };
        for me in 0..workers {
            let shared = Arc::clone(&shared);
            let worker = Builder::new()
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
        let alone = count <= 1 || self.workers.is_empty() || inside();
        if alone || shared.busy.swap(true, Ordering::Acquire) {
            (0..count).for_each(f);
            return;
        }
        let seats = shared.publish(count, f);
        self.wake(seats - 1);
        shared.work(0);
        shared.join();
        let payload = shared.failure();
        shared.busy.store(false, Ordering::Release);
        if let Some(payload) = payload {
            panic::resume_unwind(payload);
        }
    }

    /// Unparks those of the first `wanted` workers that sleep.
    fn wake(&self, wanted: usize) {
        let shared = &*self.shared;
        if shared.asleep.0.load(Ordering::Relaxed) == 0 {
            return;
        }
        for (flag, worker) in shared.sleeping.iter().zip(&self.workers).take(wanted) {
            if flag.swap(false, Ordering::Relaxed) {
                worker.thread().unpark();
            }
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Release);
        for worker in self.workers.drain(..) {
            worker.thread().unpark();
            // A worker catches the panics of its jobs, so it ends without one.
            let _ = worker.join();
        }
    }
}
