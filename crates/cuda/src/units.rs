//! Kernel sources: which files make a unit, and which kernels are in it.

use crate::fuse::MUL_SHARED_BYTES;
use crate::project::ONE_SHARED_BYTES;

/// A file of kernels/.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    /// Its name, without the ending.
    pub file: &'static str,
    /// What is in it.
    pub text: &'static str,
}

/// A source that is compiled as one.
#[derive(Clone, Copy, Debug)]
pub struct Unit {
    /// Its name.
    pub name: &'static str,
    /// Its parts, in order.
    pub parts: &'static [Part],
    /// Its kernels.
    pub kernels: &'static [&'static str],
    /// Bytes of shared memory that each is launched with; none if empty.
    pub shared: &'static [u32],
    /// Whether they are launched with less on cards that have less.
    pub yields: bool,
    /// Those that most time is spent in: a register that spills there fails `cargo xtask kernels`.
    pub hot: &'static [&'static str],
}

impl Unit {
    /// Its parts as one.
    pub fn source(&self) -> String {
        self.parts.iter().map(|part| part.text).collect()
    }
}

macro_rules! part {
    ($file:literal) => {
        Part { file: $file, text: include_str!(concat!("../kernels/", $file, ".cu")) }
    };
}

const PRELUDE: Part = part!("prelude");
const LAYOUT: Part = part!("layout");
const PRODUCTS: Part = part!("products");
const CACHE: Part = part!("cache");
const QUANTISE: Part = part!("quantise");
const OPERANDS: Part = part!("operands");
const FRONT: Part = part!("front");

/// Every source.
pub const UNITS: [Unit; 16] = [
    Unit {
        name: "rows",
        parts: &[PRELUDE, OPERANDS, part!("rows")],
        kernels: &["rms_norm", "head_norm", "rope", "copy", "add", "silu_mul", "gate", "gates"],
        shared: &[],
        yields: false,
        hot: &["rms_norm", "head_norm", "silu_mul", "add", "gate"],
    },
    Unit {
        name: "best",
        parts: &[PRELUDE, part!("best")],
        kernels: &["best_one", "best_few"],
        shared: &[],
        yields: false,
        hot: &["best_one", "best_few"],
    },
    Unit {
        name: "attention",
        parts: &[PRELUDE, CACHE, part!("attention")],
        kernels: &["kv_write", "attend", "merge"],
        shared: &[],
        yields: false,
        hot: &[],
    },
    Unit {
        name: "tiles",
        parts: &[PRELUDE, CACHE, part!("tiles"), part!("merge")],
        kernels: &[
            "attend_tile",
            "merge_tiles",
            "attend_span_2",
            "attend_span_4",
            "attend_span_6",
            "attend_span_8",
        ],
        shared: &[73_856, 0, 147_712, 164_352, 180_992, 197_632],
        yields: true,
        hot: &["attend_tile", "merge_tiles", "attend_span_4", "attend_span_6", "attend_span_8"],
    },
    Unit {
        name: "prompt",
        parts: &[PRELUDE, CACHE, part!("prompt")],
        kernels: &[
            "attend_rows_64",
            "attend_rows_128",
            "attend_rows_256",
            "attend_floats_64",
            "attend_floats_128",
            "attend_floats_256",
        ],
        shared: &[66_560, 116_736, 217_088, 66_560, 116_736, 217_088],
        yields: false,
        hot: &["attend_rows_64", "attend_rows_128", "attend_rows_256"],
    },
    Unit {
        name: "gdn",
        parts: &[PRELUDE, OPERANDS, part!("gdn")],
        kernels: &[
            "convolve",
            "tail",
            "l2_norm",
            "delta_32",
            "delta_64",
            "delta_128",
            "delta_128_two",
            "delta_256",
        ],
        shared: &[0, 0, 0, 98_304, 98_304, 98_304, 98_304, 98_304],
        yields: true,
        hot: &["convolve", "l2_norm", "delta_64", "delta_128", "delta_128_two"],
    },
    Unit {
        name: "pack",
        parts: &[PRELUDE, LAYOUT, part!("pack")],
        kernels: &[
            "pack_codes",
            "pack_scales",
            "transpose",
            "widen",
            "noise",
            "embed",
            "embed_floats",
            "linear_floats",
        ],
        shared: &[],
        yields: false,
        hot: &[],
    },
    Unit {
        name: "linear",
        parts: &[PRELUDE, LAYOUT, PRODUCTS, QUANTISE, part!("linear")],
        kernels: &[
            "quantise",
            "linear_nibbles_2",
            "linear_nibbles_4",
            "linear_bytes_2",
            "linear_bytes_4",
            "linear_nibbles_bf16_64_2",
            "linear_nibbles_bf16_64_4",
            "linear_nibbles_f16_32_2",
            "linear_nibbles_f16_32_4",
            "linear_nibbles_k_32_2",
            "linear_nibbles_k_32_4",
            "linear_bytes_f16_32_2",
            "linear_bytes_f16_32_4",
            "linear_bytes_f32_16_2",
            "linear_bytes_f32_16_4",
        ],
        shared: &[],
        yields: false,
        hot: &["quantise"],
    },
    Unit {
        name: "a8",
        parts: &[PRELUDE, LAYOUT, PRODUCTS, part!("a8")],
        kernels: &[
            "quantise_a8",
            "a8_nibbles_1",
            "a8_nibbles_4",
            "a8_bytes_1",
            "a8_bytes_4",
            "a8_nibbles_bf16_64_1",
            "a8_nibbles_bf16_64_4",
            "a8_nibbles_f16_32_1",
            "a8_nibbles_f16_32_4",
            "a8_nibbles_k_32_1",
            "a8_nibbles_k_32_4",
            "a8_bytes_f16_32_1",
            "a8_bytes_f16_32_4",
            "a8_bytes_f32_16_1",
            "a8_bytes_f32_16_4",
        ],
        shared: &[],
        yields: false,
        hot: &["quantise_a8"],
    },
    Unit {
        name: "one",
        parts: &[PRELUDE, LAYOUT, PRODUCTS, QUANTISE, FRONT, part!("one")],
        kernels: &["one_nibbles_bf16_64"],
        shared: &[ONE_SHARED_BYTES],
        yields: true,
        hot: &["one_nibbles_bf16_64"],
    },
    Unit {
        name: "pair",
        parts: &[PRELUDE, LAYOUT, PRODUCTS, QUANTISE, FRONT, part!("pair")],
        kernels: &["one_nibbles_f16_32", "one_nibbles_k_32"],
        shared: &[ONE_SHARED_BYTES; 2],
        yields: true,
        hot: &["one_nibbles_f16_32", "one_nibbles_k_32"],
    },
    Unit {
        name: "few",
        parts: &[PRELUDE, LAYOUT, PRODUCTS, part!("few")],
        kernels: &["few_nibbles_bf16_64", "few_nibbles_f16_32", "few_nibbles_k_32"],
        shared: &[82_432, 94_720, 96_768],
        yields: false,
        hot: &["few_nibbles_bf16_64", "few_nibbles_f16_32", "few_nibbles_k_32"],
    },
    Unit {
        name: "gemm",
        parts: &[PRELUDE, LAYOUT, PRODUCTS, part!("gemm")],
        kernels: &["gemm_nibbles_bf16_64", "gemm_nibbles_f16_32", "gemm_nibbles_k_32"],
        shared: &[105_984, 113_664, 107_520],
        yields: false,
        hot: &[],
    },
    Unit {
        name: "wide",
        parts: &[PRELUDE, LAYOUT, PRODUCTS, part!("wide")],
        kernels: &["wide_nibbles_bf16_64", "wide_nibbles_f16_32", "wide_nibbles_k_32"],
        shared: &[196_656, 205_872, 196_656],
        yields: false,
        hot: &["wide_nibbles_bf16_64", "wide_nibbles_f16_32", "wide_nibbles_k_32"],
    },
    Unit {
        name: "meet",
        parts: &[PRELUDE, part!("meet")],
        kernels: &["meet_few", "meet_many"],
        shared: &[],
        yields: false,
        hot: &["meet_few", "meet_many"],
    },
    Unit {
        name: "fused",
        parts: &[PRELUDE, LAYOUT, PRODUCTS, QUANTISE, CACHE, OPERANDS, part!("fused")],
        kernels: &["norm_quantise", "mul_quantise", "gated_quantise", "delta_few", "heads_write"],
        shared: &[0, MUL_SHARED_BYTES, 0, 0, 0],
        yields: true,
        hot: &["norm_quantise", "mul_quantise", "gated_quantise", "delta_few", "heads_write"],
    },
];
