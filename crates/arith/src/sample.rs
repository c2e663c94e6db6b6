//! Logits to a token by keyed noise (section 7): a draw depends on seed, position and logits
//! alone. All in f64 with the pinned `libm`.

use std::cmp::Ordering;

use crate::head;

/// How tokens are drawn.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sampling {
    /// 0 (or less) is greedy.
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

/// Smallest temperature that is divided by.
pub const TEMPERATURE_MIN: f64 = 1e-6;

/// The splitmix64 finaliser.
pub fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

/// The part of the noise's hash that all candidates of a draw share.
pub fn noise_key(seed: u64, position: u32) -> u64 {
    let x = mix(seed.wrapping_add(0x9e37_79b9_7f4a_7c15));
    mix(x ^ u64::from(position).wrapping_mul(0xd1b5_4a32_d192_ed03))
}

/// Gumbel noise `-ln(-ln u)` of one candidate, u a hash of (seed, absolute position, token id).
pub fn noise(seed: u64, position: u32, id: u32) -> f64 {
    let x = mix(noise_key(seed, position) ^ u64::from(id));
    let u = (x >> 11) as f64 * f64::from_bits(0x3ca0_0000_0000_0000) // 2^-53
        + f64::from_bits(0x3c90_0000_0000_0000); // 2^-54
    -libm::log(-libm::log(u))
}

/// A candidate: its logit over the temperature, and its id.
#[derive(Clone, Copy)]
struct Candidate {
    scaled: f64,
    id: u32,
}

/// Value descending, then id ascending. Zeros of both signs are one value.
fn order(a: &Candidate, b: &Candidate) -> Ordering {
    (b.scaled + 0.0).total_cmp(&(a.scaled + 0.0)).then(a.id.cmp(&b.id))
}

/// What a token's past does to its logit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Penalties {
    /// Divides a positive logit, multiplies another, of a token that prompt or reply hold; 1 asks
    /// for nothing.
    pub repetition: f64,
    /// Taken off for each time that the reply holds the token.
    pub frequency: f64,
    /// Taken off once where the reply holds the token.
    pub presence: f64,
}

impl Penalties {
    /// Asks for nothing.
    pub const NONE: Self = Self { repetition: 1.0, frequency: 0.0, presence: 0.0 };
}

/// A logit after penalties and bias: in f64, rounded once, kept finite. `seen` says whether prompt
/// or reply hold the token, `count` how often the reply does.
pub fn shifted(logit: f32, seen: bool, count: u32, penalties: &Penalties, bias: f64) -> f32 {
    let mut x = f64::from(logit);
    if seen {
        x = if x > 0.0 { x / penalties.repetition } else { x * penalties.repetition };
    }
    if count > 0 {
        x -= penalties.frequency * f64::from(count);
        x -= penalties.presence;
    }
    (x + bias).clamp(f64::from(f32::MIN), f64::from(f32::MAX)) as f32
}

/// The token at `position` (its index in prompt and reply): the candidates that top-k, top-p and
/// min-p leave, in that order, and of those the largest `logit / T + noise`, ties to the lowest id.
/// The logits are finite, or -infinity where a token may not be drawn.
pub fn draw(logits: &[f32], sampling: &Sampling, position: u32) -> u32 {
    if sampling.temperature <= 0.0 {
        return head::argmax(logits);
    }
    let t = sampling.temperature.max(TEMPERATURE_MIN);
    let scaled = |(id, &x): (usize, &f32)| Candidate { scaled: f64::from(x) / t, id: id as u32 };
    let mut kept: Vec<Candidate> = logits.iter().enumerate().map(scaled).collect();
    keep(&mut kept, sampling);
    let mut best = (f64::NEG_INFINITY, u32::MAX);
    for c in kept {
        let score = c.scaled + noise(sampling.seed, position, c.id);
        if score > best.0 || score == best.0 && c.id < best.1 {
            best = (score, c.id);
        }
    }
    best.1
}

/// Cuts the candidates to those that the filters keep; at least one stays.
fn keep(candidates: &mut Vec<Candidate>, sampling: &Sampling) {
    let top_k = sampling.top_k as usize;
    let by_rank = top_k > 0 && top_k < candidates.len();
    let by_mass = sampling.top_p < 1.0;
    let by_ratio = sampling.min_p > 0.0;
    if !(by_rank || by_mass || by_ratio) {
        return; // nothing to cut, so nothing to sort
    }
    if by_rank {
        candidates.select_nth_unstable_by(top_k - 1, order);
        candidates.truncate(top_k);
    }
    candidates.sort_unstable_by(order);
    let top = candidates[0].scaled;
    let weights: Vec<f64> = candidates.iter().map(|c| libm::exp(c.scaled - top)).collect();
    let mut left = candidates.len();
    if by_mass {
        let total: f64 = weights.iter().sum();
        let mut mass = 0.0;
        let enough = weights.iter().position(|w| {
            mass += w;
            mass >= sampling.top_p * total
        });
        left = enough.map_or(left, |last| last + 1);
    }
    if by_ratio {
        let likely = weights[..left].iter().take_while(|w| **w >= sampling.min_p).count();
        left = likely.max(1);
    }
    candidates.truncate(left);
}

/// `ln softmax(logits)[id]`, summed in f64 in id order and rounded once.
pub fn logprob(logits: &[f32], id: u32) -> f32 {
    let top = f64::from(logits[head::argmax(logits) as usize]);
    let sum: f64 = logits.iter().map(|&x| libm::exp(f64::from(x) - top)).sum();
    (f64::from(logits[id as usize]) - top - libm::log(sum)) as f32
}
