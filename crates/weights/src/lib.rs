//! Checkpoints: bounded readers over a memory mapping. One name a tensor whatever the container:
//! GGUF's (`token_embd.weight`, `blk.N.attn_q.weight`, `output_norm.weight`, `output.weight`).
pub mod config;
pub use config::Config;
