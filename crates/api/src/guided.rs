//! What binds a reply's tokens.

use std::cell::OnceCell;
use std::sync::Arc;

use grammar::{Budget, GrammarError, Grammars};
use sched::sample::Grammar;
use text::Text;

use crate::speech::{THINK, THOUGHT};
use crate::{ApiError, Asked, Manner, Reasons};

impl Asked {
    /// What the reply must follow: its form, and an end to its reasoning. `grammars` is asked where
    /// there is a form.
    ///
    /// # Errors
    /// A form that no grammar can have, by its field.
    pub(crate) fn grammar<'a>(
        &self,
        text: &Text,
        manner: &Manner,
        grammars: impl FnOnce() -> Result<&'a Grammars, GrammarError>,
    ) -> Result<Option<Arc<dyn Grammar>>, ApiError> {
        let grammar = match self.form(manner)? {
            None => None,
            Some((form, param)) => {
                let refuse = |e: &GrammarError| ApiError::invalid(param.clone(), e.to_string());
                let grammars = grammars().map_err(|e| refuse(&e))?;
                Some(grammars.compile(&form).map_err(|e| refuse(&e))?)
            }
        };
        let budget = self.options.thinking.tokens_max.filter(|_| manner.reasons != Reasons::Never);
        let Some(tokens_max) = budget else {
            return Ok(grammar);
        };
        let encode = |words: &str| {
            let ids = text.encode_plain(words);
            ids.map_err(|e| ApiError::Internal(e.to_string()))
        };
        let open = match manner.reasons {
            Reasons::Maybe => encode(THINK)?,
            _ => Vec::new(),
        };
        let (close, mark) = (encode(&format!("\n{THOUGHT}\n\n"))?, encode(THOUGHT)?);
        Ok(Some(Arc::new(Budget { tokens_max, open, close, mark, grammar })))
    }

    /// The same for one request alone.
    ///
    /// # Errors
    /// A form that no grammar can have, by its field.
    pub fn lone_grammar(
        &self,
        text: &Text,
        manner: &Manner,
    ) -> Result<Option<Arc<dyn Grammar>>, ApiError> {
        let made = OnceCell::new();
        self.grammar(text, manner, || {
            let grammars = Grammars::new(text)?;
            Ok(made.get_or_init(|| grammars))
        })
    }
}
