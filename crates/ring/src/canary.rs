//! One real reply through the whole ring before anything is served, its bytes held against a
//! reference where there is one, else against a second flight; then a chunk of rows, so that the
//! ring's pace is known before the first long prompt. [`Proof`] is both without I/O.

use std::fs;
use std::path::PathBuf;

use sched::{Event, Request, RequestId};
use sha2::{Digest, Sha256};

use crate::error::RingError;

/// Tokens of the canary's reply.
const TOKENS: u32 = 3;
/// Rows of the probe: enough that kernels work as in a prompt.
const PROBE_ROWS: usize = 16;
/// Requests count from 1, so this one is never a client's.
pub const CANARY: RequestId = RequestId(0);

/// The canary's prompt and what is known of its bytes.
#[derive(Clone, Debug, Default)]
pub struct Canary {
    /// A few tokens of the vocabulary.
    pub prompt: Vec<u32>,
    /// Hash of the reply and its logits, from an earlier ring of this model in this process.
    pub expected: Option<[u8; 32]>,
    /// Where the hash is kept between processes; its name stands for the model and the arithmetic.
    pub kept_at: Option<PathBuf>,
}

impl Canary {
    /// The reference, and where it is from.
    pub(crate) fn known(&self) -> Option<Known> {
        if let Some(hash) = self.expected {
            return Some(Known { hash, from: "an earlier boot".into() });
        }
        let path = self.kept_at.as_ref()?;
        let hash = fs::read(path).ok()?.try_into().ok()?;
        Some(Known { hash, from: path.display().to_string() })
    }

    /// Keeping it is a help, not a duty: a folder that can't be written changes nothing.
    pub(crate) fn keep(&self, hash: &[u8; 32]) {
        let Some(path) = &self.kept_at else { return };
        // What a full disk cut short is written anew.
        if self.known().is_some() {
            return;
        }
        let written = path.parent().map_or(Ok(()), fs::create_dir_all);
        if let Err(error) = written.and_then(|()| fs::write(path, hash)) {
            tracing::debug!("the canary's hash is not kept at {}: {error}", path.display());
        }
    }
}

/// A canary's hash that is right.
#[derive(Clone, Debug)]
pub struct Known {
    /// Of its tokens and logits.
    pub hash: [u8; 32],
    /// Where it is from, for people.
    pub from: String,
}

/// What is in the air.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flight {
    First,
    /// Nothing is known of the hash.
    Second([u8; 32]),
    Probe([u8; 32]),
}

/// The flights that prove a ring, one after another.
#[derive(Debug)]
pub(crate) struct Proof {
    prompt: Vec<u32>,
    known: Option<Known>,
    context_max: u32,
    flight: Flight,
    sha: Sha256,
}

/// What follows a flight.
#[derive(Debug)]
pub(crate) enum Next {
    Fly(Request),
    /// The ring is proven, by this hash.
    Proven([u8; 32]),
}

impl Proof {
    /// Before the first flight, whose request is the second value.
    pub(crate) fn new(prompt: Vec<u32>, known: Option<Known>, context_max: u32) -> (Self, Request) {
        let first = request(prompt.clone(), TOKENS);
        let sha = Sha256::new();
        (Self { prompt, known, context_max, flight: Flight::First, sha }, first)
    }

    /// Hears of the request in the air.
    ///
    /// # Errors
    /// A reply that failed.
    pub(crate) fn hear(&mut self, event: &Event) -> Result<(), RingError> {
        match event {
            Event::Token { id, .. } => self.sha.update(id.to_le_bytes()),
            Event::Done { logits_sha256, .. } => {
                self.sha.update(logits_sha256.unwrap_or_default());
            }
            Event::Failed(failure) => return Err(RingError::CanaryRefused(failure.to_string())),
            _ => {}
        }
        Ok(())
    }

    /// All rounds are back, those that close its stream on every rank too.
    ///
    /// # Errors
    /// `OtherCanary` where the hash differs from the known one, or from itself.
    pub(crate) fn landed(&mut self) -> Result<Next, RingError> {
        let hash: [u8; 32] = std::mem::take(&mut self.sha).finalize().into();
        let (expected, from) = match (self.flight, &self.known) {
            (Flight::Probe(hash), _) => return Ok(Next::Proven(hash)),
            (Flight::Second(first), _) => (first, "a second flight"),
            (Flight::First, Some(known)) => (known.hash, &*known.from),
            (Flight::First, None) => {
                self.flight = Flight::Second(hash);
                return Ok(Next::Fly(request(self.prompt.clone(), TOKENS)));
            }
        };
        if hash != expected {
            let (expected, from, found) = (hex(&expected), from.to_owned(), hex(&hash));
            return Err(RingError::OtherCanary { expected, from, found });
        }
        self.flight = Flight::Probe(hash);
        let rows = PROBE_ROWS.min(self.context_max as usize - 1);
        let prompt = self.prompt.iter().copied().cycle().take(rows).collect();
        Ok(Next::Fly(request(prompt, 1)))
    }
}

fn hex(hash: &[u8; 32]) -> String {
    hash[..8].iter().map(|b| format!("{b:02x}")).collect()
}

fn request(prompt: Vec<u32>, max_tokens: u32) -> Request {
    Request {
        prompt,
        max_tokens,
        hash_logits: true,
        draft: false,
        cached: false,
        ..Request::default()
    }
}
