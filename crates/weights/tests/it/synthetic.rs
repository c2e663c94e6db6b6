//! Made qwen3_5 checkpoints.

use arith::attention::Heads;
use arith::format::{Format, read_float, read_row};
use arith::gdn::Gdn;
use baton_weights::synthetic::{self, Llama, Qwen35};
use baton_weights::{Checkpoint, Config, WeightsError, requantise, shorten};

use crate::folder::Folder;

#[test]
fn a_made_checkpoint_opens_in_every_format_with_the_shapes_it_was_made_of() {
    let folder = Folder::new();
    for (at, format) in Format::plain_all().enumerate() {
        let spec = Qwen35 {
            hidden: 256,
            intermediate: 512,
            heads: Heads { query: 4, kv: 2, dim: 64 },
            gdn: Gdn { value_dim: 64, ..Qwen35::default().gdn },
            tied: at % 2 == 0,
            mtp: at % 3 == 0,
            format,
            ..Qwen35::default()
        };
        let path = folder.path().join(format!("{format}.gguf"));
        synthetic::qwen3_5(&path, &spec).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let Config::Qwen35(config) = checkpoint.config() else { panic!("another family") };
        assert_eq!((config.heads, config.gdn, config.hidden), (spec.heads, spec.gdn, 256));
        assert_eq!((config.tied, config.mtp), (spec.tied, spec.mtp), "{format}");
        assert_eq!(checkpoint.info("blk.0.attn_qkv.weight").unwrap().format, format);
        assert_eq!(checkpoint.tensors().iter().map(|t| t.bytes as u64).sum::<u64>(), spec.bytes());
        let mut buffer = Vec::new();
        let a = checkpoint.read("blk.1.ssm_a", &mut buffer).unwrap();
        let a: Vec<f32> = (0..a.cols).map(|i| read_float(a.format, a.bytes, i)).collect();
        assert!(a.iter().all(|a| (0.0..1.0).contains(a)), "{a:?}");
    }
}

#[test]
fn a_made_checkpoint_of_a_size_is_at_least_that_large() {
    for (bytes, format) in
        [(1 << 20, Format::Q8_0), (160 << 20, Format::Q6K), (1 << 30, Format::F16)]
    {
        let spec = Qwen35::of_bytes(bytes, format);
        let fewer = Qwen35 { layers: spec.layers - 4, ..spec.clone() };
        assert!(spec.bytes() >= bytes && (spec.layers == 4 || fewer.bytes() < bytes), "{spec:?}");
    }
}

#[test]
fn a_mix_keeps_the_head_and_every_third_value_and_down_matrix_finer() {
    let folder = Folder::new();
    let made = |name: &str| folder.path().join(name);
    let spec = Llama { layers: 16, q4_k_m: true, tied: false, ..Llama::of_bytes(0, Format::Q8_0) };
    synthetic::llama(&made("llama"), &spec).unwrap();
    let mix = Qwen35 { layers: 4, q4_k_m: true, tied: true, ..Qwen35::of_bytes(0, Format::Q8_0) };
    synthetic::qwen3_5(&made("qwen3_5"), &mix).unwrap();
    let format = |file: &str, name: &str| {
        let checkpoint = Checkpoint::open(&made(file)).unwrap();
        checkpoint.info(&format!("{name}.weight")).unwrap().format
    };
    for (file, name, expected) in [
        ("llama", "token_embd", Format::Q4K),
        ("llama", "output", Format::Q6K),
        ("llama", "blk.2.attn_q", Format::Q4K),
        ("llama", "output_norm", Format::F32),
        ("qwen3_5", "token_embd", Format::Q6K),
        ("qwen3_5", "blk.0.attn_qkv", Format::Q5K),
        ("qwen3_5", "blk.0.ssm_out", Format::Q4K),
    ] {
        assert_eq!(format(file, name), expected, "{file} {name}");
    }
    let finer = [0, 1, 4, 7, 10, 13, 14, 15];
    for layer in 0..16 {
        for name in ["attn_v", "ffn_down"] {
            let expected = if finer.contains(&layer) { Format::Q6K } else { Format::Q4K };
            assert_eq!(format("llama", &format!("blk.{layer}.{name}")), expected, "layer {layer}");
        }
    }
}

#[test]
fn a_requantised_checkpoint_has_the_same_values_but_for_half_a_step() {
    let folder = Folder::new();
    let (from, to) = (folder.path().join("from.gguf"), folder.path().join("to.gguf"));
    let spec = Llama { format: Format::F16, ends_format: Format::F16, ..Llama::default() };
    synthetic::llama(&from, &spec).unwrap();
    let from = Checkpoint::open(&from).unwrap();
    requantise(&from, Format::Q8_0, &to).unwrap();
    let to = Checkpoint::open(&to).unwrap();
    let keys = |of: &Checkpoint| format!("{:?}", of.metadata().unwrap());
    assert_eq!((keys(&from), from.config()), (keys(&to), to.config()));
    for tensor in to.tensors() {
        let matrix = tensor.name.starts_with("blk.") && tensor.rows > 1;
        let expected = if matrix { Format::Q8_0 } else { from.info(&tensor.name).unwrap().format };
        assert_eq!(tensor.format, expected, "{}", tensor.name);
        let (mut a, mut b) = (Vec::new(), Vec::new());
        let (a, b) = (from.read(&tensor.name, &mut a), to.read(&tensor.name, &mut b));
        let (a, b) = (a.unwrap(), b.unwrap());
        let (mut x, mut y) = (vec![0.0; a.cols], vec![0.0; b.cols]);
        for row in 0..a.rows {
            read_row(&a, row, &mut x);
            read_row(&b, row, &mut y);
            // Linears of 64 columns and more hold values of at most 0.22.
            let most = if matrix { 0.22 / 254.0 + 1e-4 } else { 0.0 };
            assert!(x.iter().zip(&y).all(|(x, y)| (x - y).abs() <= most), "{}", tensor.name);
        }
    }
}

#[test]
fn a_shortened_checkpoint_is_a_whole_model_of_its_first_layers() {
    let folder = Folder::new();
    let (from, to) = (folder.path().join("from.gguf"), folder.path().join("to.gguf"));
    synthetic::llama(&from, &Llama { layers: 4, ..Llama::default() }).unwrap();
    let from = Checkpoint::open(&from).unwrap();
    shorten(&from, 3, &to).unwrap();
    let to = Checkpoint::open(&to).unwrap();
    assert_eq!(to.config().layers(), 3);
    assert!(to.tensors().len() < from.tensors().len());
    for tensor in to.tensors() {
        assert_eq!(to.digest(&tensor.name).unwrap(), from.digest(&tensor.name).unwrap());
    }
    for layers in [0, 5] {
        let error = shorten(&from, layers, &folder.path().join("none.gguf")).unwrap_err();
        assert!(matches!(error, WeightsError::Range { layers: 4, .. }), "{error}");
    }
}
