//! The llama family in GGUF: config keys, and the tensors that a model must have.

use arith::attention::Heads;
use arith::rope::Pairing;

use crate::config::Llama;
use crate::gguf::{Metadata, Value};
use crate::{TensorInfo, WeightsError};

const LAYERS_MAX: u32 = 1_024;
const WIDTH_MAX: u32 = 1 << 18;
const HEADS_MAX: u32 = 1_024;
const HEAD_DIM_MAX: u32 = 1_024;
const CONTEXT_MAX: u32 = 1 << 28;

const ARCHITECTURE: &str = "general.architecture";

/// Refuses any family but this one.
pub(crate) fn check_family(metadata: &Metadata) -> Result<(), WeightsError> {
    match metadata.str(ARCHITECTURE)? {
        Some("llama") => Ok(()),
        Some(found) => Err(WeightsError::UnsupportedFamily { found: found.to_owned() }),
        None => Err(WeightsError::MissingKey {
            key: ARCHITECTURE.to_owned(),
            expected: "the model's family".to_owned(),
        }),
    }
}

/// The keys `llama.*`, each read through one of these so that a bad value names its key.
struct Keys<'a>(&'a Metadata);

impl Keys<'_> {
    fn optional(&self, name: &str, min: u32, max: u32) -> Result<Option<u32>, WeightsError> {
        let key = format!("llama.{name}");
        match self.0.u32(&key)? {
            Some(found) if !(min..=max).contains(&found) => Err(WeightsError::KeyValue {
                key,
                expected: format!("{min} to {max}"),
                found: found.to_string(),
            }),
            found => Ok(found),
        }
    }

    fn required(&self, name: &str, max: u32) -> Result<u32, WeightsError> {
        self.optional(name, 1, max)?.ok_or_else(|| WeightsError::MissingKey {
            key: format!("llama.{name}"),
            expected: format!("1 to {max}"),
        })
    }

    fn equal(&self, name: &str, expected: u32, why: &str) -> Result<(), WeightsError> {
        match self.optional(name, 0, u32::MAX)? {
            Some(found) if found != expected => Err(WeightsError::KeyValue {
                key: format!("llama.{name}"),
                expected: format!("{expected} ({why})"),
                found: found.to_string(),
            }),
            _ => Ok(()),
        }
    }

    fn float(&self, name: &str, default: Option<f64>, max: f64) -> Result<f64, WeightsError> {
        let key = format!("llama.{name}");
        let expected = format!("a float above 0, at most {max}");
        match self.0.f64(&key)?.or(default) {
            Some(x) if x > 0.0 && x <= max => Ok(x),
            Some(x) => Err(WeightsError::KeyValue { key, expected, found: x.to_string() }),
            None => Err(WeightsError::MissingKey { key, expected }),
        }
    }
}

/// Reads the config. `tensors`, in name order, tell whether the head is tied.
pub(crate) fn config(metadata: &Metadata, tensors: &[TensorInfo]) -> Result<Llama, WeightsError> {
    refuse_other_keys(metadata)?;
    let keys = Keys(metadata);
    let hidden = keys.required("embedding_length", WIDTH_MAX)?;
    let query = keys.required("attention.head_count", HEADS_MAX)?;
    let kv = keys.optional("attention.head_count_kv", 1, query)?.unwrap_or(query);
    if !query.is_multiple_of(kv) {
        return Err(WeightsError::KeyValue {
            key: "llama.attention.head_count_kv".to_owned(),
            expected: format!("a divisor of the {query} query heads"),
            found: kv.to_string(),
        });
    }
    let dim = match keys.optional("attention.key_length", 2, HEAD_DIM_MAX)? {
        Some(dim) => dim,
        None if hidden.is_multiple_of(query) && hidden / query <= HEAD_DIM_MAX => hidden / query,
        None => {
            return Err(WeightsError::KeyValue {
                key: "llama.attention.head_count".to_owned(),
                expected: format!(
                    "a divisor of the width {hidden} with heads of at most {HEAD_DIM_MAX}"
                ),
                found: query.to_string(),
            });
        }
    };
    keys.equal("attention.value_length", dim, "the key length")?;
    let rope_dims = keys.optional("rope.dimension_count", 2, dim)?.unwrap_or(dim);
    if !rope_dims.is_multiple_of(2) {
        return Err(WeightsError::KeyValue {
            key: "llama.rope.dimension_count".to_owned(),
            expected: format!("an even number of at most {dim}"),
            found: rope_dims.to_string(),
        });
    }
    Ok(Llama {
        layers: keys.required("block_count", LAYERS_MAX)?,
        hidden: hidden as usize,
        intermediate: keys.required("feed_forward_length", WIDTH_MAX)? as usize,
        vocab: vocab(metadata)? as usize,
        heads: Heads { query: query as usize, kv: kv as usize, dim: dim as usize },
        eps: keys.float("attention.layer_norm_rms_epsilon", None, 1.0)? as f32,
        theta: keys.float("rope.freq_base", Some(10_000.0), 1e12)?,
        rope_dims: rope_dims as usize,
        pairing: Pairing::Adjacent,
        context_max: keys.required("context_length", CONTEXT_MAX)?,
        tied: tensors.binary_search_by(|t| t.name.as_str().cmp("output.weight")).is_err(),
    })
}

/// Tokens of the vocabulary: the token list's length, which `llama.vocab_size` must not contradict.
fn vocab(metadata: &Metadata) -> Result<u32, WeightsError> {
    let key = "tokenizer.ggml.tokens";
    let Some(tokens) = metadata.strings(key)? else {
        return Err(WeightsError::MissingKey {
            key: key.to_owned(),
            expected: "the list of tokens".to_owned(),
        });
    };
    let vocab = u32::try_from(tokens.len()).unwrap_or(u32::MAX);
    Keys(metadata).equal("vocab_size", vocab, "the token list's length")?;
    Ok(vocab)
}

/// Refuses each key of the family that would change what the model computes and is not
/// implemented. A key that is not known here may be such a one, so it is refused too.
fn refuse_other_keys(metadata: &Metadata) -> Result<(), WeightsError> {
    for key in metadata.keys() {
        let Some(name) = key.strip_prefix("llama.") else {
            continue;
        };
        let Some(value) = metadata.get(key) else {
            continue;
        };
        if let Some(expected) = refusal(name, value) {
            return Err(WeightsError::UnsupportedKey {
                key: key.to_owned(),
                expected: expected.to_owned(),
                found: describe(value),
            });
        }
    }
    Ok(())
}

/// What key `llama.<name>` may hold, where `value` is something else.
fn refusal(name: &str, value: &Value) -> Option<&'static str> {
    let zero = matches!(value, Value::Unsigned(0) | Value::Signed(0));
    let one = matches!(value, Value::Float(x) if *x == 1.0);
    let is = |text: &str| matches!(value, Value::String(found) if found == text);
    let (ok, expected) = match name {
        "context_length" | "embedding_length" | "block_count" | "feed_forward_length"
        | "vocab_size" | "attention.head_count" | "attention.head_count_kv"
        | "attention.key_length" | "attention.value_length"
        | "attention.layer_norm_rms_epsilon" | "rope.dimension_count" | "rope.freq_base"
        // Both say how a context was stretched; without a scaling type they change nothing.
        | "rope.scaling.original_context_length" | "rope.scaling.finetuned" => (true, ""),
        "expert_count" | "expert_used_count" => (zero, "0: a model without experts"),
        "rope.scaling.type" => (is("none"), "`none`"),
        "rope.scaling.factor" | "rope.scaling.attn_factor" | "rope.scale_linear" => (one, "1"),
        "attention.causal" => (matches!(value, Value::Bool(true)), "true"),
        "use_parallel_residual" => (matches!(value, Value::Bool(false)), "false"),
        "tensor_data_layout" => (is("Meta AI original pth"), "`Meta AI original pth`"),
        "attention.sliding_window" => (zero, "0: no window"),
        _ => (false, "no such key"),
    };
    (!ok).then_some(expected)
}

fn describe(value: &Value) -> String {
    match value {
        Value::Unsigned(n) => n.to_string(),
        Value::Signed(n) => n.to_string(),
        Value::Float(x) => x.to_string(),
        Value::Bool(b) => b.to_string(),
        Value::String(text) => format!("`{}`", text.chars().take(64).collect::<String>()),
        Value::Array(_) => value.kind().to_owned(),
    }
}

/// A tensor that a model must have. Vectors are used value by value: no block formats.
struct Needed {
    name: String,
    rows: usize,
    cols: usize,
}

fn needed(config: &Llama) -> Vec<Needed> {
    let mut all = Vec::new();
    let mut need = |name: String, rows, cols| all.push(Needed { name, rows, cols });
    let (hidden, heads) = (config.hidden, config.heads);
    need("token_embd.weight".to_owned(), config.vocab, hidden);
    need("output_norm.weight".to_owned(), 1, hidden);
    if !config.tied {
        need("output.weight".to_owned(), config.vocab, hidden);
    }
    for layer in 0..config.layers {
        let mut need =
            |name: &str, rows, cols| need(format!("blk.{layer}.{name}.weight"), rows, cols);
        need("attn_norm", 1, hidden);
        need("attn_q", heads.query * heads.dim, hidden);
        need("attn_k", heads.kv * heads.dim, hidden);
        need("attn_v", heads.kv * heads.dim, hidden);
        need("attn_output", hidden, heads.query * heads.dim);
        need("ffn_norm", 1, hidden);
        need("ffn_gate", config.intermediate, hidden);
        need("ffn_up", config.intermediate, hidden);
        need("ffn_down", hidden, config.intermediate);
    }
    all
}

/// Checks that each needed tensor is there with its shape and that no other is. `tensors` are in
/// name order.
pub(crate) fn check_tensors(config: &Llama, tensors: &[TensorInfo]) -> Result<(), WeightsError> {
    let needed = needed(config);
    for need in &needed {
        let Ok(at) = tensors.binary_search_by(|t| t.name.cmp(&need.name)) else {
            let Needed { name, rows, cols } = need;
            return Err(WeightsError::MissingTensor {
                name: name.clone(),
                rows: *rows,
                cols: *cols,
            });
        };
        let found = &tensors[at];
        if (found.rows, found.cols) != (need.rows, need.cols) {
            return Err(WeightsError::Shape {
                name: need.name.clone(),
                expected: [need.rows, need.cols],
                found: [found.rows, found.cols],
            });
        }
        if need.name.ends_with("norm.weight") && !found.format.is_float() {
            return Err(WeightsError::UnsupportedType {
                name: need.name.clone(),
                found: found.format.to_string(),
                expected: "F32, F16 or BF16 for a norm",
            });
        }
    }
    refuse_left_over(&needed, tensors)
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
