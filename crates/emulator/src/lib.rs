//! An emulated CUDA card, for development and tests: Baton's own kernels run on the CPU by bytes,
//! from the PTX that NVRTC makes of them.
//!
//! A text of PTX is read (`ptx`), each kernel written as C (`source`) and compiled by the system's
//! `cc` when it is first launched (`built`). A launch (`run`) gives every thread a stack; threads
//! run in turns on the OS thread that launches, and what they do together is done by the last of
//! them to come. A fault ends the launch with the kernel, block, thread and line of PTX that had
//! it.
//!
//! What a card leaves open is chosen so that mistakes show: `EMULATOR_ORDER` (`forward`, `reverse`,
//! or a number that turns are drawn by) says who is next where several threads can run, and copies
//! to shared memory arrive when a wait says that they must, or at once with `EMULATOR_ASYNC=early`.
//! Shared memory begins with what nobody wrote. With `EMULATOR_KERNELS=idle` no kernel does
//! anything, so that the host's own work can be looked at.
//!
//! It shows what bytes a kernel gives and which barrier or wait within a block it lacks. It shows
//! no time, no limit of registers or occupancy, and no race between two blocks, which follow each
//! other unless they look for each other's writes. A wide product (`wgmma`) is done when it is come
//! to, so that a wait for it that lacks does not show. A loop that waits for nothing is not ended.

mod built;
mod driver;
mod modules;
mod nccl;
mod nvrtc;
mod ptx;
mod run;
mod source;

pub use modules::{Kernel, Module};
