//! What was predicted beside what is measured, and when the difference is worth another plan.
//!
//! A server tells what it did window by window. Only windows with work in them count, a prompt's
//! rows make no decode evidence, and one odd minute makes no plan: [`Truth::advice`] asks for
//! another one only when nearly all of the last busy windows agree.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::Prediction;

/// Busy windows that are looked at together.
pub const WINDOWS: usize = 6;
/// How many of them must agree.
pub const AGREEING: usize = 5;
/// How far off a window must be, as a part of what was predicted.
pub const OFF: f64 = 0.25;
/// The fewest decoded tokens of a window that count.
const TOKENS_MIN: u64 = 32;
/// The fewest prompt tokens of a window that count.
const PROMPT_TOKENS_MIN: u64 = 64;
/// The part of a window that a ring must have worked.
const BUSY_MIN: f64 = 0.5;
/// The part of a window that prompts may have taken where its decode counts.
const PROMPT_MAX: f64 = 0.1;

/// What a placement is expected to do.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Expected {
    /// A token of one stream.
    pub decode_s: f64,
    /// A token of each of `streams`, together.
    pub round_s: f64,
    /// Streams that were planned for.
    pub streams: u32,
    /// A prompt, to its first token.
    pub prompt_s: f64,
    /// Its tokens.
    pub prompt_tokens: u32,
    /// Rows of its chunks.
    pub chunk_rows: u32,
    /// What each rank holds.
    pub memory_bytes: Vec<u64>,
}

/// What a server did in some seconds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Window {
    /// Its length.
    pub seconds: f64,
    /// How long there was work in the ring.
    pub at_work_s: f64,
    /// Tokens that followed another of their reply, and the time between each and that one, in all.
    pub tokens: u64,
    /// Seconds between them, in all.
    pub between_s: f64,
    /// Prompt tokens that were taken in, and not found in the cache.
    pub prompt_tokens: u64,
    /// Time from requests to their first tokens, in all.
    pub first_s: f64,
    /// Streams that ran, on the average.
    pub streams: f64,
    /// What each rank holds now; 0 where unknown.
    pub memory_bytes: Vec<u64>,
}

/// Measured over predicted times; `None` without evidence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Ratios {
    /// Of a token.
    pub decode: Option<f64>,
    /// Of a prompt.
    pub prompt: Option<f64>,
}

/// What to do about the placement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Advice {
    /// Nothing: it does as predicted, or too little is known.
    Keep,
    /// Measure and plan again at the next drain boundary: `Ratios` have been off for long.
    Replan(Ratios),
}

/// A prediction and the last busy windows.
#[derive(Clone, Debug, PartialEq)]
pub struct Truth {
    expected: Expected,
    windows: VecDeque<Ratios>,
    last: Measured,
}

/// The newest measurements of each kind.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct Measured {
    /// A token, and of how many streams at once.
    pub decode_s: Option<f64>,
    /// Streams at that time, on the average.
    pub streams: f64,
    /// A token of a prompt.
    pub prompt_token_s: Option<f64>,
    /// What each rank holds.
    pub memory_bytes: Vec<u64>,
}

impl Expected {
    /// What is predicted for `streams` and a prompt of `prompt_tokens`, of members' leaders.
    pub fn of(told: &Prediction, streams: u32, prompt_tokens: u32) -> Self {
        Self {
            decode_s: 1.0 / told.decode_per_s,
            round_s: f64::from(streams) / told.throughput_per_s,
            streams,
            prompt_s: told.prompt_s,
            prompt_tokens: prompt_tokens.max(1),
            chunk_rows: told.chunk_rows,
            memory_bytes: told.memory.iter().map(crate::Memory::total_bytes).collect(),
        }
    }

    /// A token's time while `streams` decode: on the line between one and all.
    pub fn decode_at(&self, streams: f64) -> f64 {
        let all = f64::from(self.streams).max(1.0);
        let part = ((streams - 1.0) / (all - 1.0).max(1.0)).clamp(0.0, 1.0);
        self.decode_s + part * (self.round_s - self.decode_s).max(0.0)
    }

    /// A prompt token's time.
    pub fn prompt_token_s(&self) -> f64 {
        self.prompt_s / f64::from(self.prompt_tokens)
    }
}

impl Window {
    fn is_busy(&self) -> bool {
        self.seconds > 0.0 && self.at_work_s >= BUSY_MIN * self.seconds
    }
}

impl Truth {
    /// Without evidence.
    pub fn new(expected: Expected) -> Self {
        Self { expected, windows: VecDeque::new(), last: Measured::default() }
    }

    /// What was predicted.
    pub fn expected(&self) -> &Expected {
        &self.expected
    }

    /// The newest measurements.
    pub fn measured(&self) -> &Measured {
        &self.last
    }

    /// Takes a window in; idle ones change nothing but what ranks hold.
    pub fn add(&mut self, window: &Window) {
        self.last.memory_bytes.clone_from(&window.memory_bytes);
        if !window.is_busy() {
            return;
        }
        let prompts_s = window.prompt_tokens as f64 * self.expected.prompt_token_s();
        let decodes = window.tokens >= TOKENS_MIN && prompts_s <= PROMPT_MAX * window.seconds;
        // A prompt that waits for others says nothing of its own time.
        let prompts = window.prompt_tokens >= PROMPT_TOKENS_MIN && window.streams <= 1.0;
        let mut ratios = Ratios::default();
        if decodes {
            let found = window.between_s / window.tokens as f64;
            ratios.decode = Some(found / self.expected.decode_at(window.streams));
            (self.last.decode_s, self.last.streams) = (Some(found), window.streams);
        }
        if prompts {
            let found = window.first_s / window.prompt_tokens as f64;
            ratios.prompt = Some(found / self.expected.prompt_token_s());
            self.last.prompt_token_s = Some(found);
        }
        if ratios != Ratios::default() {
            self.windows.push_back(ratios);
            if self.windows.len() > WINDOWS {
                self.windows.pop_front();
            }
        }
    }

    /// What the last busy windows say together.
    pub fn advice(&self) -> Advice {
        let of = |which: fn(&Ratios) -> Option<f64>| self.sustained(which);
        let found = Ratios { decode: of(|r| r.decode), prompt: of(|r| r.prompt) };
        match found == Ratios::default() {
            true => Advice::Keep,
            false => Advice::Replan(found),
        }
    }

    /// The middle of the ratios of which enough are off the same way.
    fn sustained(&self, which: fn(&Ratios) -> Option<f64>) -> Option<f64> {
        let mut found: Vec<f64> = self.windows.iter().filter_map(which).collect();
        let slower = found.iter().filter(|ratio| **ratio > 1.0 + OFF).count();
        let faster = found.iter().filter(|ratio| **ratio < 1.0 / (1.0 + OFF)).count();
        found.sort_by(f64::total_cmp);
        (slower.max(faster) >= AGREEING).then(|| found[found.len() / 2])
    }
}
