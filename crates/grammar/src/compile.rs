//! A tokenizer's trie, and grammars over it.

use std::sync::{Arc, Mutex};

use llguidance::api::ParserLimits;
use llguidance::earley::SlicedBiasComputer;
use llguidance::toktrie::{ApproximateTokEnv, InferenceCapabilities, TokEnv, TokRxInfo, TokTrie};
use llguidance::{Matcher, ParserFactory};
use sched::sample::Grammar;
use text::Text;

use crate::Form;
use crate::guided::Compiled;
use crate::worker::{Cost, Wake, Workers};

/// Bytes of a grammar's source.
pub const SOURCE_BYTES_MAX: usize = 256 << 10;
/// Earley items and lexer fuel of one mask: some ten milliseconds at the very most.
const STEP_ITEMS_MAX: usize = 50_000;
const STEP_FUEL_MAX: u64 = 200_000;
/// Lexer states of one grammar, one or two kB each.
const LEXER_STATES_MAX: usize = 50_000;
/// Lexer fuel of a compilation: some twenty milliseconds.
const COMPILE_FUEL_MAX: u64 = 1_000_000;
/// Symbols of a grammar.
const SYMBOLS_MAX: usize = 200_000;

/// Why a grammar is not used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum GrammarError {
    /// The source is too long.
    #[error("the grammar has {found} bytes, more than the limit of {limit}")]
    Long {
        /// Bytes.
        found: usize,
        /// Limit.
        limit: usize,
    },
    /// It does not compile, or is past a limit of the compiler.
    #[error("the grammar does not compile: {0}")]
    Compile(String),
    /// The tokenizer makes no trie.
    #[error("this model's tokenizer takes no grammars: {0}")]
    Tokenizer(String),
}

/// Compiles grammars for one tokenizer.
pub struct Grammars {
    factory: ParserFactory,
    workers: Arc<Workers>,
    /// Tokens that end a reply.
    ends: Vec<u32>,
}

impl std::fmt::Debug for Grammars {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Grammars").field("ends", &self.ends).finish_non_exhaustive()
    }
}

impl Grammars {
    /// Builds the trie: once a model, some time for a large vocabulary.
    ///
    /// # Errors
    /// [`GrammarError::Tokenizer`].
    pub fn new(text: &Text) -> Result<Self, GrammarError> {
        let refuse = |e: &dyn std::fmt::Display| GrammarError::Tokenizer(e.to_string());
        let mut words: Vec<Vec<u8>> = (0..text.vocab() as u32).map(|id| word(text, id)).collect();
        let mut ends = text.stop_tokens().to_vec();
        if ends.is_empty() {
            // An end that no logit stands for.
            ends.push(words.len() as u32);
            words.push(b"\xFF<end>".to_vec());
        }
        let info = TokRxInfo::new(words.len() as u32, ends[0]);
        let trie = TokTrie::from(&info, &words).with_eos_tokens(&ends);
        let env: TokEnv = Arc::new(ApproximateTokEnv::new(trie));
        let slices = SlicedBiasComputer::general_slices();
        let mut factory = ParserFactory::new(&env, InferenceCapabilities::default(), &slices)
            .map_err(|e| refuse(&e))?;
        factory.quiet();
        *factory.limits_mut() = ParserLimits {
            step_max_items: STEP_ITEMS_MAX,
            step_lexer_fuel: STEP_FUEL_MAX,
            max_lexer_states: LEXER_STATES_MAX,
            initial_lexer_fuel: COMPILE_FUEL_MAX,
            max_grammar_size: SYMBOLS_MAX,
            verbose_errors: false,
            ..ParserLimits::default()
        };
        let workers = Workers::start().map_err(|e| refuse(&e))?;
        Ok(Self { factory, workers: Arc::new(workers), ends })
    }

    /// Has `wake` called when a mask that a reply waits for is ready: the reply of a slow grammar
    /// then misses rounds, rather than holding them up.
    #[must_use]
    pub fn waking(self, wake: impl Fn() + Send + Sync + 'static) -> Self {
        self.workers.wake_through(Wake(Arc::new(wake)));
        self
    }

    /// What the masks of all its grammars have cost.
    pub fn cost(&self) -> Cost {
        self.workers.cost()
    }

    /// Makes a form a grammar.
    ///
    /// # Errors
    /// [`GrammarError::Long`] and [`GrammarError::Compile`].
    pub fn compile(&self, form: &Form) -> Result<Arc<dyn Grammar>, GrammarError> {
        let (matcher, ends) = (self.matcher(form)?, self.ends.clone());
        Ok(Arc::new(Compiled::new(Mutex::new(matcher), self.workers.clone(), ends)))
    }

    pub(crate) fn matcher(&self, form: &Form) -> Result<Matcher, GrammarError> {
        let grammar = form.grammar();
        let source = serde_json::to_string(&grammar);
        let found = source.map_or(usize::MAX, |source| source.len());
        if found > SOURCE_BYTES_MAX {
            return Err(GrammarError::Long { found, limit: SOURCE_BYTES_MAX });
        }
        let matcher = Matcher::new(self.factory.create_parser(grammar));
        match matcher.get_error() {
            Some(reason) => Err(GrammarError::Compile(reason)),
            None => Ok(matcher),
        }
    }
}

/// A token as the trie knows it; control tokens are none that a text could hold.
fn word(text: &Text, id: u32) -> Vec<u8> {
    let bytes = text.token_bytes(id);
    if !text.is_control(id) {
        return bytes.to_vec();
    }
    let mut word = vec![TokTrie::SPECIAL_TOKEN_MARKER];
    word.extend_from_slice(bytes);
    word
}
