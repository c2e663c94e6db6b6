//! A block at work: whose turn it is.

use std::time::Duration;

use super::LANES;
use super::barrier::Barriers;
use super::bulk::Phases;
use super::fault::{Fault, What};
use super::options::{Options, Order};
use super::switch::switch;
use super::thread::{Thread, Waits};

/// A block.
pub(crate) struct Block {
    /// Its threads, which follow each other.
    pub(super) threads: *mut Thread,
    pub(super) count: usize,
    /// Those that have not ended.
    pub(super) live: usize,
    /// Lanes of each warp that can run.
    pub(super) ready: Vec<u32>,
    /// Lanes that can run once others did: they look for what comes from outside of the block.
    pub(super) looks: Vec<u32>,
    /// Lanes of each warp that wait for others of it.
    pub(super) meets: Vec<u32>,
    /// The warp whose turn it is.
    current: usize,
    pub(super) options: Options,
    pub(super) barriers: Barriers,
    pub(super) phases: Phases,
    /// Where whoever runs blocks goes on.
    pub(super) outside: *mut u8,
    pub(super) fault: Option<Fault>,
}

/// How a block has come to rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Rest {
    Ended,
    /// Some threads look for what comes from outside.
    Looks,
    /// All that are left wait for each other, or one has a fault.
    Stuck,
}

impl Block {
    pub(super) fn new(options: Options) -> Self {
        Self {
            threads: std::ptr::null_mut(),
            count: 0,
            live: 0,
            ready: Vec::new(),
            looks: Vec::new(),
            meets: Vec::new(),
            current: 0,
            options,
            barriers: Barriers::default(),
            phases: Phases::default(),
            outside: std::ptr::null_mut(),
            fault: None,
        }
    }

    /// Begins with `count` threads, which are laid out.
    pub(super) fn begin(&mut self, threads: *mut Thread, count: usize) {
        let warps = count.div_ceil(LANES);
        (self.threads, self.count, self.live, self.fault) = (threads, count, count, None);
        self.ready.clear();
        self.ready.resize(warps, u32::MAX);
        if !count.is_multiple_of(LANES) {
            self.ready[warps - 1] = (1 << (count % LANES)) - 1;
        }
        for lanes in [&mut self.looks, &mut self.meets] {
            lanes.clear();
            lanes.resize(warps, 0);
        }
        let mut order = self.options.order;
        self.current = order.first(0, warps);
        self.options.order = order;
        self.barriers.begin();
        self.phases.begin();
    }

    /// Runs until nothing is left to run.
    pub(super) fn run(&mut self) -> Rest {
        for (ready, looks) in self.ready.iter_mut().zip(&mut self.looks) {
            *ready |= std::mem::take(looks);
        }
        if let Some(next) = self.next() {
            // SAFETY: a thread that can run, and comes back here when none can.
            unsafe { switch(&raw mut self.outside, (*next).stack) }
        }
        if self.fault.is_some() {
            Rest::Stuck
        } else if self.live == 0 {
            Rest::Ended
        } else if self.looks.iter().any(|&looks| looks != 0) {
            Rest::Looks
        } else {
            Rest::Stuck
        }
    }

    /// The thread whose turn is next, which is taken from those that can run.
    fn next(&mut self) -> Option<*mut Thread> {
        let warps = self.ready.len();
        let order = &mut self.options.order;
        if self.ready[self.current] == 0 || order.leaves() {
            let first = order.first(self.current, warps);
            let step = if *order == Order::Reverse { warps - 1 } else { 1 };
            let mut all = (0..warps).map(|by| (first + by * step) % warps);
            self.current = all.find(|&warp| self.ready[warp] != 0)?;
        }
        let ready = &mut self.ready[self.current];
        let lane = order.lane(*ready);
        *ready &= !(1 << lane);
        Some(self.threads.wrapping_add(self.current * LANES + lane as usize))
    }

    /// Lets others run until `thread` is ready again.
    ///
    /// # Safety
    /// `thread` must be the one that runs, and nothing on its stack may be borrowed by others.
    pub(super) unsafe fn suspend(thread: *mut Thread) {
        // SAFETY: a thread's block lives as long as it; every place is used anew after the switch.
        unsafe {
            let block = (*thread).block;
            match (*block).next() {
                Some(next) if next == thread => {}
                Some(next) => switch(&raw mut (*thread).stack, (*next).stack),
                None => switch(&raw mut (*thread).stack, (*block).outside),
            }
        }
    }

    /// Ends the block with what is wrong.
    ///
    /// # Safety
    /// As [`Block::suspend`]; the thread does not go on.
    pub(super) unsafe fn fail(thread: *mut Thread, fault: Fault) -> ! {
        // SAFETY: the caller's promise.
        unsafe {
            let block = (*thread).block;
            (*block).fault.get_or_insert(fault);
            loop {
                switch(&raw mut (*thread).stack, (*block).outside);
            }
        }
    }

    /// Has the first of the threads that look end the block: what it looks for does not come.
    pub(super) fn gives_up(&mut self, after: Duration) {
        let found = self.looks.iter().enumerate().find(|(_, looks)| **looks != 0);
        let index = found.map_or(0, |(warp, looks)| warp * LANES + looks.trailing_zeros() as usize);
        let thread = self.threads.wrapping_add(index);
        // SAFETY: one of the block's threads, which live.
        let fault = unsafe { Fault::at(thread, (*thread).line, What::Looked(after)) };
        self.fault.get_or_insert(fault);
    }

    /// Lets a thread run again.
    pub(super) fn wake(&mut self, index: usize) {
        // SAFETY: an index of the block's threads.
        unsafe { (*self.threads.add(index)).waits = Waits::Not };
        self.ready[index / LANES] |= 1 << (index % LANES);
    }

    /// Lanes that a warp has.
    pub(super) fn lanes(&self, warp: usize) -> u32 {
        match self.count - warp * LANES {
            count if count >= LANES => u32::MAX,
            count => (1 << count) - 1,
        }
    }
}
