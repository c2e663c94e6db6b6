//! The reference as a backend: one thread, row by row over `arith`. Tests use it as the oracle,
//! and with a planted [`Defect`] to show that a check can fail.

use std::sync::atomic::{AtomicBool, Ordering};

use arith::attention::{Heads, KvDtype, attend};
use arith::base::{Arith, TILE_KEYS};
use arith::exp::sigmoid;
use arith::float::flush;
use arith::format::{Format, Matrix, read_float, read_row};
use arith::gdn::{Gates, Gdn};
use arith::linear::{Groups, linear_share};
use arith::norm::rms_norm;
use arith::rope::{Pairing, RopeRows, rotate};

use crate::berths::{self, Offer, Over, Shared};
use crate::{Backend, BackendError, Normed, RowAt, RowMap, Walk};

mod cache;
mod defect;
mod planted;
mod planted_a8;
mod recurrent;
mod state;

pub use cache::Kv;
pub use defect::Defect;
pub use state::State;

/// The scalar backend.
#[derive(Clone, Copy, Debug, Default)]
pub struct Scalar {
    arith: Arith,
    defect: Option<Defect>,
    failed: Option<&'static AtomicBool>,
}

/// `[rows_max, width]` on the host.
#[derive(Clone, Debug)]
pub struct Rows {
    width: usize,
    data: Vec<f32>,
}

impl Rows {
    fn row(&self, r: usize) -> &[f32] {
        &self.data[r * self.width..(r + 1) * self.width]
    }

    fn row_mut(&mut self, r: usize) -> &mut [f32] {
        &mut self.data[r * self.width..(r + 1) * self.width]
    }
}

/// A matrix as stored, its bytes owned.
#[derive(Clone, Debug)]
pub struct Linear {
    format: Format,
    rows: usize,
    cols: usize,
    groups: Groups,
    bytes: Vec<u8>,
}

impl Linear {
    fn matrix(&self) -> Matrix<'_> {
        let Self { format, rows, cols, .. } = *self;
        Matrix { format, rows, cols, bytes: &self.bytes }
    }
}

impl Scalar {
    /// The reference itself.
    pub fn new(arith: Arith) -> Self {
        Self { arith, ..Self::default() }
    }

    /// The reference with one fault, for tests that must turn red.
    pub fn with_defect(arith: Arith, defect: Defect) -> Self {
        Self { arith, defect: Some(defect), ..Self::default() }
    }

    /// As the default, failed from when `failed` is set.
    pub fn failing(failed: &'static AtomicBool) -> Self {
        Self { failed: Some(failed), ..Self::default() }
    }

    fn has(&self, defect: Defect) -> bool {
        self.defect == Some(defect)
    }

    /// What an elementwise op writes.
    fn flush(&self, x: f32) -> f32 {
        if self.has(Defect::UnflushedRows) { x } else { flush(x) }
    }

    /// Attention of one row: its query heads over the gathered keys of their kv head.
    fn attend_row(&self, q: &[f32], kv: &Kv, map: &RowMap, at: RowAt, out: &mut [f32]) {
        let Heads { query, kv: kv_heads, dim } = kv.heads;
        let (table, visible) = planted::visible(self.defect, map, at);
        let shared = query / kv_heads;
        for head in 0..kv_heads {
            let mut k = kv.head(&kv.k, table, visible, head);
            if self.has(Defect::UnroundedOwnKey) {
                let own = kv.at(table, visible - 1) + head * dim;
                let last = k.len() - dim;
                k[last..].copy_from_slice(&kv.unrounded[own..own + dim]);
            }
            let v = kv.head(&kv.v, table, visible, head);
            for h in head * shared..(head + 1) * shared {
                let (q, out) = (&q[h * dim..][..dim], &mut out[h * dim..][..dim]);
                match self.defect {
                    Some(defect) => planted::attend(defect, q, &k, &v, out),
                    None => attend(q, &k, &v, dim, out),
                }
            }
        }
    }
}

impl Backend for Scalar {
    type Rows = Rows;
    type Linear = Linear;
    type Vector = Vec<f32>;
    type Kv = Kv;
    type State = State;
    type Berths = Shared;

    fn name(&self) -> &'static str {
        "scalar"
    }

    fn arith(&self) -> Arith {
        self.arith
    }

    fn device(&self) -> String {
        "scalar reference, one thread".into()
    }

    fn berths(
        &self,
        count: usize,
        rows: usize,
        width: usize,
        _: Over,
    ) -> Result<(Shared, Offer), String> {
        berths::check(count, rows, width)?;
        let berths = Shared::new(count, rows * width);
        let offer = berths.offer();
        Ok((berths, offer))
    }

    fn reach(
        &self,
        offer: &Offer,
        rows: usize,
        width: usize,
        _: Over,
    ) -> Result<(Shared, u32), String> {
        let berths = Shared::find(offer, rows * width)?;
        let count = berths.count() as u32;
        Ok((berths, count))
    }

    fn put(
        &self,
        from: &Rows,
        (first, rows): (usize, usize),
        to: &Shared,
        (berth, at): (u32, usize),
    ) -> Result<(), String> {
        let width = from.width;
        to.put(berth, at * width, &from.data[first * width..(first + rows) * width]);
        Ok(())
    }

    fn send(&self, to: &Shared, berth: u32, values: usize) -> Result<(), String> {
        to.send(berth, values)
    }

    fn come(&self, own: &Shared, berth: u32, values: usize) -> Result<(), String> {
        own.come(berth, values)
    }

    fn fetch(
        &self,
        from: &Shared,
        berth: u32,
        (first, rows): (usize, usize),
        to: &mut Rows,
        at: usize,
    ) {
        let width = to.width;
        from.fetch(berth, first * width, &mut to.data[at * width..(at + rows) * width]);
    }

    fn failure(&self) -> Option<BackendError> {
        self.failed?.load(Ordering::Acquire).then(|| BackendError::Failed {
            device: self.device(),
            words: "a planted failure".to_owned(),
        })
    }

    fn rows(&self, rows_max: usize, width: usize) -> Result<Rows, BackendError> {
        Ok(Rows { width, data: vec![0.0; rows_max * width] })
    }

    fn upload(&self, data: &[f32], to: &mut Rows) {
        assert!(data.len().is_multiple_of(to.width));
        to.data[..data.len()].copy_from_slice(data);
    }

    fn download(&self, from: &Rows, first: usize, to: &mut [f32]) {
        to.copy_from_slice(&from.data[first * from.width..][..to.len()]);
    }

    fn linear(&self, matrix: &Matrix<'_>) -> Result<Linear, BackendError> {
        self.linear_share(matrix, Groups::of(matrix.cols))
    }

    fn has_shares(&self) -> bool {
        true
    }

    fn linear_share(&self, matrix: &Matrix<'_>, groups: Groups) -> Result<Linear, BackendError> {
        let Matrix { format, rows, cols, bytes } = *matrix;
        assert_eq!(bytes.len(), rows * matrix.row_bytes());
        Ok(Linear { format, rows, cols, groups, bytes: bytes.to_vec() })
    }

    fn vector(&self, matrix: &Matrix<'_>) -> Result<Vec<f32>, BackendError> {
        if !matrix.format.is_float() {
            return Err(BackendError::Shape {
                what: "vector".into(),
                expected: "a float format".into(),
                found: matrix.format.to_string(),
            });
        }
        let values = 0..matrix.rows * matrix.cols;
        Ok(values.map(|i| read_float(matrix.format, matrix.bytes, i)).collect())
    }

    fn kv(&self, dtype: KvDtype, pages: usize, heads: Heads) -> Result<Kv, BackendError> {
        let values = pages * TILE_KEYS * heads.kv * heads.dim;
        let unrounded = match self.has(Defect::UnroundedOwnKey) {
            true => vec![0.0; values],
            false => Vec::new(),
        };
        Ok(Kv { dtype, heads, k: vec![0.0; values], v: vec![0.0; values], unrounded })
    }

    fn state(&self, shape: Gdn, places: usize) -> Result<State, BackendError> {
        Ok(State::new(shape, places))
    }

    fn candidates(
        &self,
        (logits, width): (&Rows, usize),
        first: u32,
        best: &[u32],
        to: &mut Vec<f32>,
    ) {
        assert_eq!(width, logits.width);
        for (r, &best) in best.iter().enumerate() {
            planted::candidates(self.defect, logits.row(r), first, best, to);
        }
    }

    fn copy_rows(&self, from: &Rows, first: usize, rows: usize, to: &mut Rows, at: usize) {
        let width = from.width;
        assert_eq!(width, to.width);
        let first = if self.has(Defect::ShiftedRows) { 0 } else { first };
        to.data[at * width..][..rows * width]
            .copy_from_slice(&from.data[first * width..][..rows * width]);
    }

    fn copy_page(&self, kv: &mut Kv, from: u32, to: u32) {
        let page = TILE_KEYS * kv.width();
        let (from, to) = (from as usize * page, to as usize * page);
        let kept = self.has(Defect::KeysOnly);
        for (values, kept) in [(&mut kv.k, false), (&mut kv.v, kept), (&mut kv.unrounded, false)] {
            if !values.is_empty() && !kept {
                values.copy_within(from..from + page, to);
            }
        }
    }

    fn copy_state(&self, from: &State, place: usize, to: &mut State, to_place: usize) {
        to.copy_from(from, place, to_place, self.has(Defect::NoTailCopy));
    }

    fn download_state(&self, state: &State, place: usize, s: &mut [f32], tail: &mut [f32]) {
        s.copy_from_slice(state.s(place));
        tail.copy_from_slice(state.tail(place));
    }

    fn embed(&self, table: &Linear, ids: &[u32], out: &mut Rows) {
        for (r, &id) in ids.iter().enumerate() {
            read_row(&table.matrix(), id as usize, out.row_mut(r));
            if self.has(Defect::NoOffset) {
                planted::embed(&table.matrix(), id as usize, out.row_mut(r));
            }
        }
    }

    fn rms_norm(&self, x: &Rows, w: &Vec<f32>, eps: f32, rows: usize, out: &mut Rows) {
        for r in 0..rows {
            match self.defect {
                Some(defect) => planted::rms_norm(defect, x.row(r), w, eps, out.row_mut(r)),
                None => rms_norm(x.row(r), w, eps, out.row_mut(r)),
            }
        }
    }

    fn project(&self, x: &Rows, rows: usize, weights: &[&Linear], outs: &mut [&mut Rows]) {
        assert_eq!(weights.len(), outs.len());
        for (w, out) in weights.iter().zip(outs) {
            for r in 0..rows {
                match self.defect {
                    Some(defect) => {
                        let at = planted::Row { row: r, rows };
                        let (matrix, out) = (&(w.matrix(), w.groups), out.row_mut(r));
                        planted::linear(self.arith, defect, matrix, at, x.row(r), out);
                    }
                    None => {
                        let (matrix, out) = (w.matrix(), out.row_mut(r));
                        linear_share(self.arith, &matrix, &w.groups, x.row(r), out);
                    }
                }
            }
        }
    }

    fn norm_project(
        &self,
        from: Normed<'_, Self>,
        rows: usize,
        weights: &[&Linear],
        outs: &mut [&mut Rows],
    ) {
        let Normed { x, w, eps, n } = from;
        self.rms_norm(x, w, eps, rows, n);
        let n = if self.has(Defect::UnnormedRows) { x } else { n };
        self.project(n, rows, weights, outs);
    }

    fn norm_gated(
        &self,
        from: Normed<'_, Self>,
        rows: usize,
        weights: [&Linear; 2],
        [gate, up]: [&mut Rows; 2],
        out: &mut Rows,
    ) {
        self.norm_project(from, rows, &weights, &mut [&mut *gate, &mut *up]);
        match self.has(Defect::SwappedGate) {
            true => self.silu_mul(up, gate, rows, out),
            false => self.silu_mul(gate, up, rows, out),
        }
    }

    fn rope(&self, x: &mut Rows, heads: usize, dim: usize, pairing: Pairing, rope: &RopeRows) {
        let pairing = match (self.has(Defect::OtherPairing), pairing) {
            (true, Pairing::Adjacent) => Pairing::Halves,
            (true, Pairing::Halves) => Pairing::Adjacent,
            (false, pairing) => pairing,
        };
        for r in 0..rope.rows() {
            rotate(x.row_mut(r), heads, dim, pairing, rope, r);
        }
    }

    fn kv_write(&self, kv: &mut Kv, k: &Rows, v: &Rows, map: &RowMap) {
        for (r, at) in map.rows.iter().enumerate() {
            let to = kv.at(&map.tables[at.table], at.position as usize);
            for i in 0..kv.width() {
                kv.k[to + i] = planted::store(self.defect, kv.dtype, k.row(r)[i]);
                if self.has(Defect::UnroundedOwnKey) {
                    kv.unrounded[to + i] = k.row(r)[i];
                }
                kv.v[to + i] = planted::store(self.defect, kv.dtype, v.row(r)[i]);
            }
        }
    }

    fn attention(&self, q: &Rows, kv: &Kv, map: &RowMap, out: &mut Rows) {
        for (r, &at) in map.rows.iter().enumerate() {
            self.attend_row(q.row(r), kv, map, at, out.row_mut(r));
        }
    }

    fn head_norm(&self, x: &mut Rows, w: &Vec<f32>, eps: f32, rows: usize) {
        for r in 0..rows {
            recurrent::head_norm(self.defect, x.row_mut(r), w, eps);
        }
    }

    fn gate(&self, x: &mut Rows, gate: &Rows, rows: usize) {
        for i in 0..rows * x.width {
            x.data[i] = self.flush(x.data[i] * sigmoid(gate.data[i]));
        }
    }

    fn convolve(
        &self,
        x: &Rows,
        taps: &Vec<f32>,
        state: &mut State,
        walks: &[Walk],
        out: &mut Rows,
    ) {
        let shape = *state.shape();
        for walk in walks {
            let rows = walk.rows.clone().map(|r| x.row(r));
            let fresh = self.has(Defect::FreshTail);
            let before = state.begin_tail(walk.from.filter(|_| !fresh));
            let mut all: Vec<&[f32]> = before.chunks_exact(shape.channels()).chain(rows).collect();
            for (i, r) in walk.rows.clone().enumerate() {
                let window = &all[i..i + shape.taps];
                recurrent::convolve(self.defect, &shape, taps, window, out.row_mut(r));
            }
            if self.has(Defect::StaleConvTail) {
                all.pop();
            }
            state.end_tail(walk.to, &all);
        }
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
        for r in 0..rows {
            let (beta, decay) = out.row_mut(r).split_at_mut(dt_bias.len());
            for h in 0..dt_bias.len() {
                beta[h] = recurrent::beta(self.defect, b.row(r)[h]);
                decay[h] = recurrent::decay(self.defect, a.row(r)[h], dt_bias[h], amplitude[h]);
            }
        }
    }

    fn delta(&self, x: &Rows, gates: &Rows, state: &mut State, walks: &[Walk], out: &mut Rows) {
        let shape = *state.shape();
        let (kd, vd) = (shape.key_dim, shape.value_dim);
        for walk in walks {
            let from = match walk.from {
                None if self.has(Defect::StaleState) => Some(walk.to),
                Some(_) if self.has(Defect::OwnPlace) => Some(walk.to),
                from => from,
            };
            let s = state.begin_s(from, walk.to);
            for r in walk.rows.clone() {
                let (queries, rest) = x.row(r).split_at(shape.key_width());
                let (keys, values) = rest.split_at(shape.key_width());
                let (beta, decay) = gates.row(r).split_at(shape.values);
                for h in 0..shape.values {
                    let key = recurrent::key_of(self.defect, &shape, h) * kd;
                    recurrent::step(
                        self.defect,
                        &mut s[h * kd * vd..][..kd * vd],
                        &queries[key..][..kd],
                        &keys[key..][..kd],
                        &values[h * vd..][..vd],
                        Gates { beta: beta[h], decay: decay[h] },
                        &mut out.row_mut(r)[h * vd..][..vd],
                    );
                }
            }
        }
    }

    fn gated_norm(&self, x: &mut Rows, w: &Vec<f32>, z: &Rows, eps: f32, rows: usize) {
        for r in 0..rows {
            let heads = x.row_mut(r).chunks_exact_mut(w.len());
            for (x, z) in heads.zip(z.row(r).chunks_exact(w.len())) {
                recurrent::gated_norm(self.defect, x, w, z, eps);
            }
        }
    }

    fn silu_mul(&self, gate: &Rows, up: &Rows, rows: usize, out: &mut Rows) {
        for i in 0..rows * gate.width {
            out.data[i] = self.flush(planted::gate(self.defect, gate.data[i]) * up.data[i]);
        }
    }

    fn add(&self, x: &mut Rows, y: &Rows, rows: usize) {
        for i in 0..rows * x.width {
            let sum = x.data[i] + y.data[i];
            x.data[i] = if self.has(Defect::UnflushedAdd) { sum } else { flush(sum) };
        }
    }
}
