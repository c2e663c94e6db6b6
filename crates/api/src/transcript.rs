//! Tokens to the reply's text: whole characters, cut exactly at stop strings.

use sched::Finish;
use text::stop::StopStrings;
use text::{Detokenizer, Text};

/// Text and ids that became certain with the last token.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Piece {
    /// Text; may be empty while a character or a possible stop string is incomplete.
    pub text: String,
    /// Ids of the tokens since the last piece that held text.
    pub ids: Vec<u32>,
}

/// Why the reply ended, in OpenAI's words, and what it cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    /// `stop` or `length`.
    pub finish_reason: &'static str,
    /// Reply tokens, those of a cut tail included.
    pub completion_tokens: u32,
}

/// A reply in the making.
pub struct Transcript {
    detokenizer: Detokenizer,
    stops: StopStrings,
    pending: Vec<u32>,
    tokens: u32,
}

impl Transcript {
    /// An empty reply that ends at any of `stop`.
    pub fn new(text: &Text, stop: Vec<String>) -> Self {
        Self {
            detokenizer: text.detokenizer(),
            stops: StopStrings::new(stop),
            pending: Vec::new(),
            tokens: 0,
        }
    }

    /// Takes the next token; with an ending when it completes a stop string.
    pub fn token(&mut self, id: u32) -> (Piece, Option<Ending>) {
        self.tokens += 1;
        self.pending.push(id);
        let text = self.detokenizer.push(id);
        let cut = self.stops.push(&text);
        let ending = cut.hit.then(|| self.ending("stop"));
        (self.piece(cut.text, cut.hit), ending)
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
        (self.piece(cut.text, true), self.ending(reason))
    }

    fn piece(&mut self, text: String, last: bool) -> Piece {
        let ids =
            if last || !text.is_empty() { std::mem::take(&mut self.pending) } else { Vec::new() };
        Piece { text, ids }
    }

    fn ending(&self, finish_reason: &'static str) -> Ending {
        Ending { finish_reason, completion_tokens: self.tokens }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript(stop: &[&str]) -> Transcript {
        let stop = stop.iter().map(|&s| s.to_owned()).collect();
        Transcript::new(&Text::byte_level(), stop)
    }

    fn feed(transcript: &mut Transcript, reply: &str) -> (Vec<Piece>, Option<Ending>) {
        let mut pieces = Vec::new();
        for byte in reply.bytes() {
            let (piece, ending) = transcript.token(u32::from(byte));
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
        let expected =
            |text: &str| Piece { text: text.into(), ids: text.bytes().map(u32::from).collect() };
        assert_eq!(pieces, [expected("é"), expected("€")]);
        assert_eq!(ending, None);
    }

    #[test]
    fn a_stop_string_over_several_tokens_is_cut_exactly() {
        let (pieces, ending) = feed(&mut transcript(&["END"]), "aENbENDc");
        let text: String = pieces.iter().map(|p| p.text.as_str()).collect();
        let ids: Vec<u32> = pieces.iter().flat_map(|p| p.ids.clone()).collect();
        assert_eq!(text, "aENb");
        assert_eq!(ids, "aENbEND".bytes().map(u32::from).collect::<Vec<_>>());
        let expected = Ending { finish_reason: "stop", completion_tokens: 7 };
        assert_eq!(ending, Some(expected));
    }

    #[test]
    fn a_held_back_tail_comes_out_at_the_end() {
        let mut transcript = transcript(&["END"]);
        let (pieces, _) = feed(&mut transcript, "aEN");
        assert_eq!(pieces.len(), 1);
        let (piece, ending) = transcript.finish(Finish::Length);
        assert_eq!(piece.text, "EN");
        assert_eq!(piece.ids, [u32::from(b'E'), u32::from(b'N')]);
        assert_eq!((ending.finish_reason, ending.completion_tokens), ("length", 3));
    }
}
