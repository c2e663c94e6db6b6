//! The vocabulary: what a GGUF file's metadata says of it, and the bytes of each token.

use tokenizers::models::bpe::{Merges, Vocab};
use weights::gguf::Metadata;
use weights::synthetic::byte_char;

use crate::TextError;
use crate::pretokenizer::Recipe;

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

/// A tokenizer's parts, from whatever files hold them.
pub(crate) struct Parts {
    /// Every token's text by id; an empty one where no token has the id.
    pub tokens: Vec<String>,
    /// One a token.
    pub types: Vec<Kind>,
    /// The ids of the tokens that merges work on.
    pub vocab: Vocab,
    pub merges: Merges,
    pub recipe: Recipe,
    /// What a text starts with unless it brings it.
    pub prefix: Option<u32>,
    /// The texts that templates know as `bos_token` and `eos_token`; empty where there is none.
    pub bos: String,
    pub eos: String,
    /// Tokens that the files name as ends of a reply.
    pub ends: Vec<u32>,
    pub template: Option<String>,
}

/// Ends that count as stop tokens where the vocabulary has them as special tokens, whatever else
/// the files say: some name only the turn's end, some only the document's.
const ENDS: [&str; 3] = ["<|im_end|>", "<|eot_id|>", "<|endoftext|>"];

impl Parts {
    pub(crate) fn read(metadata: &Metadata, notes: &mut Vec<String>) -> Result<Self, TextError> {
        let key = "tokenizer.ggml.model";
        match metadata.str(key)? {
            Some("gpt2") => {}
            Some(found) => {
                return Err(TextError::UnsupportedModel { found: found.to_owned() });
            }
            None => return Err(TextError::MissingKey { key }),
        }
        let strings = |key| metadata.strings(key)?.ok_or(TextError::MissingKey { key });
        let tokens: Vec<String> = strings("tokenizer.ggml.tokens")?.to_vec();
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
        let pre = metadata.str("tokenizer.ggml.pre")?;
        let (bos, eos, eot) = (id("bos")?, id("eos")?, id("eot")?);
        // Llama 3 files made before the key existed mean true by their pre-tokenizer.
        let add_bos =
            metadata.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(pre == Some("llama-bpe"));
        let text =
            |id: Option<u32>| id.map_or_else(String::new, |id| tokens[id as usize].to_owned());
        Ok(Self {
            vocab: first_ids(&tokens),
            merges: merges(strings("tokenizer.ggml.merges")?)?,
            recipe: Recipe::named(pre, notes)?,
            prefix: bos.filter(|_| add_bos),
            bos: text(bos),
            eos: text(eos),
            ends: eos.into_iter().chain(eot).collect(),
            template: metadata.str("tokenizer.chat_template")?.map(str::to_owned),
            tokens,
            types,
        })
    }

    /// The vocabulary of synthetic checkpoints.
    pub(crate) fn byte_level() -> Result<Self, TextError> {
        let mut tokens: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
        tokens.extend(["<|im_start|>".to_owned(), "<|im_end|>".to_owned()]);
        let mut types = vec![Kind::Normal; 256];
        types.extend([Kind::Control; 2]);
        Ok(Self {
            vocab: first_ids(&tokens),
            merges: Vec::new(),
            recipe: Recipe::named(Some("gpt-2"), &mut Vec::new())?,
            prefix: None,
            bos: String::new(),
            eos: tokens[257].clone(),
            ends: vec![257],
            template: Some(crate::template::CHATML.to_owned()),
            tokens,
            types,
        })
    }

    /// Tokens that end a reply, in order, each once.
    pub(crate) fn stop_tokens(&self) -> Vec<u32> {
        let named = self.tokens.iter().enumerate().filter(|(id, token)| {
            matches!(self.types[*id], Kind::Control | Kind::UserDefined)
                && ENDS.contains(&token.as_str())
        });
        let mut ids: Vec<u32> = named.map(|(id, _)| id as u32).collect();
        ids.extend(&self.ends);
        ids.sort_unstable();
        ids.dedup();
        ids
    }
}

/// The id of each text, the first where several tokens share it.
fn first_ids(tokens: &[String]) -> Vocab {
    let mut ids = Vocab::with_capacity(tokens.len());
    for (id, token) in tokens.iter().enumerate() {
        ids.entry(token.clone()).or_insert(id as u32);
    }
    ids
}

/// Merges written as two halves with a space between.
fn merges(lines: &[String]) -> Result<Merges, TextError> {
    let halves = lines.iter().enumerate().map(|(index, merge)| {
        // The first space parts the halves: no half starts with one, the byte alphabet has none.
        let (left, right) = merge.split_once(' ').ok_or_else(|| TextError::merge(index, merge))?;
        Ok((left.to_owned(), right.to_owned()))
    });
    halves.collect()
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
