//! Opening synthetic checkpoints, whole and spoilt.

use arith::format::Format;
use arith::rope::Pairing;
use baton_weights::gguf::write::Writer;
use baton_weights::quantise::quantise;
use baton_weights::synthetic::{self, Llama};
use baton_weights::{Checkpoint, Config, WeightsError};

use crate::folder::Folder;

fn open(bytes: &[u8]) -> Result<Checkpoint, WeightsError> {
    let folder = Folder::new();
    let path = folder.path().join("model.gguf");
    std::fs::write(&path, bytes).unwrap();
    Checkpoint::open(&path)
}

fn small() -> Llama {
    Llama { layers: 2, hidden: 32, intermediate: 64, vocab: 258, ..Llama::default() }
}

/// What opening the small checkpoint says after `change`.
fn refusal(change: impl FnOnce(&mut Writer) -> &mut Writer) -> String {
    let mut writer = synthetic::llama_writer(&small());
    change(&mut writer);
    open(&writer.finish()).unwrap_err().to_string()
}

/// What opening the small checkpoint says after the first `from` in the file became `to`, of the
/// same length.
fn patched(from: &str, to: &str) -> String {
    assert_eq!(from.len(), to.len());
    let mut bytes = synthetic::llama_writer(&small()).finish();
    let at = bytes.windows(from.len()).position(|w| w == from.as_bytes()).unwrap();
    bytes[at..at + from.len()].copy_from_slice(to.as_bytes());
    open(&bytes).unwrap_err().to_string()
}

#[track_caller]
fn says(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
}

#[test]
fn a_synthetic_checkpoint_opens_with_the_shapes_it_was_made_of() {
    for (format, tied) in [
        (Format::Q4_1, true),
        (Format::Q4_0, false),
        (Format::Q8_0, true),
        (Format::F32, false),
        (Format::F16, true),
        (Format::Bf16, true),
    ] {
        let spec = Llama { format, tied, ..Llama::default() };
        let checkpoint = open(&synthetic::llama_writer(&spec).finish()).unwrap();
        let Config::Llama(config) = checkpoint.config() else { panic!("another family") };
        assert_eq!((config.layers, config.hidden, config.vocab), (3, 64, 264));
        assert_eq!((config.heads, config.rope_dims), (spec.heads, 16));
        assert_eq!((config.eps, config.theta), (1e-5, 10_000.0));
        assert_eq!((config.pairing, config.tied), (Pairing::Adjacent, tied));
        let mut buffer = Vec::new();
        let q = checkpoint.read("blk.1.attn_q.weight", &mut buffer).unwrap();
        assert_eq!((q.format, q.rows, q.cols), (format, 64, 64));
        assert_eq!(q.bytes.len(), q.rows * q.row_bytes());
        let k = checkpoint.read("blk.2.attn_k.weight", &mut buffer).unwrap();
        assert_eq!((k.rows, k.cols), (32, 64));
        let norm = checkpoint.read("output_norm.weight", &mut buffer).unwrap();
        assert_eq!((norm.format, norm.rows, norm.cols), (Format::F32, 1, 64));
        assert_eq!(checkpoint.has("output.weight"), !tied);
        assert!(checkpoint.tensors().is_sorted_by_key(|t| t.name.as_str()));
        says(
            &checkpoint.read("blk.3.attn_q.weight", &mut buffer).unwrap_err().to_string(),
            &["no tensor `blk.3.attn_q.weight`"],
        );
    }
}

#[test]
fn layers_and_ends_part_all_tensors_between_them() {
    let checkpoint = open(&synthetic::llama_writer(&small()).finish()).unwrap();
    let names =
        |range, ends| checkpoint.part(range, ends).map(|t| t.name.as_str()).collect::<Vec<_>>();
    assert_eq!(names(0..0, true), ["output_norm.weight", "token_embd.weight"]);
    assert_eq!(names(1..2, false).len(), 9);
    assert!(names(1..2, false).iter().all(|name| name.starts_with("blk.1.")));
    let all: u64 = checkpoint.tensors().iter().map(|t| t.bytes as u64).sum();
    let parts = [
        checkpoint.bytes_of(0..0, true),
        checkpoint.bytes_of(0..1, false),
        checkpoint.bytes_of(1..2, false),
    ];
    assert!(parts.iter().all(|&bytes| bytes > 0));
    assert_eq!(parts.iter().sum::<u64>(), all);
    assert_eq!(checkpoint.bytes_of(0..2, true), all);
}

#[test]
fn another_seed_gives_other_weights_and_the_same_seed_the_same_file() {
    let file = |seed| synthetic::llama_writer(&Llama { seed, ..small() }).finish();
    assert_eq!(file(1), file(1));
    assert_ne!(file(1), file(2));
}

#[test]
fn config_keys_that_cannot_be_are_named_with_what_was_expected() {
    says(&patched("architecture", "architectura"), &["`general.architecture` is missing"]);
    says(&patched("llama.block_count", "llama.block_cound"), &["`llama.block_cound`"]);
    says(&patched("rms_epsilon", "rms_epsilom"), &["`llama.attention.layer_norm_rms_epsilom`"]);
    says(&patched("ggml.tokens", "ggml.tokend"), &["`tokenizer.ggml.tokens` is missing"]);
    let mut other = synthetic::llama_writer(&small()).finish();
    let at = other.windows(5).position(|w| w == b"llama").unwrap();
    other[at..at + 5].copy_from_slice(b"gemma");
    says(&open(&other).unwrap_err().to_string(), &["family `gemma`", "`llama`"]);
    for (key, value, expected) in [
        ("llama.attention.sliding_window", 4_096, "0: no window"),
        ("llama.expert_count", 8, "without experts"),
        ("llama.vocab_size", 259, "258"),
        ("llama.something_new", 1, "no such key"),
    ] {
        says(&refusal(|w| w.u32(key, value)), &[key, &value.to_string(), expected]);
    }
    says(
        &refusal(|w| w.string("llama.rope.scaling.type", "yarn")),
        &["`llama.rope.scaling.type`", "`yarn`", "`none`"],
    );
    says(&refusal(|w| w.f32("llama.rope.scale_linear", 4.0)), &["scale_linear", "4"]);
    says(
        &refusal(|w| w.u32("llama.block_count", 2)),
        &["metadata key `llama.block_count` occurs twice"],
    );
}

#[test]
fn keys_that_change_nothing_are_accepted() {
    let mut writer = synthetic::llama_writer(&small());
    writer
        .u32("llama.expert_count", 0)
        .string("llama.rope.scaling.type", "none")
        .u32("llama.vocab_size", 258)
        .u32("general.quantization_version", 2);
    open(&writer.finish()).unwrap();
}

#[test]
fn shapes_that_contradict_the_config_are_refused() {
    let refuse = |spec: Llama| open(&synthetic::llama_writer(&spec).finish()).unwrap_err();
    let heads = arith::attention::Heads { query: 4, kv: 3, dim: 16 };
    says(&refuse(Llama { heads, ..small() }).to_string(), &["head_count_kv", "divisor", "found 3"]);
    // One tensor more than the config speaks of, and one fewer.
    let mut bytes = synthetic::llama_writer(&small()).finish();
    let key = b"llama.block_count";
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 4;
    bytes[at] = 1;
    says(
        &open(&bytes).unwrap_err().to_string(),
        &["9 tensors are not part of this model", "`blk.1.attn_k.weight`"],
    );
    bytes[at] = 3;
    says(
        &open(&bytes).unwrap_err().to_string(),
        &["`blk.2.attn_norm.weight` is missing", "[1, 32]"],
    );
    let key = b"llama.feed_forward_length";
    bytes[at] = 2;
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 4;
    bytes[at] = 96;
    says(
        &open(&bytes).unwrap_err().to_string(),
        &["`blk.0.ffn_gate.weight`", "expected shape [96, 32]", "found [64, 32]"],
    );
}

#[test]
fn tensors_that_do_not_belong_are_refused_by_name() {
    let values = quantise(Format::F32, &[1.0; 32]);
    says(
        &refusal(|w| w.tensor("blk.0.attn_q.bias", Format::F32, &[32], &values)),
        &["1 tensors", "`blk.0.attn_q.bias`"],
    );
    says(
        &refusal(|w| w.tensor("rope_freqs.weight", Format::F32, &[32], &values)),
        &["`rope_freqs.weight` is not supported", "llama3"],
    );
    says(
        &refusal(|w| w.tensor_of_kind("blk.0.x.weight", 10, &[256], &[0; 84])),
        &["`blk.0.x.weight` is Q2_K", "Q8_0, Q4_K, Q5_K or Q6_K"],
    );
    says(
        &refusal(|w| w.tensor("output_norm.weight", Format::F32, &[32], &values)),
        &["tensor `output_norm.weight` occurs twice"],
    );
    says(
        &refusal(|w| w.tensor("x", Format::Q8_0, &[33], &[0; 34])),
        &["`x` has the dims [33]", "multiple of 32 for Q8_0"],
    );
}

#[test]
fn tensors_stay_inside_the_file_and_apart() {
    let bytes = synthetic::llama_writer(&small()).finish();
    says(
        &open(&bytes[..bytes.len() - 1]).unwrap_err().to_string(),
        &["tensor `output_norm.weight`: its 128 bytes", "outside the file"],
    );
    // The last tensor's info ends with its offset, right before the padding and the data.
    let name = b"output_norm.weight";
    let at = bytes.windows(name.len()).rposition(|w| w == name).unwrap() + name.len() + 4 + 8 + 4;
    let offset = u64::from_le_bytes(bytes[at..at + 8].try_into().unwrap());
    let place = |offset: u64| {
        let mut bytes = bytes.clone();
        bytes[at..at + 8].copy_from_slice(&offset.to_le_bytes());
        open(&bytes).unwrap_err().to_string()
    };
    says(&place(offset - 32), &["`blk.1.ffn_norm.weight` and `output_norm.weight` overlap"]);
    says(&place(offset + 1), &["`output_norm.weight`", "aligned to 32"]);
    says(&place(u64::MAX - 31), &["`output_norm.weight`", "outside the file"]);
}

#[test]
fn a_file_that_cannot_be_read_is_named() {
    let missing = Checkpoint::open("/nowhere/model.gguf".as_ref()).unwrap_err().to_string();
    says(&missing, &["/nowhere/model.gguf"]);
    says(&open(b"").unwrap_err().to_string(), &["empty"]);
    says(&open(b"PK\x03\x04....").unwrap_err().to_string(), &[".gguf: no GGUF", "PK\\x03\\x04"]);
    let folder = Checkpoint::open(&std::env::temp_dir()).unwrap_err().to_string();
    says(&folder, &["expected a GGUF file, or a folder", "config.json is not there"]);
}
