//! Checkpoints: bounded readers of GGUF files and of model folders (safetensors, Hugging Face's and
//! MLX's). One name a tensor whatever the container, GGUF's (`token_embd.weight`,
//! `blk.N.attn_q.weight`, `output_norm.weight`, `output.weight`), and one meaning: what
//! [`Checkpoint::read`] gives is ready for a layer program, so norm weights are effective (`1 + w`
//! taken), `ssm_a` is exp(A_log), `ssm_conv1d.weight` is `[taps, channels]`.
//!
//! [`Checkpoint::open`] reads headers and configs alone: every count is held against its limit,
//! every tensor that the family needs is there with its shape, and nothing is left over. The values
//! stay in the files until a stage asks for them: a rank reads the bytes of its own layers only.
//! Files may hold a part of their model ([`cut()`]); a [`Manifest`] beside them then says what the
//! whole is. A file may also be a head alone whose tensors lie in units, as many as a store has of
//! them: a [`Catalog`] beside it says which, and it is read as if it were whole.
pub mod catalog;
pub mod checkpoint;
pub mod config;
mod cut;
mod digest;
pub mod error;
mod family;
mod file;
mod folder;
pub mod gguf;
mod hugging_face;
mod llama;
mod manifest;
pub mod mlx;
pub mod quantise;
mod qwen3_5;
mod reading;
mod requantise;
pub mod safetensors;
mod shorten;
mod stock;
pub mod synthetic;
mod tensor;
pub mod unit;
mod view;

pub use catalog::Catalog;
pub use checkpoint::Checkpoint;
pub use config::Config;
pub use cut::cut;
pub use digest::{Digest, Digests};
pub use error::WeightsError;
pub use manifest::{FILE as MANIFEST_FILE, Manifest};
pub use requantise::requantise;
pub use shorten::shorten;
pub use stock::Stock;
pub use tensor::TensorInfo;
