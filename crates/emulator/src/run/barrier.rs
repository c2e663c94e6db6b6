//! The sixteen barriers of a block.

use super::block::Block;
use super::fault::{Fault, What};
use super::thread::{Thread, Waits};

const BARRIERS: usize = 16;

/// All of a block's.
#[derive(Default)]
pub(super) struct Barriers {
    all: [Barrier; BARRIERS],
}

#[derive(Default)]
struct Barrier {
    /// Threads that are there, with those that do not wait.
    arrived: u32,
    /// Threads that it takes; 0 if all that have not ended.
    count: u32,
    waiting: Vec<u32>,
    said: u32,
}

/// What is made of the threads' words.
#[derive(Clone, Copy)]
pub(super) enum Reduce {
    Or,
    And,
    Count,
}

impl Barriers {
    pub(super) fn begin(&mut self) {
        for barrier in &mut self.all {
            (barrier.arrived, barrier.count, barrier.said) = (0, 0, 0);
            barrier.waiting.clear();
        }
    }
}

/// Comes to barrier `id`, of `count` threads or all (0), and waits there if `waits`. What the
/// threads say is reduced and given to each.
///
/// # Safety
/// `thread` must be the one that runs.
pub(super) unsafe fn arrive(
    thread: *mut Thread,
    line: u32,
    (id, count): (u32, u32),
    waits: bool,
    said: Option<(Reduce, bool)>,
) {
    // SAFETY: the block lives while a thread of it runs, and only one runs at a time.
    unsafe {
        let block = &mut *(*thread).block;
        let Some(barrier) = block.barriers.all.get_mut(id as usize) else {
            Block::fail(thread, Fault::at(thread, line, What::NoBarrier(id)));
        };
        if barrier.arrived > 0 && barrier.count != count {
            let what = What::Counts(id, barrier.count, count);
            Block::fail(thread, Fault::at(thread, line, what));
        }
        (barrier.arrived, barrier.count) = (barrier.arrived + 1, count);
        if let Some((_, true)) = said {
            barrier.said += 1;
        }
        if waits {
            barrier.waiting.push((*thread).index);
            (*thread).waits = Waits::Barrier { id, line };
        }
        (*thread).given[0] = match said {
            Some((Reduce::And, _)) => 1,
            Some((Reduce::Count, _)) => 2,
            _ => 0,
        };
        fill(block, id as usize);
        if waits {
            // Also the last one to come takes its turn.
            Block::suspend(thread);
        }
    }
}

/// Lets those at a barrier go if all are there.
fn fill(block: &mut Block, id: usize) {
    let barrier = &mut block.barriers.all[id];
    let count = if barrier.count == 0 { block.live as u32 } else { barrier.count };
    if barrier.arrived < count || barrier.arrived == 0 {
        return;
    }
    let (arrived, said) = (barrier.arrived, barrier.said);
    let mut waiting = std::mem::take(&mut barrier.waiting);
    (barrier.arrived, barrier.count, barrier.said) = (0, 0, 0);
    for &index in &waiting {
        // SAFETY: an index of the block's threads.
        let thread = unsafe { &mut *block.threads.add(index as usize) };
        thread.taken[0] = match thread.given[0] {
            1 => u32::from(said == arrived),
            2 => said,
            _ => u32::from(said > 0),
        };
        block.wake(index as usize);
    }
    waiting.clear();
    block.barriers.all[id].waiting = waiting;
}

/// After a thread has ended: barriers of all may be full now.
pub(super) fn ended(block: &mut Block) {
    for id in 0..BARRIERS {
        if block.barriers.all[id].count == 0 {
            fill(block, id);
        }
    }
}
