//! Requests, the fake network that answers them, and what a lone run of each must give.

use sched::sample::{self, Guide, Sampling};
use sched::{Finish, Request};
use sha2::{Digest, Sha256};

/// Logits a row.
pub const VOCAB: usize = 24;
/// Ends a reply where a request says so.
pub const STOP: u32 = 3;

/// A small deterministic generator.
#[derive(Debug)]
pub struct Rng(pub u64);

pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Rng {
    /// 0 .. `n`-1.
    pub fn below(&mut self, n: u32) -> u32 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        (mix(self.0) % u64::from(n.max(1))) as u32
    }
    /// `low ..= high`.
    pub fn within(&mut self, low: u32, high: u32) -> u32 {
        low + self.below(high - low + 1)
    }
    pub fn chance(&mut self, percent: u32) -> bool {
        self.below(100) < percent
    }
}

/// What a stage keeps of a stream at one position: a hash of all tokens up to it.
pub fn absorb(before: u64, token: u32) -> u64 {
    mix(before ^ mix(u64::from(token) + 1))
}

/// Logits of a row, from the state at its position. `fragile` requests meet NaN now and then,
/// throughout a row.
pub fn logits(state: u64, fragile: bool) -> Vec<f32> {
    let value = |id: u64| (mix(state ^ mix(id)) >> 40) as f32 / 2f32.powi(21) - 4.0;
    let mut row: Vec<f32> = (0..VOCAB as u64).map(value).collect();
    if fragile && state.is_multiple_of(29) {
        row.fill(f32::NAN);
    }
    row
}

/// How a reply ends.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ending {
    Done(Finish),
    Spoilt(u32),
}

/// A request, named by its first token, and the answer of a run alone.
#[derive(Clone)]
pub struct Ask {
    pub request: Request,
    pub fragile: bool,
    /// Prompt and reply.
    pub tokens: Vec<u32>,
    pub ending: Ending,
    pub sha: Option<[u8; 32]>,
}

/// First of the names: no drawn token is one.
pub const NAMES: u32 = 1000;

impl Ask {
    pub fn new(name: u32, request: Request, fragile: bool, context_max: u32) -> Self {
        assert_eq!(request.prompt[0], name);
        let mut ask = Self {
            tokens: request.prompt.clone(),
            request,
            fragile,
            ending: Ending::Done(Finish::Length),
            sha: None,
        };
        if ask.prompt() < context_max {
            ask.run(context_max);
        }
        ask
    }

    pub fn random(rng: &mut Rng, name: u32, prompt_max: u32, context_max: u32) -> Self {
        let long = if rng.chance(20) { prompt_max } else { 12 };
        let mut prompt = vec![name];
        for _ in 1..rng.within(1, long.min(prompt_max)) {
            prompt.push(rng.below(VOCAB as u32));
        }
        let sampling = Sampling {
            temperature: f64::from(rng.below(3)) * 0.7,
            top_k: rng.below(2) * 8,
            top_p: 1.0 - f64::from(rng.below(2)) * 0.2,
            min_p: 0.0,
            seed: u64::from(rng.below(1000)),
        };
        let stops = rng.chance(30);
        let request = Request {
            prompt,
            max_tokens: [1, 30, 250, 250][rng.below(4) as usize],
            stop_tokens: if stops { vec![STOP] } else { Vec::new() },
            sampling,
            guide: guide(rng),
            prompt_logits: rng.chance(20),
            hash_logits: rng.chance(30),
            draft: rng.chance(70),
            ..Request::default()
        };
        let fragile = rng.chance(8);
        Self::new(name, request, fragile, context_max)
    }

    pub fn prompt(&self) -> u32 {
        self.request.prompt.len() as u32
    }

    /// The row after the penalties and the bias, token by token over the whole vocabulary.
    fn shifted(&self, mut row: Vec<f32>) -> Vec<f32> {
        let Guide { penalties, bias, .. } = &self.request.guide;
        let reply = &self.tokens[self.request.prompt.len()..];
        for (id, x) in (0..).zip(&mut row) {
            let count = reply.iter().filter(|token| **token == id).count() as u32;
            let bias = bias.get(&id).copied().unwrap_or(0.0);
            *x = arith::sample::shifted(*x, self.tokens.contains(&id), count, penalties, bias);
        }
        row
    }

    /// One token after the other, nothing else.
    fn run(&mut self, context_max: u32) {
        let (mut state, mut sha) = (0, Sha256::new());
        let most = (self.prompt() + self.request.max_tokens).min(context_max);
        for position in 0.. {
            state = absorb(state, self.tokens[position as usize]);
            let row = logits(state, self.fragile);
            let draws = position + 1 >= self.prompt();
            if row[5].is_nan() && (draws || self.request.prompt_logits) {
                self.ending = Ending::Spoilt(position);
                return;
            }
            if !draws {
                continue;
            }
            row.iter().for_each(|x| sha.update(x.to_le_bytes()));
            let row = self.shifted(row);
            let token = arith::sample::draw(&row, &self.request.sampling, position + 1);
            assert_eq!(token, sample::draw(&row, &self.request.sampling, position + 1));
            let stopped = self.request.stop_tokens.contains(&token);
            if stopped {
                self.ending = Ending::Done(Finish::Stop);
            } else {
                self.tokens.push(token);
            }
            if stopped || self.tokens.len() as u32 == most {
                break;
            }
        }
        self.sha = self.request.hash_logits.then(|| sha.finalize().into());
    }
}

/// A third of the requests penalise and bias.
fn guide(rng: &mut Rng) -> Guide {
    if !rng.chance(33) {
        return Guide::default();
    }
    let penalties = sample::Penalties {
        repetition: 1.0 + f64::from(rng.below(2)) * 0.3,
        frequency: f64::from(rng.below(3)) * 0.4 - 0.4,
        presence: f64::from(rng.below(2)) * 0.7,
    };
    let bias = (0..rng.below(3)).map(|n| (rng.below(VOCAB as u32), f64::from(n) - 0.5)).collect();
    Guide { penalties, bias, ..Guide::default() }
}
