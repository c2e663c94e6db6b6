//! The vocabulary: what the metadata says of it, and the bytes of each token.

use weights::gguf::Metadata;
use weights::synthetic::byte_char;

use crate::TextError;

/// What a token is for (GGUF's token types).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Text.
    Normal,
    /// Structure, left out of replies; the unknown token counts as one.
    Control,
    /// A text that is always one token.
    UserDefined,
    /// One byte, written `<0x0A>`.
    Byte,
}

impl Kind {
    fn from_number(number: i32) -> Self {
        match number {
            2 | 3 => Self::Control,
            4 => Self::UserDefined,
            6 => Self::Byte,
            _ => Self::Normal,
        }
    }
}

/// A tokenizer's parts, as the metadata holds them.
pub(crate) struct Parts {
    pub tokens: Vec<String>,
    pub types: Vec<Kind>,
    pub merges: Vec<String>,
    pub pre: Option<String>,
    pub bos: Option<u32>,
    pub eos: Option<u32>,
    pub eot: Option<u32>,
    pub add_bos: bool,
    pub template: Option<String>,
}

/// Turn ends that count as stop tokens where the vocabulary has them as special tokens, whatever
/// the EOS key says: some files name the document's end there.
const TURN_ENDS: [&str; 2] = ["<|im_end|>", "<|eot_id|>"];

impl Parts {
    pub(crate) fn read(metadata: &Metadata) -> Result<Self, TextError> {
        let key = "tokenizer.ggml.model";
        match metadata.str(key)? {
            Some("gpt2") => {}
            Some(found) => {
                return Err(TextError::UnsupportedModel { found: found.to_owned() });
            }
            None => return Err(TextError::MissingKey { key }),
        }
        let strings = |key| -> Result<Vec<String>, TextError> {
            Ok(metadata.strings(key)?.ok_or(TextError::MissingKey { key })?.to_vec())
        };
        let tokens = strings("tokenizer.ggml.tokens")?;
        let types = match metadata.i32s("tokenizer.ggml.token_type")? {
            Some(types) if types.len() != tokens.len() => {
                return Err(TextError::TypeCount { expected: tokens.len(), found: types.len() });
            }
            Some(types) => types.into_iter().map(Kind::from_number).collect(),
            None => vec![Kind::Normal; tokens.len()],
        };
        let id = |name: &str| -> Result<Option<u32>, TextError> {
            let key = format!("tokenizer.ggml.{name}_token_id");
            let vocab = tokens.len();
            match metadata.u32(&key)? {
                Some(found) if found as usize >= vocab => {
                    Err(TextError::TokenId { key, found, vocab })
                }
                id => Ok(id),
            }
        };
        let pre = metadata.str("tokenizer.ggml.pre")?.map(str::to_owned);
        Ok(Self {
            merges: strings("tokenizer.ggml.merges")?,
            bos: id("bos")?,
            eos: id("eos")?,
            eot: id("eot")?,
            // Llama 3 files made before the key existed mean true by their pre-tokenizer.
            add_bos: metadata
                .bool("tokenizer.ggml.add_bos_token")?
                .unwrap_or(pre.as_deref() == Some("llama-bpe")),
            template: metadata.str("tokenizer.chat_template")?.map(str::to_owned),
            tokens,
            types,
            pre,
        })
    }

    /// The vocabulary of synthetic checkpoints.
    pub(crate) fn byte_level() -> Self {
        let mut tokens: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
        tokens.extend(["<|im_start|>".to_owned(), "<|im_end|>".to_owned()]);
        let mut types = vec![Kind::Normal; 256];
        types.extend([Kind::Control; 2]);
        Self {
            tokens,
            types,
            merges: Vec::new(),
            pre: Some("gpt-2".to_owned()),
            bos: None,
            eos: Some(257),
            eot: None,
            add_bos: false,
            template: Some(crate::template::CHATML.to_owned()),
        }
    }

    /// Tokens that end a reply, in order, each once.
    pub(crate) fn stop_tokens(&self) -> Vec<u32> {
        let named = self.tokens.iter().enumerate().filter(|(id, token)| {
            matches!(self.types[*id], Kind::Control | Kind::UserDefined)
                && TURN_ENDS.contains(&token.as_str())
        });
        let mut ids: Vec<u32> = named.map(|(id, _)| id as u32).collect();
        ids.extend(self.eos);
        ids.extend(self.eot);
        ids.sort_unstable();
        ids.dedup();
        ids
    }

    /// The text of token `id`, empty where there is none.
    pub(crate) fn text(&self, id: Option<u32>) -> &str {
        id.and_then(|id| self.tokens.get(id as usize)).map_or("", String::as_str)
    }
}

/// The bytes of every token, end to end.
pub(crate) struct Tokens {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    control: Vec<bool>,
    bytes_max: usize,
}

impl Tokens {
    pub(crate) fn new(tokens: &[String], types: &[Kind]) -> Self {
        let mut byte_of = std::collections::HashMap::new();
        for byte in 0..=255u8 {
            byte_of.insert(byte_char(byte), byte);
        }
        let mut out =
            Self { bytes: Vec::new(), ends: Vec::new(), control: Vec::new(), bytes_max: 0 };
        for (token, kind) in tokens.iter().zip(types) {
            let single = (*kind == Kind::Byte).then(|| single_byte(token)).flatten();
            let mapped: Option<Vec<u8>> = token.chars().map(|c| byte_of.get(&c).copied()).collect();
            match (single, mapped) {
                (Some(byte), _) => out.bytes.push(byte),
                (None, Some(bytes)) => out.bytes.extend(bytes),
                // A token with a character outside the byte alphabet stands for itself.
                (None, None) => out.bytes.extend(token.as_bytes()),
            }
            let start = out.ends.last().copied().unwrap_or(0);
            out.bytes_max = out.bytes_max.max(out.bytes.len() - start);
            out.ends.push(out.bytes.len());
            out.control.push(*kind == Kind::Control);
        }
        out
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    pub(crate) fn bytes(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let Some(&end) = self.ends.get(id) else {
            return &[];
        };
        let start = if id == 0 { 0 } else { self.ends[id - 1] };
        &self.bytes[start..end]
    }

    /// Bytes of the longest token.
    pub(crate) fn bytes_max(&self) -> usize {
        self.bytes_max
    }

    pub(crate) fn is_control(&self, id: u32) -> bool {
        self.control.get(id as usize).copied().unwrap_or(false)
    }
}

/// The byte that `<0x0A>` stands for.
fn single_byte(token: &str) -> Option<u8> {
    u8::from_str_radix(token.strip_prefix("<0x")?.strip_suffix('>')?, 16).ok()
}
