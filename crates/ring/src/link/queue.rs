//! What the compute side hands to the writer of a link, bounded.

use std::collections::VecDeque;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;
use wire::frame::{Kind, Writer};

/// Most frames that wait for the writer: plan and rows of 16 rounds, and boot messages.
pub const OUTBOUND_FRAMES_MAX: usize = 64;
/// Most payload bytes that wait for the writer, unless one frame alone is larger.
pub const OUTBOUND_BYTES_MAX: usize = 256 << 20;
/// Most stops and cancels that wait for the writer.
pub const URGENT_FRAMES_MAX: usize = 1024;

/// Why a frame was not queued.
pub(crate) enum Full {
    /// The queue stayed full until the deadline.
    Deadline,
    /// The queue is closed.
    Closed,
}

#[derive(Default)]
struct State {
    urgent: VecDeque<Writer>,
    frames: VecDeque<(Writer, usize)>,
    bytes: usize,
    closed: bool,
}

/// Frames in order, and beside them the urgent ones (stop, cancel), which overtake.
#[derive(Default)]
pub(crate) struct Queue {
    state: Mutex<State>,
    /// The writer took something.
    space: Condvar,
    /// The I/O side is to write, or the queue closed.
    pub(crate) ready: Notify,
}

impl Queue {
    /// Queues a frame of `bytes` payload bytes, for whoever writes next; waits for space until
    /// `deadline`. Urgent frames never wait: one too many is dropped if it is a cancel or a
    /// tally, which are hints, and goes in front if it is a stop.
    pub(crate) fn push(&self, frame: Writer, bytes: usize, deadline: Duration) -> Result<(), Full> {
        let mut state = self.lock();
        if state.closed {
            return Err(Full::Closed);
        }
        if matches!(frame.kind(), Kind::Stop | Kind::Cancel | Kind::Tally) {
            push_urgent(&mut state, frame);
        } else {
            let until = Instant::now() + deadline;
            while state.is_full(bytes) {
                self.ready.notify_one();
                let left = until.saturating_duration_since(Instant::now());
                if left.is_zero() {
                    return Err(Full::Deadline);
                }
                let waited = self.space.wait_timeout(state, left);
                state = waited.unwrap_or_else(PoisonError::into_inner).0;
                if state.closed {
                    return Err(Full::Closed);
                }
            }
            state.bytes += bytes;
            state.frames.push_back((frame, bytes));
        }
        Ok(())
    }

    /// Payload bytes that wait, urgent ones not counted; `None` where no frame waits.
    pub(crate) fn waiting(&self) -> Option<usize> {
        let state = self.lock();
        let is_empty = state.urgent.is_empty() && state.frames.is_empty();
        (!is_empty).then_some(state.bytes)
    }

    /// The next frame; urgent ones first.
    pub(crate) fn pop(&self) -> Option<Writer> {
        let mut state = self.lock();
        if let Some(frame) = state.urgent.pop_front() {
            return Some(frame);
        }
        let (frame, bytes) = state.frames.pop_front()?;
        state.bytes -= bytes;
        drop(state);
        self.space.notify_all();
        Some(frame)
    }

    /// The next urgent frame.
    pub(crate) fn pop_urgent(&self) -> Option<Writer> {
        self.lock().urgent.pop_front()
    }

    /// Refuses frames from now on; what is queued can still be taken.
    pub(crate) fn close(&self) {
        self.lock().closed = true;
        self.space.notify_all();
        self.ready.notify_one();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Each change under the lock is whole, so a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn is_full(&self, more: usize) -> bool {
        let over = self.bytes.saturating_add(more) > OUTBOUND_BYTES_MAX;
        self.frames.len() >= OUTBOUND_FRAMES_MAX || (over && !self.frames.is_empty())
    }
}

fn push_urgent(state: &mut State, frame: Writer) {
    if state.urgent.len() < URGENT_FRAMES_MAX {
        state.urgent.push_back(frame);
    } else if frame.kind() == Kind::Stop {
        state.urgent.pop_back();
        state.urgent.push_front(frame);
    }
}
