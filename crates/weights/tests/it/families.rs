//! The tiny qwen3_5 model (`golden/tiny-qwen3_5`) in all three containers.

use std::path::{Path, PathBuf};

use arith::format::{Format, Matrix, read_float};
use arith::gdn::HeadOrder;
use baton_weights::config::Qwen35;
use baton_weights::synthetic;
use baton_weights::{Checkpoint, Config};

use crate::folder::Folder;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/tiny-qwen3_5").join(name)
}

fn tiny(name: &str) -> (Checkpoint, Qwen35) {
    let checkpoint = Checkpoint::open(&golden(name)).unwrap();
    match checkpoint.config().clone() {
        Config::Qwen35(config) => (checkpoint, config),
        other => panic!("{other:?}"),
    }
}

/// A tensor's values as a layer program gets them.
fn values(checkpoint: &Checkpoint, name: &str) -> (usize, Vec<f32>) {
    let mut buffer = Vec::new();
    let Matrix { format, rows, cols, .. } = checkpoint.read(name, &mut buffer).unwrap();
    let stored = &buffer[..rows * cols * format.unit_bytes()];
    (rows, (0..rows * cols).map(|i| read_float(format, stored, i)).collect())
}

#[test]
fn all_containers_give_one_config() {
    let (_, folder) = tiny("tiny-qwen3_5");
    let (_, gguf) = tiny("tiny-qwen3_5-bf16.gguf");
    let (_, mlx) = tiny("tiny-qwen3_5-mlx4");
    assert_eq!((folder.gdn.order, gguf.gdn.order), (HeadOrder::Grouped, HeadOrder::Tiled));
    assert!(folder.mtp && gguf.mtp && !mlx.mtp);
    let mut like = gguf;
    like.gdn.order = HeadOrder::Grouped;
    // A binary32 in the one file, a decimal in the other.
    assert_eq!(like.eps, folder.eps);
    assert_eq!(like, folder);
    assert_eq!(Qwen35 { mtp: true, ..mlx }, folder);
}

#[test]
fn all_containers_give_the_same_names_and_mean_the_same_values() {
    let (folder, config) = tiny("tiny-qwen3_5");
    let (gguf, _) = tiny("tiny-qwen3_5-bf16.gguf");
    let (mlx, _) = tiny("tiny-qwen3_5-mlx4");
    let names = |c: &Checkpoint| c.tensors().iter().map(|t| t.name.clone()).collect::<Vec<_>>();
    assert_eq!(names(&folder), names(&gguf));
    let trunk: Vec<String> =
        names(&folder).into_iter().filter(|name| !name.starts_with("blk.8.")).collect();
    assert_eq!(names(&mlx), trunk);
    let gdn = config.gdn;
    // Where stored value head `p` comes from.
    let order = |p: usize| p % gdn.keys * (gdn.values / gdn.keys) + p / gdn.keys;
    let heads = |values: &[f32], width: usize| -> Vec<f32> {
        let head = |p| values[order(p) * width..][..width].to_vec();
        (0..gdn.values).flat_map(head).collect()
    };
    for name in names(&folder) {
        let ((rows, expected), (rows_there, found)) =
            (values(&folder, &name), values(&gguf, &name));
        assert_eq!(rows, rows_there, "{name}");
        let cols = expected.len() / rows;
        let keys = 2 * gdn.key_width();
        let expected = match name.rsplit_once("blk.").map_or("", |(_, rest)| &rest[2..]) {
            "ssm_a" | "ssm_dt.bias" => heads(&expected, 1),
            "ssm_alpha.weight" | "ssm_beta.weight" => heads(&expected, cols),
            "attn_gate.weight" => heads(&expected, gdn.value_dim * cols),
            "attn_qkv.weight" => {
                let (first, rest) = expected.split_at(keys * cols);
                [first, &heads(rest, gdn.value_dim * cols)].concat()
            }
            "ssm_conv1d.weight" => {
                let tap =
                    |tap: &[f32]| [&tap[..keys], &heads(&tap[keys..], gdn.value_dim)].concat();
                expected.chunks_exact(cols).flat_map(tap).collect()
            }
            "ssm_out.weight" => {
                expected.chunks_exact(cols).flat_map(|row| heads(row, gdn.value_dim)).collect()
            }
            _ => expected,
        };
        // -exp(A_log) was rounded by another exp, and -x is the one of two roundings.
        let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 2e-7 * b.abs();
        let exact = !name.ends_with("ssm_a");
        assert!(
            if exact { expected == found } else { expected.iter().zip(&found).all(near) },
            "{name}"
        );
    }
}

#[test]
fn the_taps_of_a_convolution_lie_by_tap() {
    let (folder, config) = tiny("tiny-qwen3_5");
    let mut buffer = Vec::new();
    let taps = folder.read("blk.0.ssm_conv1d.weight", &mut buffer).unwrap();
    assert_eq!((taps.rows, taps.cols), (config.gdn.taps, config.gdn.channels()));
}

#[test]
fn a_made_checkpoint_opens_in_every_format_with_the_shapes_it_was_made_of() {
    let folder = Folder::new();
    for (at, format) in Format::plain_all().enumerate() {
        let spec = synthetic::Qwen35 {
            hidden: 256,
            intermediate: 512,
            heads: arith::attention::Heads { query: 4, kv: 2, dim: 64 },
            gdn: arith::gdn::Gdn { value_dim: 64, ..synthetic::Qwen35::default().gdn },
            tied: at % 2 == 0,
            mtp: at % 3 == 0,
            format,
            ..synthetic::Qwen35::default()
        };
        let path = folder.path().join(format!("{format}.gguf"));
        synthetic::qwen3_5(&path, &spec).unwrap();
        let checkpoint = Checkpoint::open(&path).unwrap();
        let Config::Qwen35(config) = checkpoint.config() else { panic!("another family") };
        assert_eq!((config.heads, config.gdn, config.hidden), (spec.heads, spec.gdn, 256));
        assert_eq!((config.tied, config.mtp), (spec.tied, spec.mtp), "{format}");
        assert_eq!(checkpoint.info("blk.0.attn_qkv.weight").unwrap().format, format);
        assert_eq!(checkpoint.tensors().iter().map(|t| t.bytes as u64).sum::<u64>(), spec.bytes());
        let (_, a) = values(&checkpoint, "blk.1.ssm_a");
        assert!(a.iter().all(|a| (0.0..1.0).contains(a)), "{a:?}");
    }
}

#[test]
fn a_made_checkpoint_of_a_size_is_at_least_that_large() {
    for (bytes, format) in
        [(1 << 20, Format::Q8_0), (160 << 20, Format::Q6K), (1 << 30, Format::F16)]
    {
        let spec = synthetic::Qwen35::of_bytes(bytes, format);
        let fewer = synthetic::Qwen35 { layers: spec.layers - 4, ..spec.clone() };
        assert!(spec.bytes() >= bytes && (spec.layers == 4 || fewer.bytes() < bytes), "{spec:?}");
    }
}
