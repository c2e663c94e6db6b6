//! An emulated CUDA card, for development and tests: Baton's own kernels run on the CPU by bytes,
//! from the PTX that NVRTC makes of them.
//!
//! It shows what bytes a kernel gives and which barrier it lacks. It shows no time, no limit of
//! registers or occupancy, and no race between two blocks.

mod built;
mod driver;
mod modules;
mod nccl;
mod nvrtc;
mod ptx;
mod run;
mod source;

pub use modules::{Kernel, Module};
