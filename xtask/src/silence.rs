//! Ends a child that has fallen silent, with all that it started: a test that waits for ever must
//! not make everybody wait.

use std::process::Command;
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::Duration;

/// Ends the process `id` whenever nothing was `heard` for `silence_max`, until the other end of
/// `heard` is gone.
pub fn watch(id: u32, heard: &Receiver<()>, silence_max: Duration) {
    loop {
        match heard.recv_timeout(silence_max) {
            Ok(()) => {}
            Err(RecvTimeoutError::Timeout) => {
                println!("stuck: not a line in {} s, so the run is ended", silence_max.as_secs());
                end(id);
            }
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

/// Kills a process and its descendants, it first, so that it starts no more.
pub fn end(id: u32) {
    let pairs = parents();
    let mut family = vec![id];
    let mut next = 0;
    while let Some(&parent) = family.get(next) {
        family.extend(pairs.iter().filter(|pair| pair.1 == parent).map(|pair| pair.0));
        next += 1;
    }
    let ids = family.iter().map(u32::to_string);
    if let Err(error) = Command::new("kill").arg("-KILL").args(ids).status() {
        println!("stuck, and can't be ended: kill: {error}");
    }
}

/// Each process with its parent; none where there is no `/proc`.
fn parents() -> Vec<(u32, u32)> {
    let pair = |id: u32| {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?;
        // The name is in brackets and may hold anything; state and parent follow it.
        let parent = stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()?;
        Some((id, parent))
    };
    let Ok(entries) = std::fs::read_dir("/proc") else { return Vec::new() };
    let ids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    ids.filter_map(pair).collect()
}
