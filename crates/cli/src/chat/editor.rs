//! A line editor with a history and lines that go on.

use std::path::PathBuf;

use anyhow::Result;
use rustyline::completion::Completer;
use rustyline::error::ReadlineError;
use rustyline::highlight::Highlighter;
use rustyline::hint::Hinter;
use rustyline::history::FileHistory;
use rustyline::validate::{ValidationContext, ValidationResult, Validator};
use rustyline::{Config, Helper};

use crate::source;

/// Messages that are remembered.
const HISTORY_MAX: usize = 1_000;

/// What was typed.
#[derive(Debug, PartialEq, Eq)]
pub enum Typed {
    /// A message or a command.
    Text(String),
    /// An empty line, or Ctrl-C.
    Nothing,
    /// Ctrl-D.
    End,
}

/// Reads messages from the terminal.
pub struct Editor {
    inner: rustyline::Editor<Lines, FileHistory>,
    /// In the cache, readable by its owner only; none where there is no cache.
    history: Option<PathBuf>,
}

impl Editor {
    /// With the history of earlier conversations.
    ///
    /// # Errors
    /// A terminal that can't be used.
    pub fn new() -> Result<Self> {
        let config = Config::builder().max_history_size(HISTORY_MAX)?.build();
        let mut inner = rustyline::Editor::with_config(config)?;
        inner.set_helper(Some(Lines));
        let history = source::cache_dir().ok().map(|folder| folder.join("chat-history"));
        if let Some(file) = &history {
            // The first conversation has none.
            let _ = inner.load_history(file);
        }
        Ok(Self { inner, history })
    }

    /// The next message.
    ///
    /// # Errors
    /// A terminal that is gone.
    pub fn read(&mut self) -> Result<Typed> {
        match self.inner.readline("> ") {
            Ok(typed) => {
                let text = joined(&typed);
                if text.trim().is_empty() {
                    return Ok(Typed::Nothing);
                }
                self.inner.add_history_entry(&typed)?;
                if let Some(file) = &self.history {
                    // A full disk costs the history, not the conversation.
                    let _ = file.parent().map(std::fs::create_dir_all);
                    let _ = self.inner.save_history(file);
                }
                Ok(Typed::Text(text))
            }
            Err(ReadlineError::Interrupted) => Ok(Typed::Nothing),
            Err(ReadlineError::Eof) => Ok(Typed::End),
            Err(error) => Err(error.into()),
        }
    }
}

/// What was typed, without the marks of lines that go on.
fn joined(typed: &str) -> String {
    typed.replace("\\\n", "\n").trim_end().to_owned()
}

/// A line that ends in a backslash goes on.
struct Lines;

impl Validator for Lines {
    fn validate(&self, context: &mut ValidationContext<'_>) -> rustyline::Result<ValidationResult> {
        Ok(if context.input().ends_with('\\') {
            ValidationResult::Incomplete
        } else {
            ValidationResult::Valid(None)
        })
    }
}

impl Completer for Lines {
    type Candidate = String;
}

impl Hinter for Lines {
    type Hint = String;
}

impl Highlighter for Lines {}

impl Helper for Lines {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_go_on_become_one_message() {
        assert_eq!(joined("one\\\ntwo\\\n\nthree \n"), "one\ntwo\n\nthree");
        assert_eq!(joined("a \\ b"), "a \\ b");
    }
}
