//! What a rank says while it reads its layers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

use arith::base::Rank;

/// The first word comes after so long, each other one after twice as long as the one before.
const FIRST: Duration = Duration::from_secs(2);
/// Longest silence.
const LONGEST: Duration = Duration::from_secs(60);
/// Characters of a bar.
const BAR: u64 = 20;

/// Has `load` read `all` bytes, which it counts in `read`, says now and then how far it is, and in
/// the end how long it took.
pub fn watch<T, E>(
    rank: Rank,
    all: u64,
    read: &AtomicU64,
    load: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let since = Instant::now();
    let found = told(rank, "loading", all, read, load);
    if found.is_ok() {
        let took = since.elapsed();
        let (mib, rate) = (mib(all), rate(all, took));
        let took = took.as_secs_f64();
        tracing::info!("rank {rank}: loaded {mib} MiB in {took:.1} s, {rate} MiB/s");
    }
    found
}

/// Has `work` read at most `all` bytes, which it counts in `read`, and says now and then how far
/// it is.
pub fn told<T>(rank: Rank, what: &str, all: u64, read: &AtomicU64, work: impl FnOnce() -> T) -> T {
    let (since, before) = (Instant::now(), read.load(Ordering::Relaxed));
    let done = || read.load(Ordering::Relaxed).saturating_sub(before).min(all);
    let (ended, over) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let mut pause = FIRST;
            while let Err(RecvTimeoutError::Timeout) = over.recv_timeout(pause) {
                tracing::info!("rank {rank}: {what} {}", line(done(), all, since.elapsed()));
                pause = (pause * 2).min(LONGEST);
            }
        });
        let found = work();
        // Ends the thread, also where the work failed.
        drop(ended);
        found
    })
}

fn mib(bytes: u64) -> u64 {
    bytes.div_ceil(1 << 20)
}

fn rate(bytes: u64, took: Duration) -> u64 {
    (mib(bytes) as f64 / took.as_secs_f64().max(1e-3)) as u64
}

/// A bar, bytes and rate.
fn line(loaded: u64, all: u64, took: Duration) -> String {
    let full = (loaded * BAR / all.max(1)).min(BAR);
    let bar: String = (0..BAR).map(|at| if at < full { '#' } else { '-' }).collect();
    format!("[{bar}] {} of {} MiB, {} MiB/s", mib(loaded), mib(all), rate(loaded, took))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_has_bytes_and_rate() {
        let half = line(512 << 20, 1 << 30, Duration::from_secs(2));
        assert_eq!(half, "[##########----------] 512 of 1024 MiB, 256 MiB/s");
        assert!(line(0, 0, Duration::ZERO).starts_with("[--------------------] 0 of 0 MiB"));
        assert!(line(9, 8, FIRST).starts_with("[####################]"));
    }

    #[test]
    fn loading_that_fails_ends_its_watcher() {
        let read = AtomicU64::new(0);
        assert_eq!(watch(Rank(1), 10, &read, || Err::<(), _>("no file")), Err("no file"));
        assert_eq!(watch(Rank(1), 10, &read, || Ok::<_, ()>(7)), Ok(7));
    }
}
