//! Tokens to text, one at a time.

use std::sync::Arc;

use crate::tokens::Tokens;

/// Turns the tokens of one reply into text as they come. A character whose bytes are spread over
/// tokens appears when its last byte does; bytes that can be no character become U+FFFD, as
/// [`String::from_utf8_lossy`] would write the whole. Control tokens are left out.
pub struct Detokenizer {
    tokens: Arc<Tokens>,
    /// The start of a character whose end is not there yet: at most three bytes.
    held: Vec<u8>,
}

impl std::fmt::Debug for Detokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Detokenizer").field("held", &self.held).finish_non_exhaustive()
    }
}

impl Detokenizer {
    pub(crate) fn new(tokens: Arc<Tokens>) -> Self {
        Self { tokens, held: Vec::new() }
    }

    /// Adds a token and gives the text that is certain now, maybe empty.
    pub fn push(&mut self, id: u32) -> String {
        if self.tokens.is_control(id) {
            return String::new();
        }
        self.held.extend(self.tokens.bytes(id));
        let (text, read) = certain(&self.held);
        self.held.drain(..read);
        text
    }

    /// Ends the reply: what is held back can be no character any more.
    pub fn finish(&mut self) -> String {
        String::from_utf8_lossy(&std::mem::take(&mut self.held)).into_owned()
    }
}

/// The text of `bytes` up to a character that may still be completed, and the bytes it took.
fn certain(bytes: &[u8]) -> (String, usize) {
    let (mut text, mut at) = (String::new(), 0);
    loop {
        match std::str::from_utf8(&bytes[at..]) {
            Ok(rest) => {
                text.push_str(rest);
                return (text, bytes.len());
            }
            Err(error) => {
                let valid = at + error.valid_up_to();
                text.push_str(&String::from_utf8_lossy(&bytes[at..valid]));
                let Some(bad) = error.error_len() else {
                    return (text, valid);
                };
                text.push(char::REPLACEMENT_CHARACTER);
                at = valid + bad;
            }
        }
    }
}
