//! Launches: blocks of threads, each on a stack of its own, that run in turns on one core.

mod arena;
mod barrier;
mod block;
mod bulk;
mod calls;
mod copies;
mod fault;
mod launch;
mod options;
mod product;
mod switch;
mod thread;
mod warp;
mod wide;

pub(crate) use launch::{Launch, launch};
pub(crate) use options::Options;
pub(crate) use thread::Thread;

/// Threads of a warp.
const LANES: usize = 32;
/// Threads of a block at most.
const BLOCK_THREADS_MAX: usize = 1024;
