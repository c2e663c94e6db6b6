//! A request on its way to a reply: its tokens, and what its logits rows become.

use arith::{candidates, float};
use sha2::{Digest, Sha256};

use crate::draft::Drafts;
use crate::sample::{Chooser, Chosen, Logprobs, Sampling};
use crate::{Event, Failure, Finish, Request, RequestId};

/// Values that are hashed at once.
const HASH_VALUES: usize = 1024;

/// A request and what it has heard so far. It outlives its stream when that is preempted.
#[derive(Debug)]
pub(crate) struct Reply {
    pub id: RequestId,
    /// Place in the order of submission.
    pub age: u64,
    /// A stream has been opened for it at least once.
    pub started: bool,
    /// Prompt and reply.
    pub tokens: Vec<u32>,
    /// Most tokens of prompt and reply.
    pub length_max: u32,
    prompt_tokens: u32,
    /// Prompt tokens that a kept state had when the reply began.
    cached: u32,
    /// Drafts that were computed, and those that were right.
    drafted: u32,
    accepted: u32,
    /// Prompt rows whose logits were handed out.
    shown: u32,
    /// Its prompt has moved to `tokens`.
    request: Request,
    chooser: Chooser,
    sha: Option<Sha256>,
}

impl Reply {
    /// `context_max` is above the prompt's length.
    pub fn new(id: RequestId, age: u64, mut request: Request, context_max: u32) -> Self {
        let tokens = std::mem::take(&mut request.prompt);
        let prompt_tokens = tokens.len() as u32;
        let guide = std::mem::take(&mut request.guide);
        Self {
            chooser: Chooser::new(request.sampling, guide, &tokens),
            id,
            age,
            started: false,
            tokens,
            length_max: prompt_tokens.saturating_add(request.max_tokens.max(1)).min(context_max),
            prompt_tokens,
            cached: 0,
            drafted: 0,
            accepted: 0,
            shown: 0,
            sha: request.hash_logits.then(Sha256::new),
            request,
        }
    }

    /// Tokens known.
    pub fn length(&self) -> u32 {
        self.tokens.len() as u32
    }

    /// Most rows that it can ever compute: the last token is never an input.
    pub fn rows_max(&self) -> u32 {
        self.length_max - 1
    }

    /// Whether it may start from kept states and leave some.
    pub fn is_cached(&self) -> bool {
        self.request.cached
    }

    /// The longest kept state that it may start from, in tokens: its last token, and prompt rows
    /// whose logits are still asked for, have to be computed.
    pub fn resume_max(&self) -> u32 {
        let shown = if self.wants_rows(0, self.prompt_tokens) { self.shown } else { u32::MAX };
        shown.min(self.length() - 1)
    }

    /// Where messages of its prompt start.
    pub fn starts(&self) -> &[u32] {
        &self.request.marks
    }

    /// It begins, `position` tokens of it with a kept state.
    pub fn start(&mut self, position: u32) {
        if !self.started {
            self.cached = position.min(self.prompt_tokens);
        }
        self.started = true;
    }

    /// Whether the logits of rows `first ..` are asked for, apart from the one that is drawn from.
    pub fn wants_rows(&self, first: u32, rows: u32) -> bool {
        let unseen = first.max(self.shown) < (first + rows).min(self.prompt_tokens);
        let asked = self.request.prompt_logits || self.chooser.guide().prompt_logprobs.is_some();
        asked && unseen
    }

    /// How many of the best logits of each row are needed; 0 for all of them.
    pub fn best(&self) -> u32 {
        let asks = self.request.prompt_logits || self.chooser.guide().prompt_logprobs.is_some();
        if asks || self.sha.is_some() { 0 } else { self.chooser.deciding() }
    }

    /// Takes the logits of rows `first ..`, as many as [`Reply::best`] says, the last ones of
    /// `drafts`; draws where a row is the newest token's, and goes on as long as a draft equals
    /// what was drawn. The last row that stays; `None` when the reply has ended, whose last event
    /// is then in `events`.
    pub fn hear(
        &mut self,
        first: u32,
        logits: &[f32],
        vocab: usize,
        drafts: &Drafts,
        events: &mut Vec<(RequestId, Event)>,
    ) -> Option<usize> {
        let drafted = drafts.tokens().len();
        self.drafted += drafted as u32;
        let best = self.best();
        let (width, few) = (candidates::given(vocab, best), candidates::are_few(vocab, best));
        let known = logits.len() / width - drafted;
        let (own, ahead) = logits.split_at(known * width);
        // Where the best are enough, whoever computes them looks at all.
        let is_spoilt = match best {
            0 => float::is_spoilt,
            _ => |row: &[f32]| row.last().is_some_and(|x| x.is_nan()),
        };
        if let Some(row) = own.chunks_exact(width).position(is_spoilt) {
            return self.spoil(first + row as u32, events);
        }
        let kept = known as u32;
        if self.wants_rows(first, kept) {
            self.show(first, own, vocab, events);
        }
        if first + kept < self.length() {
            return Some(known - 1);
        }
        assert_eq!(first + kept, self.length(), "a row of a token not drawn");
        let mut drawn = self.draw(&own[own.len() - width..], few, events)?;
        let mut last = 0;
        while let Some(row) = drafts.child(last, drawn) {
            let logits = &ahead[(row - 1) * width..row * width];
            if is_spoilt(logits) {
                return self.spoil(self.length() - 1, events);
            }
            last = row;
            self.accepted += 1;
            drawn = self.draw(logits, few, events)?;
        }
        Some(known - 1 + last)
    }

    fn spoil(&self, position: u32, events: &mut Vec<(RequestId, Event)>) -> Option<usize> {
        events.push((self.id, Event::Failed(Failure::NonfiniteLogits { position })));
        None
    }

    /// The last event of a reply that is complete.
    pub fn done(&mut self, finish: Finish) -> Event {
        Event::Done {
            finish,
            prompt_tokens: self.prompt_tokens,
            reply_tokens: self.length() - self.prompt_tokens,
            logits_sha256: self.sha.take().map(|sha| sha.finalize().into()),
            cached: self.cached,
            drafted: self.drafted,
            accepted: self.accepted,
        }
    }

    fn show(
        &mut self,
        first: u32,
        logits: &[f32],
        vocab: usize,
        events: &mut Vec<(RequestId, Event)>,
    ) {
        let rows = (logits.len() / vocab) as u32;
        let from = first.max(self.shown);
        let to = (first + rows).min(self.prompt_tokens);
        self.shown = to;
        let shown = &logits[(from - first) as usize * vocab..(to - first) as usize * vocab];
        if let Some(count) = self.chooser.guide().prompt_logprobs {
            // The last row foretells the reply's first token.
            let foretold =
                &self.tokens[from as usize + 1..(to + 1).min(self.prompt_tokens) as usize];
            let rows = shown.chunks_exact(vocab).zip(foretold);
            let logprobs: Vec<Logprobs> =
                rows.map(|(row, &id)| Logprobs::of(row, id, count)).collect();
            events.push((self.id, Event::PromptLogprobs { first: from + 1, logprobs }));
        }
        if self.request.prompt_logits {
            events.push((self.id, Event::PromptLogits { first: from, logits: shown.to_vec() }));
        }
    }

    /// Draws the next token from a row, or the `few` candidates that stand for it; `None` where it
    /// ends the reply.
    fn draw(
        &mut self,
        row: &[f32],
        few: bool,
        events: &mut Vec<(RequestId, Event)>,
    ) -> Option<u32> {
        if let Some(sha) = &mut self.sha {
            hash(sha, row);
        }
        let chosen = match few {
            true => self.chooser.draw_among(candidates::read(row), self.length()),
            false => self.chooser.draw(row, self.length()),
        };
        let (drawn, logprobs) = match chosen {
            Chosen::Token(id, logprobs) => (id, logprobs),
            Chosen::Over => {
                events.push((self.id, self.done(Finish::Stop)));
                return None;
            }
            Chosen::Failed(reason) => {
                events.push((self.id, Event::Failed(Failure::Grammar(reason))));
                return None;
            }
        };
        if self.request.stop_tokens.contains(&drawn) {
            events.push((self.id, self.done(Finish::Stop)));
            return None;
        }
        self.tokens.push(drawn);
        self.chooser.push(drawn);
        events.push((self.id, Event::Token { id: drawn, logprobs }));
        if self.length() < self.length_max {
            return Some(drawn);
        }
        events.push((self.id, self.done(Finish::Length)));
        None
    }

    /// Whether its grammar lets it ride in the next round.
    pub fn may_ride(&self) -> bool {
        self.chooser.may_ride()
    }

    /// Whether tokens may be guessed ahead.
    pub fn drafts(&self) -> bool {
        self.request.draft
    }

    /// How it draws.
    pub fn sampling(&self) -> Sampling {
        self.request.sampling
    }
}

fn hash(sha: &mut Sha256, row: &[f32]) {
    let mut bytes = [0; 4 * HASH_VALUES];
    for values in row.chunks(HASH_VALUES) {
        for (to, value) in bytes.chunks_exact_mut(4).zip(values) {
            to.copy_from_slice(&value.to_le_bytes());
        }
        sha.update(&bytes[..4 * values.len()]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prompt_rows_that_are_computed_again_are_not_shown_again() {
        let request = Request { prompt: vec![1; 6], prompt_logits: true, ..Request::default() };
        let mut reply = Reply::new(RequestId(1), 1, request, 10);
        let logits: Vec<f32> = (0..12).map(|x| x as f32).collect();
        let mut events = Vec::new();
        assert!(reply.hear(0, &logits[..6], 2, &Drafts::default(), &mut events).is_some());
        assert!(!reply.wants_rows(0, 3) && reply.wants_rows(0, 4));
        // Preempted; its second life takes larger chunks.
        assert!(reply.hear(0, &logits[..10], 2, &Drafts::default(), &mut events).is_some());
        assert!(reply.hear(5, &logits[10..], 2, &Drafts::default(), &mut events).is_none());
        let shown = |event: &(RequestId, Event)| match &event.1 {
            Event::PromptLogits { first, logits } => Some((*first, logits.clone())),
            _ => None,
        };
        let shown: Vec<_> = events.iter().filter_map(shown).collect();
        let expected = [(0, 0..6), (3, 6..10), (5, 10..12)];
        assert_eq!(shown, expected.map(|(first, at)| (first, logits[at].to_vec())));
    }
}
