//! Tokens to the reply's text: whole characters, cut exactly at stop strings.

use sched::Finish;
use sched::sample::Logprobs;
use text::stop::StopStrings;
use text::{Detokenizer, Text};

use crate::Run;
use crate::speech::{Manner, Part, Speech};

/// A token of the reply and its log probabilities; `None` for a prompt's first token.
pub type Scored = (u32, Option<Box<Logprobs>>);

/// Text and ids that became certain with the last token.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Piece {
    /// What was said; may be nothing while a character or a possible stop string is incomplete.
    pub parts: Vec<Part>,
    /// Ids of the tokens since the last piece that said something.
    pub ids: Vec<u32>,
    /// The same with their log probabilities, where asked for.
    pub scored: Vec<Scored>,
}

impl Piece {
    /// The content alone.
    pub fn text(&self) -> String {
        let content = |part: &Part| match part {
            Part::Content(text) => Some(text.clone()),
            _ => None,
        };
        self.parts.iter().filter_map(content).collect()
    }

    /// Adds what came after.
    pub fn extend(&mut self, later: Piece) {
        for part in later.parts {
            match (self.parts.last_mut(), part) {
                (Some(Part::Content(text)), Part::Content(more)) => text.push_str(&more),
                (Some(Part::Reasoning(text)), Part::Reasoning(more)) => text.push_str(&more),
                (_, part) => self.parts.push(part),
            }
        }
        self.ids.extend(later.ids);
        self.scored.extend(later.scored);
    }
}

/// Why the reply ended, in OpenAI's words, and what it took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ending {
    /// `stop`, `length` or `tool_calls`.
    pub finish_reason: &'static str,
    /// Reply tokens, those of a cut tail included.
    pub completion_tokens: u32,
    /// Those of them that were reasoning.
    pub reasoning_tokens: u32,
    /// A stop string ended it.
    pub by_string: bool,
    /// For the proof; [`Transcript`] knows nothing of it.
    pub run: Run,
}

/// A reply in the making.
pub struct Transcript {
    detokenizer: Detokenizer,
    stops: StopStrings,
    speech: Speech,
    pending: Vec<u32>,
    scored: Vec<Scored>,
    tokens: u32,
    reasoning: u32,
}

impl Transcript {
    /// An empty reply that ends at any of `stop`.
    pub fn new(text: &Text, stop: Vec<String>, manner: Manner) -> Self {
        Self {
            detokenizer: text.detokenizer(),
            stops: StopStrings::new(stop),
            speech: Speech::new(manner),
            pending: Vec::new(),
            scored: Vec::new(),
            tokens: 0,
            reasoning: 0,
        }
    }

    /// Takes the next token; with an ending when it completes a stop string, or all that the
    /// reply may say.
    pub fn token(&mut self, id: u32, logprobs: Option<Box<Logprobs>>) -> (Piece, Option<Ending>) {
        self.tokens += 1;
        self.reasoning += u32::from(self.speech.reasons());
        self.pending.push(id);
        if logprobs.is_some() {
            self.scored.push((id, logprobs));
        }
        let text = self.detokenizer.push(id);
        let cut = self.stops.push(&text);
        let mut parts = self.speech.push(&cut.text);
        if cut.hit {
            parts.extend(self.speech.finish());
        }
        let over = cut.hit || self.speech.is_over();
        let ending = over.then(|| self.ending("stop", cut.hit));
        (self.piece(parts, over), ending)
    }

    /// Takes the engine's ending: what was held back is text after all.
    pub fn finish(&mut self, finish: Finish) -> (Piece, Ending) {
        let tail = self.detokenizer.finish();
        let mut cut = self.stops.push(&tail);
        let reason = match finish {
            _ if cut.hit => "stop",
            Finish::Length => "length",
            _ => "stop",
        };
        if !cut.hit {
            cut.text.push_str(&self.stops.finish());
        }
        let mut parts = self.speech.push(&cut.text);
        parts.extend(self.speech.finish());
        (self.piece(parts, true), self.ending(reason, cut.hit))
    }

    fn piece(&mut self, parts: Vec<Part>, last: bool) -> Piece {
        if parts.is_empty() && !last {
            return Piece::default();
        }
        let (ids, scored) = (std::mem::take(&mut self.pending), std::mem::take(&mut self.scored));
        Piece { parts, ids, scored }
    }

    fn ending(&self, finish_reason: &'static str, by_string: bool) -> Ending {
        let called = self.speech.calls() > 0 && finish_reason == "stop";
        Ending {
            finish_reason: if called { "tool_calls" } else { finish_reason },
            completion_tokens: self.tokens,
            reasoning_tokens: self.reasoning,
            by_string,
            run: Run::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript(stop: &[&str]) -> Transcript {
        let stop = stop.iter().map(|&s| s.to_owned()).collect();
        Transcript::new(&Text::byte_level(), stop, Manner::default())
    }

    fn feed(transcript: &mut Transcript, reply: &str) -> (Vec<Piece>, Option<Ending>) {
        let mut pieces = Vec::new();
        for byte in reply.bytes() {
            let (piece, ending) = transcript.token(u32::from(byte), None);
            if piece != Piece::default() {
                pieces.push(piece);
            }
            if ending.is_some() {
                return (pieces, ending);
            }
        }
        (pieces, None)
    }

    #[test]
    fn a_character_over_several_tokens_comes_whole_with_all_its_ids() {
        let (pieces, ending) = feed(&mut transcript(&[]), "é€");
        let expected = |text: &str| Piece {
            parts: vec![Part::Content(text.into())],
            ids: text.bytes().map(u32::from).collect(),
            ..Piece::default()
        };
        assert_eq!(pieces, [expected("é"), expected("€")]);
        assert_eq!(ending, None);
    }

    #[test]
    fn a_stop_string_over_several_tokens_is_cut_exactly() {
        let (pieces, ending) = feed(&mut transcript(&["END"]), "aENbENDc");
        let text: String = pieces.iter().map(Piece::text).collect();
        let ids: Vec<u32> = pieces.iter().flat_map(|p| p.ids.clone()).collect();
        assert_eq!(text, "aENb");
        assert_eq!(ids, "aENbEND".bytes().map(u32::from).collect::<Vec<_>>());
        let ended = ending.map(|e| (e.finish_reason, e.completion_tokens, e.by_string));
        assert_eq!(ended, Some(("stop", 7, true)));
    }

    #[test]
    fn a_held_back_tail_comes_out_at_the_end() {
        let mut transcript = transcript(&["END"]);
        let (pieces, _) = feed(&mut transcript, "aEN");
        assert_eq!(pieces.len(), 1);
        let (piece, ending) = transcript.finish(Finish::Length);
        assert_eq!(piece.text(), "EN");
        assert_eq!(piece.ids, [u32::from(b'E'), u32::from(b'N')]);
        assert_eq!((ending.finish_reason, ending.completion_tokens), ("length", 3));
    }
}
