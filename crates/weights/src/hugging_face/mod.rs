//! Hugging Face's `config.json` and tensor names, which MLX checkpoints share.

mod json;
mod names;

use serde_json::Value;

use crate::{Config, WeightsError, llama, qwen3_5};

pub(crate) use json::Json;
pub(crate) use names::named;

/// The config in `top`, the whole of a `config.json`; a multimodal model's text part is in its
/// `text_config`.
pub(crate) fn config(top: &Value) -> Result<Config, WeightsError> {
    const KEY: &str = "model_type";
    let flat = Json::flat(top);
    match flat.text(KEY)? {
        Some("qwen3_5") => qwen3_5::from_json(&Json::nested(top, "text_config")?),
        Some("qwen3_5_text") => qwen3_5::from_json(&flat),
        Some("llama") => return llama::from_json(&flat).map(Config::Llama),
        Some("mistral") => {
            flat.refuse_hidden_window()?;
            return llama::from_json(&flat).map(Config::Llama);
        }
        Some(found) => {
            return Err(WeightsError::UnsupportedFamily {
                found: found.to_owned(),
                expected: "`qwen3_5`, `qwen3_5_text`, `llama` or `mistral`",
            });
        }
        None => {
            return Err(WeightsError::MissingKey {
                key: KEY.to_owned(),
                expected: "the model's family".to_owned(),
            });
        }
    }
    .map(Config::Qwen35)
}
