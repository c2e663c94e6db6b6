//! Logits to a token, fast: the bytes of [`arith::sample::draw`], without its full sort.
//!
//! A sort and two logarithms for each of 150,000 candidates cost milliseconds a token. Here
//! top-k selects, top-p sorts only as deep as the nucleus reaches, and noise is computed only
//! where a bound on it, read from the leading zeros of the hash, says that it could win. Each
//! shortcut is either exact or notices that it can't tell, and then the plain form decides.

use arith::candidates::VALUES;
pub use arith::head::argmax;
use arith::sample::{TEMPERATURE_MIN, mix, noise, noise_key};
use sha2::{Digest, Sha256};

mod chooser;
mod mask;
mod mass;

pub use arith::sample::{Penalties, Sampling};
pub(crate) use chooser::{Chooser, Chosen};
pub use chooser::{Guide, Logprobs};
pub use mask::{Grammar, Mask, Verdict};

/// Above this a quotient could lose the order of its logits.
const TEMPERATURE_MAX: f64 = 1e30;
/// Most candidates of a row that are asked for instead of the row.
pub const BEST_MAX: u32 = 1_024;
/// Candidates that a nucleus is looked for in, at first.
const NUCLEUS: usize = 256;

/// A candidate: its logit over the temperature, and its id.
#[derive(Clone, Copy, Debug)]
struct Candidate {
    scaled: f64,
    id: u32,
}

/// How many of a row's best candidates decide a draw, where few do; 0 where the whole row does.
pub fn deciding(sampling: &Sampling) -> u32 {
    let is_small = (1..=BEST_MAX).contains(&sampling.top_k);
    match sampling.temperature {
        t if t <= 0.0 => 1,
        t if is_small && t <= TEMPERATURE_MAX => sampling.top_k,
        _ => 0,
    }
}

/// The token at `position` (its index in prompt and reply); equal to [`arith::sample::draw`].
/// The logits are not empty, and finite or -infinity where a token may not be drawn.
pub fn draw(logits: &[f32], sampling: &Sampling, position: u32) -> u32 {
    let best = argmax(logits);
    if sampling.temperature <= 0.0 {
        return best;
    }
    let t = sampling.temperature.max(TEMPERATURE_MIN);
    if t > TEMPERATURE_MAX {
        return arith::sample::draw(logits, sampling, position);
    }
    let top_k = sampling.top_k as usize;
    let kept = if top_k > 0 && top_k < logits.len() {
        cut_tail(leading(logits, top_k, t), sampling.top_p)
    } else if sampling.top_p < 1.0 {
        match nucleus(logits, best, t, sampling.top_p) {
            Some(kept) => kept,
            None => return arith::sample::draw(logits, sampling, position),
        }
    } else if sampling.min_p > 0.0 {
        likely(logits, best, t, sampling.min_p)
    } else {
        let all = (0..).zip(logits).map(|(id, x)| Candidate { scaled: f64::from(*x) / t, id });
        let first = Candidate { scaled: f64::from(logits[best as usize]) / t, id: best };
        return race(std::iter::once(first).chain(all), sampling.seed, position);
    };
    let left = cut_unlikely(&kept, sampling.min_p);
    race(kept[..left].iter().copied(), sampling.seed, position)
}

/// The same from the best candidates of a row alone, best first, as many as [`deciding`] says.
pub fn draw_among(best: &[[f32; VALUES]], sampling: &Sampling, position: u32) -> u32 {
    if sampling.temperature <= 0.0 {
        return best[0][0].to_bits();
    }
    let t = sampling.temperature.max(TEMPERATURE_MIN);
    let candidate =
        |[id, x]: &[f32; VALUES]| Candidate { scaled: f64::from(*x) / t, id: id.to_bits() };
    let kept = cut_tail(best.iter().map(candidate).collect(), sampling.top_p);
    let left = cut_unlikely(&kept, sampling.min_p);
    race(kept[..left].iter().copied(), sampling.seed, position)
}

/// The `count` best logits (value descending, then id ascending) and their log-probabilities, as
/// [`arith::sample::logprob`] gives them.
pub fn top_logprobs(logits: &[f32], count: usize) -> Vec<(u32, f32)> {
    let best: Vec<u32> = leading(logits, count, 1.0).iter().map(|c| c.id).collect();
    let values = logprobs(logits, &best);
    best.into_iter().zip(values).collect()
}

/// `ln softmax(logits)[id]` of some ids, as [`arith::sample::logprob`] gives it, with one sum.
pub fn logprobs(logits: &[f32], ids: &[u32]) -> Vec<f32> {
    let top = f64::from(logits[argmax(logits) as usize]);
    let sum: f64 = logits.iter().map(|&x| libm::exp(f64::from(x) - top)).sum();
    let log = libm::log(sum);
    let value = |id: &u32| (f64::from(logits[*id as usize]) - top - log) as f32;
    ids.iter().map(value).collect()
}

/// The seed of a request that names none: the first 8 bytes, little-endian, of the SHA-256 of
/// `t0,t1,...|salt`, without the highest bit. So the same prompt gets the same reply.
pub fn default_seed(prompt: &[u32], salt: u64) -> u64 {
    let ids: Vec<String> = prompt.iter().map(u32::to_string).collect();
    let digest = Sha256::digest(format!("{}|{salt}", ids.join(",")));
    let mut first = [0; 8];
    first.copy_from_slice(&digest[..8]);
    u64::from_le_bytes(first) & (u64::MAX >> 1)
}

/// Softmax terms against the first candidate, which is the best.
fn weights(sorted: &[Candidate]) -> Vec<f64> {
    let top = sorted[0].scaled;
    let weight = |c: &Candidate| libm::exp(c.scaled - top);
    sorted.iter().map(weight).collect()
}

/// What top-p leaves of sorted candidates that are all there are.
fn cut_tail(mut sorted: Vec<Candidate>, top_p: f64) -> Vec<Candidate> {
    if top_p < 1.0 {
        let weights = weights(&sorted);
        let total: f64 = weights.iter().sum();
        let mut mass = 0.0;
        let enough = weights.iter().position(|w| {
            mass += w;
            mass >= top_p * total
        });
        sorted.truncate(enough.map_or(sorted.len(), |last| last + 1));
    }
    sorted
}

/// How many of the sorted candidates min-p leaves; at least one.
fn cut_unlikely(sorted: &[Candidate], min_p: f64) -> usize {
    if min_p <= 0.0 {
        return sorted.len();
    }
    let top = sorted[0].scaled;
    let likely = |c: &&Candidate| libm::exp(c.scaled - top) >= min_p;
    sorted.iter().take_while(likely).count().max(1)
}

/// The `count` best candidates, best first.
fn leading(logits: &[f32], count: usize, t: f64) -> Vec<Candidate> {
    let candidate = |id: u32| Candidate { scaled: f64::from(logits[id as usize]) / t, id };
    arith::head::leading(logits, count).into_iter().map(candidate).collect()
}

/// The smallest leading part whose probabilities reach `top_p`, or `None` where rounding could
/// move its end. The plain form sums the softmax in sorted order; here the sum is taken in id
/// order, by [`mass::sum`], so the true value is known to `slack`.
fn nucleus(logits: &[f32], best: u32, t: f64, top_p: f64) -> Option<Vec<Candidate>> {
    let total = mass::sum(logits, logits[best as usize], t);
    let rounded = (logits.len() as f64 * 4.0 + 16.0) * f64::EPSILON;
    let slack = total * (rounded + mass::error(logits[best as usize], t));
    let (least, most) = (top_p * (total - slack), top_p * (total + slack));
    let mut count = NUCLEUS;
    loop {
        let mut kept = leading(logits, count, t);
        let mut mass = 0.0;
        for at in 0..kept.len() {
            mass += libm::exp(kept[at].scaled - kept[0].scaled);
            if mass >= most {
                kept.truncate(at + 1);
                return Some(kept);
            }
            if mass >= least {
                return None;
            }
        }
        if kept.len() == logits.len() {
            return None;
        }
        count *= 8;
    }
}

/// All candidates whose weight could be `min_p` or more, sorted.
fn likely(logits: &[f32], best: u32, t: f64, min_p: f64) -> Vec<Candidate> {
    let top = f64::from(logits[best as usize]) / t;
    let cut = libm::log(min_p).min(0.0) - 1e-6;
    let near = |x: &&f32| f64::from(**x) / t - top >= cut;
    leading(logits, logits.iter().filter(near).count(), t)
}

/// The largest `scaled + noise`, ties to the lowest id, in whatever order they come; soonest when
/// good candidates come first.
fn race(candidates: impl Iterator<Item = Candidate>, seed: u64, position: u32) -> u32 {
    let key = noise_key(seed, position);
    let mut best = (f64::NEG_INFINITY, u32::MAX);
    for c in candidates {
        if c.scaled + noise_most(key, c.id) < best.0 {
            continue;
        }
        let score = c.scaled + noise(seed, position, c.id);
        if score > best.0 || score == best.0 && c.id < best.1 {
            best = (score, c.id);
        }
    }
    best.1
}

/// No less than the candidate's noise. With u = 1 - v, `-ln(-ln u) <= -ln v`, since
/// `-ln u >= v`; and v is at least m * 2^-53, m the hash's 53 bits counted down from above.
fn noise_most(key: u64, id: u32) -> f64 {
    let m = (1u64 << 53) - 1 - (mix(key ^ u64::from(id)) >> 11);
    if m == 0 {
        return f64::INFINITY;
    }
    f64::from(m.leading_zeros() - 10) * std::f64::consts::LN_2 + 1e-9
}

#[cfg(test)]
mod tests;
