//! Made qwen3_5 checkpoints.

use arith::attention::Heads;
use arith::format::{Format, read_float};
use arith::gdn::Gdn;
use baton_weights::synthetic::{self, Qwen35};
use baton_weights::{Checkpoint, Config};

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
