//! One model in three containers (`golden/tiny-qwen3_5`): one config, one meaning of every tensor.

use arith::float::bf16_to_f32;
use arith::format::{Format, Matrix, read_row};
use arith::gdn::HeadOrder;
use baton_weights::config::Qwen35;
use baton_weights::{Checkpoint, Config, Manifest, cut};
use safetensors::SafeTensors;

use crate::folder::Folder;
use crate::made::{Made, tiny};

fn open(name: &str) -> Checkpoint {
    Checkpoint::open(&tiny(name)).unwrap()
}

fn config(checkpoint: &Checkpoint) -> Qwen35 {
    let Config::Qwen35(config) = checkpoint.config() else { panic!("another family") };
    config.clone()
}

/// A tensor's rows of values.
fn rows(checkpoint: &Checkpoint, name: &str) -> Vec<Vec<f32>> {
    let mut buffer = Vec::new();
    let matrix = checkpoint.read(name, &mut buffer).unwrap();
    values(&matrix)
}

fn values(matrix: &Matrix<'_>) -> Vec<Vec<f32>> {
    let row = |row| {
        let mut out = vec![0.0; matrix.cols];
        read_row(matrix, row, &mut out);
        out
    };
    (0..matrix.rows).map(row).collect()
}

/// The stored bf16 or f32 values of a tensor of the Hugging Face folder.
fn stored(name: &str) -> Vec<f32> {
    let tensor = Made::tiny("tiny-qwen3_5").tensor(name).clone();
    match tensor.dtype.as_str() {
        "F32" => {
            let wide = tensor.bytes.chunks_exact(4);
            wide.map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
        }
        _ => {
            let half = tensor.bytes.chunks_exact(2);
            half.map(|b| bf16_to_f32(u16::from_le_bytes([b[0], b[1]]))).collect()
        }
    }
}

#[test]
fn a_model_is_named_for_its_file_or_its_folder() {
    assert_eq!(open("tiny-qwen3_5-bf16.gguf").name(), "tiny-qwen3_5-bf16");
    let folder = Folder::new();
    let dots = folder.path().join("Tiny-3.5-27B");
    std::fs::create_dir(&dots).unwrap();
    Made::tiny("tiny-qwen3_5").write(&dots);
    for path in [dots.clone(), dots.join("config.json"), dots.join("..").join("Tiny-3.5-27B")] {
        assert_eq!(Checkpoint::open(&path).unwrap().name(), "Tiny-3.5-27B");
    }
    std::fs::create_dir(dots.join("inner")).unwrap();
    assert_eq!(Checkpoint::open(&dots.join("inner/..")).unwrap().name(), "Tiny-3.5-27B");
}

#[test]
fn three_containers_say_the_same_of_the_model() {
    let expected = config(&open("tiny-qwen3_5"));
    assert_eq!((expected.mixers.len(), expected.mtp, expected.tied), (8, true, false));
    assert_eq!(expected.gdn.order, HeadOrder::Grouped);
    let mut gguf = config(&open("tiny-qwen3_5-bf16.gguf"));
    assert_eq!(gguf.gdn.order, HeadOrder::Tiled);
    gguf.gdn.order = HeadOrder::Grouped;
    assert_eq!(gguf, expected);
    // This conversion left the draft head out.
    assert_eq!(config(&open("tiny-qwen3_5-mlx4")), Qwen35 { mtp: false, ..expected });
}

#[test]
fn norms_gates_and_taps_are_ready_for_a_layer_program() {
    let checkpoint = open("tiny-qwen3_5");
    let hf = "model.language_model.layers";
    for (ours, theirs) in [
        ("blk.0.attn_norm.weight", format!("{hf}.0.input_layernorm.weight")),
        ("blk.0.post_attention_norm.weight", format!("{hf}.0.post_attention_layernorm.weight")),
        ("blk.3.attn_q_norm.weight", format!("{hf}.3.self_attn.q_norm.weight")),
        ("output_norm.weight", "model.language_model.norm.weight".to_owned()),
        ("blk.8.attn_norm.weight", "mtp.layers.0.input_layernorm.weight".to_owned()),
        ("blk.8.nextn.hnorm.weight", "mtp.pre_fc_norm_hidden.weight".to_owned()),
        ("blk.8.nextn.shared_head_norm.weight", "mtp.norm.weight".to_owned()),
    ] {
        let expected: Vec<f32> = stored(&theirs).iter().map(|w| 1.0 + w).collect();
        assert_eq!(rows(&checkpoint, ours), [expected], "{ours}");
    }
    // The gated norm of a recurrent layer is as it is.
    let gated = stored(&format!("{hf}.0.linear_attn.norm.weight"));
    assert_eq!(rows(&checkpoint, "blk.0.ssm_norm.weight"), [gated]);
    let log = stored(&format!("{hf}.0.linear_attn.A_log"));
    let expected: Vec<f32> = log.iter().map(|&x| f64::from(x).exp() as f32).collect();
    assert_eq!(rows(&checkpoint, "blk.0.ssm_a"), [expected]);
    let conv = stored(&format!("{hf}.0.linear_attn.conv1d.weight"));
    let taps = rows(&checkpoint, "blk.0.ssm_conv1d.weight");
    assert_eq!((taps.len(), taps[0].len()), (4, 320));
    for (tap, row) in taps.iter().enumerate() {
        for (channel, &w) in row.iter().enumerate() {
            assert_eq!(w, conv[4 * channel + tap], "tap {tap} of channel {channel}");
        }
    }
}

/// Reorders `all`, heads of `size` items in GGUF's order from `from` on, to Hugging Face's.
fn grouped<T: Clone>(all: &[T], from: usize, size: usize, config: &Qwen35) -> Vec<T> {
    let (keys, each) = (config.gdn.keys, config.gdn.values / config.gdn.keys);
    let head = |head: usize| from + (head % each * keys + head / each) * size;
    let heads = (0..config.gdn.values).flat_map(|h| all[head(h)..head(h) + size].to_vec());
    all[..from].iter().cloned().chain(heads).collect()
}

#[test]
fn gguf_and_hugging_face_mean_the_same_values() {
    let (hf, gguf) = (open("tiny-qwen3_5"), open("tiny-qwen3_5-bf16.gguf"));
    let config = config(&gguf);
    let (value, key) = (config.gdn.value_dim, 2 * config.gdn.key_width());
    let names = |c: &Checkpoint| c.tensors().iter().map(|t| t.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&hf), names(&gguf));
    for name in names(&hf) {
        let (ours, theirs) = (rows(&hf, &name), rows(&gguf, &name));
        let part = name.split('.').nth(2).unwrap_or_default();
        let each =
            |from, size| theirs.iter().map(|row| grouped(row, from, size, &config)).collect();
        let theirs: Vec<Vec<f32>> = match part {
            "attn_qkv" => grouped(&theirs, key, value, &config),
            "attn_gate" => grouped(&theirs, 0, value, &config),
            "ssm_alpha" | "ssm_beta" => grouped(&theirs, 0, 1, &config),
            "ssm_conv1d" => each(key, value),
            "ssm_out" => each(0, value),
            "ssm_a" | "ssm_dt" => each(0, 1),
            _ => theirs,
        };
        if part == "ssm_a" {
            // Its writer's exp is an f32 one.
            let near = |(a, b): (&f32, &f32)| a.to_bits().abs_diff(b.to_bits()) <= 1;
            assert!(ours[0].iter().zip(&theirs[0]).all(near), "{name}: {ours:?}, {theirs:?}");
        } else {
            assert!(ours == theirs, "{name} differs");
        }
    }
}

#[test]
fn mlx_norms_are_ready_as_they_are_stored_and_its_taps_lie_the_same() {
    let (hf, mlx) = (open("tiny-qwen3_5"), open("tiny-qwen3_5-mlx4"));
    for name in ["blk.0.ssm_conv1d.weight", "blk.0.ssm_a", "blk.0.ssm_norm.weight"] {
        assert_eq!(rows(&mlx, name), rows(&hf, name), "{name}");
    }
    // MLX rounds 1 + w to bf16.
    for name in ["blk.0.attn_norm.weight", "blk.7.attn_k_norm.weight", "output_norm.weight"] {
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= b.abs() / 256.0;
        let (ours, exact) = (&rows(&mlx, name)[0], &rows(&hf, name)[0]);
        assert!(ours.iter().zip(exact).all(near), "{name}");
    }
}

#[test]
fn mlx_matrices_have_the_codes_of_their_three_tensors() {
    let checkpoint = open("tiny-qwen3_5-mlx4");
    let kind = |name: &str| checkpoint.info(name).unwrap().kind();
    assert_eq!(kind("token_embd.weight"), "MLX4/64/BF16 512x64");
    assert_eq!(kind("blk.3.attn_v.weight"), "MLX8/32/BF16 128x64");
    assert_eq!(kind("blk.5.ffn_down.weight"), "BF16 64x128");
    let widened = Checkpoint::open_widened(&tiny("tiny-qwen3_5-mlx4")).unwrap();
    let oracle = std::fs::read(tiny("oracles/tiny-qwen3_5-mlx4.safetensors")).unwrap();
    let oracle = SafeTensors::deserialize(&oracle).unwrap();
    for (ours, theirs) in [
        ("blk.0.ssm_alpha.weight", "0.linear_attn.in_proj_a"),
        ("blk.0.attn_gate.weight", "0.linear_attn.in_proj_z"),
        ("blk.0.ffn_down.weight", "0.mlp.down_proj"),
        ("blk.3.attn_v.weight", "3.self_attn.v_proj"),
    ] {
        let name = format!("dequant.language_model.model.layers.{theirs}");
        let expected = oracle.tensor(&name).unwrap();
        let mut buffer = Vec::new();
        let found = widened.read(ours, &mut buffer).unwrap();
        assert_eq!(
            (found.format, &[found.rows, found.cols]),
            (Format::F32, expected.shape().first_chunk().unwrap())
        );
        assert!(found.bytes == expected.data(), "{ours} differs");
        // The same codes in one rounding.
        let (twice, once) = (values(&found), rows(&checkpoint, ours));
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-6;
        assert!(once.concat().iter().zip(&twice.concat()).all(near), "{ours}");
    }
}

/// Opens layers `range` of a folder, cut.
fn part(name: &str, range: std::ops::Range<u32>) -> (Folder, Checkpoint) {
    let whole = open(name);
    let folder = Folder::new();
    let manifest = Manifest::of(&whole, None).unwrap();
    let path = cut(&whole, &manifest, range, folder.path()).unwrap();
    assert_eq!(path, folder.path());
    let part = Checkpoint::open(&path).unwrap();
    (folder, part)
}

#[test]
fn a_part_of_a_folder_is_a_folder_with_its_own_tensors_alone() {
    for name in ["tiny-qwen3_5", "tiny-qwen3_5-mlx4"] {
        let whole = open(name);
        // Layer 3 has no convolution, by which a whole model tells its form.
        for range in [0..2, 2..6, 3..4, 0..8] {
            let (folder, part) = part(name, range.clone());
            assert_eq!(part.config(), whole.config());
            assert_eq!(part.name(), folder.path().file_name().unwrap().to_str().unwrap());
            part.check_held(range.clone(), range.start == 0).unwrap();
            for tensor in whole.tensors() {
                let layer = tensor.layer().filter(|&layer| layer < 8);
                let held = layer.map_or(range.start == 0, |layer| range.contains(&layer));
                let (mut ours, mut theirs) = (Vec::new(), Vec::new());
                let read = part.read(&tensor.name, &mut theirs);
                if held {
                    let expected = whole.read(&tensor.name, &mut ours).unwrap();
                    assert!(read.unwrap().bytes == expected.bytes, "{}", tensor.name);
                    assert_eq!(part.digest(&tensor.name).ok(), whole.digest(&tensor.name).ok());
                } else {
                    let said = read.unwrap_err().to_string();
                    assert!(said.contains("a part of its model only"), "{said}");
                }
            }
            // Others read it too, and find every value at a multiple of its width.
            let bytes = std::fs::read(folder.path().join("model.safetensors")).unwrap();
            let (size, metadata) = SafeTensors::read_metadata(&bytes).unwrap();
            assert!(size.is_multiple_of(8) && !metadata.tensors().is_empty());
            for (name, info) in metadata.tensors() {
                let wide = info.dtype.bitsize() / 8;
                assert!(info.data_offsets.0.is_multiple_of(wide), "{name}: {info:?}");
            }
            assert!(folder.path().join("tokenizer.json").exists());
            assert!(!folder.path().join("model.safetensors.index.json").exists());
        }
    }
}

#[test]
fn a_part_of_a_gguf_file_has_its_draft_head_with_the_ends() {
    let whole = open("tiny-qwen3_5-bf16.gguf");
    let manifest = Manifest::of(&whole, None).unwrap();
    let held = |range: std::ops::Range<u32>| {
        let folder = Folder::new();
        let part =
            Checkpoint::open(&cut(&whole, &manifest, range, folder.path()).unwrap()).unwrap();
        let names = ["blk.8.nextn.eh_proj.weight", "blk.1.ssm_conv1d.weight"];
        names.map(|name| part.digest(name).ok() == whole.digest(name).ok())
    };
    assert_eq!([held(0..2), held(1..3), held(3..5)], [[true, true], [false, true], [false, false]]);
    let beyond = |c: &Checkpoint| c.tensors().iter().filter(|t| t.layer() == Some(8)).count();
    assert!(beyond(&whole) > 10);
    assert!(whole.part(0..8, true).all(|tensor| tensor.layer() != Some(8)));
}

#[test]
fn a_part_of_a_folder_is_not_written_over_another() {
    let (folder, _) = part("tiny-qwen3_5", 0..2);
    let whole = open("tiny-qwen3_5");
    let manifest = Manifest::of(&whole, None).unwrap();
    let said = cut(&whole, &manifest, 2..4, folder.path()).unwrap_err().to_string();
    assert!(said.contains("model.safetensors: ") && said.contains("exists"), "{said}");
    // A spoilt byte is found on its way.
    let mut made = Made::tiny("tiny-qwen3_5");
    made.tensor("layers.3.mlp.up_proj.weight").bytes[5] ^= 1;
    let (source, target) = (Folder::new(), Folder::new());
    made.write(source.path());
    std::fs::copy(tiny("tiny-qwen3_5/config.json"), source.path().join("config.json")).unwrap();
    let spoilt = Checkpoint::open(source.path()).unwrap();
    let said = cut(&spoilt, &manifest, 3..4, target.path()).unwrap_err().to_string();
    assert!(said.contains("`blk.3.ffn_up.weight` has another SHA-256"), "{said}");
    // What it left is no hindrance, another model's config and shards are.
    cut(&whole, &manifest, 3..4, target.path()).unwrap();
    for (name, text) in [("config.json", "{}"), ("model.safetensors.index.json", "{}")] {
        let other = Folder::new();
        std::fs::write(other.path().join(name), text).unwrap();
        let said = cut(&whole, &manifest, 3..4, other.path()).unwrap_err().to_string();
        assert!(said.contains(name) && said.contains("exists"), "{said}");
        assert_eq!(std::fs::read_to_string(other.path().join(name)).unwrap(), text);
    }
}
