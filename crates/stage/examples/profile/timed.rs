//! A backend that takes the time of every op of another.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use arith::base::Arith;
use arith::format::Matrix;
use backend::{
    Backend, BackendError, Gdn, Heads, KvDtype, Normed, Pairing, RopeRows, RowMap, Walk,
};

/// Ops in the order of their calls, with their times.
pub type Times = Vec<(&'static str, Duration)>;

thread_local! {
    static TIMES: RefCell<Times> = const { RefCell::new(Vec::new()) };
}

/// What ran on this thread since the last `take`.
pub fn take() -> Times {
    TIMES.take()
}

/// Runs `f` as a call of op `name`.
pub fn time<T>(name: &'static str, f: impl FnOnce() -> T) -> T {
    let start = Instant::now();
    let value = f();
    let took = start.elapsed();
    TIMES.with_borrow_mut(|times| times.push((name, took)));
    value
}

/// The backend whose ops are timed.
pub struct Timed<B>(pub B);

impl<B: Backend> Backend for Timed<B> {
    type Rows = B::Rows;
    type Linear = B::Linear;
    type Vector = B::Vector;
    type Kv = B::Kv;
    type State = B::State;
    type Berths = B::Berths;

    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn arith(&self) -> Arith {
        self.0.arith()
    }

    fn device(&self) -> String {
        self.0.device()
    }

    fn rows(&self, rows_max: usize, width: usize) -> Result<B::Rows, BackendError> {
        self.0.rows(rows_max, width)
    }

    fn upload(&self, data: &[f32], to: &mut B::Rows) {
        time("upload", || self.0.upload(data, to));
    }

    fn download(&self, from: &B::Rows, first: usize, to: &mut [f32]) {
        time("download", || self.0.download(from, first, to));
    }

    fn linear(&self, matrix: &Matrix<'_>) -> Result<B::Linear, BackendError> {
        self.0.linear(matrix)
    }

    fn vector(&self, matrix: &Matrix<'_>) -> Result<B::Vector, BackendError> {
        self.0.vector(matrix)
    }

    fn kv(&self, dtype: KvDtype, pages: usize, heads: Heads) -> Result<B::Kv, BackendError> {
        self.0.kv(dtype, pages, heads)
    }

    fn state(&self, shape: Gdn, places: usize) -> Result<B::State, BackendError> {
        self.0.state(shape, places)
    }

    fn copy_rows(&self, from: &B::Rows, first: usize, rows: usize, to: &mut B::Rows, at: usize) {
        time("copy_rows", || self.0.copy_rows(from, first, rows, to, at));
    }

    fn copy_page(&self, kv: &mut B::Kv, from: u32, to: u32) {
        time("copy_page", || self.0.copy_page(kv, from, to));
    }

    fn copy_state(&self, from: &B::State, place: usize, to: &mut B::State, to_place: usize) {
        time("copy_state", || self.0.copy_state(from, place, to, to_place));
    }

    fn download_state(&self, state: &B::State, place: usize, s: &mut [f32], tail: &mut [f32]) {
        self.0.download_state(state, place, s, tail);
    }

    fn embed(&self, table: &B::Linear, ids: &[u32], out: &mut B::Rows) {
        time("embed", || self.0.embed(table, ids, out));
    }

    fn rms_norm(&self, x: &B::Rows, w: &B::Vector, eps: f32, rows: usize, out: &mut B::Rows) {
        time("rms_norm", || self.0.rms_norm(x, w, eps, rows, out));
    }

    fn project(&self, x: &B::Rows, rows: usize, weights: &[&B::Linear], outs: &mut [&mut B::Rows]) {
        const NAMES: [&str; 5] = ["", "project 1", "project 2", "project 3", "project 4"];
        let name = NAMES.get(weights.len()).unwrap_or(&"project n");
        time(name, || self.0.project(x, rows, weights, outs));
    }

    fn norm_project(
        &self,
        from: Normed<'_, Self>,
        rows: usize,
        weights: &[&B::Linear],
        outs: &mut [&mut B::Rows],
    ) {
        let Normed { x, w, eps, n } = from;
        let from = Normed { x, w, eps, n };
        let name = if weights.len() == 3 { "norm, qkv" } else { "norm, project 4" };
        time(name, || self.0.norm_project(from, rows, weights, outs));
    }

    fn norm_gated(
        &self,
        from: Normed<'_, Self>,
        rows: usize,
        weights: [&B::Linear; 2],
        outs: [&mut B::Rows; 2],
        out: &mut B::Rows,
    ) {
        let Normed { x, w, eps, n } = from;
        let from = Normed { x, w, eps, n };
        time("norm, gate, up", || self.0.norm_gated(from, rows, weights, outs, out));
    }

    fn rope(&self, x: &mut B::Rows, heads: usize, dim: usize, pairing: Pairing, rope: &RopeRows) {
        time("rope", || self.0.rope(x, heads, dim, pairing, rope));
    }

    fn kv_write(&self, kv: &mut B::Kv, k: &B::Rows, v: &B::Rows, map: &RowMap) {
        time("kv_write", || self.0.kv_write(kv, k, v, map));
    }

    fn attention(&self, q: &B::Rows, kv: &B::Kv, map: &RowMap, out: &mut B::Rows) {
        time("attention", || self.0.attention(q, kv, map, out));
    }

    fn head_norm(&self, x: &mut B::Rows, w: &B::Vector, eps: f32, rows: usize) {
        time("head_norm", || self.0.head_norm(x, w, eps, rows));
    }

    fn gate(&self, x: &mut B::Rows, gate: &B::Rows, rows: usize) {
        time("gate", || self.0.gate(x, gate, rows));
    }

    fn convolve(
        &self,
        x: &B::Rows,
        taps: &B::Vector,
        state: &mut B::State,
        walks: &[Walk],
        out: &mut B::Rows,
    ) {
        time("convolve", || self.0.convolve(x, taps, state, walks, out));
    }

    fn gates(
        &self,
        b: &B::Rows,
        a: &B::Rows,
        dt_bias: &B::Vector,
        amplitude: &B::Vector,
        rows: usize,
        out: &mut B::Rows,
    ) {
        time("gates", || self.0.gates(b, a, dt_bias, amplitude, rows, out));
    }

    fn delta(
        &self,
        x: &B::Rows,
        gates: &B::Rows,
        state: &mut B::State,
        walks: &[Walk],
        out: &mut B::Rows,
    ) {
        time("delta", || self.0.delta(x, gates, state, walks, out));
    }

    fn gated_norm(&self, x: &mut B::Rows, w: &B::Vector, z: &B::Rows, eps: f32, rows: usize) {
        time("gated_norm", || self.0.gated_norm(x, w, z, eps, rows));
    }

    fn silu_mul(&self, gate: &B::Rows, up: &B::Rows, rows: usize, out: &mut B::Rows) {
        time("silu_mul", || self.0.silu_mul(gate, up, rows, out));
    }

    fn add(&self, x: &mut B::Rows, y: &B::Rows, rows: usize) {
        time("add", || self.0.add(x, y, rows));
    }
}
