//! GGUF, versions 2 and 3, little-endian: a header (magic, version, counts, metadata, tensor
//! infos), padding to the alignment, then the tensors' bytes. Format: ggml's `docs/gguf.md`.
//!
//! The reader trusts nothing: each count and length is held against a limit of [`limits`] and
//! against the bytes left before anything is allocated, and offsets are added with overflow checks.
mod cursor;
pub mod header;
pub(crate) mod keys;
pub mod limits;
pub mod metadata;
pub mod types;
pub mod write;

pub use header::{Header, TensorEntry};
pub use metadata::{Array, Metadata, Value};
