//! The proof of a reply: what was answered, where it was computed and what that took. Whoever has
//! the model can compute the tokens again, on any layout, and compare.

use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};

/// Where replies are computed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Place {
    /// Layers of each rank, `0:10,10:20,20:30`.
    pub layout: String,
    /// The arithmetic.
    pub arith: String,
}

/// What one reply took.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Run {
    /// SHA-256 of the reply's token ids, each as a little-endian u32.
    pub token_sha256: [u8; 32],
    /// From the request's arrival to its first token.
    pub ttft: Duration,
    /// From the first token to the last.
    pub decode: Duration,
    /// Reply tokens.
    pub tokens: u32,
    /// Tokens that were guessed ahead, and those of them that the reply has.
    pub drafted: u32,
    /// See `drafted`.
    pub accepted: u32,
    /// Prompt tokens that were not computed.
    pub cached_tokens: u32,
}

impl Run {
    /// The object `baton` of a reply. The speed is `null` where a second token never came.
    pub fn proof(&self, place: &Place) -> Value {
        let rounded = |value: f64| (value * 1e3).round() / 1e3;
        let seconds = self.decode.as_secs_f64();
        let speed = (self.tokens > 1 && seconds > 0.0)
            .then(|| rounded(f64::from(self.tokens - 1) / seconds));
        json!({
            "token_sha256": hex(&self.token_sha256),
            "tokens": self.tokens,
            "placement": place.layout,
            "arith": place.arith,
            "ttft_ms": rounded(self.ttft.as_secs_f64() * 1e3),
            "decode_tokens_per_s": speed,
            "drafted": self.drafted,
            "accepted": self.accepted,
            "cached_tokens": self.cached_tokens,
        })
    }
}

/// Follows a reply's tokens.
#[derive(Clone, Debug)]
pub struct Meter {
    hash: Sha256,
    since: Instant,
    first: Option<Instant>,
    last: Option<Instant>,
    tokens: u32,
}

impl Meter {
    /// For a request that came at `since`.
    pub fn new(since: Instant) -> Self {
        Self { hash: Sha256::new(), since, first: None, last: None, tokens: 0 }
    }

    /// Takes the next token.
    pub fn token(&mut self, id: u32) {
        self.hash.update(id.to_le_bytes());
        let now = Instant::now();
        self.first.get_or_insert(now);
        self.last = Some(now);
        self.tokens += 1;
    }

    /// What there is to say of the tokens so far.
    pub fn run(&self) -> Run {
        let first = self.first.unwrap_or_else(Instant::now);
        Run {
            token_sha256: self.hash.clone().finalize().into(),
            ttft: first.saturating_duration_since(self.since),
            decode: self.last.map_or(Duration::ZERO, |last| last - first),
            tokens: self.tokens,
            ..Run::default()
        }
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proof_hashes_the_ids_in_order_and_names_the_place() {
        let mut meter = Meter::new(Instant::now());
        [1, 2, 70_000].into_iter().for_each(|id| meter.token(id));
        let run = Run { cached_tokens: 5, decode: Duration::from_millis(500), ..meter.run() };
        let place = Place { layout: "0:2,2:4".into(), arith: "1".into() };
        let proof = run.proof(&place);
        // printf '\1\0\0\0\2\0\0\0\160\21\1\0' | sha256sum
        let expected = "313a9de55e88265f756e61a8793c45193dade4a5b645f7f35082452e6b133604";
        assert_eq!(proof["token_sha256"], expected);
        assert_eq!((&proof["placement"], &proof["arith"]), (&json!("0:2,2:4"), &json!("1")));
        assert_eq!(
            (&proof["decode_tokens_per_s"], &proof["cached_tokens"]),
            (&json!(4.0), &json!(5))
        );
        let mut other = Meter::new(Instant::now());
        [1, 70_000, 2].into_iter().for_each(|id| other.token(id));
        assert_ne!(other.run().token_sha256, run.token_sha256);
        let alone = Run { tokens: 1, ..Run::default() };
        assert_eq!(alone.proof(&place)["decode_tokens_per_s"], Value::Null);
    }
}
