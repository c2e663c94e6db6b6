//! The llama family: config keys in GGUF and in `config.json`, and the tensors a model must have.

use arith::attention::Heads;
use arith::rope::Pairing;

use crate::config::{Llama, limits};
use crate::family::Needed;
use crate::gguf::keys::Keys;
use crate::gguf::{Metadata, Value};
use crate::hugging_face::Json;
use crate::{TensorInfo, WeightsError};

/// The config in a GGUF header. `tensors`, in name order, tell whether the head is tied.
pub(crate) fn from_gguf(
    metadata: &Metadata,
    tensors: &[TensorInfo],
) -> Result<Llama, WeightsError> {
    let keys = Keys::new(metadata, "llama");
    keys.refuse_others(refusal)?;
    let hidden = keys.required("embedding_length", limits::WIDTH_MAX)?;
    let query = keys.required("attention.head_count", limits::HEADS_MAX)?;
    let kv = keys.optional("attention.head_count_kv", 1, query)?.unwrap_or(query);
    if !query.is_multiple_of(kv) {
        let expected = format!("a divisor of the {query} query heads");
        return Err(keys.bad("attention.head_count_kv", expected, kv));
    }
    let most = limits::HEAD_DIM_MAX;
    let dim = match keys.optional("attention.key_length", 2, most)? {
        Some(dim) => dim,
        None if hidden.is_multiple_of(query) && hidden / query <= most => hidden / query,
        None => {
            let expected = format!("a divisor of the width {hidden} with heads of at most {most}");
            return Err(keys.bad("attention.head_count", expected, query));
        }
    };
    keys.equal("attention.value_length", dim, "the key length")?;
    let rope_dims = keys.optional("rope.dimension_count", 2, dim)?.unwrap_or(dim);
    if !rope_dims.is_multiple_of(2) {
        let expected = format!("an even number of at most {dim}");
        return Err(keys.bad("rope.dimension_count", expected, rope_dims));
    }
    Ok(Llama {
        layers: keys.required("block_count", limits::LAYERS_MAX)?,
        hidden: hidden as usize,
        intermediate: keys.required("feed_forward_length", limits::WIDTH_MAX)? as usize,
        vocab: keys.vocab()? as usize,
        heads: Heads { query: query as usize, kv: kv as usize, dim: dim as usize },
        eps: keys.float("attention.layer_norm_rms_epsilon", None, 1.0)? as f32,
        theta: keys.float("rope.freq_base", Some(10_000.0), limits::THETA_MAX)?,
        rope_dims: rope_dims as usize,
        pairing: Pairing::Adjacent,
        context_max: keys.required("context_length", limits::CONTEXT_MAX)?,
        tied: tensors.binary_search_by(|t| t.name.as_str().cmp("output.weight")).is_err(),
    })
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

/// The config in a `config.json`.
pub(crate) fn from_json(json: &Json<'_>) -> Result<Llama, WeightsError> {
    json.refuse_switches()?;
    let hidden = json.required("hidden_size", limits::WIDTH_MAX)?;
    let heads = json.heads(hidden)?;
    let (theta, rope_dims) = json.rope(heads.dim, Some(10_000.0), 1.0)?;
    Ok(Llama {
        layers: json.required("num_hidden_layers", limits::LAYERS_MAX)?,
        hidden: hidden as usize,
        intermediate: json.required("intermediate_size", limits::WIDTH_MAX)? as usize,
        vocab: json.required("vocab_size", limits::VOCAB_MAX)? as usize,
        heads,
        eps: json.float("rms_norm_eps", Some(1e-6), 1.0)? as f32,
        theta,
        rope_dims,
        pairing: Pairing::Halves,
        context_max: json.required("max_position_embeddings", limits::CONTEXT_MAX)?,
        tied: json.tied()?,
    })
}

/// The tensors that a model must have.
pub(crate) fn needed(config: &Llama) -> Vec<Needed> {
    let (hidden, heads) = (config.hidden, config.heads);
    let mut all = vec![
        Needed::matrix("token_embd.weight".to_owned(), config.vocab, hidden),
        Needed::vector("output_norm.weight".to_owned(), hidden),
    ];
    if !config.tied {
        all.push(Needed::matrix("output.weight".to_owned(), config.vocab, hidden));
    }
    for layer in 0..config.layers {
        let name = |name: &str| format!("blk.{layer}.{name}.weight");
        all.push(Needed::vector(name("attn_norm"), hidden));
        all.push(Needed::vector(name("ffn_norm"), hidden));
        let mut need = |what, rows, cols| all.push(Needed::matrix(name(what), rows, cols));
        need("attn_q", heads.query * heads.dim, hidden);
        need("attn_k", heads.kv * heads.dim, hidden);
        need("attn_v", heads.kv * heads.dim, hidden);
        need("attn_output", hidden, heads.query * heads.dim);
        need("ffn_gate", config.intermediate, hidden);
        need("ffn_up", config.intermediate, hidden);
        need("ffn_down", hidden, config.intermediate);
    }
    all
}
