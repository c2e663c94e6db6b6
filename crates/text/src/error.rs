//! What can be wrong with a tokenizer, a template or a conversation.

/// Why text cannot become tokens. Every message names the culprit.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TextError {
    /// The checkpoint's metadata holds another type than expected.
    #[error(transparent)]
    Weights(#[from] weights::WeightsError),
    /// A file of the model's folder that is there and cannot be read.
    #[error("`{file}` of {folder} cannot be read: {reason}")]
    Read {
        /// The file's name.
        file: &'static str,
        /// The model's folder.
        folder: String,
        /// Why.
        reason: String,
    },
    /// A folder without a tokenizer.
    #[error("{folder} has no `{file}`, expected one: no other form of tokenizer is supported")]
    MissingFile {
        /// The file's name.
        file: &'static str,
        /// The model's folder.
        folder: String,
    },
    /// A file of the model's folder that is too long.
    #[error("`{file}` has {found} bytes, more than the limit of {limit}")]
    FileBytes {
        /// The file's name.
        file: &'static str,
        /// Its bytes.
        found: u64,
        /// The limit.
        limit: u64,
    },
    /// A file of the model's folder that is no text or JSON of the expected form.
    #[error("`{file}`: {reason}")]
    Form {
        /// The file's name.
        file: &'static str,
        /// Where, what was expected and what was found.
        reason: String,
    },
    /// A value in a file of the model's folder that is not supported or contradicts others.
    #[error("`{file}`: `{key}`: expected {expected}, found {found}")]
    Field {
        /// The file's name.
        file: &'static str,
        /// The path to the value.
        key: String,
        /// What it should be.
        expected: String,
        /// What it is.
        found: String,
    },
    /// A required metadata key is absent.
    #[error("metadata key `{key}` is missing: the checkpoint has no tokenizer")]
    MissingKey {
        /// The key.
        key: &'static str,
    },
    /// A tokenizer model that is not implemented.
    #[error("tokenizer model `{found}` is not supported (expected `gpt2`)")]
    UnsupportedModel {
        /// `tokenizer.ggml.model`.
        found: String,
    },
    /// A pre-tokenizer that is not implemented.
    #[error("pre-tokenizer `{found}` is not supported (expected one of {expected})")]
    UnsupportedPre {
        /// `tokenizer.ggml.pre`.
        found: String,
        /// The ones that are.
        expected: String,
    },
    /// A token type list of another length than the token list.
    #[error("`tokenizer.ggml.token_type` has {found} items, expected {expected}, one a token")]
    TypeCount {
        /// Tokens.
        expected: usize,
        /// Types.
        found: usize,
    },
    /// More text in special tokens than any model needs.
    #[error("the special tokens have {found} bytes together, more than the limit of {limit}")]
    SpecialBytes {
        /// Their bytes.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// An id beyond the vocabulary.
    #[error("metadata key `{key}`: expected an id below {vocab}, found {found}")]
    TokenId {
        /// The key.
        key: String,
        /// The id.
        found: u32,
        /// Tokens of the vocabulary.
        vocab: usize,
    },
    /// A merge whose halves or whole are no tokens.
    #[error("merge {index} (`{merge}`): expected two tokens whose join is a token")]
    Merge {
        /// Which one.
        index: usize,
        /// As it stands.
        merge: String,
    },
    /// The tokenizer library refused its input.
    #[error("the tokenizer cannot be built: {reason}")]
    Build {
        /// Its words.
        reason: String,
    },
    /// The tokenizer library failed on a text.
    #[error("the text cannot be encoded: {reason}")]
    Encode {
        /// Its words.
        reason: String,
    },
    /// The chat template is too long.
    #[error("the checkpoint's chat template has {found} bytes, more than the limit of {limit}")]
    TemplateBytes {
        /// Its bytes.
        found: usize,
        /// The limit.
        limit: usize,
    },
    /// The chat template does not compile.
    #[error("the checkpoint's chat template does not compile: {reason}")]
    TemplateSyntax {
        /// Where and why.
        reason: String,
    },
    /// The chat template failed on this conversation.
    #[error("the chat template fails on this conversation: {reason}")]
    TemplateFails {
        /// Where and why.
        reason: String,
    },
    /// The chat template refused this conversation (`raise_exception`).
    #[error("the chat template refuses this conversation: {reason}")]
    TemplateRefuses {
        /// The template's words.
        reason: String,
    },
    /// The chat template took too many steps.
    #[error("the chat template did not end within {limit} steps")]
    TemplateSteps {
        /// The limit.
        limit: u64,
    },
    /// The rendered prompt is too long.
    #[error("the rendered prompt is longer than the limit of {limit} bytes")]
    PromptBytes {
        /// The limit.
        limit: usize,
    },
    /// A message of the wrong form.
    #[error("messages[{index}]: expected {expected}, found {found}")]
    Message {
        /// Which message.
        index: usize,
        /// What it should be.
        expected: &'static str,
        /// What it is.
        found: String,
    },
    /// A content part that this model cannot read.
    #[error("messages[{index}].content[{part}] has the type `{found}`, expected `text`")]
    ContentPart {
        /// Which message.
        index: usize,
        /// Which part.
        part: usize,
        /// Its type.
        found: String,
    },
}

/// Bytes of what a file holds in an error.
const FOUND_BYTES_MAX: usize = 512;

/// The start of a text that a file chose.
fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(FOUND_BYTES_MAX)].to_owned()
}

impl TextError {
    /// [`TextError::Field`] of bounded length.
    pub(crate) fn field(file: &'static str, key: &str, expected: &str, found: &str) -> Self {
        Self::Field { file, key: cut(key), expected: cut(expected), found: cut(found) }
    }

    /// [`TextError::Form`] of bounded length.
    pub(crate) fn form(file: &'static str, reason: &str) -> Self {
        Self::Form { file, reason: cut(reason) }
    }

    /// [`TextError::Merge`] of bounded length.
    pub(crate) fn merge(index: usize, merge: &str) -> Self {
        Self::Merge { index, merge: cut(merge) }
    }
}
