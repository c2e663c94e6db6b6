//! Files that hold a part of their model, the manifest that says what the rest is, and digests.

use std::ops::Range;
use std::path::{Path, PathBuf};

use arith::format::Format;
use baton_weights::gguf::write::Writer;
use baton_weights::synthetic::{self, Llama};
use baton_weights::{Checkpoint, Digests, MANIFEST_FILE, Manifest, cut};
use proptest::prelude::*;
use serde_json::Value;
use sha2::{Digest as _, Sha256};

use crate::folder::Folder;

const SPEC: Llama = Llama {
    layers: 4,
    hidden: 32,
    intermediate: 64,
    vocab: 258,
    heads: arith::attention::Heads { query: 2, kv: 1, dim: 16 },
    eps: 1e-5,
    theta: 10_000.0,
    context_max: 64,
    tied: false,
    format: Format::Q4_0,
    ends_format: Format::Q8_0,
    q4_k_m: false,
    seed: 5,
};

/// The whole model in a folder of its own.
fn whole() -> (Folder, Checkpoint) {
    let folder = Folder::new();
    let path = folder.path().join("model.gguf");
    synthetic::llama(&path, &SPEC).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    (folder, checkpoint)
}

/// Layers `range` of it.
fn part(range: Range<u32>) -> (Folder, PathBuf) {
    let (_whole, checkpoint) = whole();
    let folder = Folder::new();
    let manifest = Manifest::of(&checkpoint, None).unwrap();
    let path = cut(&checkpoint, &manifest, range, folder.path()).unwrap();
    (folder, path)
}

fn names(checkpoint: &Checkpoint) -> Vec<&str> {
    checkpoint.tensors().iter().map(|t| t.name.as_str()).collect()
}

fn refusal(path: &Path) -> String {
    Checkpoint::open(path).unwrap_err().to_string()
}

#[track_caller]
fn says(said: &str, parts: &[&str]) {
    for part in parts {
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
}

/// Changes one byte of a file in place.
fn flip(path: &Path, at: u64) {
    let mut bytes = std::fs::read(path).unwrap();
    bytes[at as usize] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

#[test]
fn a_part_knows_its_whole_model_and_holds_its_own_tensors_alone() {
    let (_whole, whole) = whole();
    for range in [0..1, 1..3, 3..4, 0..4] {
        let (_folder, path) = part(range.clone());
        let part = Checkpoint::open(&path).unwrap();
        assert_eq!(part.config(), whole.config());
        assert_eq!(part.metadata(), whole.metadata());
        assert_eq!(names(&part), names(&whole));
        let (mut ours, mut theirs) = (Vec::new(), Vec::new());
        for (tensor, other) in whole.tensors().iter().zip(part.tensors()) {
            assert_eq!(tensor.kind(), other.kind());
            let held = tensor.layer().map_or(range.start == 0, |layer| range.contains(&layer));
            let read = part.read(&tensor.name, &mut theirs);
            if held {
                let expected = whole.read(&tensor.name, &mut ours).unwrap().bytes;
                assert_eq!(read.unwrap().bytes, expected, "{}", tensor.name);
            } else {
                let said = read.unwrap_err().to_string();
                says(&said, &[&tensor.name, "is not in", "model.gguf", "a part"]);
            }
        }
        part.check_held(range.clone(), range.start == 0).unwrap();
        let held = whole.bytes_of(range.clone(), range.start == 0);
        let (file, header) = (path.metadata().unwrap().len(), part.metadata());
        assert!(file >= held && file < held + 20_000, "{file} for {held}, {header:?}");
    }
}

#[test]
fn a_range_beyond_the_part_is_refused_with_the_first_tensor_missing() {
    let (_folder, path) = part(1..3);
    let part = Checkpoint::open(&path).unwrap();
    let said = part.check_held(1..4, false).unwrap_err().to_string();
    says(&said, &["`blk.3.attn_k.weight`"]);
    let said = part.check_held(1..3, true).unwrap_err().to_string();
    says(&said, &["`output.weight`"]);
    let said = Manifest::of(&part, None).unwrap_err().to_string();
    says(&said, &["is not in"]);
}

#[test]
fn a_part_may_be_cut_again_but_only_within_itself() {
    let (_folder, path) = part(1..4);
    let part = Checkpoint::open(&path).unwrap();
    let folder = Folder::new();
    let manifest = part.manifest().unwrap();
    let again = cut(&part, manifest, 2..3, &folder.path().join("deeper")).unwrap();
    Checkpoint::open(&again).unwrap().check_held(2..3, false).unwrap();
    let said = cut(&part, manifest, 0..2, folder.path()).unwrap_err().to_string();
    says(&said, &["blk.0.attn_k.weight", "is not in"]);
}

#[test]
fn a_part_needs_its_manifest() {
    let (folder, path) = part(1..3);
    let renamed = folder.path().join("renamed.gguf");
    std::fs::copy(&path, &renamed).unwrap();
    std::fs::remove_file(folder.path().join(MANIFEST_FILE)).unwrap();
    for path in [path, renamed] {
        says(
            &refusal(&path),
            &["`token_embd.weight` is missing", "no baton.manifest.json for this file"],
        );
    }
}

#[test]
fn a_part_that_lacks_a_tensor_of_its_range_opens_and_names_it_when_asked() {
    let (folder, path) = part(1..3);
    let name = "blk.2.ffn_up.weight";
    // What a copy that lost it holds.
    let mut writer = synthetic::llama_writer(&Llama { layers: 0, ..SPEC });
    for tensor in Checkpoint::open(&path).unwrap().part(1..3, false) {
        if tensor.name != name {
            let dims = [tensor.cols as u64, tensor.rows as u64];
            let dims = if tensor.rows == 1 { &dims[..1] } else { &dims[..] };
            writer.tensor(&tensor.name, tensor.format, dims, &vec![0; tensor.bytes]);
        }
    }
    let mut bytes = writer.finish();
    let key = b"llama.block_count";
    let at = bytes.windows(key.len()).position(|w| w == key).unwrap() + key.len() + 4;
    bytes[at] = 4;
    std::fs::write(folder.path().join("model.gguf"), bytes).unwrap();
    let lacking = Checkpoint::open(&path).unwrap();
    let said = lacking.check_held(1..3, false).unwrap_err().to_string();
    says(&said, &[name, "is not in"]);
}

#[test]
fn a_manifest_and_a_file_that_disagree_are_refused_by_tensor() {
    let (folder, path) = part(1..3);
    let at = folder.path().join(MANIFEST_FILE);
    let text = std::fs::read_to_string(&at).unwrap();
    let line = text.lines().find(|line| line.contains("blk.1.ffn_up")).unwrap();
    let changed = |from: &str, to: &str| {
        assert!(line.contains(from), "{line}");
        std::fs::write(&at, text.replace(line, &line.replace(from, to))).unwrap();
        refusal(&path)
    };
    let name = "blk.1.ffn_up.weight";
    says(
        &changed("Q4_0", "Q8_0"),
        &[name, "says Q8_0 64x32", "the file holds Q4_0 64x32", "`baton manifest`"],
    );
    says(&changed("[64,32]", "[32,32]"), &[name, "says Q4_0 32x32"]);
    says(&changed("blk.1.ffn_up", "blk.1.ffn_uq"), &[name, "that there is none"]);
    says(&changed("\"blk.1.ffn_up", "\"blk.0.ffn_up"), &["`blk.0.ffn_up.weight` occurs twice"]);
    says(&changed("Q4_0", "Q2_K"), &[name, "Q2_K", "expected F32"]);
    says(&changed("[64,32]", "[0,32]"), &[name, "shape", "[0, 32]"]);
    says(&changed("[64,32]", "[64,33]"), &[name, "multiple of 32"]);
    says(&changed("sha256\":\"", "sha256\":\"é"), &[name, "64 hexadecimal digits"]);
    let version = text.replace("\"version\": 1", "\"version\": 2");
    std::fs::write(&at, version).unwrap();
    says(&refusal(&path), &[MANIFEST_FILE, "expected 1, found 2"]);
    // Gone from the list altogether: not a tensor that the family can miss.
    let without: Vec<&str> = text.lines().filter(|l| !l.contains("blk.0.ffn_up")).collect();
    std::fs::write(&at, without.join("\n")).unwrap();
    says(&refusal(&path), &["`blk.0.ffn_up.weight` is missing"]);
    std::fs::write(&at, &text[..text.len() / 2]).unwrap();
    says(&refusal(&path), &[MANIFEST_FILE, "no manifest of a model"]);
}

#[test]
fn a_manifest_of_another_file_says_nothing_of_this_one() {
    let (folder, checkpoint) = whole();
    Manifest::of(&checkpoint, None).unwrap().write(folder.path()).unwrap();
    let other = folder.path().join("other.gguf");
    synthetic::llama(&other, &Llama { layers: 2, ..SPEC }).unwrap();
    assert!(Checkpoint::open(&other).unwrap().manifest().is_none());
    let own = Checkpoint::open(checkpoint.path()).unwrap();
    assert_eq!(own.manifest(), Some(&Manifest::of(&own, None).unwrap()));
}

#[test]
fn a_manifest_is_not_written_over_one_that_another_file_needs() {
    let (folder, path) = part(1..3);
    let other = folder.path().join("other.gguf");
    synthetic::llama(&other, &SPEC).unwrap();
    let manifest = Manifest::of(&Checkpoint::open(&other).unwrap(), None).unwrap();
    let said = manifest.write(folder.path()).unwrap_err().to_string();
    says(&said, &[MANIFEST_FILE, "`model.gguf`", "`other.gguf`"]);
    Checkpoint::open(&path).unwrap();
    // Its own, one of a file that is gone, and noise are.
    let at = folder.path().join(MANIFEST_FILE);
    std::fs::remove_file(path).unwrap();
    manifest.write(folder.path()).unwrap();
    manifest.write(folder.path()).unwrap();
    std::fs::write(&at, "{").unwrap();
    manifest.write(folder.path()).unwrap();
    assert_eq!(std::fs::read_to_string(at).unwrap(), manifest.to_json());
}

#[test]
fn a_manifest_reads_back_and_its_digests_are_those_of_the_bytes() {
    let (_folder, checkpoint) = whole();
    let manifest = Manifest::of(&checkpoint, None).unwrap();
    let text = manifest.to_json();
    assert_eq!(Manifest::parse(text.as_bytes()).unwrap(), manifest);
    let json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["tensors"].as_array().unwrap().len(), checkpoint.tensors().len());
    for tensor in checkpoint.tensors() {
        let digest = checkpoint.digest(&tensor.name).unwrap();
        assert_eq!(manifest.digests().get(&tensor.name), Some(digest));
    }
    // The last tensor of the file, by its place alone.
    let bytes = std::fs::read(checkpoint.path()).unwrap();
    let last = Sha256::digest(&bytes[bytes.len() - 4 * SPEC.hidden..]);
    assert_eq!(manifest.digests().get("output_norm.weight"), Some(last.into()));
}

#[test]
fn a_cut_refuses_what_it_cannot_write_truly() {
    let (source, checkpoint) = whole();
    let manifest = Manifest::of(&checkpoint, None).unwrap();
    let folder = Folder::new();
    let said = |range| cut(&checkpoint, &manifest, range, folder.path()).unwrap_err().to_string();
    says(&said(2..2), &["layers 2:2", "0:4"]);
    says(&said(2..5), &["layers 2:5", "0:4"]);
    let over = cut(&checkpoint, &manifest, 0..4, source.path()).unwrap_err().to_string();
    says(&over, &["model.gguf", "exists"]);
    let tensor = checkpoint.info("blk.2.ffn_up.weight").unwrap();
    flip(checkpoint.path(), tensor.offset().unwrap() + tensor.bytes as u64 - 1);
    says(&said(2..3), &["`blk.2.ffn_up.weight` has another SHA-256"]);
    let left: Vec<_> = std::fs::read_dir(folder.path()).unwrap().flatten().collect();
    assert!(left.iter().all(|entry| entry.file_name() == MANIFEST_FILE), "{left:?}");
    cut(&checkpoint, &manifest, 1..2, folder.path()).unwrap();
}

#[test]
fn a_changed_byte_changes_the_digest_of_its_layer_alone() {
    let (_folder, before) = whole();
    let layers = |checkpoint: &Checkpoint| -> Vec<_> {
        let digests = Digests::of(checkpoint, &names(checkpoint), None).unwrap();
        let over = |part: Vec<_>| digests.over(part).unwrap();
        let part = |range, ends| checkpoint.part(range, ends).map(|t| t.name.as_str()).collect();
        let mut all: Vec<_> = (0..4).map(|n| over(part(n..n + 1, false))).collect();
        all.push(over(part(0..0, true)));
        all
    };
    let old = layers(&before);
    let tensor = before.info("blk.1.ffn_up.weight").unwrap();
    flip(before.path(), tensor.offset().unwrap() + tensor.bytes as u64 - 1);
    let new = layers(&Checkpoint::open(before.path()).unwrap());
    let changed: Vec<_> = (0..5).filter(|&at| old[at] != new[at]).collect();
    assert_eq!(changed, [1]);
}

/// The file in which the digests of the only checkpoint are kept.
fn kept(cache: &Folder) -> PathBuf {
    let mut files = std::fs::read_dir(cache.path().join("digests")).unwrap();
    let file = files.next().unwrap().unwrap().path();
    assert!(files.next().is_none());
    file
}

#[test]
fn kept_digests_are_used_while_the_file_is_as_it_was() {
    let (_folder, checkpoint) = whole();
    let cache = Folder::new();
    let of = |checkpoint: &Checkpoint, names: &[&str]| {
        Digests::of(checkpoint, names, Some(cache.path())).unwrap()
    };
    let (one, other) = ("blk.0.attn_q.weight", "blk.0.attn_k.weight");
    let true_one = of(&checkpoint, &[one]).get(one).unwrap();
    assert_eq!(true_one, checkpoint.digest(one).unwrap());
    // Another tensor joins what is kept, and a kept one is not read again.
    of(&checkpoint, &[other]);
    let text = std::fs::read_to_string(kept(&cache)).unwrap();
    let mut json: Value = serde_json::from_str(&text).unwrap();
    assert_eq!(json["tensors"].as_object().unwrap().len(), 2);
    json["tensors"][one] = "0".repeat(64).into();
    std::fs::write(kept(&cache), json.to_string()).unwrap();
    let both = of(&checkpoint, &[one, other]);
    assert_eq!((both.get(one), both.get(other)), (Some([0; 32]), checkpoint.digest(other).ok()));
    // A written file is another one, whatever its size.
    let bytes = std::fs::read(checkpoint.path()).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    std::fs::write(checkpoint.path(), bytes).unwrap();
    let again = Checkpoint::open(checkpoint.path()).unwrap();
    assert_eq!(of(&again, &[one]).get(one), Some(true_one));
}

#[test]
fn a_cache_that_is_spoilt_or_cannot_be_written_changes_nothing() {
    let (_folder, checkpoint) = whole();
    let cache = Folder::new();
    let name = "blk.0.attn_q.weight";
    let expected = checkpoint.digest(name).ok();
    let of = |cache: &Path| Digests::of(&checkpoint, &[name], Some(cache)).unwrap().get(name);
    of(cache.path());
    for spoilt in ["", "{", "[1]", "{\"tensors\":{}}"] {
        std::fs::write(kept(&cache), spoilt).unwrap();
        assert_eq!(of(cache.path()), expected, "{spoilt}");
    }
    // A file where a folder should be.
    assert_eq!(of(checkpoint.path()), expected);
    assert_eq!(of(Path::new("/proc/nowhere")), expected);
}

#[test]
fn a_header_larger_than_its_first_read_opens() {
    let folder = Folder::new();
    let path = folder.path().join("wide.gguf");
    let mut writer = synthetic::llama_writer(&SPEC);
    for key in 0..3 {
        writer.string(&format!("general.licence.{key}"), &"x".repeat(3 << 20));
    }
    std::fs::write(&path, writer.finish()).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert!(checkpoint.tensors().iter().all(|t| t.offset().unwrap() > 9 << 20));
    let bytes = std::fs::read(&path).unwrap();
    std::fs::write(&path, &bytes[..5 << 20]).unwrap();
    says(&refusal(&path), &["the file ends inside", "general.licence.1"]);
}

#[test]
fn a_tensor_whose_source_gives_other_bytes_than_announced_is_refused() {
    for (announced, given) in [(8, 4), (8, 12)] {
        let mut writer = Writer::new();
        let bytes = vec![0u8; given];
        writer.tensor_from("x", Format::F32, &[2], announced, move |out| out.write_all(&bytes));
        let said = writer.write_to(&mut Vec::new()).unwrap_err().to_string();
        says(&said, &[&format!("a tensor of {announced} bytes got {given}")]);
    }
}

#[test]
fn a_checkpoint_of_a_size_is_at_least_that_large_with_wide_rows() {
    for (bytes, format) in
        [(1 << 20, Format::Q8_0), (160 << 20, Format::Q4_0), (1 << 30, Format::F16)]
    {
        let spec = Llama::of_bytes(bytes, format);
        for width in [spec.hidden, spec.intermediate, spec.vocab] {
            assert!(width.is_multiple_of(256), "{spec:?}");
        }
        let one = Llama { layers: spec.layers - 1, ..spec.clone() };
        let size = |spec: &Llama| spec.bytes();
        assert!(size(&spec) >= bytes && (spec.layers == 1 || size(&one) < bytes), "{spec:?}");
    }
}

#[test]
fn a_refused_manifest_repeats_little_of_a_bad_value() {
    let long = "x".repeat(9_999);
    let entry = |dtype: &str| serde_json::json!({"name": "a", "dtype": dtype, "shape": [1, 32], "sha256": long});
    for tensors in [vec![entry("Q8_0")], vec![entry(&long)], vec![Value::from(long.clone())]] {
        let text = serde_json::json!({"version": 1, "file": "a", "tensors": tensors}).to_string();
        let said = Manifest::parse(text.as_bytes()).unwrap_err().to_string();
        assert!(said.contains("xxx") && said.len() < 1_000, "{said}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn a_mutated_manifest_never_panics(
        edits in prop::collection::vec((0usize..10_000, any::<u8>()), 1..6),
    ) {
        static TEXT: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| {
            let (_folder, checkpoint) = whole();
            Manifest::of(&checkpoint, None).unwrap().to_json()
        });
        let mut bytes = TEXT.clone().into_bytes();
        let length = bytes.len();
        for (at, value) in edits {
            bytes[at % length] = value;
        }
        if let Ok(manifest) = Manifest::parse(&bytes) {
            prop_assert_eq!(Manifest::parse(manifest.to_json().as_bytes()).unwrap(), manifest);
        }
    }
}
