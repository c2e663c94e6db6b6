//! What a container's keys and names become, and what is refused of them.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::Path;

use arith::gdn::HeadOrder;
use arith::rope::Pairing;
use serde_json::{Value, json};

use super::*;
use crate::config::{Llama, Mixer, Qwen35};
use crate::gguf::Header;
use crate::gguf::write::Writer;
use crate::synthetic;

/// The tiny model's `config.json`, as Hugging Face and as MLX have it.
fn tiny(folder: &str) -> Value {
    let golden = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/tiny-qwen3_5");
    let text = std::fs::read(golden.join(folder).join("config.json")).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn qwen(json: &Value) -> Qwen35 {
    match config_from_json(json).unwrap() {
        Config::Qwen35(config) => config,
        other => panic!("{other:?}"),
    }
}

fn smol() -> Value {
    json!({
        "model_type": "llama", "hidden_size": 576, "intermediate_size": 1536, "vocab_size": 49152,
        "num_hidden_layers": 30, "num_attention_heads": 9, "num_key_value_heads": 3,
        "rms_norm_eps": 1e-5, "rope_theta": 100000, "max_position_embeddings": 8192,
        "hidden_act": "silu", "attention_bias": false, "rope_scaling": null,
        "tie_word_embeddings": true, "torch_dtype": "bfloat16",
    })
}

fn llama(json: &Value) -> Llama {
    match config_from_json(json).unwrap() {
        Config::Llama(config) => config,
        other => panic!("{other:?}"),
    }
}

/// `json` with the value at `key`, dots between names, replaced; null removes nothing.
fn with(mut json: Value, key: &str, value: Value) -> Value {
    let mut at = &mut json;
    for name in key.split('.') {
        at = &mut at[name];
    }
    *at = value;
    json
}

/// `json` without the text model's key `name`.
fn without(mut json: Value, name: &str) -> Value {
    json["text_config"].as_object_mut().unwrap().remove(name).unwrap();
    json
}

#[track_caller]
fn says(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
}

#[test]
fn a_text_model_alone_or_beside_a_vision_model_has_one_config() {
    let nested = qwen(&tiny("tiny-qwen3_5"));
    let mut flat = tiny("tiny-qwen3_5")["text_config"].clone();
    assert_eq!(qwen(&flat), nested);
    // Older files have RoPE's keys beside the others, and no list of layers.
    let flat_keys = flat.as_object_mut().unwrap();
    flat_keys.remove("rope_parameters");
    flat_keys.remove("layer_types");
    flat_keys.extend([
        ("rope_theta".to_owned(), json!(1e7)),
        ("partial_rotary_factor".to_owned(), json!(0.25)),
        ("rope_scaling".to_owned(), json!({"type": "mrope", "mrope_section": [3, 3, 2]})),
    ]);
    assert_eq!(qwen(&flat), nested);
    assert_eq!(qwen(&tiny("tiny-qwen3_5-mlx4")), nested);
    assert_eq!(nested.mixers.iter().filter(|m| **m == Mixer::Attention).count(), 2);
    assert_eq!((nested.rope_dims, nested.theta, nested.tied), (16, 1e7, false));
    assert_eq!((nested.gdn.order, nested.mtp), (HeadOrder::Grouped, true));
}

#[test]
fn the_list_of_layers_counts_before_the_interval_and_the_text_model_before_the_file() {
    let mixers = |json: &Value| -> String {
        let letter = |m: &Mixer| if *m == Mixer::Attention { 'A' } else { 'r' };
        qwen(json).mixers.iter().map(letter).collect()
    };
    let json = tiny("tiny-qwen3_5");
    let other = with(json.clone(), "text_config.full_attention_interval", json!(2));
    assert_eq!(mixers(&other), "rrrArrrA");
    assert_eq!(mixers(&without(other.clone(), "layer_types")), "rArArArA");
    let default = without(without(other, "layer_types"), "full_attention_interval");
    assert_eq!(mixers(&default), "rrrArrrA");
    let tied = with(json.clone(), "text_config.tie_word_embeddings", json!(true));
    assert!(qwen(&tied).tied);
    let top = with(without(json, "tie_word_embeddings"), "tie_word_embeddings", json!(true));
    assert!(qwen(&top).tied);
}

#[test]
fn a_llama_config_shares_the_width_among_heads_and_rotates_halves() {
    let config = llama(&smol());
    assert_eq!((config.heads.dim, config.rope_dims, config.tied), (64, 64, true));
    assert_eq!((config.pairing, config.theta), (Pairing::Halves, 1e5));
    let wide = llama(&with(smol(), "head_dim", json!(128)));
    assert_eq!((wide.heads.dim, wide.rope_dims), (128, 128));
    let mistral = with(with(smol(), "model_type", json!("mistral")), "sliding_window", json!(null));
    assert_eq!(llama(&mistral), config);
    let unused = with(smol(), "use_sliding_window", json!(false));
    assert_eq!(llama(&with(unused, "sliding_window", json!(4096))), config);
}

#[test]
fn a_qwen3_5_config_that_asks_for_anything_else_is_refused_by_its_key() {
    for (key, value, expected) in [
        ("hidden_act", json!("gelu"), "`silu`"),
        ("attention_bias", json!(true), "expected false"),
        ("attn_output_gate", json!(false), "expected true"),
        ("output_gate_type", json!("sigmoid"), "`swish`"),
        ("mtp_use_dedicated_embeddings", json!(true), "expected false"),
        ("mtp_num_hidden_layers", json!(2), "0 to 1"),
        ("num_experts", json!(8), "without experts"),
        ("sliding_window", json!(4096), "no window"),
        ("rope_parameters.rope_type", json!("yarn"), "`default`"),
        ("rope_scaling", json!({"type": "linear", "factor": 2}), "`default`"),
        ("rope_parameters", json!(3), "an object"),
        ("partial_rotary_factor", json!(0), "a number above 0"),
        ("rope_parameters.partial_rotary_factor", json!(0.3), "an even part of the 64"),
        ("layer_types", json!(["full_attention"]), "a list of 8 types, found 1"),
        ("layer_types", json!(vec!["sliding_attention"; 8]), "`linear_attention`"),
        ("num_attention_heads", json!(3), "num_key_value_heads"),
        ("num_key_value_heads", json!(3), "a divisor of the 4 query heads"),
        ("linear_num_key_heads", json!(4), "a divisor of the 6 value heads"),
        ("linear_key_head_dim", json!(30), "a multiple of 4"),
        ("linear_conv_kernel_dim", json!(1), "2 to 16"),
        ("num_hidden_layers", json!(1_000_000), "1 to 1024"),
        ("hidden_size", json!(-1), "1 to 262144"),
        ("hidden_size", json!(64.5), "1 to 262144"),
        ("vocab_size", json!("512"), "expected an integer, found a string"),
        ("rms_norm_eps", json!(0), "a number above 0"),
        ("tie_word_embeddings", json!("no"), "a bool"),
        ("quantization_config", json!({"quant_method": "fp8"}), "MLX's affine"),
    ] {
        let json = with(tiny("tiny-qwen3_5"), &format!("text_config.{key}"), value);
        let said = config_from_json(&json).unwrap_err().to_string();
        let last = key.split('.').next_back().unwrap();
        let culprit = if key == "num_attention_heads" { "num_key_value_heads" } else { last };
        says(&said, &["key `text_config.", culprit, expected]);
    }
    for name in ["hidden_size", "head_dim", "linear_num_value_heads", "max_position_embeddings"] {
        let said = config_from_json(&without(tiny("tiny-qwen3_5"), name)).unwrap_err().to_string();
        says(&said, &[&format!("key `text_config.{name}` is missing")]);
    }
}

#[test]
fn a_config_of_another_family_form_or_quantisation_is_refused() {
    for (key, value, parts) in [
        ("model_type", json!("qwen3_next"), &["`qwen3_next`", "`qwen3_5_text`, `llama`"][..]),
        ("model_type", json!(null), &["`model_type` is missing"]),
        ("text_config", json!([]), &["`text_config`: expected an object, found an array"]),
        ("quantization_config", json!({"quant_method": "gptq"}), &["quant_method", "gptq"]),
        ("quantization", json!({"mode": "mxfp4"}), &["`quantization.mode`", "mxfp4", "`affine`"]),
    ] {
        let json = with(tiny("tiny-qwen3_5"), key, value);
        says(&config_from_json(&json).unwrap_err().to_string(), parts);
    }
    for (key, value, expected) in [
        ("rope_scaling", json!({"rope_type": "llama3", "factor": 8}), "`default`"),
        ("mlp_bias", json!(true), "expected false"),
        ("sliding_window", json!(4096), "no window"),
        ("head_dim", json!(63), "an even part"),
    ] {
        let said = config_from_json(&with(smol(), key, value)).unwrap_err().to_string();
        says(&said, &[if key == "head_dim" { "rotary" } else { key }, expected]);
    }
    let mistral = with(smol(), "model_type", json!("mistral"));
    says(&config_from_json(&mistral).unwrap_err().to_string(), &["`sliding_window` is missing"]);
}

/// What the name of the tiny model's tensor becomes in both forms.
fn both(name: &str) -> [Named; 2] {
    let config = config_from_json(&tiny("tiny-qwen3_5")).unwrap();
    [Form::HuggingFace, Form::Mlx].map(|form| from_hugging_face(&config, form, name))
}

#[test]
fn names_become_ggufs_and_norms_are_shifted_once() {
    use Reading::{Exp, OnePlus, Plain, Taps};
    const LAYER: &str = "model.language_model.layers.2.";
    for (name, expected, [hugging_face, mlx]) in [
        ("input_layernorm.weight", "attn_norm.weight", [OnePlus, Plain]),
        ("post_attention_layernorm.weight", "post_attention_norm.weight", [OnePlus, Plain]),
        ("self_attn.q_norm.weight", "attn_q_norm.weight", [OnePlus, Plain]),
        ("self_attn.k_norm.weight", "attn_k_norm.weight", [OnePlus, Plain]),
        ("self_attn.q_proj.weight", "attn_q.weight", [Plain; 2]),
        ("self_attn.o_proj.weight", "attn_output.weight", [Plain; 2]),
        ("mlp.down_proj.weight", "ffn_down.weight", [Plain; 2]),
        ("linear_attn.norm.weight", "ssm_norm.weight", [Plain; 2]),
        ("linear_attn.in_proj_qkv.weight", "attn_qkv.weight", [Plain; 2]),
        ("linear_attn.in_proj_z.weight", "attn_gate.weight", [Plain; 2]),
        ("linear_attn.in_proj_a.weight", "ssm_alpha.weight", [Plain; 2]),
        ("linear_attn.in_proj_b.weight", "ssm_beta.weight", [Plain; 2]),
        ("linear_attn.conv1d.weight", "ssm_conv1d.weight", [Taps; 2]),
        ("linear_attn.A_log", "ssm_a", [Exp; 2]),
        ("linear_attn.dt_bias", "ssm_dt.bias", [Plain; 2]),
        ("linear_attn.out_proj.weight", "ssm_out.weight", [Plain; 2]),
    ] {
        let named = [hugging_face, mlx]
            .map(|reading| Named::Tensor { name: format!("blk.2.{expected}"), reading });
        assert_eq!(both(&format!("{LAYER}{name}")), named);
        assert_eq!(both(&format!("model.layers.2.{name}")), named);
        assert_eq!(both(&format!("language_model.model.layers.2.{name}")), named);
    }
    // No conversion shifts the draft head's norms.
    for (name, expected) in [
        ("norm.weight", "nextn.shared_head_norm.weight"),
        ("pre_fc_norm_embedding.weight", "nextn.enorm.weight"),
        ("pre_fc_norm_hidden.weight", "nextn.hnorm.weight"),
        ("layers.0.input_layernorm.weight", "attn_norm.weight"),
        ("layers.0.self_attn.k_norm.weight", "attn_k_norm.weight"),
    ] {
        let named = Named::Tensor { name: format!("blk.8.{expected}"), reading: OnePlus };
        for prefix in ["mtp.", "model.mtp.", "language_model.mtp."] {
            assert_eq!(both(&format!("{prefix}{name}")), [named.clone(), named.clone()]);
        }
    }
}

#[test]
fn what_is_no_tensor_of_the_text_model_is_skipped_or_unknown() {
    for name in ["model.visual.merger.norm.bias", "vision_tower.pos_embed.scales", "visual.x"] {
        assert_eq!(both(name), [Named::Skipped, Named::Skipped], "{name}");
    }
    for name in [
        "model.layers.8.input_layernorm.weight",
        "model.layers.01.input_layernorm.weight",
        "model.layers.+1.input_layernorm.weight",
        "model.layers.1.self_attn.q_proj.bias",
        "model.layers.1.linear_attn.in_proj_qkvz.weight",
        "mtp.layers.1.input_layernorm.weight",
        "mtp.embed_tokens.weight",
        "layers.1.input_layernorm.weight",
        "lm_head.bias",
        "",
    ] {
        assert_eq!(both(name), [Named::Unknown, Named::Unknown], "{name}");
    }
    let head = Named::Tensor { name: "output.weight".to_owned(), reading: Reading::Plain };
    assert_eq!(both("lm_head.weight")[0], head);
    assert_eq!(both("language_model.lm_head.weight")[1], head);
    // Tied: whatever the head holds, the embedding table is the head.
    let config = Config::Llama(llama(&smol()));
    let named = |name| from_hugging_face(&config, Form::HuggingFace, name);
    assert_eq!(named("lm_head.weight"), Named::Skipped);
    assert_eq!(named("model.layers.3.self_attn.rotary_emb.inv_freq"), Named::Skipped);
    assert_eq!(named("model.layers.3.self_attn.q_norm.weight"), Named::Unknown);
    let norm = Named::Tensor { name: "blk.3.ffn_norm.weight".into(), reading: Reading::Plain };
    assert_eq!(named("model.layers.3.post_attention_layernorm.weight"), norm);
}

/// A made checkpoint's file.
fn file(add: impl FnOnce(&mut Writer)) -> Vec<u8> {
    let spec = synthetic::Qwen35 { mtp: true, tied: false, ..synthetic::Qwen35::default() };
    let mut writer = synthetic::qwen3_5_writer(&spec);
    add(&mut writer);
    writer.finish()
}

fn gguf(bytes: &[u8]) -> Result<Config, WeightsError> {
    let header = Header::parse(bytes)?;
    let tensors = crate::tensor::place_all(&header, bytes.len() as u64)?;
    let config = config_from_gguf(&header.metadata, &tensors)?;
    check_tensors(&config, &tensors).map(|()| config)
}

/// The file with the u32 of key `qwen35.<name>` replaced.
fn changed(name: &str, value: u32) -> Vec<u8> {
    changed_in(file(|_| ()), name, value)
}

fn changed_in(mut bytes: Vec<u8>, name: &str, value: u32) -> Vec<u8> {
    let key = format!("qwen35.{name}");
    let at = bytes.windows(key.len()).position(|w| w == key.as_bytes()).unwrap() + key.len() + 4;
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
    bytes
}

#[test]
fn a_gguf_config_has_tiled_heads_and_its_trunk_ends_before_the_draft_head() {
    let Config::Qwen35(config) = gguf(&file(|_| ())).unwrap() else { panic!("another family") };
    let spec = synthetic::Qwen35::default();
    assert_eq!((config.mixers.len(), config.mtp, config.tied), (4, true, false));
    assert_eq!(config.mixers[2..], [Mixer::Recurrent, Mixer::Attention]);
    assert_eq!((config.heads, config.gdn, config.rope_dims), (spec.heads, spec.gdn, 8));
    let other = |w: &mut Writer| {
        w.i32s("qwen35.attention.recurrent_layers", &[1, 1, 1, 0, 0]);
    };
    // The list counts, not the interval.
    let listed = changed_in(file(other), "full_attention_interval", 2);
    assert_eq!(gguf(&listed).unwrap(), Config::Qwen35(config.clone()));
    let config = Config::Qwen35(config);
    assert_eq!(from_gguf(&config, "blk.0.ssm_a"), Reading::Negate);
    assert_eq!(from_gguf(&config, "blk.0.ssm_conv1d.weight"), Reading::Taps);
    assert_eq!(from_gguf(&config, "blk.0.ssm_norm.weight"), Reading::Plain);
}

#[test]
fn gguf_keys_that_cannot_be_or_are_not_known_are_refused_by_name() {
    for (name, value, parts) in [
        ("attention.head_count_kv", 3, &["a divisor of the 4 query heads"][..]),
        ("attention.value_length", 16, &["32 (the key length)"]),
        ("rope.dimension_count", 7, &["an even number of 2 to 32", "found 7"]),
        ("ssm.group_count", 3, &["a divisor of the 4 value heads"]),
        ("ssm.inner_size", 97, &["a multiple of the 4 value heads"]),
        ("ssm.state_size", 18, &["a multiple of 4"]),
        ("ssm.conv_kernel", 1, &["2 to 16"]),
        ("nextn_predict_layers", 2, &["0 to 1"]),
        ("block_count", 1, &["beside the draft head's"]),
        ("full_attention_interval", 0, &["1 to 1024"]),
    ] {
        let said = gguf(&changed(name, value)).unwrap_err().to_string();
        says(&said, &[&[&*format!("key `qwen35.{name}`")], parts].concat());
    }
    for (name, value, expected) in [
        ("expert_count", 8, "without experts"),
        ("attention.scale", 2, "no such key"),
        ("attention.sliding_window", 512, "no window"),
    ] {
        let key = format!("qwen35.{name}");
        let add = |w: &mut Writer| {
            w.u32(&key, value);
        };
        let said = gguf(&file(add)).unwrap_err().to_string();
        says(&said, &[&format!("key `{key}` asks for {value}"), expected]);
    }
    let list = |items: &[i32]| {
        let add = |w: &mut Writer| {
            w.i32s("qwen35.attention.recurrent_layers", items);
        };
        gguf(&file(add)).unwrap_err().to_string()
    };
    says(&list(&[1, 0]), &["recurrent_layers", "an item for each of 5 blocks", "found 2"]);
    says(&list(&[1, 1, 1, 2]), &["0 or 1 for each layer", "found 2"]);
}

#[test]
fn a_tensor_too_many_too_few_or_of_another_kind_is_one_error() {
    // Another kind of layer needs other tensors than those that are there.
    let said = gguf(&changed("full_attention_interval", 2)).unwrap_err().to_string();
    says(&said, &["`blk.1.attn_q.weight` is missing (expected [256, 64])"]);
    // A draft head that no key speaks of would be one more layer.
    let said = gguf(&changed("nextn_predict_layers", 0)).unwrap_err().to_string();
    says(&said, &["`blk.4."]);
    let said = gguf(&changed("ssm.time_step_rank", 2)).unwrap_err().to_string();
    says(&said, &["`blk.0.ssm_", "expected shape"]);
    let said = gguf(&changed("feed_forward_length", 128)).unwrap_err().to_string();
    says(&said, &["`blk.0.ffn_gate.weight`", "[128, 64]", "[160, 64]"]);
    let add = |w: &mut Writer| {
        w.tensor("blk.0.attn_q.bias", arith::format::Format::F32, &[1], &[0; 4]);
    };
    says(&gguf(&file(add)).unwrap_err().to_string(), &["1 tensors", "`blk.0.attn_q.bias`"]);
    for name in ["blk.0.ssm_conv1d.weight", "blk.0.ssm_norm.weight", "output_norm.weight"] {
        let header = Header::parse(&file(|_| ())).unwrap();
        let mut tensors = crate::tensor::place_all(&header, u64::MAX).unwrap();
        let config = config_from_gguf(&header.metadata, &tensors).unwrap();
        tensors.iter_mut().find(|t| t.name == name).unwrap().format = arith::format::Format::Q8_0;
        let said = check_tensors(&config, &tensors).unwrap_err().to_string();
        says(&said, &[name, "Q8_0", "no blocks here"]);
    }
}

#[test]
fn a_draft_head_that_no_tensor_belongs_to_is_not_there() {
    let header = Header::parse(&file(|_| ())).unwrap();
    let tensors = crate::tensor::place_all(&header, u64::MAX).unwrap();
    let without: Vec<TensorInfo> =
        tensors.iter().filter(|t| t.layer() != Some(4)).cloned().collect();
    let whole = config_from_gguf(&header.metadata, &tensors).unwrap();
    for (tensors, expected) in [(&tensors, true), (&without, false)] {
        let mut config = whole.clone();
        settle(&mut config, tensors);
        let Config::Qwen35(found) = &config else { panic!("another family") };
        assert_eq!(found.mtp, expected);
        check_tensors(&config, tensors).unwrap();
    }
    // As a whole only: one tensor of it missing is missing.
    let missing = |t: &&TensorInfo| t.name != "blk.4.nextn.hnorm.weight";
    let most: Vec<TensorInfo> = tensors.iter().filter(missing).cloned().collect();
    let mut config = whole;
    settle(&mut config, &most);
    let said = check_tensors(&config, &most).unwrap_err().to_string();
    says(&said, &["`blk.4.nextn.hnorm.weight` is missing"]);
}
