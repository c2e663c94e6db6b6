//! One case of a benchmark and how long it takes: prompts, then tokens with that much in the cache.

use std::time::Instant;

use anyhow::{Result, bail};
use sched::{Event, Request};
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use crate::busy::Meter;
use crate::cell::Cell;

/// What is run at once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Tokens of each stream's prompt.
    pub prompt: u32,
    /// Tokens decoded after it, counted from when every stream has its first.
    pub decode: u32,
    /// Streams, all submitted together.
    pub streams: u32,
}

/// How long it took.
#[derive(Clone, Debug, PartialEq)]
pub struct Timing {
    /// From the first submission until every stream has its first token.
    pub prompt_s: f64,
    /// From then until [`Timing::tokens`] more were there.
    pub decode_s: f64,
    /// Tokens of all streams in that time.
    pub tokens: u32,
    /// The part of each of the two times that each rank of this process computed.
    pub busy: Vec<[f64; 2]>,
}

impl Case {
    /// Tokens that a stream may decode at most: those that start first go on while prompts of
    /// others, `chunk` rows a round, are computed.
    fn tokens_max(self, chunk: u32) -> u32 {
        let rounds = (self.prompt * self.streams).div_ceil(chunk);
        let early = if self.streams > 1 { rounds + 2 } else { 0 };
        1 + self.decode.max(1) + early
    }

    /// Positions that a stream needs.
    pub fn context(self, chunk: u32) -> u32 {
        self.prompt + self.tokens_max(chunk)
    }

    /// Whether there is room for it where there is for `other`.
    pub fn fits(self, other: Self) -> bool {
        let Self { prompt, decode, streams } = self;
        streams > 0
            && prompt > 0
            && prompt <= other.prompt
            && decode <= other.decode
            && streams <= other.streams
    }

    /// Runs it to the end of every stream.
    ///
    /// # Errors
    /// A request that is refused or fails.
    pub async fn run(self, cell: &Cell, chunk: u32) -> Result<Timing> {
        let (tokens, mut heard) = mpsc::unbounded_channel();
        let meters = cell.meters();
        let mut marks = vec![read(meters)];
        let (mut streams, started) = (JoinSet::new(), Instant::now());
        for stream in 0..self.streams as usize {
            let mut reply = cell.handle().submit(self.request(chunk)).await?;
            let tokens = tokens.clone();
            streams.spawn(async move {
                while let Some(event) = reply.next().await {
                    match event {
                        Event::Token { .. } => drop(tokens.send(stream)),
                        Event::Failed(failure) => return Err(failure),
                        _ => {}
                    }
                }
                Ok(())
            });
        }
        drop(tokens);
        let mut count = Count::new(self, self.tokens_max(chunk));
        while let Some(stream) = heard.recv().await {
            count.token(stream, started.elapsed().as_secs_f64());
            let phases = usize::from(count.started.is_some()) + usize::from(count.ended.is_some());
            if marks.len() <= phases {
                marks.push(read(meters));
            }
        }
        while let Some(ended) = streams.join_next().await {
            ended??;
        }
        let Some(mut timing) = count.timing() else {
            bail!("a stream ended before its last token")
        };
        if let [before, between, after] = &marks[..] {
            let ranks = before.iter().zip(between).zip(after);
            let shares = ranks.map(|((&before, &between), &after)| {
                [(between - before) / timing.prompt_s, (after - between) / timing.decode_s]
            });
            timing.busy = shares.collect();
        }
        Ok(timing)
    }

    fn request(self, chunk: u32) -> Request {
        Request {
            prompt: (0..self.prompt).map(|i| 1 + i * 7 % 1000).collect(),
            max_tokens: self.tokens_max(chunk),
            draft: false,
            cached: false,
            ..Request::default()
        }
    }
}

/// Seconds that ranks have computed.
fn read(meters: &[Meter]) -> Vec<f64> {
    meters.iter().map(|meter| meter.computed().as_secs_f64()).collect()
}

/// Counts tokens as they come.
struct Count {
    /// Tokens of each stream.
    each: Vec<u32>,
    wanted: u32,
    most: u32,
    /// When the last stream had its first token, in seconds.
    started: Option<f64>,
    tokens: u32,
    ended: Option<f64>,
}

impl Count {
    fn new(case: Case, most: u32) -> Self {
        Self {
            each: vec![0; case.streams as usize],
            wanted: case.decode.max(1) * case.streams,
            most,
            started: None,
            tokens: 0,
            ended: None,
        }
    }

    /// A token of `stream`, `now` seconds after the start.
    fn token(&mut self, stream: usize, now: f64) {
        self.each[stream] += 1;
        if self.started.is_none() {
            self.started = self.each.iter().all(|&n| n > 0).then_some(now);
        } else if self.ended.is_none() {
            self.tokens += 1;
            // From its end on a stream adds nothing: the others would be timed alone.
            let ended = self.tokens == self.wanted || self.each[stream] == self.most;
            self.ended = ended.then_some(now);
        }
    }

    fn timing(&self) -> Option<Timing> {
        let (prompt_s, ended) = (self.started?, self.ended?);
        let (decode_s, tokens) = (ended - prompt_s, self.tokens);
        Some(Timing { prompt_s, decode_s, tokens, busy: Vec::new() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_count_from_the_last_streams_first_until_enough_or_a_stream_ends() {
        let case = Case { prompt: 4, decode: 2, streams: 2 };
        let mut count = Count::new(case, 5);
        // Stream 0 has two before stream 1 has its first; then four more are wanted.
        for (stream, now) in [(0, 1.0), (0, 2.0), (1, 3.0), (0, 4.0), (1, 5.0), (0, 6.0)] {
            count.token(stream, now);
        }
        assert_eq!(count.timing(), None);
        count.token(1, 7.5);
        count.token(0, 9.0);
        let expected = Timing { prompt_s: 3.0, decode_s: 4.5, tokens: 4, busy: Vec::new() };
        assert_eq!(count.timing(), Some(expected));

        let mut count = Count::new(case, 4);
        for (stream, now) in [(0, 1.0), (0, 2.0), (0, 3.0), (1, 4.0), (1, 5.0), (0, 6.0), (1, 7.0)]
        {
            count.token(stream, now);
        }
        let expected = Timing { prompt_s: 4.0, decode_s: 2.0, tokens: 2, busy: Vec::new() };
        assert_eq!(count.timing(), Some(expected));
    }
}
