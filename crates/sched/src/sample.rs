//! Logits to a token: keyed noise, so that a draw depends on seed, position and logits alone.

pub use arith::sample::Sampling;
