//! `baton inspect`: what a model is, of every container.

use std::path::Path;

use serde_json::{Value, json};

use crate::model::{TINY, scratch};
use crate::process::{Baton, s};

/// What a command prints that must succeed.
fn printed(args: &[&str]) -> String {
    let mut process = Baton::start(args);
    process.ends_well(s(30));
    process.out.to_end(s(5))
}

fn golden(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/tiny-qwen3_5");
    folder.join(name).display().to_string()
}

fn facts(model: &str) -> Value {
    serde_json::from_str(&printed(&["inspect", "--json", model])).unwrap()
}

#[test]
fn every_container_of_a_model_is_said_to_be_the_same_one() {
    let all = ["tiny-qwen3_5", "tiny-qwen3_5-bf16.gguf", "tiny-qwen3_5-mlx4"];
    for (name, draft) in all.into_iter().zip([true, true, false]) {
        let facts = facts(&golden(name));
        for (key, expected) in [
            ("family", json!("qwen3_5")),
            ("attention_layers", json!(2)),
            ("recurrent_layers", json!(6)),
            ("held", json!(["0:8"])),
            ("draft_head", json!(draft)),
            ("context_max", json!(4096)),
            // Two layers' keys and values, of two heads of 64.
            ("kv_bytes_a_token", json!({"f16": 2 * 2 * 2 * 64 * 2, "f32": 2 * 2 * 2 * 64 * 4})),
            // Six layers' S, six heads of 32 by 32, and three rows of 320 channels.
            ("state_bytes_a_stream", json!(6 * (6 * 32 * 32 + 3 * 320) * 4)),
        ] {
            assert_eq!(facts[key], expected, "{name}: {key}");
        }
        let of_layers = facts["layers_bytes"].as_array().unwrap().iter();
        let parts = of_layers.chain([&facts["ends_bytes"], &facts["draft_head_bytes"]]);
        let sum: u64 = parts.map(|bytes| bytes.as_u64().unwrap()).sum();
        assert_eq!(facts["weights_bytes"], sum, "{name}");
        assert_eq!(facts["tokenizer"]["tokens"], 512, "{name}");
    }
}

#[test]
fn a_table_names_layers_by_kind_formats_and_memory() {
    let said = printed(&["inspect", &golden("tiny-qwen3_5-mlx4")]);
    for line in [
        "layers      8: 6 Gated DeltaNet, 2 attention",
        "            MLX8/32/BF16, 1 tensor, 9.0 KiB",
        "KV cache    1.0 KiB a token in f16, 2.0 KiB in f32",
        "state       166.5 KiB a stream",
    ] {
        assert!(said.lines().any(|said| said == line), "no `{line}` in\n{said}");
    }
    let said = printed(&["inspect", TINY.to_str().unwrap()]);
    assert!(said.contains("8, all attention\n") && !said.contains("\nstate"), "{said}");
}

#[test]
fn a_part_says_which_layers_it_holds() {
    let folder = scratch("inspect-part");
    let _ = std::fs::remove_dir_all(&folder);
    let part = printed(&["cut", TINY.to_str().unwrap(), "2:5", folder.to_str().unwrap()]);
    let said = printed(&["inspect", part.trim_end()]);
    assert!(said.contains("8, all attention; 2:5 in this file\n"), "{said}");
    assert_eq!(facts(part.trim_end())["held"], json!(["2:5"]));
}
