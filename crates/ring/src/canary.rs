//! One real reply through the whole ring before anything is served, its bytes held against a
//! reference where there is one, else against a second flight.

use std::fs;
use std::path::PathBuf;

use sched::{Event, Request, RequestId};
use sha2::{Digest, Sha256};

use crate::error::RingError;
use crate::rounds::Rounds;

/// Tokens of the canary's reply.
const TOKENS: u32 = 3;
/// Rows of the probe: enough that kernels work as in a prompt.
const PROBE_ROWS: usize = 16;
/// Requests count from 1, so this one is never a client's.
const CANARY: RequestId = RequestId(0);

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
    fn kept(&self) -> Option<[u8; 32]> {
        let bytes = fs::read(self.kept_at.as_ref()?).ok()?;
        bytes.try_into().ok()
    }

    /// Keeping it is a help, not a duty: a folder that can't be written changes nothing.
    fn keep(&self, hash: &[u8; 32]) {
        let Some(path) = &self.kept_at else { return };
        if path.exists() {
            return;
        }
        let written = path.parent().map_or(Ok(()), fs::create_dir_all);
        if let Err(error) = written.and_then(|()| fs::write(path, hash)) {
            tracing::debug!("the canary's hash is not kept at {}: {error}", path.display());
        }
    }
}

/// Sends the canary, twice where nothing is known of it; its hash.
///
/// # Errors
/// `OtherCanary` where the hash differs from the expected one, or from itself.
pub(crate) fn fly(rounds: &mut Rounds<'_>, canary: &Canary) -> Result<[u8; 32], RingError> {
    let first = flight(rounds, canary.prompt.clone(), TOKENS)?;
    let (expected, from) = match (canary.expected, canary.kept(), &canary.kept_at) {
        (Some(expected), ..) => (expected, "an earlier boot".to_owned()),
        (None, Some(kept), Some(path)) => (kept, path.display().to_string()),
        _ => (flight(rounds, canary.prompt.clone(), TOKENS)?, "a second flight".to_owned()),
    };
    if first == expected {
        canary.keep(&first);
        return Ok(first);
    }
    Err(RingError::OtherCanary { expected: hex(&expected), from, found: hex(&first) })
}

fn hex(hash: &[u8; 32]) -> String {
    hash[..8].iter().map(|b| format!("{b:02x}")).collect()
}

/// Sends one chunk of rows round, so that the ring's pace is known before the first long prompt.
///
/// # Errors
/// What broke the ring.
pub(crate) fn probe(rounds: &mut Rounds<'_>, canary: &Canary) -> Result<(), RingError> {
    let rows = PROBE_ROWS.min(rounds.lead.sched.context_max() as usize - 1);
    let prompt: Vec<u32> = canary.prompt.iter().copied().cycle().take(rows).collect();
    flight(rounds, prompt, 1).map(drop)
}

fn flight(
    rounds: &mut Rounds<'_>,
    prompt: Vec<u32>,
    max_tokens: u32,
) -> Result<[u8; 32], RingError> {
    let request = Request {
        prompt,
        max_tokens,
        hash_logits: true,
        draft: false,
        cached: false,
        ..Request::default()
    };
    let failed = |why: String| Err(RingError::CanaryRefused(why));
    if let Err(refusal) = rounds.submit(CANARY, request) {
        return failed(refusal.to_string());
    }
    let (owner, mut events) = tokio::sync::mpsc::channel(TOKENS as usize + 1);
    rounds.owners.insert(CANARY, owner);
    let mut hash = Sha256::new();
    // Until the rounds that close its stream on every rank are back too.
    while !rounds.lead.is_idle() {
        rounds.look()?;
        if !rounds.lead.is_idle() {
            rounds.turn()?;
        }
        while let Ok(event) = events.try_recv() {
            match event {
                Event::Token { id, .. } => hash.update(id.to_le_bytes()),
                Event::Done { logits_sha256, .. } => hash.update(logits_sha256.unwrap_or_default()),
                Event::Failed(failure) => return failed(failure.to_string()),
                _ => {}
            }
        }
    }
    Ok(hash.finalize().into())
}
