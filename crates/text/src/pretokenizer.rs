//! The byte-level BPE tokenizers by their pre-tokenizer, GGUF's `tokenizer.ggml.pre`.

use tokenizers::models::bpe::{BPE, Merges, Vocab};
use tokenizers::normalizers::{NFC, NormalizerWrapper};
use tokenizers::pre_tokenizers::byte_level::ByteLevel;
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::{Split, SplitPattern};
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior, Tokenizer};

use crate::TextError;

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

/// How the words of a known pre-tokenizer are cut.
struct Known {
    /// Cuts, one after the other.
    splits: &'static [&'static str],
    /// Whether the text is normalised to NFC first.
    nfc: bool,
    /// As [`Recipe::whole_words`].
    whole_words: bool,
}

const NAMES: [&str; 6] = ["smollm", "qwen2", "qwen35", "llama-bpe", "gpt-2", "default"];

fn known(pre: &str) -> Option<Known> {
    let (splits, nfc, whole_words): (&'static [&'static str], _, _) = match pre {
        "smollm" => (&[r"\p{N}", GPT2], false, false),
        "qwen2" => (&[QWEN2], true, false),
        "qwen35" => (&[QWEN35], true, false),
        "llama-bpe" => (&[LLAMA3], false, true),
        "gpt-2" | "default" => (&[GPT2], false, false),
        _ => return None,
    };
    Some(Known { splits, nfc, whole_words })
}

/// How a text becomes words, and words tokens.
pub(crate) struct Recipe {
    /// What the text goes through first.
    pub normalizer: Option<NormalizerWrapper>,
    /// How it is cut into words of the byte alphabet.
    pub pre_tokenizer: PreTokenizerWrapper,
    /// Whether a word that is a token is taken whole, whatever the merges say.
    pub whole_words: bool,
    /// The token of bytes that the vocabulary lacks; without one they are left out.
    pub unknown: Option<String>,
    /// Whether a run of such bytes is one such token.
    pub fuse_unknown: bool,
}

impl Recipe {
    /// The one that GGUF calls `pre`.
    pub(crate) fn named(pre: Option<&str>, notes: &mut Vec<String>) -> Result<Self, TextError> {
        let pre = pre.unwrap_or("default");
        if pre == "default" {
            let note = "the checkpoint names no pre-tokenizer: cutting words as GPT-2 does";
            notes.push(note.to_owned());
        }
        let known = known(pre).ok_or_else(|| TextError::UnsupportedPre {
            found: pre.to_owned(),
            expected: NAMES.join(", "),
        })?;
        Ok(Self {
            normalizer: known.nfc.then(|| NFC.into()),
            pre_tokenizer: sequence(known.splits).map_err(failed)?.into(),
            whole_words: known.whole_words,
            unknown: None,
            fuse_unknown: false,
        })
    }

    /// Builds the tokenizer of the tokens in `vocab`, special ones apart.
    pub(crate) fn build(self, vocab: Vocab, merges: Merges) -> Result<Tokenizer, TextError> {
        // The library takes slices of the join by the halves' lengths before it looks it up.
        for (index, (left, right)) in merges.iter().enumerate() {
            let join = format!("{left}{right}");
            if ![left, right, &join].iter().all(|half| vocab.contains_key(*half)) {
                return Err(TextError::merge(index, &format!("{left} {right}")));
            }
        }
        let mut bpe = BPE::builder()
            .vocab_and_merges(vocab, merges)
            .ignore_merges(self.whole_words)
            .fuse_unk(self.fuse_unknown);
        if let Some(unknown) = self.unknown {
            bpe = bpe.unk_token(unknown);
        }
        let mut tokenizer = Tokenizer::new(bpe.build().map_err(failed)?);
        tokenizer.with_normalizer(self.normalizer).map_err(failed)?;
        tokenizer.with_pre_tokenizer(Some(self.pre_tokenizer));
        Ok(tokenizer)
    }
}

fn failed(error: tokenizers::Error) -> TextError {
    TextError::Build { reason: error.to_string() }
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use tokenizers::{OffsetReferential, OffsetType, PreTokenizedString, PreTokenizer};

    use super::*;

    fn words(pre: &str, text: &str) -> Vec<String> {
        let mut cut = PreTokenizedString::from(text);
        sequence(known(pre).unwrap().splits).unwrap().pre_tokenize(&mut cut).unwrap();
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
        assert!(NAMES.iter().all(|pre| known(pre).is_some()));
        assert!(known("tekken").is_none());
    }
}
