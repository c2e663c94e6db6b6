//! Logits to a token: keyed noise, so that a draw depends on seed, position and logits alone.

/// How tokens are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 is greedy.
    pub temperature: f64,
    /// Candidates kept by rank; 0 keeps all.
    pub top_k: u32,
    /// Candidates kept by cumulative probability; 1 keeps all.
    pub top_p: f64,
    /// Candidates kept by probability relative to the best; 0 keeps all.
    pub min_p: f64,
    /// Key of the noise.
    pub seed: u64,
}
