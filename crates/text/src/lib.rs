//! Between text and tokens: the tokenizer and the chat template from a checkpoint's metadata or its
//! folder, the incremental detokenizer, and stop strings.
//!
//! A prompt goes `messages -> render -> encode -> ids`; a reply comes back
//! `id -> Detokenizer -> StopStrings -> text`.
mod clock;
mod detokenizer;
mod error;
mod folder;
mod json;
mod marks;
mod messages;
mod plain;
mod pretokenizer;
mod settings;
mod special;
mod steps;
pub mod stop;
mod template;
mod tokens;
mod vocabulary;

use std::path::Path;
use std::sync::{Arc, OnceLock};

use serde_json::{Map, Value};
use weights::Checkpoint;
use weights::gguf::Metadata;

pub use detokenizer::Detokenizer;
pub use error::TextError;
use special::Specials;
use template::Template;
use tokens::{Kind, Parts, Tokens};

/// Bytes of all special tokens together: each takes a node of a tree.
const SPECIALS_BYTES_MAX: usize = 256 << 10;
/// Bytes of UTF-8 that NFC makes one of at most: it composes U+0390, two bytes, from six.
const NORMALISED_BYTES: usize = 3;

/// A checkpoint's tokenizer and chat template.
pub struct Text {
    tokens: Arc<Tokens>,
    bpe: tokenizers::Tokenizer,
    specials: Specials,
    template: Template,
    prefix: Option<u32>,
    stop_tokens: Vec<u32>,
    notes: Vec<String>,
    marks: OnceLock<Option<marks::Header>>,
}

impl std::fmt::Debug for Text {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Text").field("vocab", &self.vocab()).finish_non_exhaustive()
    }
}

impl Text {
    /// Builds the tokenizer and compiles the chat template that the checkpoint holds.
    ///
    /// # Errors
    /// A tokenizer model or pre-tokenizer that is not implemented, by name; ids, types or merges
    /// that contradict the token list; a template that does not compile.
    pub fn from_checkpoint(checkpoint: &Checkpoint) -> Result<Self, TextError> {
        match checkpoint.metadata() {
            Some(metadata) => Self::from_metadata(metadata),
            None => Self::from_folder(checkpoint.path()),
        }
    }

    /// The same from metadata alone.
    ///
    /// # Errors
    /// As [`Text::from_checkpoint`].
    pub fn from_metadata(metadata: &Metadata) -> Result<Self, TextError> {
        let mut notes = Vec::new();
        Self::from_parts(Parts::read(metadata, &mut notes)?, notes)
    }

    /// The same from a model folder of Hugging Face or MLX: `tokenizer.json`, and beside it
    /// `tokenizer_config.json`, `chat_template.jinja`, `generation_config.json` and `config.json`
    /// where they are there. Stop tokens are those of the generation config and the tokenizer
    /// config; the model's config counts only where both are silent.
    ///
    /// # Errors
    /// As [`Text::from_checkpoint`], each with file and key; a file that cannot be read, is longer
    /// than its limit or no JSON; anything but byte-level BPE, by name.
    pub fn from_folder(path: &Path) -> Result<Self, TextError> {
        let mut notes = Vec::new();
        Self::from_parts(Parts::from_folder(path, &mut notes)?, notes)
    }

    /// A tokenizer of 256 byte tokens, `<|im_start|>` = 256 and `<|im_end|>` = 257, with the
    /// ChatML template: what synthetic checkpoints hold.
    pub fn byte_level() -> Self {
        match Parts::byte_level().and_then(|parts| Self::from_parts(parts, Vec::new())) {
            Ok(text) => text,
            Err(error) => panic!("the built-in tokenizer does not build: {error}"),
        }
    }

    fn from_parts(parts: Parts, mut notes: Vec<String>) -> Result<Self, TextError> {
        let tokens = Arc::new(Tokens::new(&parts.tokens, &parts.types));
        let template = Template::new(&parts, &mut notes)?;
        let marked = |id: usize| match parts.types[id] {
            Kind::Control => Some(true),
            Kind::UserDefined => Some(false),
            _ => None,
        };
        let special = |id: &usize| marked(*id).is_some();
        let found = (0..parts.tokens.len()).filter(special).map(|id| parts.tokens[id].len()).sum();
        if found > SPECIALS_BYTES_MAX {
            return Err(TextError::SpecialBytes { found, limit: SPECIALS_BYTES_MAX });
        }
        let specials = Specials::new(parts.tokens.iter().enumerate().filter_map(|(id, token)| {
            marked(id).map(|control| (token.as_str(), id as u32, control))
        }));
        let stop_tokens = parts.stop_tokens();
        let bpe = parts.recipe.build(parts.vocab, parts.merges)?;
        Ok(Self {
            tokens,
            bpe,
            specials,
            template,
            prefix: parts.prefix,
            stop_tokens,
            notes,
            marks: OnceLock::new(),
        })
    }

    /// What was assumed where the checkpoint did not say, for the log.
    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Tokens of a text in which special tokens (`<|im_start|>`) count as such. Starts with the
    /// BOS token where the checkpoint asks for one and the text does not bring it.
    ///
    /// # Errors
    /// [`TextError::Encode`].
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, TextError> {
        let mut ids = self.encode_parts(text, true)?;
        if let Some(prefix) = self.prefix
            && ids.first() != Some(&prefix)
        {
            ids.insert(0, prefix);
        }
        Ok(ids)
    }

    /// Tokens of a text in which control tokens are ordinary characters; no BOS is added.
    ///
    /// # Errors
    /// [`TextError::Encode`].
    pub fn encode_plain(&self, text: &str) -> Result<Vec<u32>, TextError> {
        self.encode_parts(text, false)
    }

    fn encode_parts(&self, text: &str, control: bool) -> Result<Vec<u32>, TextError> {
        let mut ids = Vec::new();
        for part in self.specials.split(text, control) {
            match part {
                special::Part::Token(id) => ids.push(id),
                special::Part::Text(text) => {
                    let encoding = self
                        .bpe
                        .encode_fast(text, false)
                        .map_err(|error| TextError::Encode { reason: error.to_string() })?;
                    ids.extend(encoding.get_ids());
                }
            }
        }
        Ok(ids)
    }

    /// Renders the chat template over OpenAI messages. `extra` adds variables (`tools`,
    /// `enable_thinking`). A content of `null` is an empty text, a list of text parts is their
    /// concatenation.
    ///
    /// # Errors
    /// A content part that is no text, by its type; what the template raises; a template that
    /// fails, runs too long or writes too much.
    pub fn render(
        &self,
        messages: &[Value],
        add_generation_prompt: bool,
        extra: &Map<String, Value>,
    ) -> Result<String, TextError> {
        self.template.render(messages::normalise(messages)?, add_generation_prompt, extra)
    }

    /// Whether the chat template's source holds a word: which variables it heeds, which marks it
    /// writes.
    pub fn template_mentions(&self, word: &str) -> bool {
        self.template.mentions(word)
    }

    /// Takes another chat template than the checkpoint's.
    ///
    /// # Errors
    /// As [`Text::from_checkpoint`] for the template; the old one then stays.
    pub fn set_template(&mut self, source: &str) -> Result<(), TextError> {
        self.marks = OnceLock::new();
        self.template.replace(source)
    }

    /// A detokenizer for one reply.
    pub fn detokenizer(&self) -> Detokenizer {
        Detokenizer::new(Arc::clone(&self.tokens))
    }

    /// Tokens that end a reply.
    pub fn stop_tokens(&self) -> &[u32] {
        &self.stop_tokens
    }

    /// Tokens of the vocabulary.
    pub fn vocab(&self) -> usize {
        self.tokens.len()
    }

    /// Fewest tokens that a text of so many bytes can have: none stands for more than the longest
    /// does, and normalising leaves at least a third of the bytes.
    pub fn tokens_min(&self, bytes: usize) -> usize {
        bytes.div_ceil(NORMALISED_BYTES * self.tokens.bytes_max().max(1))
    }

    /// The bytes that a token stands for; empty for ids beyond the vocabulary.
    pub fn token_bytes(&self, id: u32) -> &[u8] {
        self.tokens.bytes(id)
    }

    /// Whether a token marks structure and is left out of a reply's text.
    pub fn is_control(&self, id: u32) -> bool {
        self.tokens.is_control(id)
    }
}
