//! Model folders of Hugging Face and MLX: what opens, and one clear error a kind of bad file.

use std::path::Path;

use baton_weights::Checkpoint;
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::folder::Folder;
use crate::made::{Made, Tensor, tiny, with_header};

const HF: &str = "tiny-qwen3_5";
const MLX: &str = "tiny-qwen3_5-mlx4";

#[track_caller]
fn says(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
}

/// What opening the tiny model `name` says after `change`.
fn changed(name: &str, change: impl FnOnce(&mut Made)) -> String {
    let mut made = Made::tiny(name);
    change(&mut made);
    made.refusal()
}

/// What opening a folder says whose only file of tensors is `bytes`.
fn spoilt(bytes: &[u8]) -> String {
    let folder = Folder::new();
    std::fs::copy(tiny(HF).join("config.json"), folder.path().join("config.json")).unwrap();
    std::fs::write(folder.path().join("model.safetensors"), bytes).unwrap();
    let said = Checkpoint::open(folder.path()).unwrap_err().to_string();
    says(&said, &["/model.safetensors: "]);
    said
}

fn refusal(path: &Path) -> String {
    Checkpoint::open(path).unwrap_err().to_string()
}

#[test]
fn one_file_and_shards_hold_the_same_model() {
    let whole = Checkpoint::open(&tiny(HF)).unwrap();
    let folder = Folder::new();
    Made::tiny(HF).write_shards(folder.path(), 3, |_| {});
    for path in
        ["", "config.json", "model.safetensors.index.json", "model-00002-of-00003.safetensors"]
    {
        let shards = Checkpoint::open(&folder.path().join(path)).unwrap();
        assert_eq!((shards.config(), shards.folder()), (whole.config(), Some(folder.path())));
        assert!(shards.metadata().is_none());
        assert_eq!(shards.tensors().len(), whole.tensors().len());
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for tensor in whole.tensors() {
            let expected = whole.read(&tensor.name, &mut ours).unwrap().bytes;
            let found = shards.read(&tensor.name, &mut theirs).unwrap().bytes;
            assert_eq!(found, expected, "{}", tensor.name);
            assert_eq!(shards.digest(&tensor.name).ok(), whole.digest(&tensor.name).ok());
        }
    }
    std::fs::write(folder.path().join("draft.safetensors"), b"x").unwrap();
    says(
        &refusal(&folder.path().join("draft.safetensors")),
        &["`draft.safetensors` is no file of this folder's model"],
    );
}

#[test]
fn a_folder_that_lacks_a_file_says_which() {
    let folder = Folder::new();
    let at = folder.path();
    says(&refusal(at), &["no model", "config.json is not there"]);
    std::fs::copy(tiny(HF).join("config.json"), at.join("config.json")).unwrap();
    says(&refusal(at), &["no model", "model.safetensors is not there"]);
    std::fs::write(at.join("config.json"), "{\"model_type\": ").unwrap();
    says(&refusal(at), &["/config.json: the config is no JSON as expected", "EOF"]);
}

#[test]
fn an_index_and_its_shards_must_agree() {
    let made = Made::tiny(HF);
    let said = |change: fn(&mut Value), then: fn(&Path)| {
        let folder = Folder::new();
        made.write_shards(folder.path(), 2, change);
        then(folder.path());
        refusal(folder.path())
    };
    let none = |_: &Path| {};
    let second = "model-00002-of-00002.safetensors";
    says(
        &said(
            |_| {},
            |at| std::fs::remove_file(at.join("model-00002-of-00002.safetensors")).unwrap(),
        ),
        &[second, "No such file"],
    );
    says(
        &said(
            |index| index["weight_map"]["x.weight"] = json!("model-00001-of-00002.safetensors"),
            none,
        ),
        &[
            "index.json: tensor `x.weight`",
            "in `model-00001-of-00002.safetensors`",
            "found nowhere",
        ],
    );
    says(
        &said(
            |index| {
                index["weight_map"]["lm_head.weight"] = json!("model-00002-of-00002.safetensors")
            },
            none,
        ),
        &["`lm_head.weight`", "says in `model-00002", "found in `model-00001"],
    );
    says(
        &said(
            |index| drop(index["weight_map"].as_object_mut().unwrap().remove("lm_head.weight")),
            none,
        ),
        &["`lm_head.weight`", "says nowhere", "found in `model-00001"],
    );
    says(
        &said(|index| index["weight_map"]["lm_head.weight"] = json!("../model.safetensors"), none),
        &["`weight_map`", "expected a file's name, found ../model.safetensors"],
    );
    says(&said(|index| index["weight_map"] = json!({}), none), &["the shard count"]);
    says(&said(|index| *index = json!([1]), none), &["the list of shards is no JSON as expected"]);
    says(
        &said(
            |_| {},
            |at| {
                let first = at.join("model-00001-of-00002.safetensors");
                std::fs::copy(first, at.join("model-00002-of-00002.safetensors")).unwrap();
            },
        ),
        &[second, "tensor `", "occurs twice"],
    );
}

#[test]
fn a_malformed_safetensors_header_is_named() {
    let header = |text: &str| spoilt(&with_header(text, &[0; 16]));
    let one = |entry: &str| header(&format!("{{\"x\": {entry}}}"));
    says(&spoilt(b"1234"), &["ends inside the safetensors header", "8 bytes needed", "4 there"]);
    let whole = std::fs::read(tiny(HF).join("model.safetensors")).unwrap();
    says(&spoilt(&whole[..1_000]), &["ends inside the safetensors header", "992 there"]);
    says(
        &spoilt(&whole[..whole.len() - 1]),
        &["tensor `mtp.pre_fc_norm_hidden.weight`", "outside"],
    );
    says(&spoilt(&u64::MAX.to_le_bytes()), &["the size of the safetensors header", "100000000"]);
    says(&header("{"), &["the safetensors header is no JSON as expected", "EOF"]);
    says(&header("[]"), &["an object of tensors"]);
    says(&one(r#"{"dtype": "F32", "shape": [1]}"#), &["data_offsets"]);
    says(&one(r#"{"dtype": "F32", "shape": [-1], "data_offsets": [0, 4]}"#), &["-1"]);
    says(&one(r#"{"dtype": "F32", "shape": [1], "data_offsets": [4, 0]}"#), &["before they start"]);
    says(
        &one(r#"{"dtype": "F32", "shape": [4], "data_offsets": [4, 20]}"#),
        &["tensor `x`: its 16 bytes at offset 4", "outside the file"],
    );
    let far = u64::MAX;
    says(
        &one(&format!(r#"{{"dtype": "U8", "shape": [1], "data_offsets": [0, {far}]}}"#)),
        &["outside"],
    );
    says(
        &one(r#"{"dtype": "F32", "shape": [3], "data_offsets": [0, 8]}"#),
        &["tensor `x`: its 8 bytes", "are not those of F32 [3]"],
    );
    let wide = 1_u64 << 40;
    says(
        &one(&format!(r#"{{"dtype": "F32", "shape": [{wide}, {wide}], "data_offsets": [0, 8]}}"#)),
        &["are not those of F32"],
    );
    says(
        &one(r#"{"dtype": "F32", "shape": [1,1,1,1,1,1,1,1,1], "data_offsets": [0, 4]}"#),
        &["the dim count of tensor `x` is 9", "limit of 8"],
    );
    let entry = |from: u32| {
        format!(r#"{{"dtype": "F32", "shape": [2], "data_offsets": [{from}, {}]}}"#, from + 8)
    };
    says(
        &header(&format!(r#"{{"x": {}, "y": {}}}"#, entry(4), entry(0))),
        &["tensors `y` and `x` overlap"],
    );
    says(
        &header(&format!(r#"{{"x": {}, "x": {}}}"#, entry(0), entry(8))),
        &["tensor `x` occurs twice"],
    );
    let long = "n".repeat(257);
    says(
        &header(&format!(r#"{{"{long}": {}}}"#, entry(0))),
        &["a tensor name's size is 257, above the limit of 256"],
    );
}

#[test]
fn types_that_are_not_read_are_refused_where_they_are_needed() {
    for (dtype, wide) in [("I64", 8), ("F8_E4M3", 1)] {
        let said = changed(HF, |made| {
            let tensor = made.tensor("layers.0.mlp.up_proj.weight");
            tensor.dtype = dtype.to_owned();
            tensor.bytes = vec![0; wide * 128 * 64];
        });
        says(&said, &["layers.0.mlp.up_proj.weight` is ", dtype, "expected F32, F16, BF16"]);
    }
    let said = changed(HF, |made| {
        let tensor = made.tensor("layers.0.mlp.up_proj.weight");
        tensor.dtype = "U32".to_owned();
        tensor.bytes = vec![0; 4 * 128 * 64];
    });
    says(&said, &["up_proj.weight` is U32", "with scales and biases"]);
    // Of the tower of vision nobody asks.
    let mut made = Made::tiny(HF);
    let tensor = made.tensor("patch_embed.proj.weight");
    tensor.dtype = "I64".to_owned();
    made.open().unwrap();
}

#[test]
fn vision_tensors_are_skipped_and_other_strangers_are_not() {
    let checkpoint = Checkpoint::open(&tiny(HF)).unwrap();
    assert!(Made::tiny(HF).tensors.iter().any(|t| t.name.starts_with("model.visual.")));
    let ours = |name: &str| ["blk.", "token_embd.", "output"].iter().any(|p| name.starts_with(p));
    assert!(checkpoint.tensors().iter().all(|t| ours(&t.name)));
    let stranger = |name: &str| {
        changed(HF, |made| {
            let tensor = Tensor { name: name.to_owned(), ..made.tensor("lm_head.weight").clone() };
            made.tensors.push(tensor);
        })
    };
    let name = "model.language_model.layers.0.mlp.shared_expert.weight";
    says(&stranger(name), &["1 tensors are not part of this model", name]);
    says(&stranger("model.language_model.layers.0.mlp.up_proj.bias"), &["up_proj.bias"]);
    // Another prefix makes it the same tensor again.
    says(&stranger("model.layers.0.mlp.up_proj.weight"), &["`blk.0.ffn_up.weight` occurs twice"]);
}

#[test]
fn a_tensor_that_is_missing_or_of_another_shape_is_named() {
    let said = changed(HF, |made| drop(made.without("layers.5.mlp.up_proj.weight")));
    says(&said, &["`blk.5.ffn_up.weight` is missing", "[128, 64]"]);
    let said = changed(HF, |made| made.tensor("layers.5.mlp.up_proj.weight").shape = vec![64, 128]);
    says(&said, &["`blk.5.ffn_up.weight`", "expected shape [128, 64]", "found [64, 128]"]);
    let said = changed(HF, |made| made.tensor("conv1d.weight").shape = vec![4, 80, 4]);
    says(&said, &["conv1d.weight` has the dims [4, 80, 4]", "[channels, 1, taps]"]);
    let said = changed(HF, |made| {
        made.tensor("A_log").shape = vec![];
        made.tensor("A_log").bytes = vec![0; 4];
    });
    says(&said, &["at least one dim"]);
}

#[test]
fn codes_scales_and_biases_must_fit_each_other() {
    let up = "layers.0.mlp.up_proj";
    let change = |part: &str, change: fn(&mut Tensor)| {
        changed(MLX, |made| change(made.tensor(&format!("{up}.{part}"))))
    };
    says(
        &change("weight", |t| {
            t.shape = vec![128, 7];
            t.bytes.truncate(4 * 128 * 7);
        }),
        &[
            "up_proj.weight`",
            "expected [rows, 8] for 1 groups of 64 codes of 4 bits",
            "U32 [128, 7]",
        ],
    );
    says(
        &change("scales", |t| {
            t.shape = vec![64, 1];
            t.bytes.truncate(2 * 64);
        }),
        &["up_proj.biases`", "the shape and dtype of its scales", "scales BF16 [64, 1]"],
    );
    let said = changed(MLX, |made| {
        for part in ["scales", "biases"] {
            let tensor = made.tensor(&format!("{up}.{part}"));
            tensor.shape = vec![64, 2];
        }
    });
    says(&said, &["up_proj.weight`", "expected [rows, 16]", "beside scales BF16 [64, 2]"]);
    let said = change("biases", |t| t.dtype = "F16".to_owned());
    says(&said, &["up_proj.biases`", "found F16 [128, 1] beside scales BF16 [128, 1]"]);
    for part in ["weight", "biases", "scales"] {
        let said = changed(MLX, |made| drop(made.without(&format!("{up}.{part}"))));
        says(&said, &["quantised tensor `", &format!("{up}.{part}` beside it, found none")]);
    }
    let said = change("weight", |t| {
        t.dtype = "F32".to_owned();
    });
    says(&said, &["up_proj.weight` is F32", "expected U32 beside scales"]);
    let said = changed(MLX, |made| {
        let norm = made.without("layers.0.input_layernorm.weight");
        let module = norm.name.strip_suffix(".weight").unwrap().to_owned();
        for part in ["weight", "scales", "biases"] {
            let tensor = made.tensor(&format!("layers.0.linear_attn.in_proj_a.{part}")).clone();
            made.tensors.push(Tensor { name: format!("{module}.{part}"), ..tensor });
        }
    });
    says(&said, &["`blk.0.attn_norm.weight`", "expected shape [1, 64]", "[6, 64]"]);
}

#[test]
fn what_the_config_says_of_quantisation_is_checked_by_key() {
    let said = |change: fn(&mut Value)| {
        changed(MLX, |made| {
            made.config["quantization_config"] = Value::Null;
            change(&mut made.config["quantization"]);
        })
    };
    for mode in ["mxfp4", "mxfp8", "nvfp4"] {
        let said = changed(MLX, |made| {
            made.config["quantization"] = json!({"group_size": 16, "bits": 4, "mode": mode});
        });
        says(&said, &["`quantization.mode` asks for", mode, "expected `affine`"]);
    }
    says(
        &said(|q| q["bits"] = json!(7)),
        &["`quantization.bits`", "[2, 3, 4, 5, 6, 8]", "found 7"],
    );
    says(&said(|q| q["group_size"] = json!(48)), &["`quantization.group_size`", "[32, 64, 128]"]);
    says(&said(|q| q["bits"] = json!("4")), &["`quantization.bits`", "found \"4\""]);
    says(&said(|q| drop(q.as_object_mut().unwrap().remove("bits"))), &["bits` is missing"]);
    says(&said(|q| *q = Value::Null), &["`quantization` is missing", "bits and group_size of the"]);
    says(&said(|q| *q = json!(4)), &["`quantization`", "expected an object, found 4"]);
    says(&said(|q| q["model.layers.0.mlp"] = json!(4)), &["an object, true or false, found 4"]);
    says(
        &said(|q| q["model.layers.3.self_attn.v_proj"] = json!({"bits": 8, "group_size": 32})),
        &["quantization.language_model.model.layers.3.self_attn.v_proj` occurs twice"],
    );
    says(
        &said(|q| q["language_model.model.layers.3.self_attn.v_proj"] = json!({"bits": 8})),
        &["v_proj.group_size` is missing"],
    );
    says(
        &said(|q| *q = json!({"quant_method": "fp8", "weight_block_size": [128, 128]})),
        &["`quantization.quant_method` asks for \"fp8\""],
    );
}

#[test]
fn an_override_holds_however_its_path_is_nested() {
    let kinds = |checkpoint: &Checkpoint| -> Vec<String> {
        checkpoint.tensors().iter().map(|t| format!("{} {}", t.name, t.kind())).collect()
    };
    let expected = kinds(&Checkpoint::open(&tiny(MLX)).unwrap());
    assert!(expected.contains(&"blk.3.attn_v.weight MLX8/32/BF16 128x64".to_owned()));
    for prefix in ["", "model.language_model", "language_model.model"] {
        let mut made = Made::tiny(MLX);
        let rest = "layers.3.self_attn.v_proj";
        let path =
            if prefix.is_empty() { format!("model.{rest}") } else { format!("{prefix}.{rest}") };
        made.config["quantization"] =
            json!({"group_size": 64, "bits": 4, path: {"group_size": 32, "bits": 8}});
        assert_eq!(kinds(&made.open().unwrap()), expected, "{prefix}");
    }
    // Scales are the final word on whether, whatever an entry says.
    let mut made = Made::tiny(MLX);
    let path = "language_model.model.layers.0.mlp.up_proj";
    made.config["quantization"][path] = json!(false);
    assert_eq!(kinds(&made.open().unwrap()), expected);
    made.config["quantization"][path] = json!(true);
    assert_eq!(kinds(&made.open().unwrap()), expected);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn a_mutated_folder_never_panics(
        edits in prop::collection::vec((0usize..30_000, any::<u8>()), 1..4),
        digits in prop::collection::vec((0usize..30_000, b'0'..=b'9'), 0..4),
        in_config in any::<bool>(),
    ) {
        let folder = Folder::new();
        for name in ["config.json", "model.safetensors"] {
            let mut bytes = std::fs::read(tiny(MLX).join(name)).unwrap();
            if in_config == (name == "config.json") {
                let most = bytes.len().min(28_000);
                for &(at, value) in &edits {
                    bytes[at % most] = value;
                }
                // Where a digit was, so that the text stays JSON.
                for &(at, digit) in &digits {
                    let digits = bytes[at % most..most].iter_mut();
                    digits.filter(|byte| byte.is_ascii_digit()).take(1).for_each(|b| *b = digit);
                }
            }
            std::fs::write(folder.path().join(name), bytes).unwrap();
        }
        match Checkpoint::open(folder.path()) {
            Ok(checkpoint) => {
                let mut buffer = Vec::new();
                for tensor in checkpoint.tensors() {
                    let matrix = checkpoint.read(&tensor.name, &mut buffer).unwrap();
                    prop_assert_eq!(matrix.bytes.len(), matrix.rows * matrix.row_bytes());
                }
            }
            Err(error) => prop_assert!(error.to_string().len() < 8 << 10),
        }
    }
}
