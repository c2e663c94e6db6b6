//! A model's folder of any bytes: a line of config.json, then `model.safetensors`.
#![no_main]

use std::path::PathBuf;
use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};
use weights::Checkpoint;

fuzz_target!(init: baton_fuzz::plant([false, true].map(seed)), |data: &[u8]| {
    let at = data.iter().position(|&byte| byte == b'\n').unwrap_or(data.len());
    let (config, file) = data.split_at(at);
    match open(config, file.get(1..).unwrap_or_default()) {
        Ok(checkpoint) => baton_fuzz::read(&checkpoint),
        Err(error) => assert!(error.to_string().len() < 8 << 10, "a long error"),
    }
});

/// A folder of this process.
static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("baton-fuzz-folder-{}", std::process::id()));
    std::fs::create_dir_all(&path).expect("a temporary folder");
    path
});

fn open(config: &[u8], file: &[u8]) -> Result<Checkpoint, weights::WeightsError> {
    for (name, bytes) in [("config.json", config), ("model.safetensors", file)] {
        std::fs::write(FOLDER.join(name), bytes).expect("room in the temporary folder");
    }
    Checkpoint::open(&FOLDER)
}

/// A model of two layers, one of each kind, in Hugging Face's form or quantised in MLX's.
fn seed(mlx: bool) -> Vec<u8> {
    let mut config = json!({
        "model_type": "qwen3_5_text", "vocab_size": 8, "hidden_size": 32, "intermediate_size": 32,
        "num_hidden_layers": 2, "num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 32,
        "hidden_act": "silu", "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
        "tie_word_embeddings": true, "layer_types": ["linear_attention", "full_attention"],
        "linear_conv_kernel_dim": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
        "linear_num_key_heads": 1, "linear_num_value_heads": 1, "mtp_num_hidden_layers": 0,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4,
            "partial_rotary_factor": 0.25, "mrope_interleaved": true, "mrope_section": [2, 1, 1]},
    });
    if mlx {
        config["quantization"] = json!({"group_size": 32, "bits": 4, "mode": "affine"});
    }
    let (mut header, mut at) = (Map::new(), 0);
    let mut add = |name: String, dtype: &str, shape: &[u64]| {
        let wide = if dtype == "BF16" { 2 } else { 4 };
        let bytes = shape.iter().product::<u64>() * wide;
        let place = [at, at + bytes];
        header.insert(name, json!({"dtype": dtype, "shape": shape, "data_offsets": place}));
        at += bytes;
    };
    let conv: &[u64] = if mlx { &[96, 4, 1] } else { &[96, 1, 4] };
    for (name, shape) in [("linear_attn.conv1d.weight", conv), ("linear_attn.dt_bias", &[1])] {
        add(format!("model.layers.0.{name}"), "BF16", shape);
    }
    add("model.layers.0.linear_attn.A_log".to_owned(), "F32", &[1]);
    for norm in NORMS {
        add(format!("model.{norm}.weight"), "BF16", &[32]);
    }
    for (matrix, rows) in MATRICES {
        if !mlx {
            add(format!("model.{matrix}.weight"), "BF16", &[rows, 32]);
            continue;
        }
        add(format!("model.{matrix}.weight"), "U32", &[rows, 4]);
        add(format!("model.{matrix}.scales"), "BF16", &[rows, 1]);
        add(format!("model.{matrix}.biases"), "BF16", &[rows, 1]);
    }
    let header = Value::Object(header).to_string().into_bytes();
    let length = (header.len() as u64).to_le_bytes();
    let data = vec![0; at as usize];
    [config.to_string().as_bytes(), b"\n", &length, &header, &data].concat()
}

const NORMS: [&str; 8] = [
    "norm",
    "layers.0.input_layernorm",
    "layers.0.post_attention_layernorm",
    "layers.0.linear_attn.norm",
    "layers.1.input_layernorm",
    "layers.1.post_attention_layernorm",
    "layers.1.self_attn.q_norm",
    "layers.1.self_attn.k_norm",
];

const MATRICES: [(&str, u64); 16] = [
    ("embed_tokens", 8),
    ("layers.0.linear_attn.in_proj_qkv", 96),
    ("layers.0.linear_attn.in_proj_z", 32),
    ("layers.0.linear_attn.in_proj_a", 1),
    ("layers.0.linear_attn.in_proj_b", 1),
    ("layers.0.linear_attn.out_proj", 32),
    ("layers.0.mlp.gate_proj", 32),
    ("layers.0.mlp.up_proj", 32),
    ("layers.0.mlp.down_proj", 32),
    ("layers.1.self_attn.q_proj", 64),
    ("layers.1.self_attn.k_proj", 32),
    ("layers.1.self_attn.v_proj", 32),
    ("layers.1.self_attn.o_proj", 32),
    ("layers.1.mlp.gate_proj", 32),
    ("layers.1.mlp.up_proj", 32),
    ("layers.1.mlp.down_proj", 32),
];
