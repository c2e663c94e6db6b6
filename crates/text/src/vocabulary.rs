//! `tokenizer.json`: the tokens, their kinds, the merges and how a text is cut.

use std::collections::HashMap;
use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;
use tokenizers::models::bpe::{Merges, Vocab};
use weights::synthetic::byte_char;

use crate::folder::{TOKENIZER, parse};
use crate::pretokenizer::Recipe;
use crate::tokens::Kind;
use crate::{TextError, steps};

/// Ids, and so tokens: four times the largest vocabularies.
const IDS_MAX: usize = 1 << 20;
/// Merges.
const MERGES_MAX: usize = 1 << 20;

/// What tells the model's type, read before the rest.
#[derive(Deserialize)]
struct Head {
    model: Option<HeadModel>,
}

#[derive(Deserialize)]
struct HeadModel {
    #[serde(rename = "type")]
    kind: Option<String>,
    merges: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Box<RawValue>>,
    pre_tokenizer: Option<Box<RawValue>>,
    post_processor: Option<Box<RawValue>>,
    model: Model,
}

#[derive(Deserialize)]
struct Model {
    vocab: Words,
    merges: Pairs,
    dropout: Option<f64>,
    unk_token: Option<String>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    fuse_unk: Option<bool>,
    byte_fallback: Option<bool>,
    ignore_merges: Option<bool>,
}

/// A token that is found in a text before anything else is.
#[derive(Deserialize)]
pub(crate) struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    special: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

/// `model.vocab`, in the file's order.
struct Words(Vec<(String, u32)>);

impl<'de> Deserialize<'de> for Words {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Words;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of ids as `model.vocab`")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Words, A::Error> {
                let mut words = Vec::new();
                while let Some(text) = map.next_key::<String>()? {
                    if words.len() == IDS_MAX {
                        let limit = format!("`model.vocab` has more than {IDS_MAX} tokens");
                        return Err(A::Error::custom(limit));
                    }
                    words.push((text, map.next_value()?));
                }
                Ok(Words(words))
            }
        }
        deserializer.deserialize_map(Read)
    }
}

/// `model.merges`.
struct Pairs(Merges);

impl<'de> Deserialize<'de> for Pairs {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Pairs;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list as `model.merges`")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Pairs, A::Error> {
                let mut merges = Vec::new();
                while let Some(Pair(left, right)) = list.next_element()? {
                    if merges.len() == MERGES_MAX {
                        let limit = format!("`model.merges` has more than {MERGES_MAX} items");
                        return Err(A::Error::custom(limit));
                    }
                    merges.push((left, right));
                }
                Ok(Pairs(merges))
            }
        }
        deserializer.deserialize_seq(Read)
    }
}

/// One merge: `"a b"`, or `["a", "b"]` in newer files.
struct Pair(String, String);

impl<'de> Deserialize<'de> for Pair {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Read;
        impl<'de> Visitor<'de> for Read {
            type Value = Pair;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("two texts, as a list or with a space between, in `model.merges`")
            }

            fn visit_str<E: Error>(self, text: &str) -> Result<Pair, E> {
                let halves = text.split_once(' ').filter(|(_, right)| !right.contains(' '));
                let (left, right) = halves
                    .ok_or_else(|| E::invalid_value(serde::de::Unexpected::Str(text), &self))?;
                Ok(Pair(left.to_owned(), right.to_owned()))
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Pair, A::Error> {
                let mut half = |at| {
                    let half = list.next_element::<String>()?;
                    half.ok_or_else(|| A::Error::invalid_length(at, &self))
                };
                let (left, right) = (half(0)?, half(1)?);
                match list.next_element::<IgnoredAny>()? {
                    None => Ok(Pair(left, right)),
                    Some(_) => Err(A::Error::invalid_length(3, &self)),
                }
            }
        }
        deserializer.deserialize_any(Read)
    }
}

/// The tokens of a folder.
pub(crate) struct Vocabulary {
    pub tokens: Vec<String>,
    pub types: Vec<Kind>,
    pub vocab: Vocab,
    pub merges: Merges,
    pub recipe: Recipe,
    /// What the post-processor puts before a text.
    pub prefix: Option<u32>,
    /// The ids of the tokens that are taken whole.
    added: HashMap<String, u32>,
}

impl Vocabulary {
    /// Reads `tokenizer.json`.
    pub(crate) fn read(bytes: &[u8], notes: &mut Vec<String>) -> Result<Self, TextError> {
        let head: Head = parse(TOKENIZER, bytes)?;
        let model = head.model.ok_or_else(|| refuse("model", "an object", "none"))?;
        // Files from before the key existed tell by their merges.
        match model.kind.as_deref() {
            Some("BPE") => {}
            None if model.merges.is_some() => {}
            found => {
                let found = format!("`{}`", found.unwrap_or("none"));
                let expected = "`BPE` (only byte-level BPE is supported)";
                return Err(refuse("model.type", expected, &found));
            }
        }
        let file: File = parse(TOKENIZER, bytes)?;
        let mut out = Self {
            tokens: Vec::new(),
            types: Vec::new(),
            vocab: Vocab::with_capacity(file.model.vocab.0.len()),
            merges: Vec::new(),
            recipe: recipe(&file)?,
            prefix: None,
            added: HashMap::new(),
        };
        let prefix = steps::prefix(file.post_processor.as_deref(), notes)?;
        for (text, id) in file.model.vocab.0 {
            out.place(TOKENIZER, "model.vocab", id, &text, Kind::Normal)?;
            if let Some(other) = out.vocab.insert(text.clone(), id) {
                let found = format!("`{text}` as {other} and {id}");
                return Err(refuse("model.vocab", "each token once", &found));
            }
        }
        out.merges = file.model.merges.0;
        for added in &file.added_tokens {
            out.add(TOKENIZER, "added_tokens", added)?;
        }
        let fallback = file.model.byte_fallback == Some(true);
        out.check(fallback, notes)?;
        out.prefix = match prefix.map(|id| (id, u32::try_from(id))) {
            None => None,
            Some((_, Ok(id))) if (id as usize) < out.tokens.len() => Some(id),
            Some((id, _)) => {
                let expected = format!("an id below {}", out.tokens.len());
                return Err(refuse("post_processor", &expected, &id.to_string()));
            }
        };
        Ok(out)
    }

    /// Puts a token at its id, which no other has.
    fn place(
        &mut self,
        file: &'static str,
        key: &str,
        id: u32,
        text: &str,
        kind: Kind,
    ) -> Result<(), TextError> {
        let refuse =
            |expected: String, found: String| Err(TextError::field(file, key, &expected, &found));
        let at = id as usize;
        if at >= IDS_MAX {
            return refuse(format!("an id below {IDS_MAX}"), format!("{id} of `{text}`"));
        }
        if self.tokens.len() <= at {
            self.tokens.resize(at + 1, String::new());
            self.types.resize(at + 1, Kind::Normal);
        }
        let there = &mut self.tokens[at];
        if !there.is_empty() && there != text {
            return refuse(format!("`{there}` alone at id {id}"), format!("`{text}`"));
        }
        text.clone_into(there);
        self.types[at] = kind;
        Ok(())
    }

    /// Adds a token that is taken whole, or marks one that is there as such.
    pub(crate) fn add(
        &mut self,
        file: &'static str,
        key: &str,
        added: &Added,
    ) -> Result<(), TextError> {
        let Added { id, content, .. } = added;
        let refuse =
            |expected: String, found: String| Err(TextError::field(file, key, &expected, &found));
        let flags = [
            ("single_word", added.single_word),
            ("lstrip", added.lstrip),
            ("rstrip", added.rstrip),
        ];
        if let Some((name, _)) = flags.iter().find(|(_, set)| *set) {
            return refuse(format!("`{name}` false"), format!("true for `{content}`"));
        }
        if content.is_empty() {
            return Ok(());
        }
        if let Some(other) = self.id(content).filter(|other| other != id) {
            return refuse(format!("the id {other} that `{content}` has"), id.to_string());
        }
        self.added.insert(content.clone(), *id);
        let kind = if added.special { Kind::Control } else { Kind::UserDefined };
        self.place(file, key, *id, content, kind)
    }

    /// The id of a token's text.
    pub(crate) fn id(&self, text: &str) -> Option<u32> {
        self.vocab.get(text).or_else(|| self.added.get(text)).copied()
    }

    /// Says what a vocabulary without some of the bytes does, which a fallback would change.
    fn check(&self, fallback: bool, notes: &mut Vec<String>) -> Result<(), TextError> {
        let has = |byte: &u8| self.vocab.contains_key(byte_char(*byte).encode_utf8(&mut [0; 4]));
        let missing = 256 - (0..=255u8).filter(has).count();
        if missing > 0 && fallback {
            let expected = "false, or all 256 bytes as tokens";
            let found = format!("true with {missing} of them missing");
            return Err(refuse("model.byte_fallback", expected, &found));
        }
        if let Some(unknown) = &self.recipe.unknown
            && !self.vocab.contains_key(unknown)
        {
            return Err(refuse("model.unk_token", "a token", &format!("`{unknown}`")));
        }
        if missing > 0 {
            notes.push(match &self.recipe.unknown {
                Some(unknown) => {
                    format!("{missing} of 256 bytes are no tokens: read as `{unknown}`")
                }
                None => format!("{missing} of 256 bytes are no tokens: left out of texts"),
            });
        }
        Ok(())
    }
}

fn refuse(key: &str, expected: &str, found: &str) -> TextError {
    TextError::field(TOKENIZER, key, expected, found)
}

fn recipe(file: &File) -> Result<Recipe, TextError> {
    let model = &file.model;
    if let Some(dropout) = model.dropout.filter(|dropout| *dropout != 0.0) {
        return Err(refuse("model.dropout", "none", &dropout.to_string()));
    }
    for (key, affix) in [
        ("model.continuing_subword_prefix", &model.continuing_subword_prefix),
        ("model.end_of_word_suffix", &model.end_of_word_suffix),
    ] {
        if let Some(affix) = affix.as_ref().filter(|affix| !affix.is_empty()) {
            return Err(refuse(key, "none", &format!("`{affix}`")));
        }
    }
    Ok(Recipe {
        normalizer: steps::normalizer(file.normalizer.as_deref())?,
        pre_tokenizer: steps::pre_tokenizer(file.pre_tokenizer.as_deref())?,
        whole_words: model.ignore_merges == Some(true),
        unknown: model.unk_token.clone().filter(|unknown| !unknown.is_empty()),
        fuse_unknown: model.fuse_unk == Some(true),
    })
}
