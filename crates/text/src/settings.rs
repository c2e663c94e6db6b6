//! What lies beside `tokenizer.json`: special tokens by their use, stop tokens, chat templates.

use serde_json::{Map, Value};

use crate::TextError;
use crate::folder::TOKENIZER_CONFIG;
use crate::messages::kind;
use crate::vocabulary::Added;

/// Stop tokens that a config may list.
const ENDS_MAX: usize = 64;
/// Names of special tokens whose text counts as a control token where it is an added one.
const NAMED: [&str; 4] = ["bos_token", "eos_token", "pad_token", "unk_token"];
/// Lists of more of them, by both names that the key has had.
const LISTS: [&str; 2] = ["additional_special_tokens", "extra_special_tokens"];

/// `tokenizer_config.json`.
#[derive(Default)]
pub(crate) struct Settings {
    pub bos: Option<String>,
    pub eos: Option<String>,
    /// Whether texts start with the BOS token; absent where the file does not say.
    pub add_bos: Option<bool>,
    /// More tokens, or other flags of the same.
    pub added: Vec<Added>,
    /// Texts of tokens that mark structure.
    pub specials: Vec<String>,
    pub template: Option<String>,
}

impl Settings {
    /// Reads the file's JSON; null stands for no file.
    pub(crate) fn read(json: &Value, notes: &mut Vec<String>) -> Result<Self, TextError> {
        if json.is_null() {
            return Ok(Self::default());
        }
        let fields = json.as_object().ok_or_else(|| wrong("", "an object", json))?;
        let mut specials = Vec::new();
        for key in NAMED {
            specials.extend(token(fields, key)?);
        }
        // Newer files have an object of named tokens in place of the list: they are special too.
        for key in LISTS {
            let items: Vec<&Value> = match fields.get(key) {
                Some(Value::Array(items)) => items.iter().collect(),
                Some(Value::Object(items)) => items.values().collect(),
                None | Some(Value::Null) => Vec::new(),
                Some(other) => return Err(wrong(key, "a list of tokens", other)),
            };
            for item in items {
                specials.extend(content(key, item)?);
            }
        }
        if flag(fields, "add_eos_token")? == Some(true) {
            notes.push(format!("`{TOKENIZER_CONFIG}` asks for an EOS after texts: left out"));
        }
        Ok(Self {
            bos: token(fields, "bos_token")?,
            eos: token(fields, "eos_token")?,
            add_bos: flag(fields, "add_bos_token")?,
            added: added(fields)?,
            specials,
            template: template(TOKENIZER_CONFIG, json, notes)?,
        })
    }
}

fn wrong(key: &str, expected: &str, found: &Value) -> TextError {
    TextError::field(TOKENIZER_CONFIG, key, expected, kind(found))
}

/// The text of a token that is a string or an object with a `content`.
fn content(key: &str, value: &Value) -> Result<Option<String>, TextError> {
    match value.get("content").unwrap_or(value) {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text.clone()).filter(|text| !text.is_empty())),
        _ => Err(wrong(key, "a string or an object with a string `content`", value)),
    }
}

fn token(fields: &Map<String, Value>, key: &str) -> Result<Option<String>, TextError> {
    fields.get(key).map_or(Ok(None), |value| content(key, value))
}

fn flag(fields: &Map<String, Value>, key: &str) -> Result<Option<bool>, TextError> {
    match fields.get(key) {
        None | Some(Value::Null) => Ok(None),
        Some(Value::Bool(flag)) => Ok(Some(*flag)),
        Some(other) => Err(wrong(key, "a bool", other)),
    }
}

/// `added_tokens_decoder`: tokens by id, the id being a key and so a string.
fn added(fields: &Map<String, Value>) -> Result<Vec<Added>, TextError> {
    let key = "added_tokens_decoder";
    let tokens = match fields.get(key) {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Object(tokens)) => tokens,
        Some(other) => return Err(wrong(key, "an object of tokens by id", other)),
    };
    let read = |(id, value): (&String, &Value)| {
        let place = format!("{key}.{id}");
        let id: u32 =
            id.parse().map_err(|_| TextError::field(TOKENIZER_CONFIG, key, "ids as keys", id))?;
        let token = value.as_object().ok_or_else(|| wrong(&place, "an object", value))?;
        let mut token = token.clone();
        token.insert("id".to_owned(), Value::from(id));
        let added: Result<Added, _> = serde_json::from_value(Value::Object(token));
        added.map_err(|error| TextError::form(TOKENIZER_CONFIG, &format!("`{place}`: {error}")))
    };
    tokens.iter().map(read).collect()
}

/// The chat template of a file: one text, or a list of named ones with a `default`.
pub(crate) fn template(
    file: &'static str,
    json: &Value,
    notes: &mut Vec<String>,
) -> Result<Option<String>, TextError> {
    let key = "chat_template";
    let list = match json.get(key) {
        None | Some(Value::Null) => return Ok(None),
        Some(Value::String(source)) => return Ok(Some(source.clone())),
        Some(Value::Array(list)) => list,
        Some(other) => return Err(TextError::field(file, key, "a string or a list", kind(other))),
    };
    let (mut names, mut found) = (Vec::new(), None);
    for (index, item) in list.iter().enumerate() {
        let part = |name| item.get(name).and_then(Value::as_str);
        let (Some(name), Some(source)) = (part("name"), part("template")) else {
            let expected = "an object with the strings `name` and `template`";
            return Err(TextError::field(file, &format!("{key}[{index}]"), expected, kind(item)));
        };
        names.push(format!("`{name}`"));
        if name == "default" {
            found = Some(source.to_owned());
        }
    }
    let names = names.join(", ");
    let Some(source) = found else {
        let expected = "a template with the name `default`";
        return Err(TextError::field(file, key, expected, &format!("the names {names}")));
    };
    if list.len() > 1 {
        notes.push(format!("of the chat templates {names} `default` is used for all"));
    }
    Ok(Some(source))
}

/// `eos_token_id`, an id or a list of ids below `vocab`; `place` is the path to the object.
pub(crate) fn ends(
    file: &'static str,
    place: &str,
    json: &Value,
    vocab: usize,
) -> Result<Vec<u32>, TextError> {
    let key = format!("{place}eos_token_id");
    let items = match json.get("eos_token_id") {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::Array(items)) => items.as_slice(),
        Some(one) => std::slice::from_ref(one),
    };
    if items.len() > ENDS_MAX {
        let expected = format!("at most {ENDS_MAX} ids");
        return Err(TextError::field(file, &key, &expected, &items.len().to_string()));
    }
    let id = |item: &Value| {
        let id = item.as_u64().filter(|&id| id < vocab as u64).and_then(|id| id.try_into().ok());
        let found = if item.is_number() { item.to_string() } else { kind(item).to_owned() };
        id.ok_or_else(|| TextError::field(file, &key, &format!("an id below {vocab}"), &found))
    };
    items.iter().map(id).collect()
}
