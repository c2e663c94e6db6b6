//! Rotary position embedding (section 4).

/// Which dims of a head rotate together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pairing {
    /// (2i, 2i+1): llama weights in GGUF order.
    Adjacent,
    /// (i, i + R/2) inside the first R dims.
    Halves,
}
