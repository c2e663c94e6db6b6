//! The load that every cell of a check runs: the same prompts, drawn from a seed, and the two
//! hashes that sum its replies up.

use anyhow::{Context, Result, bail};
use arith::sample::Sampling;
use ring::head::Handle;
use sched::{Event, Request};
use sha2::{Digest, Sha256};

use super::axes::SplitMix;

/// One reply as it came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply {
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// Hash of the logits rows that they were drawn from.
    pub logits_sha256: [u8; 32],
}

/// What a cell computed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Outcome {
    /// SHA-256 over all replies' tokens.
    pub tokens: [u8; 32],
    /// SHA-256 over all replies' logits hashes.
    pub logits: [u8; 32],
    /// The replies, in the order of their prompts.
    pub replies: Vec<Reply>,
}

/// Prompts and settings of a check.
#[derive(Clone, Debug)]
pub struct Load {
    requests: Vec<Request>,
}

impl Load {
    /// Five prompts of `longest`, a tile and a bit, two odd ones and one token, of random tokens;
    /// each once greedy and once sampled.
    pub fn new(vocab: u32, longest: u32, reply: u32, seed: u64) -> Self {
        let mut random = SplitMix(seed);
        let lengths = [longest, 70.min(longest), 33.min(longest), 8.min(longest), 1];
        let prompts: Vec<Vec<u32>> = lengths
            .iter()
            .map(|&length| (0..length.max(1)).map(|_| random.below(vocab)).collect())
            .collect();
        let greedy = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };
        let sampled = Sampling { temperature: 1.0, top_k: 40, top_p: 0.95, min_p: 0.02, seed };
        let request = |(prompt, sampling): (&Vec<u32>, Sampling)| Request {
            prompt: prompt.clone(),
            max_tokens: reply,
            sampling,
            hash_logits: true,
            ..Request::default()
        };
        // The longest prompt runs once: it costs most of a check's time.
        let greedy = prompts.iter().map(|p| (p, greedy));
        let sampled = prompts.iter().skip(1).map(|p| (p, sampled));
        Self { requests: greedy.chain(sampled).map(request).collect() }
    }

    /// Runs the load with `streams` requests at a time.
    ///
    /// # Errors
    /// A refused or failed request.
    pub async fn run(&self, handle: &Handle, streams: u32) -> Result<Outcome> {
        let mut replies: Vec<Option<Reply>> = vec![None; self.requests.len()];
        let mut running = tokio::task::JoinSet::new();
        let mut waiting = self.requests.iter().cloned().enumerate();
        loop {
            while running.len() < streams as usize {
                let Some((index, request)) = waiting.next() else {
                    break;
                };
                let handle = handle.clone();
                running.spawn(async move { (index, one(&handle, request).await) });
            }
            let Some(done) = running.join_next().await else {
                break;
            };
            let (index, reply) = done?;
            replies[index] = Some(reply.with_context(|| format!("request {index}"))?);
        }
        let replies: Vec<Reply> = replies.into_iter().flatten().collect();
        let (mut tokens, mut logits) = (Sha256::new(), Sha256::new());
        for reply in &replies {
            tokens.update((reply.tokens.len() as u32).to_le_bytes());
            reply.tokens.iter().for_each(|id| tokens.update(id.to_le_bytes()));
            logits.update(reply.logits_sha256);
        }
        Ok(Outcome { tokens: tokens.finalize().into(), logits: logits.finalize().into(), replies })
    }

    /// Replies of a run.
    pub fn len(&self) -> usize {
        self.requests.len()
    }
}

/// Runs one request to its end.
///
/// # Errors
/// A refusal or a failure.
pub async fn one(handle: &Handle, request: Request) -> Result<Reply> {
    let mut reply = handle.submit(request).await?;
    let mut tokens = Vec::new();
    while let Some(event) = reply.next().await {
        match event {
            Event::Token { id, .. } => tokens.push(id),
            Event::Done { logits_sha256, .. } => {
                return Ok(Reply { tokens, logits_sha256: logits_sha256.unwrap_or_default() });
            }
            Event::Failed(failure) => return Err(failure.into()),
            _ => {}
        }
    }
    bail!("the reply ended without a word")
}
