//! The ops of Gated DeltaNet and on heads as a given [`Defect`] has them; ops that it leaves alone
//! are the reference's.

use arith::exp::{exp, sigmoid, silu};
use arith::float::{flush, fma, is_spoilt};
use arith::gdn::{self, Gates, Gdn, HeadOrder, L2_EPS};
use arith::norm::{LANES, fold, rms_norm};

use super::Defect;

/// The squares of a row, summed as norms do.
fn squares(x: &[f32]) -> f32 {
    let mut lanes = [0.0; LANES];
    for (i, &x) in x.iter().enumerate() {
        lanes[i % LANES] = fma(x, x, lanes[i % LANES]);
    }
    fold(lanes)
}

/// All heads of one row.
pub(super) fn head_norm(defect: Option<Defect>, row: &mut [f32], w: &[f32], eps: f32) {
    let mean = fma(squares(row), 1.0 / row.len() as f32, eps);
    let mut normed = vec![0.0; w.len()];
    for head in row.chunks_exact_mut(w.len()) {
        if defect == Some(Defect::WideHead) && !is_spoilt(head) {
            let r = 1.0 / mean.sqrt();
            head.iter_mut().zip(w).for_each(|(x, w)| *x = flush((*x * r) * w));
            continue;
        }
        rms_norm(head, w, eps, &mut normed);
        head.copy_from_slice(&normed);
    }
}

/// One head of one row.
pub(super) fn gated_norm(defect: Option<Defect>, x: &mut [f32], w: &[f32], z: &[f32], eps: f32) {
    if defect != Some(Defect::GateFirst) || is_spoilt(x) {
        return gdn::gated_norm(x, w, z, eps);
    }
    let r = 1.0 / fma(squares(x), 1.0 / x.len() as f32, eps).sqrt();
    for ((x, w), &z) in x.iter_mut().zip(w).zip(z) {
        *x = flush(((*x * r) * silu(z)) * w);
    }
}

/// [`gdn::beta`].
pub(super) fn beta(defect: Option<Defect>, b: f32) -> f32 {
    if defect == Some(Defect::UnflushedGates) { sigmoid(b) } else { gdn::beta(b) }
}

/// [`gdn::decay`].
pub(super) fn decay(defect: Option<Defect>, a: f32, dt_bias: f32, amplitude: f32) -> f32 {
    let x = a + dt_bias;
    let softplus = match defect {
        Some(Defect::OpenSoftplus) => arith::exp::log1p(exp(x)),
        Some(Defect::OtherSoftplus) => x.max(0.0) + arith::exp::log1p(exp(-x.abs())),
        Some(Defect::UnflushedGates) => return exp(-(amplitude * arith::exp::softplus(x))),
        _ => return gdn::decay(a, dt_bias, amplitude),
    };
    flush(exp(-(amplitude * softplus)))
}

/// One row through the convolution; see [`gdn::convolve`].
pub(super) fn convolve(
    defect: Option<Defect>,
    shape: &Gdn,
    taps: &[f32],
    rows: &[&[f32]],
    out: &mut [f32],
) {
    let (channels, width) = (shape.channels(), shape.key_width());
    match defect {
        Some(Defect::ReversedTaps) => {
            let newest: Vec<f32> = taps.chunks_exact(channels).rev().flatten().copied().collect();
            return gdn::convolve(shape, &newest, rows, out);
        }
        Some(Defect::OuterEps | Defect::UnscaledQuery) => {}
        _ => return gdn::convolve(shape, taps, rows, out),
    }
    for (c, out) in out.iter_mut().enumerate() {
        let each = rows.iter().zip(taps.chunks_exact(channels));
        *out = flush(silu(each.fold(0.0, |sum, (row, taps)| fma(taps[c], row[c], sum))));
    }
    for (i, head) in out[..2 * width].chunks_exact_mut(shape.key_dim).enumerate() {
        let scale = (i < shape.keys).then(|| gdn::query_scale(shape.key_dim));
        if defect == Some(Defect::UnscaledQuery) || is_spoilt(head) {
            gdn::l2_norm(head, None);
            continue;
        }
        let r = 1.0 / (squares(head).sqrt() + L2_EPS);
        head.iter_mut().for_each(|x| *x = flush((*x * r) * scale.unwrap_or(1.0)));
    }
}

/// The key head of a value head.
pub(super) fn key_of(defect: Option<Defect>, shape: &Gdn, value: usize) -> usize {
    let order = match (defect, shape.order) {
        (Some(Defect::OtherKeyHead), HeadOrder::Grouped) => HeadOrder::Tiled,
        (Some(Defect::OtherKeyHead), HeadOrder::Tiled) => HeadOrder::Grouped,
        (_, order) => order,
    };
    Gdn { order, ..*shape }.key_of(value)
}

/// One row through one value head; see [`gdn::step`].
pub(super) fn step(
    defect: Option<Defect>,
    s: &mut [f32],
    query: &[f32],
    key: &[f32],
    value: &[f32],
    gates: Gates,
    out: &mut [f32],
) {
    use Defect::{
        EarlyRead, LateDecay, UnflushedDecay, UnflushedUpdate, UnfusedUpdate, WrongKeyFold,
    };
    let Some(
        defect @ (EarlyRead | LateDecay | UnflushedDecay | UnflushedUpdate | UnfusedUpdate
        | WrongKeyFold),
    ) = defect
    else {
        return gdn::step(s, query, key, value, gates, out);
    };
    let z = |unflushed: Defect, x: f32| if defect == unflushed { x } else { flush(x) };
    let decay = |s: &mut [f32]| s.iter_mut().for_each(|s| *s = z(UnflushedDecay, *s * gates.decay));
    if defect != LateDecay {
        decay(s);
    }
    for v in 0..value.len() {
        let delta = flush(gates.beta * (value[v] - over_keys(defect, s, key, value.len(), v)));
        if defect == EarlyRead {
            out[v] = flush(over_keys(defect, s, query, value.len(), v));
        }
        for (s, &key) in s[v..].iter_mut().step_by(value.len()).zip(key) {
            let sum = if defect == UnfusedUpdate { key * delta + *s } else { fma(key, delta, *s) };
            *s = z(UnflushedUpdate, sum);
        }
        if defect != EarlyRead {
            out[v] = flush(over_keys(defect, s, query, value.len(), v));
        }
    }
    if defect == LateDecay {
        decay(s);
    }
}

fn over_keys(defect: Defect, s: &[f32], x: &[f32], width: usize, v: usize) -> f32 {
    let mut lanes = [0.0; gdn::KEY_LANES];
    for (k, &x) in x.iter().enumerate() {
        lanes[k % gdn::KEY_LANES] = fma(s[k * width + v], x, lanes[k % gdn::KEY_LANES]);
    }
    match defect {
        Defect::WrongKeyFold => (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]),
        _ => (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]),
    }
}
