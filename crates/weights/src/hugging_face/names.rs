//! Hugging Face's tensor names in GGUF's words.

use crate::Config;
use crate::family::{Form, Named, Reading};

/// What tensor `name` of a safetensors checkpoint is.
pub(crate) fn named(config: &Config, form: Form, name: &str) -> Named {
    // A text model under a multimodal one; MLX turns the words round.
    const MODELS: [&str; 3] = ["model.language_model.", "language_model.model.", "model."];
    let root = name.strip_prefix("language_model.").unwrap_or(name);
    let draft = root.strip_prefix("model.").unwrap_or(root).strip_prefix("mtp.");
    if let (Config::Qwen35(_), Some(rest)) = (config, draft) {
        return match config {
            Config::Qwen35(c) if c.mtp => of_draft(config, rest),
            _ => Named::Skipped,
        };
    }
    if let ("lm_head.weight", tied) = (root, tied(config)) {
        return if tied { Named::Skipped } else { plain("output.weight") };
    }
    if is_sight(name) {
        return Named::Skipped;
    }
    let Some(rest) = MODELS.iter().find_map(|prefix| name.strip_prefix(prefix)) else {
        return Named::Unknown;
    };
    match rest {
        "embed_tokens.weight" => plain("token_embd.weight"),
        "norm.weight" => tensor("output_norm.weight".to_owned(), norm(config, form)),
        _ => match numbered(rest) {
            Some((layer, rest)) if layer < config.layers() => of_layer(config, form, layer, rest),
            _ => Named::Unknown,
        },
    }
}

fn tied(config: &Config) -> bool {
    match config {
        Config::Llama(c) => c.tied,
        Config::Qwen35(c) => c.tied,
    }
}

/// Whether it belongs to the part that sees.
fn is_sight(name: &str) -> bool {
    let name = name.strip_prefix("model.").unwrap_or(name);
    ["visual.", "vision_tower."].iter().any(|prefix| name.starts_with(prefix))
}

/// `layers.N.rest`.
fn numbered(name: &str) -> Option<(u32, &str)> {
    let (layer, rest) = name.strip_prefix("layers.")?.split_once('.')?;
    // One spelling a number: no two names are one tensor.
    layer.parse().ok().filter(|n: &u32| n.to_string() == layer).map(|n| (n, rest))
}

/// How weights of the family's RMSNorms are stored.
fn norm(config: &Config, form: Form) -> Reading {
    match (config, form) {
        (Config::Qwen35(_), Form::HuggingFace) => Reading::OnePlus,
        _ => Reading::Plain,
    }
}

fn tensor(name: String, reading: Reading) -> Named {
    Named::Tensor { name, reading }
}

fn plain(name: &str) -> Named {
    tensor(name.to_owned(), Reading::Plain)
}

/// Of the draft head, whose norms no converter shifts.
fn of_draft(config: &Config, rest: &str) -> Named {
    let layer = config.layers();
    let (name, reading) = match rest {
        "fc.weight" => ("eh_proj", Reading::Plain),
        "pre_fc_norm_embedding.weight" => ("enorm", Reading::OnePlus),
        "pre_fc_norm_hidden.weight" => ("hnorm", Reading::OnePlus),
        "norm.weight" => ("shared_head_norm", Reading::OnePlus),
        _ => {
            return match numbered(rest) {
                Some((0, rest)) => of_layer(config, Form::HuggingFace, layer, rest),
                _ => Named::Unknown,
            };
        }
    };
    tensor(format!("blk.{layer}.nextn.{name}.weight"), reading)
}

fn of_layer(config: &Config, form: Form, layer: u32, rest: &str) -> Named {
    let recurrent = matches!(config, Config::Qwen35(_));
    let norm = norm(config, form);
    let (name, reading) = match rest {
        "input_layernorm.weight" => ("attn_norm.weight", norm),
        "post_attention_layernorm.weight" if recurrent => ("post_attention_norm.weight", norm),
        "post_attention_layernorm.weight" => ("ffn_norm.weight", norm),
        "mlp.gate_proj.weight" => ("ffn_gate.weight", Reading::Plain),
        "mlp.up_proj.weight" => ("ffn_up.weight", Reading::Plain),
        "mlp.down_proj.weight" => ("ffn_down.weight", Reading::Plain),
        "self_attn.q_proj.weight" => ("attn_q.weight", Reading::Plain),
        "self_attn.k_proj.weight" => ("attn_k.weight", Reading::Plain),
        "self_attn.v_proj.weight" => ("attn_v.weight", Reading::Plain),
        "self_attn.o_proj.weight" => ("attn_output.weight", Reading::Plain),
        "self_attn.q_norm.weight" if recurrent => ("attn_q_norm.weight", norm),
        "self_attn.k_norm.weight" if recurrent => ("attn_k_norm.weight", norm),
        // A table that older files keep; its values follow from RoPE's base.
        "self_attn.rotary_emb.inv_freq" => return Named::Skipped,
        _ if recurrent => match of_recurrent(rest) {
            Some(found) => found,
            None => return Named::Unknown,
        },
        _ => return Named::Unknown,
    };
    tensor(format!("blk.{layer}.{name}"), reading)
}

fn of_recurrent(rest: &str) -> Option<(&'static str, Reading)> {
    Some(match rest.strip_prefix("linear_attn.")? {
        "in_proj_qkv.weight" => ("attn_qkv.weight", Reading::Plain),
        "in_proj_z.weight" => ("attn_gate.weight", Reading::Plain),
        "in_proj_b.weight" => ("ssm_beta.weight", Reading::Plain),
        "in_proj_a.weight" => ("ssm_alpha.weight", Reading::Plain),
        "conv1d.weight" => ("ssm_conv1d.weight", Reading::Taps),
        "A_log" => ("ssm_a", Reading::Exp),
        "dt_bias" => ("ssm_dt.bias", Reading::Plain),
        // Around one in every form.
        "norm.weight" => ("ssm_norm.weight", Reading::Plain),
        "out_proj.weight" => ("ssm_out.weight", Reading::Plain),
        _ => return None,
    })
}
