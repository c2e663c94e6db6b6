//! What a race of a ring showed.

use std::fmt;

use super::rival::Rates;
use super::seat::Ran;

/// The middle of some values.
pub fn median(values: &[f64]) -> f64 {
    let mut values = values.to_vec();
    values.sort_by(f64::total_cmp);
    let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
    (at(values.len().saturating_sub(1) / 2) + at(values.len() / 2)) / 2.0
}

/// Rates of the ring and of the others, run by run.
#[derive(Debug, Default)]
pub struct Beside {
    ring: Vec<f64>,
    others: Vec<f64>,
}

impl Beside {
    fn put(&mut self, ring: f64, others: f64) {
        self.ring.push(ring);
        self.others.push(others);
    }

    /// How many times the others' median the ring's is.
    fn ratio(&self) -> f64 {
        median(&self.ring) / median(&self.others)
    }
}

impl fmt::Display for Beside {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (ring, others) = (median(&self.ring), median(&self.others));
        write!(f, "{ring:9.1} beside {others:9.1} tokens/s, {:.2}", self.ratio())
    }
}

/// Prompt rates of a ring and of a pair.
#[derive(Debug, Default)]
pub struct Prompt(Beside);

/// Decode rates of a ring and of others.
#[derive(Debug, Default)]
pub struct Decode(Beside);

impl Prompt {
    /// A run; the first warms caches.
    pub fn add(&mut self, round: u32, ring: &Ran, others: &[Ran]) {
        if round > 0 {
            self.0.put(ring.prompt, others.iter().map(|ran| ran.prompt).sum());
        }
    }
}

impl Decode {
    /// A run; the first warms caches.
    pub fn add(&mut self, round: u32, ring: &Ran, others: &[Ran]) {
        if round > 0 {
            self.0.put(ring.decode, others.iter().map(|ran| ran.decode).sum());
        }
    }
}

/// A ring beside two processes.
#[derive(Debug, Default)]
pub struct Figures {
    /// The long prompt, on each.
    pub prompt: Prompt,
    /// Streams that decode, half of them on each process.
    pub streams: Decode,
    /// One stream, beside one process alone.
    pub one: Decode,
    /// The least busy rank's share in the long prompt.
    pub busy_prompt: Vec<f64>,
    /// And with streams.
    pub busy_streams: Vec<f64>,
}

impl Figures {
    /// For people.
    pub fn table(&self) -> String {
        let Self { prompt, streams, one, .. } = self;
        format!(
            "  prompt of 32 chunks {} of two processes\n  8 streams decode    {} of two \
             processes\n  one stream decodes  {} of one process\n",
            prompt.0, streams.0, one.0
        )
    }
}

impl fmt::Display for Figures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prompt, streams) = (self.prompt.0.ratio(), self.streams.0.ratio());
        let one = self.one.0.ratio();
        write!(f, "prompt {prompt:.2}, 8 streams {streams:.2}, one stream {one:.2}")?;
        let busy = [median(&self.busy_prompt), median(&self.busy_streams)];
        if busy.iter().all(|share| share.is_finite()) {
            write!(f, ", busy {:.2} in the prompt and {:.2} with streams", busy[0], busy[1])?;
        }
        Ok(())
    }
}

/// A ring beside llama.cpp's RPC.
#[derive(Debug, Default)]
pub struct Versus {
    prompt: Beside,
    one: Beside,
    four: Beside,
}

impl Versus {
    /// A run of ours with one stream and with four, and theirs of both.
    pub fn add(&mut self, one: &Ran, many: &Ran, theirs: &[Rates]) {
        for rates in theirs {
            if rates.streams == 1 {
                self.prompt.put(one.prompt, rates.prompt);
                self.one.put(one.decode, rates.decode);
            } else {
                self.four.put(many.decode, rates.decode);
            }
        }
    }

    /// The lesser of both in each figure.
    pub fn or(self, other: Self) -> Self {
        let least = |a: Beside, b: Beside| {
            let is_less = b.ratio().is_nan() || a.ratio() <= b.ratio();
            if is_less { a } else { b }
        };
        Self {
            prompt: least(other.prompt, self.prompt),
            one: least(other.one, self.one),
            four: least(other.four, self.four),
        }
    }

    /// For people.
    pub fn table(&self) -> String {
        let Self { prompt, one, four } = self;
        format!("  prompt       {prompt}x\n  one stream   {one}x\n  four streams {four}x")
    }
}

impl fmt::Display for Versus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [prompt, one, four] = [&self.prompt, &self.one, &self.four].map(Beside::ratio);
        write!(f, "worst prompt {prompt:.2}x, decode {one:.2}x, four streams {four:.2}x")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lesser_ratio_of_two_models_is_told() {
        let of = |ring: f64| {
            let mut beside = Beside::default();
            [1.0, 2.0, 3.0].into_iter().for_each(|other| beside.put(ring, other));
            beside
        };
        let first = Versus { prompt: of(8.0), one: of(4.0), four: of(6.0) };
        let second = Versus { prompt: of(7.0), one: of(5.0), four: of(6.0) };
        let said = Versus::default().or(first).or(second).to_string();
        assert_eq!(said, "worst prompt 3.50x, decode 2.00x, four streams 3.00x");
    }
}
