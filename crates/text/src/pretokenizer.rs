//! The byte-level BPE tokenizers by their pre-tokenizer, GGUF's `tokenizer.ggml.pre`.

use std::collections::HashMap;

use tokenizers::models::bpe::BPE;
use tokenizers::normalizers::NFC;
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer};

use crate::TextError;
use crate::tokens::Parts;

const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";
const LLAMA3: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN2: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}",
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);
const QWEN35: &str = concat!(
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}",
    r"| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
);

/// How a text is cut into words before BPE.
struct Recipe {
    /// Cuts, one after the other.
    splits: &'static [&'static str],
    /// Whether the text is normalised to NFC first.
    nfc: bool,
    /// Whether a word that is a token is taken whole, whatever the merges say.
    whole_words: bool,
}

const NAMES: [&str; 6] = ["smollm", "qwen2", "qwen35", "llama-bpe", "gpt-2", "default"];

fn recipe(pre: &str) -> Option<Recipe> {
    let (splits, nfc, whole_words): (&'static [&'static str], _, _) = match pre {
        "smollm" => (&[r"\p{N}", GPT2], false, false),
        "qwen2" => (&[QWEN2], true, false),
        "qwen35" => (&[QWEN35], true, false),
        "llama-bpe" => (&[LLAMA3], false, true),
        "gpt-2" | "default" => (&[GPT2], false, false),
        _ => return None,
    };
    Some(Recipe { splits, nfc, whole_words })
}

/// Builds the tokenizer; special tokens are not part of it.
pub(crate) fn build(parts: &Parts, notes: &mut Vec<String>) -> Result<Tokenizer, TextError> {
    let pre = parts.pre.as_deref().unwrap_or("default");
    if pre == "default" {
        notes.push("the checkpoint names no pre-tokenizer: cutting words as GPT-2 does".to_owned());
    }
    let recipe = recipe(pre).ok_or_else(|| TextError::UnsupportedPre {
        found: pre.to_owned(),
        expected: NAMES.join(", "),
    })?;
    let failed = |error: tokenizers::Error| TextError::Build { reason: error.to_string() };
    let mut tokenizer = Tokenizer::new(bpe(parts, recipe.whole_words)?);
    if recipe.nfc {
        tokenizer.with_normalizer(Some(NFC)).map_err(failed)?;
    }
    tokenizer.with_pre_tokenizer(Some(sequence(recipe.splits).map_err(failed)?));
    Ok(tokenizer)
}

/// The cuts, then bytes as characters of the byte alphabet.
fn sequence(splits: &[&str]) -> tokenizers::Result<Sequence> {
    let mut steps: Vec<PreTokenizerWrapper> = Vec::new();
    for &regex in splits {
        let pattern = SplitPattern::Regex(regex.to_owned());
        steps.push(Split::new(pattern, SplitDelimiterBehavior::Isolated, false)?.into());
    }
    steps.push(ByteLevel::new(false, true, false).into());
    Ok(Sequence::new(steps))
}

fn bpe(parts: &Parts, whole_words: bool) -> Result<BPE, TextError> {
    let mut ids: HashMap<&str, u32> = HashMap::with_capacity(parts.tokens.len());
    for (id, token) in parts.tokens.iter().enumerate() {
        ids.entry(token).or_insert(id as u32);
    }
    let mut merges = Vec::with_capacity(parts.merges.len());
    for (index, merge) in parts.merges.iter().enumerate() {
        let refuse = || TextError::Merge { index, merge: merge.clone() };
        // The first space parts the halves: no half starts with one, the byte alphabet has none.
        let (left, right) = merge.split_once(' ').ok_or_else(refuse)?;
        let join = format!("{left}{right}");
        if ![left, right, &join].iter().all(|half| ids.contains_key(half)) {
            return Err(refuse());
        }
        merges.push((left.to_owned(), right.to_owned()));
    }
    let vocab: Vec<(String, u32)> =
        ids.into_iter().map(|(token, id)| (token.to_owned(), id)).collect();
    BPE::builder()
        .vocab_and_merges(vocab.into_iter().collect::<tokenizers::models::bpe::Vocab>(), merges)
        .ignore_merges(whole_words)
        .build()
        .map_err(|error| TextError::Build { reason: error.to_string() })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    use super::*;

    fn words(pre: &str, text: &str) -> Vec<String> {
        let mut cut = PreTokenizedString::from(text);
        sequence(recipe(pre).unwrap().splits).unwrap().pre_tokenize(&mut cut).unwrap();
        let splits = cut.get_splits(OffsetReferential::Original, OffsetType::Byte);
        splits.iter().map(|(_, (from, to), _)| text[*from..*to].to_owned()).collect()
    }

    #[test]
    fn each_pretokenizer_cuts_where_its_family_does() {
        let text = "aa !! 1111'S we'll?\n\n  b";
        for (pre, expected) in [
            ("gpt-2", "aa| !!| 1111|'|S| we|'ll|?|\n\n | b"),
            ("default", "aa| !!| 1111|'|S| we|'ll|?|\n\n | b"),
            ("smollm", "aa| !!| |1|1|1|1|'|S| we|'ll|?|\n\n | b"),
            ("qwen2", "aa| !!| |1|1|1|1|'S| we|'ll|?\n\n| | b"),
            ("qwen35", "aa| !!| |1|1|1|1|'S| we|'ll|?\n\n| | b"),
            ("llama-bpe", "aa| !!| |111|1|'S| we|'ll|?\n\n| | b"),
        ] {
            assert_eq!(words(pre, text).join("|"), expected, "{pre}");
        }
        for (pre, expected) in [("qwen2", "q|\u{303}"), ("qwen35", "q\u{303}")] {
            assert_eq!(words(pre, "q\u{303}").join("|"), expected, "{pre}");
        }
    }

    #[test]
    fn the_names_in_the_refusal_are_the_ones_that_work() {
        assert!(NAMES.iter().all(|pre| recipe(pre).is_some()));
        assert!(recipe("tekken").is_none());
    }
}
