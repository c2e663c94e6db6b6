//! Stored weights against other readers of the same bytes (`golden/formats`,
//! `golden/tiny-qwen3_5`), bit for bit.

use std::path::{Path, PathBuf};

use arith::float::flush;
use arith::format::{Affine, Format, Matrix, Mlx, Scales, read_block, read_row};
use baton_weights::Checkpoint;
use safetensors::SafeTensors;

fn golden(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden").join(file)
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

/// Values, and how many of them are not what they must be.
#[derive(Default)]
struct Figures {
    values: usize,
    /// Other bits, from our integers, scale and offset in the official code's roundings.
    differ: usize,
    /// Read as a row: not our one fma, or further from the official value than its roundings go.
    far: usize,
}

impl Figures {
    /// Prints the comparison as `cargo xtask oracles` reads it, and holds it.
    fn hold(&self, name: &str) {
        let Self { values, differ, far } = *self;
        println!("oracle: {name} blocks, values that differ among {values}: {differ} of 0");
        println!("oracle: {name} rows, values beyond one rounding among {values}: {far} of 0");
        assert!(values > 0, "{name}: no values");
        assert_eq!(
            (differ, far),
            (0, 0),
            "{name}: values of {values} that differ, as blocks and as rows"
        );
    }

    /// Reads stored units as one row and compares it with what the official code gives.
    ///
    /// From our integers, scale and offset the official value comes in its own two roundings,
    /// `f32(f32(a * w) + c)`, without an offset in one; ours is one fma, which without an offset is
    /// the same and else may lie as far away as those roundings go.
    fn row(&mut self, format: Format, bytes: &[u8], official: &[f32]) {
        let matrix = Matrix { format, rows: 1, cols: official.len(), bytes };
        assert_eq!(bytes.len(), matrix.row_bytes(), "{format}");
        let mut ours = vec![0.0; official.len()];
        read_row(&matrix, 0, &mut ours);
        let (width, blocks) = (format.block_values(), format.unit_blocks());
        let mut w = vec![0; width];
        for (at, official) in official.chunks_exact(width).enumerate() {
            let unit = &bytes[at / blocks * format.unit_bytes()..][..format.unit_bytes()];
            let Affine { a, c } = read_block(format, unit, at % blocks, &mut w);
            assert_eq!(c.is_some(), format.has_offset(), "{format}");
            for (i, (&w, &official)) in w.iter().zip(official).enumerate() {
                let (w, ours) = (f32::from(w), ours[at * width + i]);
                let twice = c.map_or(w * a, |c| w * a + c);
                self.values += 1;
                self.differ += usize::from(flush(twice).to_bits() != flush(official).to_bits());
                let once = flush(w.mul_add(a, c.unwrap_or(0.0)));
                let roundings =
                    if c.is_some() { half_unit(w * a) + half_unit(official) } else { 0.0 };
                let away = (f64::from(ours) - f64::from(flush(official))).abs();
                let far = ours.to_bits() != once.to_bits() || away > roundings + half_unit(ours);
                self.far += usize::from(far || c.is_none() && away > 0.0);
            }
        }
    }
}

/// The most that rounding to `x` may have moved a value.
fn half_unit(x: f32) -> f64 {
    f64::from(x.abs().next_up() - x.abs()) / 2.0
}

#[test]
fn gguf_blocks_read_as_the_official_package_reads_them() {
    let bytes = std::fs::read(golden("formats/gguf.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    let formats: Vec<Format> = Format::plain_all().filter(|format| !format.is_float()).collect();
    assert_eq!(2 * formats.len(), tensors.len(), "a case for every format");
    for format in formats {
        let name = format.to_string().to_lowercase();
        let part = |what: &str| tensors.tensor(&format!("{name}.{what}")).unwrap();
        let mut figures = Figures::default();
        figures.row(format, part("blocks").data(), &f32s(part("values").data()));
        figures.hold(&format.to_string());
    }
}

#[test]
fn mlx_groups_read_as_their_codes_scales_and_biases() {
    let bytes = std::fs::read(golden("formats/mlx.safetensors")).unwrap();
    let tensors = SafeTensors::deserialize(&bytes).unwrap();
    assert_eq!(4 * Format::mlx_all().count(), tensors.len(), "a case for every format");
    for bits in Mlx::BITS {
        let mut figures = Figures::default();
        for format in Format::mlx_all() {
            let Format::Mlx(mlx) = format else { panic!("{format}") };
            if mlx.bits == bits {
                rows(&tensors, mlx, &mut figures);
            }
        }
        figures.hold(&format!("MLX {bits} bits"));
    }
}

/// Adds one format's rows, each unit put together as `arith` wants it: scale, bias, codes.
fn rows(tensors: &SafeTensors<'_>, mlx: Mlx, figures: &mut Figures) {
    let scales = match mlx.scales {
        Scales::F32 => "f32",
        Scales::F16 => "f16",
        Scales::Bf16 => "bf16",
    };
    let part = |what: &str| {
        tensors.tensor(&format!("b{}.g{}.{scales}.{what}", mlx.bits, mlx.group)).unwrap()
    };
    let values = f32s(part("values").data());
    let [rows, cols] = *part("values").shape() else { panic!("a matrix") };
    let (group, wide) = (usize::from(mlx.group), mlx.scales.bytes());
    for row in 0..rows {
        let mut stored = Vec::new();
        for at in row * cols / group..(row + 1) * cols / group {
            let cut = |what: &str, size: usize| part(what).data()[at * size..][..size].to_vec();
            stored.extend(cut("scales", wide));
            stored.extend(cut("biases", wide));
            stored.extend(cut("packed", group * usize::from(mlx.bits) / 8));
        }
        figures.row(Format::Mlx(mlx), &stored, &values[row * cols..][..cols]);
    }
}

#[test]
fn mlx_modules_read_as_the_oracle_dequantised_them() {
    let bytes = golden("tiny-qwen3_5/oracles/tiny-qwen3_5-mlx4.safetensors");
    let bytes = std::fs::read(bytes).unwrap();
    let oracle = SafeTensors::deserialize(&bytes).unwrap();
    let folder = golden("tiny-qwen3_5/tiny-qwen3_5-mlx4");
    let plain = Checkpoint::open(&folder).unwrap();
    let widened = Checkpoint::open_widened(&folder).unwrap();
    let (mut figures, mut buffer) = (Figures::default(), Vec::new());
    for (module, name) in [
        ("layers.0.linear_attn.in_proj_a", "blk.0.ssm_alpha.weight"),
        ("layers.0.linear_attn.in_proj_z", "blk.0.attn_gate.weight"),
        ("layers.0.mlp.down_proj", "blk.0.ffn_down.weight"),
        ("layers.3.self_attn.v_proj", "blk.3.attn_v.weight"),
    ] {
        let view = oracle.tensor(&format!("dequant.language_model.model.{module}")).unwrap();
        let official = f32s(view.data());
        let [rows, cols] = *view.shape() else { panic!("{module}: a matrix") };
        let matrix = plain.read(name, &mut buffer).unwrap();
        assert_eq!((matrix.rows, matrix.cols), (rows, cols), "{module}");
        assert!(matches!(matrix.format, Format::Mlx(_)), "{module}: {}", matrix.format);
        for (row, official) in official.chunks_exact(cols).enumerate() {
            figures.row(matrix.format, matrix.row(row), official);
        }
        let matrix = widened.read(name, &mut buffer).unwrap();
        assert_eq!(matrix.format, Format::F32, "{module}");
        assert_eq!(f32s(matrix.bytes), official, "{module}, widened");
    }
    figures.hold("MLX checkpoint");
}
