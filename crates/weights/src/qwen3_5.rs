//! The qwen3_5 family: config keys in GGUF (`qwen35`) and in `config.json`, and the tensors that a
//! model must have.

use arith::attention::Heads;
use arith::gdn::{Gdn, HeadOrder};
use serde_json::Value as JsonValue;

use crate::config::{Mixer, Qwen35, limits};
use crate::family::Needed;
use crate::gguf::keys::Keys;
use crate::gguf::{Metadata, Value};
use crate::hugging_face::Json;
use crate::{TensorInfo, WeightsError};

/// Every so many layers are one of attention, where nothing says otherwise.
const INTERVAL: u32 = 4;
/// The part of a head that RoPE rotates, where nothing says otherwise.
const ROTATED: f64 = 0.25;

/// Layer `i` is one of attention where `i + 1` is a multiple of `interval`.
fn every(layers: u32, interval: u32) -> Vec<Mixer> {
    let mixer = |i: u32| match (i + 1).is_multiple_of(interval) {
        true => Mixer::Attention,
        false => Mixer::Recurrent,
    };
    (0..layers).map(mixer).collect()
}

/// The config in a GGUF header. `tensors`, in name order, tell whether the head is tied and
/// whether there is a draft head.
pub(crate) fn from_gguf(
    metadata: &Metadata,
    tensors: &[TensorInfo],
) -> Result<Qwen35, WeightsError> {
    let keys = Keys::new(metadata, "qwen35");
    keys.refuse_others(refusal)?;
    let drafts = keys.optional("nextn_predict_layers", 0, 1)?.unwrap_or(0);
    let blocks = keys.required("block_count", limits::LAYERS_MAX)?;
    let Some(layers) = blocks.checked_sub(drafts).filter(|&n| n > 0) else {
        return Err(keys.bad("block_count", "layers beside the draft head's".to_owned(), blocks));
    };
    let heads = gguf_heads(&keys)?;
    let rope_dims = keys.optional("rope.dimension_count", 2, heads.dim as u32)?;
    let rope_dims = rope_dims.map_or((heads.dim as f64 * ROTATED) as usize, |n| n as usize);
    if rope_dims < 2 || !rope_dims.is_multiple_of(2) {
        let expected = format!("an even number of 2 to {}", heads.dim);
        return Err(keys.bad("rope.dimension_count", expected, rope_dims));
    }
    let has = |name: &str| tensors.binary_search_by(|t| t.name.as_str().cmp(name)).is_ok();
    let mtp = drafts > 0 && tensors.iter().any(|t| t.layer() == Some(layers));
    Ok(Qwen35 {
        mixers: gguf_mixers(&keys, layers, blocks)?,
        hidden: keys.required("embedding_length", limits::WIDTH_MAX)? as usize,
        intermediate: keys.required("feed_forward_length", limits::WIDTH_MAX)? as usize,
        vocab: keys.vocab()? as usize,
        heads,
        gdn: gguf_gdn(&keys)?,
        eps: keys.float("attention.layer_norm_rms_epsilon", None, 1.0)? as f32,
        theta: keys.float("rope.freq_base", None, limits::THETA_MAX)?,
        rope_dims,
        context_max: keys.required("context_length", limits::CONTEXT_MAX)?,
        tied: !has("output.weight"),
        mtp,
    })
}

fn gguf_heads(keys: &Keys<'_>) -> Result<Heads, WeightsError> {
    let query = keys.required("attention.head_count", limits::HEADS_MAX)?;
    let kv = keys.required("attention.head_count_kv", query)?;
    if !query.is_multiple_of(kv) {
        let expected = format!("a divisor of the {query} query heads");
        return Err(keys.bad("attention.head_count_kv", expected, kv));
    }
    let dim = keys.required("attention.key_length", limits::HEAD_DIM_MAX)?;
    keys.equal("attention.value_length", dim, "the key length")?;
    Ok(Heads { query: query as usize, kv: kv as usize, dim: dim as usize })
}

/// What mixes rows: by the list of all blocks where there is one, else by the interval.
fn gguf_mixers(keys: &Keys<'_>, layers: u32, blocks: u32) -> Result<Vec<Mixer>, WeightsError> {
    const LIST: &str = "attention.recurrent_layers";
    let interval = keys.optional("full_attention_interval", 1, limits::LAYERS_MAX)?;
    let Some(list) = keys.metadata().i32s(&keys.name(LIST))? else {
        return Ok(every(layers, interval.unwrap_or(INTERVAL)));
    };
    if ![layers as usize, blocks as usize].contains(&list.len()) {
        return Err(keys.bad(LIST, format!("an item for each of {blocks} blocks"), list.len()));
    }
    let mixer = |flag: &i32| match flag {
        0 => Ok(Mixer::Attention),
        1 => Ok(Mixer::Recurrent),
        found => Err(keys.bad(LIST, "0 or 1 for each layer".to_owned(), found)),
    };
    list.iter().take(layers as usize).map(mixer).collect()
}

fn gguf_gdn(keys: &Keys<'_>) -> Result<Gdn, WeightsError> {
    let values = keys.required("ssm.time_step_rank", limits::HEADS_MAX)?;
    let groups = keys.required("ssm.group_count", limits::HEADS_MAX)?;
    let inner = keys.required("ssm.inner_size", limits::WIDTH_MAX)?;
    let key_dim = keys.required("ssm.state_size", limits::HEAD_DIM_MAX)?;
    let taps = keys.required("ssm.conv_kernel", limits::TAPS_MAX)?;
    let bad = |name, expected, found: u32| Err(keys.bad(name, expected, found));
    if !values.is_multiple_of(groups) {
        return bad("ssm.group_count", format!("a divisor of the {values} value heads"), groups);
    }
    if !inner.is_multiple_of(values) || inner / values > limits::HEAD_DIM_MAX {
        let most = limits::HEAD_DIM_MAX;
        let expected = format!("a multiple of the {values} value heads, of at most {most} dims");
        return bad("ssm.inner_size", expected, inner);
    }
    if !key_dim.is_multiple_of(4) {
        return bad("ssm.state_size", "a multiple of 4".to_owned(), key_dim);
    }
    if taps < 2 {
        return bad("ssm.conv_kernel", format!("2 to {}", limits::TAPS_MAX), taps);
    }
    Ok(Gdn {
        keys: groups as usize,
        values: values as usize,
        key_dim: key_dim as usize,
        value_dim: (inner / values) as usize,
        taps: taps as usize,
        order: HeadOrder::Tiled,
    })
}

/// What key `qwen35.<name>` may hold, where `value` is something else.
fn refusal(name: &str, value: &Value) -> Option<&'static str> {
    let zero = matches!(value, Value::Unsigned(0) | Value::Signed(0));
    let one = matches!(value, Value::Float(x) if *x == 1.0);
    let is = |text: &str| matches!(value, Value::String(found) if found == text);
    let (ok, expected) = match name {
        "context_length" | "embedding_length" | "block_count" | "feed_forward_length"
        | "vocab_size" | "attention.head_count" | "attention.head_count_kv"
        | "attention.key_length" | "attention.value_length"
        | "attention.layer_norm_rms_epsilon" | "rope.dimension_count" | "rope.freq_base"
        | "ssm.conv_kernel" | "ssm.state_size" | "ssm.group_count" | "ssm.time_step_rank"
        | "ssm.inner_size" | "full_attention_interval" | "attention.recurrent_layers"
        | "nextn_predict_layers"
        // Which of M-RoPE's directions turns which pair: text has one position in all of them.
        | "rope.dimension_sections"
        // Both say how a context was stretched; without a scaling type they change nothing.
        | "rope.scaling.original_context_length" | "rope.scaling.finetuned" => (true, ""),
        "expert_count" | "expert_used_count" => (zero, "0: a model without experts"),
        "rope.scaling.type" => (is("none"), "`none`"),
        "rope.scaling.factor" | "rope.scaling.attn_factor" | "rope.scale_linear" => (one, "1"),
        "attention.causal" => (matches!(value, Value::Bool(true)), "true"),
        "attention.sliding_window" => (zero, "0: no window"),
        _ => (false, "no such key"),
    };
    (!ok).then_some(expected)
}

/// The config in a `config.json`.
pub(crate) fn from_json(json: &Json<'_>) -> Result<Qwen35, WeightsError> {
    json.refuse_switches()?;
    refuse_others(json)?;
    let layers = json.required("num_hidden_layers", limits::LAYERS_MAX)?;
    let hidden = json.required("hidden_size", limits::WIDTH_MAX)?;
    json.required("head_dim", limits::HEAD_DIM_MAX)?;
    let heads = json.heads(hidden)?;
    let (theta, rope_dims) = json.rope(heads.dim, None, ROTATED)?;
    Ok(Qwen35 {
        mixers: json_mixers(json, layers)?,
        hidden: hidden as usize,
        intermediate: json.required("intermediate_size", limits::WIDTH_MAX)? as usize,
        vocab: json.required("vocab_size", limits::VOCAB_MAX)? as usize,
        heads,
        gdn: json_gdn(json)?,
        eps: json.float("rms_norm_eps", Some(1e-6), 1.0)? as f32,
        theta,
        rope_dims,
        context_max: json.required("max_position_embeddings", limits::CONTEXT_MAX)?,
        tied: json.tied()?,
        mtp: json.optional("mtp_num_hidden_layers", 0, 1)?.unwrap_or(0) > 0,
    })
}

/// Refuses what only this family may ask for and is not implemented.
fn refuse_others(json: &Json<'_>) -> Result<(), WeightsError> {
    type Switch = (&'static str, fn(&JsonValue) -> bool, &'static str);
    let switches: [Switch; 3] = [
        ("attn_output_gate", |v| *v == true, "true"),
        ("output_gate_type", |v| *v == "swish" || *v == "silu", "`swish`"),
        ("mtp_use_dedicated_embeddings", |v| *v == false, "false"),
    ];
    for (name, is_known, expected) in switches {
        if let Some(found) = json.get(name).filter(|v| !is_known(v)) {
            return Err(json.unsupported(name, expected, found));
        }
    }
    Ok(())
}

/// What mixes rows: by the list where there is one, else by the interval.
fn json_mixers(json: &Json<'_>, layers: u32) -> Result<Vec<Mixer>, WeightsError> {
    const LIST: &str = "layer_types";
    let interval = json.optional("full_attention_interval", 1, limits::LAYERS_MAX)?;
    let Some(list) = json.get(LIST) else {
        return Ok(every(layers, interval.unwrap_or(INTERVAL)));
    };
    let Some(list) = list.as_array().filter(|list| list.len() == layers as usize) else {
        let found = list.as_array().map_or("no list".to_owned(), |list| list.len().to_string());
        return Err(json.bad(LIST, format!("a list of {layers} types"), found));
    };
    let mixer = |kind: &JsonValue| match kind.as_str() {
        Some("full_attention") => Ok(Mixer::Attention),
        Some("linear_attention") => Ok(Mixer::Recurrent),
        _ => Err(json.unsupported(LIST, "`full_attention` or `linear_attention`", kind)),
    };
    list.iter().map(mixer).collect()
}

fn json_gdn(json: &Json<'_>) -> Result<Gdn, WeightsError> {
    let values = json.required("linear_num_value_heads", limits::HEADS_MAX)?;
    let keys = json.required("linear_num_key_heads", limits::HEADS_MAX)?;
    let key_dim = json.required("linear_key_head_dim", limits::HEAD_DIM_MAX)?;
    let value_dim = json.required("linear_value_head_dim", limits::HEAD_DIM_MAX)?;
    let taps = json.required("linear_conv_kernel_dim", limits::TAPS_MAX)?;
    let bad = |name, expected, found: u32| Err(json.bad(name, expected, found));
    if !values.is_multiple_of(keys) {
        return bad("linear_num_key_heads", format!("a divisor of the {values} value heads"), keys);
    }
    if !key_dim.is_multiple_of(4) {
        return bad("linear_key_head_dim", "a multiple of 4".to_owned(), key_dim);
    }
    if taps < 2 {
        return bad("linear_conv_kernel_dim", format!("2 to {}", limits::TAPS_MAX), taps);
    }
    Ok(Gdn {
        keys: keys as usize,
        values: values as usize,
        key_dim: key_dim as usize,
        value_dim: value_dim as usize,
        taps: taps as usize,
        order: HeadOrder::Grouped,
    })
}

/// The tensors that a model must have, in their stored shapes: `ssm_conv1d` is `[channels, taps]`.
pub(crate) fn needed(config: &Qwen35) -> Vec<Needed> {
    let hidden = config.hidden;
    let mut all = vec![
        Needed::matrix("token_embd.weight".to_owned(), config.vocab, hidden),
        Needed::vector("output_norm.weight".to_owned(), hidden),
    ];
    if !config.tied {
        all.push(Needed::matrix("output.weight".to_owned(), config.vocab, hidden));
    }
    for (layer, mixer) in config.mixers.iter().enumerate() {
        need_block(config, layer, *mixer, &mut all);
    }
    if config.mtp {
        let layer = config.mixers.len();
        let name = |name: &str| format!("blk.{layer}.nextn.{name}.weight");
        all.push(Needed::matrix(name("eh_proj"), hidden, 2 * hidden));
        all.extend(["enorm", "hnorm", "shared_head_norm"].map(|n| Needed::vector(name(n), hidden)));
        need_block(config, layer, Mixer::Attention, &mut all);
    }
    all
}

fn need_block(config: &Qwen35, layer: usize, mixer: Mixer, all: &mut Vec<Needed>) {
    let (hidden, heads, gdn) = (config.hidden, config.heads, &config.gdn);
    let name = |name: &str| format!("blk.{layer}.{name}");
    let vector = |what, values| Needed::vector(name(what), values);
    let matrix = |what, rows, cols| Needed::matrix(name(what), rows, cols);
    all.extend([
        vector("attn_norm.weight", hidden),
        vector("post_attention_norm.weight", hidden),
        matrix("ffn_gate.weight", config.intermediate, hidden),
        matrix("ffn_up.weight", config.intermediate, hidden),
        matrix("ffn_down.weight", hidden, config.intermediate),
    ]);
    match mixer {
        Mixer::Attention => all.extend([
            // Each head's queries, then its gates.
            matrix("attn_q.weight", 2 * heads.query * heads.dim, hidden),
            matrix("attn_k.weight", heads.kv * heads.dim, hidden),
            matrix("attn_v.weight", heads.kv * heads.dim, hidden),
            matrix("attn_output.weight", hidden, heads.query * heads.dim),
            vector("attn_q_norm.weight", heads.dim),
            vector("attn_k_norm.weight", heads.dim),
        ]),
        Mixer::Recurrent => all.extend([
            matrix("attn_qkv.weight", gdn.channels(), hidden),
            matrix("attn_gate.weight", gdn.value_width(), hidden),
            matrix("ssm_beta.weight", gdn.values, hidden),
            matrix("ssm_alpha.weight", gdn.values, hidden),
            Needed { by_value: true, ..matrix("ssm_conv1d.weight", gdn.channels(), gdn.taps) },
            vector("ssm_a", gdn.values),
            vector("ssm_dt.bias", gdn.values),
            vector("ssm_norm.weight", gdn.value_dim),
            matrix("ssm_out.weight", hidden, gdn.value_width()),
        ]),
    }
}
