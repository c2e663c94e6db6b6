//! The steps of `tokenizer.json` between a text and BPE, and those after it.

use serde_json::Value;
use serde_json::value::RawValue;
use tokenizers::normalizers::{NFC, NormalizerWrapper};
use tokenizers::pre_tokenizers::sequence::Sequence;
use tokenizers::pre_tokenizers::split::SplitPattern;
use tokenizers::{PreTokenizerWrapper, SplitDelimiterBehavior};

use crate::TextError;
use crate::folder::TOKENIZER;

/// Steps of one kind that a file may have.
const STEPS_MAX: usize = 32;
/// Bytes of one pattern; the longest that models bring have a quarter of it.
const PATTERN_BYTES_MAX: usize = 4 << 10;

/// Bytes of the steps of one kind; models bring a twentieth of it.
const STEPS_BYTES_MAX: usize = 64 << 10;

fn refuse(key: &str, expected: impl AsRef<str>, found: impl AsRef<str>) -> TextError {
    TextError::field(TOKENIZER, key, expected.as_ref(), found.as_ref())
}

/// The JSON of the steps at `key`; null where there are none.
fn json(key: &str, raw: Option<&RawValue>) -> Result<Value, TextError> {
    let Some(raw) = raw else {
        return Ok(Value::Null);
    };
    let bytes = raw.get().len();
    if bytes > STEPS_BYTES_MAX {
        let expected = format!("at most {STEPS_BYTES_MAX} bytes");
        return Err(refuse(key, expected, bytes.to_string()));
    }
    serde_json::from_str(raw.get())
        .map_err(|error| TextError::form(TOKENIZER, &format!("`{key}`: {error}")))
}

/// The steps under `value`, none for null, sequences within sequences laid out in a row, each with
/// its type.
fn flat<'v>(
    key: &str,
    list: &str,
    value: &'v Value,
    out: &mut Vec<(&'v str, &'v Value)>,
) -> Result<(), TextError> {
    if value.is_null() {
        return Ok(());
    }
    let Some(kind) = value.get("type").and_then(Value::as_str) else {
        return Err(refuse(key, "an object with a `type`", value.to_string()));
    };
    if kind == "Sequence" {
        let steps = value.get(list).and_then(Value::as_array);
        let steps = steps.ok_or_else(|| refuse(key, format!("a list `{list}`"), "none"))?;
        return steps.iter().try_for_each(|step| flat(key, list, step, out));
    }
    if out.len() == STEPS_MAX {
        return Err(refuse(key, format!("at most {STEPS_MAX} steps"), "more"));
    }
    out.push((kind, value));
    Ok(())
}

/// What texts are normalised by. Others than NFC would change what a user wrote.
pub(crate) fn normalizer(raw: Option<&RawValue>) -> Result<Option<NormalizerWrapper>, TextError> {
    let key = "normalizer";
    let value = json(key, raw)?;
    let mut steps = Vec::new();
    flat(key, "normalizers", &value, &mut steps)?;
    match steps.iter().find(|(kind, _)| *kind != "NFC") {
        Some((kind, _)) => Err(refuse(key, "none or `NFC`", format!("`{kind}`"))),
        None => Ok((!steps.is_empty()).then(|| NFC.into())),
    }
}

/// How texts are cut into words of the byte alphabet.
pub(crate) fn pre_tokenizer(raw: Option<&RawValue>) -> Result<PreTokenizerWrapper, TextError> {
    let key = "pre_tokenizer";
    let value = json(key, raw)?;
    let mut steps = Vec::new();
    flat(key, "pretokenizers", &value, &mut steps)?;
    let mut out: Vec<PreTokenizerWrapper> = Vec::new();
    let mut to_bytes = 0;
    for (kind, step) in steps {
        if !["Split", "Digits", "Punctuation", "ByteLevel"].contains(&kind) {
            let expected = "`Split`, `Digits`, `Punctuation` or `ByteLevel`";
            return Err(refuse(key, expected, format!("`{kind}`")));
        }
        let pattern = step.get("pattern").and_then(Value::as_object);
        let patterns = pattern.iter().flat_map(|pattern| pattern.values());
        let bytes = patterns.filter_map(Value::as_str).map(str::len).max().unwrap_or(0);
        if bytes > PATTERN_BYTES_MAX {
            let expected = format!("a pattern of at most {PATTERN_BYTES_MAX} bytes");
            return Err(refuse(key, expected, bytes.to_string()));
        }
        let step = serde_json::from_value(step.clone());
        let step = step.map_err(|error: serde_json::Error| {
            TextError::form(TOKENIZER, &format!("`{key}`: `{kind}`: {error}"))
        })?;
        to_bytes += usize::from(check(key, &step)?);
        out.push(step);
    }
    if to_bytes != 1 {
        let found = format!("{to_bytes} of {} steps", out.len());
        return Err(refuse(key, "one step `ByteLevel` (only byte-level BPE is supported)", found));
    }
    Ok(Sequence::new(out).into())
}

/// Refuses steps that lose text or add some; says whether it makes bytes characters.
fn check(key: &str, step: &PreTokenizerWrapper) -> Result<bool, TextError> {
    match step {
        PreTokenizerWrapper::ByteLevel(step) if step.add_prefix_space => {
            Err(refuse(key, "`add_prefix_space` false", "true"))
        }
        PreTokenizerWrapper::ByteLevel(_) => Ok(true),
        // What is found is dropped; inverted, what is between the words, which is nothing.
        PreTokenizerWrapper::Split(step)
            if matches!(step.behavior, SplitDelimiterBehavior::Removed) && !step.invert =>
        {
            let (SplitPattern::String(pattern) | SplitPattern::Regex(pattern)) = &step.pattern;
            Err(refuse(key, "a `Split` that keeps all text", format!("`{pattern}` removed")))
        }
        PreTokenizerWrapper::Punctuation(step)
            if serde_json::to_value(step).is_ok_and(|step| step["behavior"] == "Removed") =>
        {
            Err(refuse(key, "a `Punctuation` that keeps all text", "`Removed`"))
        }
        _ => Ok(false),
    }
}

/// The token that the post-processor puts before a text, as its id.
pub(crate) fn prefix(
    raw: Option<&RawValue>,
    notes: &mut Vec<String>,
) -> Result<Option<u64>, TextError> {
    let key = "post_processor";
    let value = json(key, raw)?;
    let mut steps = Vec::new();
    flat(key, "processors", &value, &mut steps)?;
    let mut before = Vec::new();
    for (kind, step) in steps {
        match kind {
            "TemplateProcessing" => template(key, step, &mut before, notes)?,
            // Changes offsets alone.
            "ByteLevel" => {}
            _ => {
                let expected = "`TemplateProcessing` or `ByteLevel`";
                return Err(refuse(key, expected, format!("`{kind}`")));
            }
        }
    }
    match before.as_slice() {
        [] => Ok(None),
        [id] => Ok(Some(*id)),
        more => Err(refuse(key, "at most one token before a text", more.len().to_string())),
    }
}

/// Adds the ids before the text; what comes after it is for other uses than going on with it.
fn template(
    key: &str,
    step: &Value,
    before: &mut Vec<u64>,
    notes: &mut Vec<String>,
) -> Result<(), TextError> {
    let pieces = step.get("single").and_then(Value::as_array);
    let pieces = pieces.ok_or_else(|| refuse(key, "a list `single`", "none"))?;
    let mut after = false;
    for piece in pieces {
        let Some(name) = piece.pointer("/SpecialToken/id").and_then(Value::as_str) else {
            after = true;
            continue;
        };
        if after {
            notes.push(format!("`{TOKENIZER}` puts `{name}` after texts: left out"));
            continue;
        }
        let ids = step.get("special_tokens").and_then(|tokens| tokens.get(name)?.get("ids"));
        let ids = ids.and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        if ids.is_empty() || before.len() + ids.len() > STEPS_MAX {
            return Err(refuse(key, format!("`ids` of `{name}`"), ids.len().to_string()));
        }
        for id in ids {
            let id = id.as_u64();
            before.push(id.ok_or_else(|| refuse(key, format!("`ids` of `{name}`"), "no id"))?);
        }
    }
    Ok(())
}
