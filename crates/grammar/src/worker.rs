//! Threads that compute masks beside the rounds.

use std::io;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};

/// Threads: one that computes, and one for when it takes long.
const THREADS: usize = 2;

type Job = Box<dyn FnOnce() + Send>;

/// The threads' queue; they end with it. It holds one job a running reply at most.
#[derive(Debug)]
pub(crate) struct Workers {
    jobs: Sender<Job>,
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
        Ok(Self { jobs })
    }

    /// Runs `work` on one of the threads; its result, or a closed channel where it panicked.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
        let (done, result) = channel();
        let job = Box::new(move || {
            let _ = done.send(work());
        });
        // Without threads the result's channel closes, which says so.
        let _ = self.jobs.send(job);
        result
    }
}

fn work(queue: &Mutex<Receiver<Job>>) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(job) = job else { return };
        let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(job));
    }
}
