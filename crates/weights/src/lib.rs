//! Checkpoints: bounded readers over a memory mapping. One name a tensor whatever the container:
//! GGUF's (`token_embd.weight`, `blk.N.attn_q.weight`, `output_norm.weight`, `output.weight`).
//!
//! [`Checkpoint::open`] reads a file's header alone: every count is held against its limit, every
//! tensor that the family needs is there with its shape, and nothing is left over. The values stay
//! in the file until a stage asks for them, so a rank touches the bytes of its own layers only.
pub mod checkpoint;
pub mod config;
pub mod error;
pub mod gguf;
mod llama;
mod mapping;
pub mod quantise;
pub mod synthetic;

pub use checkpoint::{Checkpoint, TensorInfo};
pub use config::Config;
pub use error::WeightsError;
