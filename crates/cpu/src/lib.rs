//! The CPU backend: AVX2, AVX-512 and NEON kernels chosen at run time and their scalar twins,
//! byte-equal to [`arith`] for any row count and any number of threads.
//!
//! Weights are packed at load ([`Linear`]); an op is cut by its shape alone into jobs that the
//! crate's own thread pool claims. After its first call at a size an op allocates nothing.

mod arena;
mod attention;
#[cfg(target_arch = "x86_64")]
mod attention_avx512;
mod attention_scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod attention_vector;
#[cfg(target_arch = "x86_64")]
mod bytes_avx2;
#[cfg(target_arch = "x86_64")]
mod codes_avx2;
#[cfg(target_arch = "x86_64")]
mod codes_avx512;
#[cfg(target_arch = "aarch64")]
mod codes_neon;
mod elementwise;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod floats_vector;
mod gdn;
#[cfg(target_arch = "x86_64")]
mod gdn_avx512;
mod gdn_scalar;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod gdn_vector;
#[cfg(target_arch = "x86_64")]
mod gemm_a8_avx2;
#[cfg(target_arch = "x86_64")]
mod gemm_a8_avx512;
#[cfg(target_arch = "x86_64")]
mod gemm_avx2;
#[cfg(target_arch = "x86_64")]
mod gemm_avx512;
#[cfg(target_arch = "x86_64")]
mod gemv_a8_avx2;
#[cfg(target_arch = "x86_64")]
mod gemv_a8_avx512;
#[cfg(target_arch = "x86_64")]
mod gemv_avx2;
#[cfg(target_arch = "x86_64")]
mod gemv_avx512;
#[cfg(target_arch = "x86_64")]
mod kinds;
mod kv;
#[cfg(target_arch = "x86_64")]
mod lanes_avx2;
#[cfg(target_arch = "aarch64")]
mod lanes_neon;
mod layout;
mod limits;
#[cfg(target_arch = "aarch64")]
mod linear_neon;
mod memory;
mod norm;
mod pack;
mod pool;
#[cfg(target_arch = "aarch64")]
mod products_neon;
mod project;
mod project_a8_scalar;
mod project_scalar;
mod quantise;
mod quantise_a8;
mod rows;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod scales_vector;
mod state;
#[cfg(target_arch = "x86_64")]
mod unpacked_avx2;
#[cfg(target_arch = "x86_64")]
mod unpacked_avx512;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod vector;
#[cfg(target_arch = "x86_64")]
mod vector_avx512;
#[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
mod walk;

use arith::base::Arith;
use arith::format::{Matrix, read_float};
use arith::linear::Groups;
use backend::{
    Backend, BackendError, Gdn, Heads, KvDtype, Normed, Pairing, RopeRows, RowMap, Walk,
};

pub use arena::runs;
pub use kv::Kv;
pub use limits::{Limits, limits, limits_by};
pub use memory::free_bytes;
pub use pack::Linear;
pub use rows::Rows;
pub use state::{State, TAPS_MAX};

use arena::Arena;
#[cfg(target_arch = "x86_64")]
use lanes_avx2 as lanes;
#[cfg(target_arch = "aarch64")]
use lanes_neon as lanes;
use pool::Pool;

/// Most threads of one backend.
pub const THREADS_MAX: usize = 1024;

/// Which kernels to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Isa {
    /// The fastest that the CPU has.
    #[default]
    Auto,
    /// The scalar twins, on any CPU.
    Scalar,
    /// AVX2 with FMA and F16C, or an error.
    Avx2,
    /// AVX-512 (F, BW, VL, DQ and VNNI) for linear layers and attention, AVX2 for the rest, or an
    /// error.
    Avx512,
    /// NEON as every 64-bit ARM has it, or an error.
    Neon,
    /// NEON with the dot product, or an error.
    NeonDot,
    /// NEON with the matrix product of bytes (I8MM) and the dot product, or an error.
    NeonMatrix,
}

/// How NEON multiplies bytes.
#[cfg(target_arch = "aarch64")]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Product {
    Plain,
    Dot,
    Matrix,
}

/// The kernels in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Level {
    Scalar,
    #[cfg(target_arch = "x86_64")]
    Avx2,
    #[cfg(target_arch = "x86_64")]
    Avx512,
    #[cfg(target_arch = "aarch64")]
    Neon(Product),
}

impl Level {
    /// The kernels that `isa` asks for, or what the CPU lacks of them.
    fn of(isa: Isa) -> Result<Self, &'static str> {
        match isa {
            Isa::Scalar => Ok(Self::Scalar),
            Isa::Auto => Ok(Self::vector().unwrap_or(Self::Scalar)),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => Self::avx2(),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => Self::avx512(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => Ok(Self::Neon(Product::Plain)),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => Self::neon(Product::Dot).ok_or("the dot product of NEON"),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonMatrix => Self::neon(Product::Matrix).ok_or("the matrix product of NEON"),
            #[cfg(not(target_arch = "x86_64"))]
            Isa::Avx2 | Isa::Avx512 => Err("AVX2"),
            #[cfg(not(target_arch = "aarch64"))]
            Isa::Neon | Isa::NeonDot | Isa::NeonMatrix => Err("NEON"),
        }
    }

    /// The fastest vector level, or the feature that the CPU lacks of any.
    fn vector() -> Result<Self, &'static str> {
        #[cfg(target_arch = "x86_64")]
        return Self::avx512().or(Self::avx2());
        #[cfg(target_arch = "aarch64")]
        {
            let best = [Product::Matrix, Product::Dot].into_iter().find_map(Self::neon);
            Ok(best.unwrap_or(Self::Neon(Product::Plain)))
        }
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        Err("AVX2 or NEON")
    }

    /// NEON with `product`, if the CPU has it.
    #[cfg(target_arch = "aarch64")]
    fn neon(product: Product) -> Option<Self> {
        let dot = std::arch::is_aarch64_feature_detected!("dotprod");
        let here = match product {
            Product::Plain => true,
            Product::Dot => dot,
            Product::Matrix => dot && std::arch::is_aarch64_feature_detected!("i8mm"),
        };
        here.then_some(Self::Neon(product))
    }

    #[cfg(target_arch = "x86_64")]
    fn avx2() -> Result<Self, &'static str> {
        if !is_x86_feature_detected!("avx2") {
            return Err("AVX2");
        }
        if !is_x86_feature_detected!("fma") {
            return Err("FMA");
        }
        if !is_x86_feature_detected!("f16c") {
            return Err("F16C");
        }
        Ok(Self::Avx2)
    }

    #[cfg(target_arch = "x86_64")]
    fn avx512() -> Result<Self, &'static str> {
        Self::avx2()?;
        let features = [
            ("AVX-512F", is_x86_feature_detected!("avx512f")),
            ("AVX-512BW", is_x86_feature_detected!("avx512bw")),
            ("AVX-512VL", is_x86_feature_detected!("avx512vl")),
            ("AVX-512DQ", is_x86_feature_detected!("avx512dq")),
            ("AVX-512 VNNI", is_x86_feature_detected!("avx512vnni")),
        ];
        match features.into_iter().find(|&(_, here)| !here) {
            Some((feature, _)) => Err(feature),
            None => Ok(Self::Avx512),
        }
    }

    /// Whether the linear kernels of arith 1 multiply the bytes of activations.
    fn multiplies_bytes(self) -> bool {
        match self {
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => true,
            _ => false,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => "avx512",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(Product::Plain) => "neon",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(Product::Dot) => "neon with dot product",
            #[cfg(target_arch = "aarch64")]
            Self::Neon(Product::Matrix) => "neon with matrix product",
        }
    }
}

/// The CPU of this machine.
pub struct Cpu {
    pool: Pool,
    arena: Arena,
    level: Level,
    arith: Arith,
    device: String,
}

impl Cpu {
    /// A backend that computes on `threads` threads (the caller's included; 0 is one a core).
    ///
    /// # Errors
    /// `Unsupported` if `isa` asks for what the CPU lacks, `Shape` for more than
    /// [`THREADS_MAX`] threads or if the system refuses to start them.
    pub fn new(threads: usize, isa: Isa, arith: Arith) -> Result<Self, BackendError> {
        let threads = match threads {
            0 => std::thread::available_parallelism().map_or(1, usize::from),
            n => n,
        };
        let name = model_name();
        let level = Level::of(isa).map_err(|feature| BackendError::Unsupported {
            device: name.clone(),
            feature: feature.to_owned(),
            hint: "its vector kernels need AVX2, FMA and F16C, AVX-512 with VNNI besides, or \
                   NEON; the scalar ones give the same bytes, slowly"
                .to_owned(),
        })?;
        let refused = |expected: String, found: String| BackendError::Shape {
            what: "compute threads".to_owned(),
            expected,
            found,
        };
        if threads > THREADS_MAX {
            return Err(refused(format!("at most {THREADS_MAX}"), threads.to_string()));
        }
        let pool =
            Pool::new(threads).map_err(|e| refused(format!("{threads} started"), e.to_string()))?;
        let device = format!("{name}, {threads} threads, {}", level.name());
        Ok(Self { pool, arena: Arena::default(), level, arith, device })
    }

    fn how(&self) -> (Level, Arith) {
        (self.level, self.arith)
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.pool.threads()
    }
}

/// The CPU's name as the system gives it.
fn model_name() -> String {
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let name = text.lines().find_map(|line| line.strip_prefix("model name")?.split_once(": "));
    name.map_or_else(|| std::env::consts::ARCH.to_owned(), |(_, name)| name.trim().to_owned())
}

impl Backend for Cpu {
    type Rows = Rows;
    type Linear = Linear;
    type Vector = Vec<f32>;
    type Kv = Kv;
    type State = State;
    type Berths = backend::berths::None;

    fn name(&self) -> &'static str {
        "cpu"
    }

    fn arith(&self) -> Arith {
        self.arith
    }

    fn device(&self) -> String {
        self.device.clone()
    }

    fn rows(&self, rows_max: usize, width: usize) -> Result<Rows, BackendError> {
        let need = rows_max as u128 * width as u128 * 4;
        memory::check(&self.device, &format!("buffer of {rows_max} rows"), need)?;
        Ok(Rows { data: memory::held(rows_max * width), rows_max, width })
    }

    fn upload(&self, data: &[f32], to: &mut Rows) {
        assert!(data.len().is_multiple_of(to.width.max(1)), "whole rows of {to:?}");
        to.data[..data.len()].copy_from_slice(data);
    }

    fn download(&self, from: &Rows, first: usize, to: &mut [f32]) {
        to.copy_from_slice(&from.data[first * from.width..][..to.len()]);
    }

    fn candidates(
        &self,
        (logits, width): (&Rows, usize),
        first: u32,
        best: &[u32],
        to: &mut Vec<f32>,
    ) {
        for (row, &best) in logits.data.chunks_exact(width).zip(best) {
            arith::candidates::pack(row, first, best, to);
        }
    }

    fn linear(&self, matrix: &Matrix<'_>) -> Result<Linear, BackendError> {
        self.linear_share(matrix, Groups::of(matrix.cols))
    }

    fn has_shares(&self) -> bool {
        true
    }

    fn linear_share(&self, matrix: &Matrix<'_>, groups: Groups) -> Result<Linear, BackendError> {
        Linear::pack((&self.pool, &self.arena), &self.device, matrix, groups)
    }

    fn vector(&self, matrix: &Matrix<'_>) -> Result<Vec<f32>, BackendError> {
        if !matrix.format.is_float() {
            return Err(BackendError::Shape {
                what: "vector of weights".to_owned(),
                expected: "floats".to_owned(),
                found: matrix.format.to_string(),
            });
        }
        let values = 0..matrix.rows * matrix.cols;
        Ok(values.map(|i| read_float(matrix.format, matrix.bytes, i)).collect())
    }

    fn kv(&self, dtype: KvDtype, pages: usize, heads: Heads) -> Result<Kv, BackendError> {
        Kv::new(&self.device, dtype, pages, heads)
    }

    fn state(&self, shape: Gdn, places: usize) -> Result<State, BackendError> {
        State::new(&self.device, shape, places)
    }

    fn copy_rows(&self, from: &Rows, first: usize, rows: usize, to: &mut Rows, at: usize) {
        let width = from.width;
        assert_eq!(width, to.width, "{from:?} to {to:?}");
        let from = &from.data[first * width..][..rows * width];
        state::copy(&self.pool, from, &mut to.data[at * width..][..rows * width]);
    }

    fn copy_page(&self, kv: &mut Kv, from: u32, to: u32) {
        kv.copy_page(from, to);
    }

    fn copy_state(&self, from: &State, place: usize, to: &mut State, to_place: usize) {
        to.copy_from(&self.pool, from, place, to_place);
    }

    fn download_state(&self, state: &State, place: usize, s: &mut [f32], tail: &mut [f32]) {
        state.download(place, s, tail);
    }

    fn embed(&self, table: &Linear, ids: &[u32], out: &mut Rows) {
        elementwise::embed(&self.pool, self.level, table, ids, out);
    }

    fn rms_norm(&self, x: &Rows, w: &Vec<f32>, eps: f32, rows: usize, out: &mut Rows) {
        norm::rms_norm(&self.pool, self.level, x, w, eps, rows, out);
    }

    fn project(&self, x: &Rows, rows: usize, weights: &[&Linear], outs: &mut [&mut Rows]) {
        project::project(&self.pool, self.how(), x, rows, weights, outs);
    }

    fn norm_project(
        &self,
        from: Normed<'_, Self>,
        rows: usize,
        weights: &[&Linear],
        outs: &mut [&mut Rows],
    ) {
        let Normed { x, w, eps, n } = from;
        let from = project::Normed { x, w, eps, n };
        project::norm_project((&self.pool, self.how()), from, rows, weights, outs);
    }

    fn norm_gated(
        &self,
        from: Normed<'_, Self>,
        rows: usize,
        weights: [&Linear; 2],
        outs: [&mut Rows; 2],
        out: &mut Rows,
    ) {
        let Normed { x, w, eps, n } = from;
        let from = project::Normed { x, w, eps, n };
        project::norm_gated((&self.pool, self.how()), from, rows, weights, outs, out);
    }

    fn rope(&self, x: &mut Rows, heads: usize, dim: usize, pairing: Pairing, rope: &RopeRows) {
        elementwise::rope(&self.pool, self.level, x, heads, dim, pairing, rope);
    }

    fn kv_write(&self, kv: &mut Kv, k: &Rows, v: &Rows, map: &RowMap) {
        kv::kv_write(&self.pool, self.level, kv, k, v, map);
    }

    fn attention(&self, q: &Rows, kv: &Kv, map: &RowMap, out: &mut Rows) {
        attention::attention(&self.pool, self.level, q, kv, map, out);
    }

    fn head_norm(&self, x: &mut Rows, w: &Vec<f32>, eps: f32, rows: usize) {
        norm::head_norm(&self.pool, self.level, x, w, eps, rows);
    }

    fn gate(&self, x: &mut Rows, gate: &Rows, rows: usize) {
        elementwise::gate(&self.pool, self.level, x, gate, rows);
    }

    fn convolve(
        &self,
        x: &Rows,
        taps: &Vec<f32>,
        state: &mut State,
        walks: &[Walk],
        out: &mut Rows,
    ) {
        gdn::convolve(&self.pool, self.level, x, taps, state, walks, out);
    }

    fn gates(
        &self,
        b: &Rows,
        a: &Rows,
        dt_bias: &Vec<f32>,
        amplitude: &Vec<f32>,
        rows: usize,
        out: &mut Rows,
    ) {
        gdn::gates(&self.pool, self.level, [b, a], dt_bias, amplitude, rows, out);
    }

    fn delta(&self, x: &Rows, gates: &Rows, state: &mut State, walks: &[Walk], out: &mut Rows) {
        gdn::delta(&self.pool, self.level, x, gates, state, walks, out);
    }

    fn gated_norm(&self, x: &mut Rows, w: &Vec<f32>, z: &Rows, eps: f32, rows: usize) {
        norm::gated_norm(&self.pool, self.level, x, w, z, eps, rows);
    }

    fn silu_mul(&self, gate: &Rows, up: &Rows, rows: usize, out: &mut Rows) {
        elementwise::silu_mul(&self.pool, self.level, gate, up, rows, out);
    }

    fn add(&self, x: &mut Rows, y: &Rows, rows: usize) {
        elementwise::add(&self.pool, x, y, rows);
    }
}
