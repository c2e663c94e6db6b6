//! Bars of long work, drawn where standard error is a terminal.

use std::sync::atomic::Ordering;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};
use weights::Checkpoint;

/// How often a bar of reading moves.
const TICK: Duration = Duration::from_millis(100);

/// A bar that counts bytes, with its rate.
pub fn bytes(count: u64, message: &'static str) -> ProgressBar {
    bar(count, message, "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec}")
}

/// A bar that counts steps, with the time that is left.
pub fn steps(count: usize, message: &'static str) -> ProgressBar {
    bar(count as u64, message, "{msg} [{bar:30}] {pos} of {len}, {eta} left")
}

fn bar(count: u64, message: &'static str, template: &str) -> ProgressBar {
    let style = ProgressStyle::with_template(template);
    let style = style.unwrap_or_else(|_| ProgressStyle::default_bar()).progress_chars("#--");
    ProgressBar::new(count).with_message(message).with_style(style)
}

/// Does `work`, which reads at most `count` bytes of a checkpoint, beside a bar of them.
pub fn reading<T>(
    checkpoint: &Checkpoint,
    count: u64,
    message: &'static str,
    work: impl FnOnce() -> T,
) -> T {
    let (read, bar) = (checkpoint.bytes_read(), bytes(count, message));
    let before = read.load(Ordering::Relaxed);
    let (ended, over) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = over.recv_timeout(TICK) {
                bar.set_position(read.load(Ordering::Relaxed).saturating_sub(before));
            }
            bar.finish_and_clear();
        });
        let found = work();
        drop(ended);
        found
    })
}
