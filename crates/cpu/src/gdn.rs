//! Gated DeltaNet and its neighbours, and the recurrent state of a layer.

use arith::exp::sigmoid;
use arith::float::flush;
use arith::gdn::{self, Gates};
use arith::norm::rms_norm;
use backend::{BackendError, Gdn, Walk};

use crate::memory;
use crate::rows::Rows;

/// The recurrent state of one layer: places of S `[values, key_dim, value_dim]` and of a tail
/// `[taps - 1, channels]`, oldest row first.
pub struct State {
    shape: Gdn,
    s: Vec<f32>,
    tails: Vec<f32>,
}

impl State {
    pub(crate) fn new(device: &str, shape: Gdn, places: usize) -> Result<Self, BackendError> {
        let (s, tail) = (shape.state_values(), shape.tail_values());
        let what = format!("recurrent state of {places} places");
        memory::check(device, &what, places as u128 * (s + tail) as u128 * 4)?;
        Ok(Self { shape, s: vec![0.0; places * s], tails: vec![0.0; places * tail] })
    }

    pub(crate) fn copy_from(&mut self, from: &Self, place: usize, to: usize) {
        assert_eq!(self.shape, from.shape, "states of one shape");
        let (s, tail) = (self.shape.state_values(), self.shape.tail_values());
        self.s[to * s..][..s].copy_from_slice(&from.s[place * s..][..s]);
        self.tails[to * tail..][..tail].copy_from_slice(&from.tails[place * tail..][..tail]);
    }

    pub(crate) fn download(&self, place: usize, s: &mut [f32], tail: &mut [f32]) {
        s.copy_from_slice(&self.s[place * s.len()..][..s.len()]);
        tail.copy_from_slice(&self.tails[place * tail.len()..][..tail.len()]);
    }
}

pub(crate) fn head_norm(x: &mut Rows, w: &[f32], eps: f32, rows: usize) {
    let mut normed = vec![0.0; w.len()];
    for head in x.data[..rows * x.width].chunks_exact_mut(w.len()) {
        rms_norm(head, w, eps, &mut normed);
        head.copy_from_slice(&normed);
    }
}

pub(crate) fn gate(x: &mut Rows, gate: &Rows, rows: usize) {
    for (x, gate) in x.data[..rows * x.width].iter_mut().zip(&gate.data) {
        *x = flush(*x * sigmoid(*gate));
    }
}

pub(crate) fn convolve(x: &Rows, taps: &[f32], state: &mut State, walks: &[Walk], out: &mut Rows) {
    let n = state.shape.tail_values();
    for walk in walks {
        let before = match walk.from {
            Some(from) => state.tails[from * n..][..n].to_vec(),
            None => vec![0.0; n],
        };
        let rows = walk.rows.clone().map(|r| x.row(r));
        let all: Vec<&[f32]> = before.chunks_exact(state.shape.channels()).chain(rows).collect();
        for (i, r) in walk.rows.clone().enumerate() {
            let out = &mut out.data[r * x.width..][..x.width];
            gdn::convolve(&state.shape, taps, &all[i..i + state.shape.taps], out);
        }
        let last = all[all.len() - (state.shape.taps - 1)..].concat();
        state.tails[walk.to * n..][..n].copy_from_slice(&last);
    }
}

pub(crate) fn gates(
    b: &Rows,
    a: &Rows,
    dt_bias: &[f32],
    amplitude: &[f32],
    rows: usize,
    out: &mut Rows,
) {
    let heads = dt_bias.len();
    for r in 0..rows {
        let (beta, decay) = out.data[r * 2 * heads..][..2 * heads].split_at_mut(heads);
        for h in 0..heads {
            beta[h] = gdn::beta(b.row(r)[h]);
            decay[h] = gdn::decay(a.row(r)[h], dt_bias[h], amplitude[h]);
        }
    }
}

pub(crate) fn delta(x: &Rows, gates: &Rows, state: &mut State, walks: &[Walk], out: &mut Rows) {
    let shape = state.shape;
    let (kd, vd, n) = (shape.key_dim, shape.value_dim, shape.state_values());
    for walk in walks {
        let to = walk.to * n;
        match walk.from {
            Some(from) => state.s.copy_within(from * n..(from + 1) * n, to),
            None => state.s[to..to + n].fill(0.0),
        }
        for r in walk.rows.clone() {
            let (queries, rest) = x.row(r).split_at(shape.key_width());
            let (keys, values) = rest.split_at(shape.key_width());
            let (beta, decay) = gates.row(r).split_at(shape.values);
            for h in 0..shape.values {
                let key = shape.key_of(h) * kd;
                gdn::step(
                    &mut state.s[to + h * kd * vd..][..kd * vd],
                    &queries[key..][..kd],
                    &keys[key..][..kd],
                    &values[h * vd..][..vd],
                    Gates { beta: beta[h], decay: decay[h] },
                    &mut out.data[r * out.width + h * vd..][..vd],
                );
            }
        }
    }
}

pub(crate) fn gated_norm(x: &mut Rows, w: &[f32], z: &Rows, eps: f32, rows: usize) {
    let heads = x.data[..rows * x.width].chunks_exact_mut(w.len());
    for (x, z) in heads.zip(z.data.chunks_exact(w.len())) {
        gdn::gated_norm(x, w, z, eps);
    }
}
