//! Model families: which there are, and what each makes of a container's keys and names.

use crate::gguf::Metadata;
use crate::{Config, TensorInfo, WeightsError, hugging_face, llama, qwen3_5};

/// How stored values become those that a layer program uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Reading {
    /// As they are.
    Plain,
    /// `f32(1 + w)`: norm weights that are stored around zero.
    OnePlus,
    /// `f32(exp(x))`, computed in f64: Hugging Face's A_log.
    Exp,
    /// `-x`: GGUF's `ssm_a`, which is -exp(A_log).
    Negate,
    /// Stored `[channels, taps]`, used as `[taps, channels]`.
    Taps,
}

/// How a safetensors checkpoint stores what Hugging Face and MLX store differently.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Form {
    /// Norm weights around zero, convolutions `[channels, 1, taps]`.
    HuggingFace,
    /// Norm weights around one, convolutions `[channels, taps, 1]`.
    Mlx,
}

/// What a tensor of a safetensors checkpoint is to the family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Named {
    /// A tensor of the text model.
    Tensor {
        /// GGUF's name.
        name: String,
        /// How its values are read.
        reading: Reading,
    },
    /// Not of the text model, or what it says is known already.
    Skipped,
    /// No tensor of this family.
    Unknown,
}

/// The config in a GGUF header. `tensors` are the whole model's, in name order.
///
/// # Errors
/// [`WeightsError::UnsupportedFamily`], or the first key that is missing, cannot be or asks for
/// something that is not implemented.
pub(crate) fn config_from_gguf(
    metadata: &Metadata,
    tensors: &[TensorInfo],
) -> Result<Config, WeightsError> {
    const KEY: &str = "general.architecture";
    match metadata.str(KEY)? {
        Some("llama") => llama::from_gguf(metadata, tensors).map(Config::Llama),
        Some("qwen35") => qwen3_5::from_gguf(metadata, tensors).map(Config::Qwen35),
        Some(found) => Err(WeightsError::UnsupportedFamily {
            found: found.to_owned(),
            expected: "`llama` or `qwen35`",
        }),
        None => Err(WeightsError::MissingKey {
            key: KEY.to_owned(),
            expected: "the model's family".to_owned(),
        }),
    }
}

/// The config in a `config.json`. Whether a draft head is there, the tensors say: see [`settle`].
///
/// # Errors
/// As [`config_from_gguf`].
pub(crate) fn config_from_json(json: &serde_json::Value) -> Result<Config, WeightsError> {
    hugging_face::config(json)
}

/// Drops a draft head that the config speaks of and that none of `tensors`, the whole model's,
/// belongs to: conversions leave it out and keep the key.
pub(crate) fn settle(config: &mut Config, tensors: &[TensorInfo]) {
    let layers = config.layers();
    if let Config::Qwen35(config) = config {
        config.mtp &= tensors.iter().any(|t| t.layer() == Some(layers));
    }
}

/// What tensor `name` of a safetensors checkpoint is. Of a quantised module ask for `X.weight`.
pub(crate) fn from_hugging_face(config: &Config, form: Form, name: &str) -> Named {
    hugging_face::named(config, form, name)
}

/// How tensor `name` of a GGUF file is read.
pub(crate) fn from_gguf(config: &Config, name: &str) -> Reading {
    match config {
        Config::Llama(_) => Reading::Plain,
        Config::Qwen35(_) if name.ends_with(".ssm_a") => Reading::Negate,
        Config::Qwen35(_) if name.ends_with(".ssm_conv1d.weight") => Reading::Taps,
        Config::Qwen35(_) => Reading::Plain,
    }
}

/// A tensor that a model must have, in its stored shape.
pub(crate) struct Needed {
    pub name: String,
    pub rows: usize,
    pub cols: usize,
    /// Used value by value, so no block format will do.
    pub by_value: bool,
}

impl Needed {
    pub fn matrix(name: String, rows: usize, cols: usize) -> Self {
        Self { name, rows, cols, by_value: false }
    }

    pub fn vector(name: String, values: usize) -> Self {
        Self { name, rows: 1, cols: values, by_value: true }
    }
}

/// Checks that each tensor that the model needs is there with its stored shape (a convolution
/// `[channels, taps]`, a vector one row) and that no other is. `tensors` are in name order.
///
/// # Errors
/// The first of [`WeightsError::MissingTensor`], [`WeightsError::Shape`],
/// [`WeightsError::UnsupportedType`], [`WeightsError::UnsupportedTensor`] and
/// [`WeightsError::LeftOver`].
pub(crate) fn check_tensors(config: &Config, tensors: &[TensorInfo]) -> Result<(), WeightsError> {
    let needed = match config {
        Config::Llama(config) => llama::needed(config),
        Config::Qwen35(config) => qwen3_5::needed(config),
    };
    for need in &needed {
        let Ok(at) = tensors.binary_search_by(|t| t.name.cmp(&need.name)) else {
            let (name, rows, cols) = (need.name.clone(), need.rows, need.cols);
            return Err(WeightsError::MissingTensor { name, rows, cols });
        };
        check(need, &tensors[at])?;
    }
    refuse_left_over(&needed, tensors)
}

fn check(need: &Needed, found: &TensorInfo) -> Result<(), WeightsError> {
    if (found.rows, found.cols) != (need.rows, need.cols) {
        return Err(WeightsError::Shape {
            name: need.name.clone(),
            expected: [need.rows, need.cols],
            found: [found.rows, found.cols],
        });
    }
    if need.by_value && !found.format.is_float() {
        return Err(WeightsError::UnsupportedType {
            name: need.name.clone(),
            found: found.format.to_string(),
            expected: "F32, F16 or BF16: no blocks here",
        });
    }
    Ok(())
}

fn refuse_left_over(needed: &[Needed], tensors: &[TensorInfo]) -> Result<(), WeightsError> {
    if tensors.iter().any(|t| t.name == "rope_freqs.weight") {
        return Err(WeightsError::UnsupportedTensor {
            name: "rope_freqs.weight".to_owned(),
            reason: "RoPE frequencies scaled one by one (llama3 scaling)",
        });
    }
    let names: std::collections::BTreeSet<&str> =
        needed.iter().map(|need| need.name.as_str()).collect();
    let mut left = tensors.iter().filter(|t| !names.contains(t.name.as_str()));
    match left.next() {
        Some(first) => {
            Err(WeightsError::LeftOver { name: first.name.clone(), count: 1 + left.count() })
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests;
