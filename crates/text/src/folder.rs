//! A model's folder: its files, read within limits, and the tokenizer that they make together.

use std::fs::{self, File};
use std::io::{ErrorKind, Read};
use std::path::Path;

use serde::de::DeserializeOwned;
use serde_json::Value;

use crate::TextError;
use crate::settings::{self, Settings};
use crate::tokens::{Kind, Parts};
use crate::vocabulary::Vocabulary;

pub(crate) const TOKENIZER: &str = "tokenizer.json";
pub(crate) const TOKENIZER_CONFIG: &str = "tokenizer_config.json";
const TEMPLATE: &str = "chat_template.jinja";
const TEMPLATE_JSON: &str = "chat_template.json";
const GENERATION: &str = "generation_config.json";
const CONFIG: &str = "config.json";

/// Bytes of `tokenizer.json`; one of 250,000 tokens has a third of it.
const TOKENIZER_BYTES_MAX: u64 = 64 << 20;
/// Bytes of any other file.
const SETTINGS_BYTES_MAX: u64 = 4 << 20;

/// A folder of files.
struct Folder<'p> {
    path: &'p Path,
}

impl Folder<'_> {
    /// The bytes of a file; `None` where there is none.
    fn bytes(&self, file: &'static str, limit: u64) -> Result<Option<Vec<u8>>, TextError> {
        let folder = || self.path.display().to_string();
        let failed = |reason: String| TextError::Read { file, folder: folder(), reason };
        let path = self.path.join(file);
        let length = match fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(failed(error.to_string())),
            // Opening a pipe would wait for its other end.
            Ok(found) if !found.is_file() => return Err(failed("it is no file".to_owned())),
            Ok(found) => found.len(),
        };
        let mut bytes = Vec::new();
        if length <= limit {
            let file = File::open(&path).map_err(|error| failed(error.to_string()))?;
            let mut file = file.take(limit + 1);
            file.read_to_end(&mut bytes).map_err(|error| failed(error.to_string()))?;
        }
        let found = length.max(bytes.len() as u64);
        if found > limit {
            return Err(TextError::FileBytes { file, found, limit });
        }
        Ok(Some(bytes))
    }

    fn text(&self, file: &'static str) -> Result<Option<String>, TextError> {
        let Some(bytes) = self.bytes(file, SETTINGS_BYTES_MAX)? else {
            return Ok(None);
        };
        let text = String::from_utf8(bytes).map_err(|error| {
            let at = error.utf8_error().valid_up_to();
            TextError::form(file, &format!("expected UTF-8, found other bytes at {at}"))
        });
        text.map(Some)
    }

    /// The JSON of a file; null where there is none.
    fn json(&self, file: &'static str) -> Result<Value, TextError> {
        let bytes = self.bytes(file, SETTINGS_BYTES_MAX)?;
        bytes.map_or(Ok(Value::Null), |bytes| parse(file, &bytes))
    }
}

/// JSON in the form of `T`.
pub(crate) fn parse<T: DeserializeOwned>(file: &'static str, bytes: &[u8]) -> Result<T, TextError> {
    serde_json::from_slice(bytes).map_err(|error| TextError::form(file, &error.to_string()))
}

impl Parts {
    /// The tokenizer of a model's folder.
    pub(crate) fn from_folder(path: &Path, notes: &mut Vec<String>) -> Result<Self, TextError> {
        let folder = Folder { path };
        let bytes = folder.bytes(TOKENIZER, TOKENIZER_BYTES_MAX)?.ok_or_else(|| {
            TextError::MissingFile { file: TOKENIZER, folder: path.display().to_string() }
        })?;
        let mut vocabulary = Vocabulary::read(&bytes, notes)?;
        drop(bytes);
        let settings = Settings::read(&folder.json(TOKENIZER_CONFIG)?, notes)?;
        for added in &settings.added {
            vocabulary.add(TOKENIZER_CONFIG, "added_tokens_decoder", added)?;
        }
        for text in &settings.specials {
            if let Some(id) = vocabulary.id(text)
                && vocabulary.types[id as usize] == Kind::UserDefined
            {
                vocabulary.types[id as usize] = Kind::Control;
            }
        }
        let template = match folder.text(TEMPLATE)? {
            Some(template) => Some(template),
            None if settings.template.is_some() => settings.template,
            None => settings::template(TEMPLATE_JSON, &folder.json(TEMPLATE_JSON)?, notes)?,
        };
        let (bos, eos) = (settings.bos.unwrap_or_default(), settings.eos.unwrap_or_default());
        let named = |key: &str, text: &String| {
            let expected = format!("a token of `{TOKENIZER}`");
            let refuse =
                || TextError::field(TOKENIZER_CONFIG, key, &expected, &format!("`{text}`"));
            vocabulary.id(text).ok_or_else(refuse)
        };
        let prefix = match settings.add_bos {
            Some(true) => Some(named("bos_token", &bos)?),
            Some(false) => None,
            None => vocabulary.prefix,
        };
        let vocab = vocabulary.tokens.len();
        let mut ends = settings::ends(GENERATION, "", &folder.json(GENERATION)?, vocab)?;
        if !eos.is_empty() {
            ends.push(named("eos_token", &eos)?);
        }
        if ends.is_empty() {
            ends = model_ends(&folder.json(CONFIG)?, vocab)?;
        }
        let Vocabulary { tokens, types, vocab, merges, recipe, .. } = vocabulary;
        let parts = Self { tokens, types, vocab, merges, recipe, prefix, bos, eos, ends, template };
        if parts.stop_tokens().is_empty() {
            notes.push("the checkpoint names no stop token: replies end at their length".into());
        }
        Ok(parts)
    }
}

/// The ends that the model's config names, its text part's where it has one.
fn model_ends(config: &Value, vocab: usize) -> Result<Vec<u32>, TextError> {
    let ends = settings::ends(CONFIG, "", config, vocab)?;
    match config.get("text_config") {
        Some(text) if ends.is_empty() => settings::ends(CONFIG, "text_config.", text, vocab),
        _ => Ok(ends),
    }
}
