//! By tolerance against plain f64, and the properties that the reference must have.

use arith::a8::quantise_block;
use arith::a16::quantise_slice;
use arith::attention::{KvDtype, attend};
use arith::base::Arith;
use arith::float::{f16_to_f32, f32_to_f16, flush, is_spoilt};
use arith::format::{Format, Matrix, read_row};
use arith::gdn::{self, Gates, Gdn, HeadOrder};
use arith::head::argmax;
use arith::linear::{GROUPS, group_slices, linear};
use arith::rope::{Pairing, RopeRows, rotate};
use arith::sample::{Sampling, draw, logprob};
use proptest::prelude::*;

use super::Noise;

/// `|got - want|` relative to the largest of the wanted values.
fn worst(got: &[f32], want: &[f64]) -> f64 {
    let top = want.iter().fold(1e-30, |m: f64, x| m.max(x.abs()));
    got.iter().zip(want).map(|(g, w)| (f64::from(*g) - w).abs() / top).fold(0.0, f64::max)
}

#[test]
fn linears_are_close_to_the_exact_sums() {
    for format in Format::plain_all().chain(Format::mlx_all()) {
        let (rows, cols) = (16, 1184 / format.unit_values() * format.unit_values());
        let mut noise = Noise(11);
        let x = noise.units(cols);
        let bytes: Vec<u8> = if format.is_float() {
            let halves = |x: f32| match format {
                Format::F32 => x.to_le_bytes().to_vec(),
                Format::F16 => f32_to_f16(x).to_le_bytes().to_vec(),
                _ => ((x.to_bits() >> 16) as u16).to_le_bytes().to_vec(),
            };
            noise.units(rows * cols).into_iter().flat_map(halves).collect()
        } else {
            noise.row_bytes(format, rows * cols)
        };
        let matrix = Matrix { format, rows, cols, bytes: &bytes };
        let mut w = vec![0.0; cols];
        let want: Vec<f64> = (0..rows)
            .map(|n| {
                read_row(&matrix, n, &mut w);
                w.iter().zip(&x).map(|(&w, &x)| f64::from(w) * f64::from(x)).sum()
            })
            .collect();
        let mut got = vec![0.0; rows];
        for (arith, bound) in [(Arith::One, 2e-4), (Arith::Two, 2e-2)] {
            linear(arith, &matrix, &x, &mut got);
            let e = worst(&got, &want);
            let bound = if format.is_float() { 2e-4 } else { bound };
            assert!(e < bound, "{format}, arith {arith}: {e}");
        }
    }
}

#[test]
fn attention_is_close_to_an_exact_softmax() {
    let (dim, mut noise) = (16, Noise(12));
    let q = noise.units(dim);
    for keys in [1, 63, 64, 65, 512, 513, 1100] {
        let (k, v) = (noise.units(keys * dim), noise.units(keys * dim));
        let score = |key: &[f32]| -> f64 {
            let dot: f64 = q.iter().zip(key).map(|(&a, &b)| f64::from(a) * f64::from(b)).sum();
            dot / libm::sqrt(dim as f64)
        };
        let p: Vec<f64> = k.chunks(dim).map(|key| libm::exp(score(key))).collect();
        let total: f64 = p.iter().sum();
        let want: Vec<f64> = (0..dim)
            .map(|d| p.iter().zip(v.chunks(dim)).map(|(p, v)| p / total * f64::from(v[d])).sum())
            .collect();
        let mut got = vec![0.0; dim];
        attend(&q, &k, &v, dim, &mut got);
        let e = worst(&got, &want);
        assert!(e < 1e-5, "{keys} keys: {e}");
    }
}

/// One row through a value head in f64, as qwen3_5 states it: decay, read, update, read.
fn delta_rule(s: &mut [Vec<f64>], q: &[f32], k: &[f32], v: &[f32], gates: Gates) -> Vec<f64> {
    let read = |s: &[Vec<f64>], x: &[f32], at: usize| -> f64 {
        s.iter().zip(x).map(|(s, &x)| s[at] * f64::from(x)).sum()
    };
    s.iter_mut().flatten().for_each(|s| *s *= f64::from(gates.decay));
    let d: Vec<f64> = (0..v.len())
        .map(|at| f64::from(gates.beta) * (f64::from(v[at]) - read(s, k, at)))
        .collect();
    for (s, &k) in s.iter_mut().zip(k) {
        s.iter_mut().zip(&d).for_each(|(s, d)| *s += f64::from(k) * d);
    }
    (0..v.len()).map(|at| read(s, q, at)).collect()
}

#[test]
fn the_delta_rule_stays_close_to_f64_over_many_rows() {
    let (kd, vd, mut noise) = (64, 24, Noise(16));
    let mut s = vec![0.0; kd * vd];
    let mut exact = vec![vec![0.0; vd]; kd];
    for row in 0..400 {
        let (mut q, mut k, v) = (noise.units(kd), noise.units(kd), noise.units(vd));
        gdn::l2_norm(&mut q, Some(gdn::query_scale(kd)));
        gdn::l2_norm(&mut k, None);
        let length: f64 = k.iter().map(|&k| f64::from(k) * f64::from(k)).sum();
        assert!((length - 1.0).abs() < 1e-5);
        let gates = Gates {
            beta: gdn::beta(4.0 * noise.unit()),
            decay: gdn::decay(noise.unit(), -2.0, 0.5),
        };
        let mut out = vec![0.0; vd];
        gdn::step(&mut s, &q, &k, &v, gates, &mut out);
        let want = delta_rule(&mut exact, &q, &k, &v, gates);
        let e = worst(&out, &want).max(worst(&s, &exact.concat()));
        assert!(e < 1e-5, "row {row}: {e}");
    }
}

#[test]
fn gates_are_close_to_their_formulas() {
    for i in 0..2000 {
        let (x, amplitude) = (-60.0 + 0.05 * i as f32, [0.01, 1.0, 16.0][i % 3]);
        let exact = |x: f32| f64::from(x);
        let beta = 1.0 / (1.0 + libm::exp(-exact(x)));
        assert!((exact(gdn::beta(x)) - beta).abs() < 1e-6 * beta.max(1e-4), "beta {x}");
        let decay = libm::exp(-exact(amplitude) * libm::log1p(libm::exp(exact(x + 0.5))));
        let e = (exact(gdn::decay(x, 0.5, amplitude)) - decay).abs();
        assert!(e < 4e-6 * decay.max(1e-4), "decay {x} {amplitude}: {e}");
    }
}

#[test]
fn value_heads_find_their_key_head_in_either_order() {
    let gdn = |order| Gdn { keys: 2, values: 6, key_dim: 4, value_dim: 1, taps: 2, order };
    let heads = |order| (0..6).map(|h| gdn(order).key_of(h)).collect::<Vec<_>>();
    assert_eq!(heads(HeadOrder::Grouped), [0, 0, 0, 1, 1, 1]);
    assert_eq!(heads(HeadOrder::Tiled), [0, 1, 0, 1, 0, 1]);
}

#[test]
fn the_sums_of_a_tile_are_flushed_before_they_are_merged() {
    let two = |exponent: i32| libm::scalbn(1.0, exponent) as f32;
    let k = vec![0.0; 128];
    let mut v = vec![two(-30); 128];
    v[64..].fill(0.0);
    (v[64], v[65]) = (two(-30), two(-37) - two(-30)); // the second tile sums to 2^-37
    let mut out = [1.0];
    attend(&[1.0], &k, &v, 1, &mut out);
    assert_eq!(out[0], two(-31));
}

#[test]
fn a_rotated_head_keeps_the_length_of_its_pairs() {
    let x = Noise(13).units(64);
    let table = RopeRows::new(1e4, 64, &[0, 100_000]);
    for pairing in [Pairing::Adjacent, Pairing::Halves] {
        let mut still = x.clone();
        rotate(&mut still, 1, 64, pairing, &table, 0);
        assert_eq!(still, x);
        let mut turned = x.clone();
        rotate(&mut turned, 1, 64, pairing, &table, 1);
        for i in 0..32 {
            let (a, b) = pairing.dims(i, 64);
            let length = |x: &[f32]| x[a].hypot(x[b]);
            assert!((length(&x) - length(&turned)).abs() < 1e-6);
        }
    }
}

#[test]
fn groups_cover_the_slices_once_and_in_order() {
    for slices in 0..200 {
        let all: Vec<usize> = (0..GROUPS).flat_map(|g| group_slices(g, slices)).collect();
        assert_eq!(all, (0..slices).collect::<Vec<_>>());
    }
    assert_eq!(group_slices(0, 20), 0..3);
    assert_eq!(group_slices(7, 20), 18..20);
    assert_eq!(group_slices(1, 1), 1..1);
}

#[test]
fn a_spoilt_row_spoils_every_output_of_a_linear_and_nothing_else_does() {
    let formats = [Format::Q8_0, Format::F16];
    for (arith, format) in Arith::ALL.into_iter().flat_map(|a| formats.map(|f| (a, f))) {
        let cols = 32;
        let bytes = vec![0x2c; 2 * cols / format.unit_values() * format.unit_bytes()];
        let matrix = Matrix { format, rows: 2, cols, bytes: &bytes };
        let mut x = vec![1.0; cols];
        let mut out = [0.0; 2];
        for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 1.152_921_5e18, -2e18] {
            x[13] = bad;
            linear(arith, &matrix, &x, &mut out);
            assert!(out.iter().all(|x| x.to_bits() == 0x7fc0_0000), "{bad}");
        }
        x[13] = f32::from_bits(0x5d7f_ffff); // the largest value below 2^60
        assert!(!is_spoilt(&x));
        linear(arith, &matrix, &x, &mut out);
        assert!(out.iter().all(|x| x.is_finite()), "{format:?} {out:?}");
    }
}

#[test]
fn a_slice_below_its_least_amax_quantises_to_zeros() {
    let least = 9.313_226e-10f32; // 2^-30
    let mut q = [7; 3];
    assert_eq!(quantise_slice(&[0.0, least.next_down(), -1e-12], &mut q).to_bits(), 0);
    assert_eq!(q, [0; 3]);
    let d = quantise_slice(&[0.0, -least, least / 2.0], &mut q);
    assert_eq!(d, least / 32639.0);
    assert_eq!(q, [0, -32639, 16320]); // 16319.5 goes to the even neighbour
}

#[test]
fn a_block_of_32_has_a_scale_of_its_own() {
    let least = 9.313_226e-10f32; // 2^-30
    let mut q = [7; 3];
    assert_eq!(quantise_block(&[0.0, least.next_down(), -1e-12], &mut q).to_bits(), 0);
    assert_eq!(q, [0; 3]);
    let d = quantise_block(&[0.0, -least, least / 2.0], &mut q);
    assert_eq!(d, least / 127.0);
    assert_eq!(q, [0, -127, 64]); // 63.5 goes to the even neighbour
    let x: Vec<f32> = (0..96).map(|i| if i < 32 { 1.0 } else { 3.0 }).collect();
    let row = arith::a8::quantise(&x).unwrap();
    assert_eq!(row.d, [1.0 / 127.0, 3.0 / 127.0, 3.0 / 127.0]);
    assert_eq!(row.q, [127; 96]);
}

#[test]
fn the_smallest_scales_of_arith_2_meet_no_subnormal() {
    // a and c of 2^-30 either sign, activations just above and below the least amax.
    let format: Format = "MLX8/64/F32".parse().unwrap();
    let least = 9.313_226e-10f32;
    let mut bytes = Vec::new();
    for a in [least, -least] {
        bytes.extend(a.to_le_bytes());
        bytes.extend((-a).to_le_bytes());
        bytes.extend(0..64);
    }
    let matrix = Matrix { format, rows: 2, cols: 64, bytes: &bytes };
    let mut out = [0.0; 2];
    for top in [least, least.next_up(), 1.5 * least, least.next_down()] {
        let x: Vec<f32> = (0..64).map(|i| top * [1.0, -0.3, 0.01][i % 3]).collect();
        let (_, subnormal) = arith::count::subnormals(|| linear(Arith::Two, &matrix, &x, &mut out));
        assert_eq!(subnormal, 0, "{top:e}");
        assert_eq!(out.map(f32::to_bits), [0; 2]); // below 2^-36
    }
}

#[test]
fn halves_round_right_at_the_edges() {
    let two = |exponent: i32| libm::scalbn(1.0, exponent) as f32;
    let tie = two(-14) - two(-25); // between the largest subnormal and 2^-14, which is even
    for (x, half) in [
        (tie, 0x0400),
        (tie.next_down(), 0),
        (-tie, 0x8400),
        (two(-14), 0x0400),
        (1.0 + two(-11), 0x3c00), // ties
        (1.0 + 3.0 * two(-11), 0x3c02),
        ((1.0 + two(-11)).next_up(), 0x3c01),
        (2.0 - two(-11), 0x4000),
        (65519.9, 0x7bff),
        (65520.0, 0x7bff),
        (-1e9, 0xfbff),
        (f32::INFINITY, 0x7bff),
        (f32::NAN, 0x7e00),
        (-0.0, 0),
    ] {
        assert_eq!(f32_to_f16(x), half, "{x:e}");
    }
}

#[test]
fn every_half_survives_the_round_trip_except_subnormals_and_infinities() {
    for half in 0..=u16::MAX {
        let back = f32_to_f16(f16_to_f32(half));
        let want = match half & 0x7fff {
            0..0x0400 => 0,
            0x7c00 => half & 0x8000 | 0x7bff,
            0x7c01.. => 0x7e00,
            _ => half,
        };
        assert_eq!(back, want, "{half:04x}");
    }
}

proptest! {
    #[test]
    fn halves_round_to_nearest_even(bits in any::<u32>(), small in any::<bool>()) {
        // Half of the draws in binary16's own range.
        let x = f32::from_bits(if small { bits & 0x8fff_ffff | 0x3000_0000 } else { bits });
        prop_assume!(x.is_finite());
        let got = f64::from(f16_to_f32(f32_to_f16(x)));
        // Nearest multiple of the unit at this magnitude, ties to even, in f64.
        let unit = libm::scalbn(1.0, libm::ilogb(f64::from(x)).max(-14) - 10);
        let nearest = (f64::from(x) / unit).round_ties_even() * unit;
        let want = if nearest.abs() < libm::scalbn(1.0, -14) {
            0.0
        } else {
            nearest.clamp(-65504.0, 65504.0)
        };
        prop_assert_eq!(got, want);
        prop_assert_eq!(KvDtype::F16.round(x).to_bits(), (want as f32).to_bits());
    }

    #[test]
    fn a_flush_leaves_no_small_value_and_no_negative_zero(bits in any::<u32>()) {
        let x = flush(f32::from_bits(bits));
        prop_assert!(x.is_nan() || x.to_bits() == 0 || x.abs() >= 1.455_191_5e-11);
    }
}

const GREEDY: Sampling = Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 };

#[test]
fn ties_go_to_the_lowest_id() {
    assert_eq!(argmax(&[1.0, 3.0, 3.0, 2.0, 3.0]), 1);
    assert_eq!(argmax(&[-0.0, 0.0]), 0);
    assert_eq!(argmax(&[f32::NAN, -1.0, f32::NAN]), 1);
    assert_eq!(draw(&[0.0, 5.0, 5.0], &GREEDY, 9), 1);
    // One candidate of two equals: the sort's order decides, not the noise.
    let one = Sampling { temperature: 1.0, top_k: 1, ..GREEDY };
    for position in 0..50 {
        assert_eq!(draw(&[-1.0, 4.0, 4.0], &one, position), 1);
    }
}

/// How often each of four tokens is drawn in 4,000.
fn counts(logits: &[f32; 4], sampling: &Sampling) -> [u32; 4] {
    let mut counts = [0; 4];
    (0..4000).for_each(|p| counts[draw(logits, sampling, p) as usize] += 1);
    counts
}

#[test]
fn tokens_are_drawn_as_often_as_their_probability_says() {
    let logits = [1.0, 0.0, 2.0, -1.0];
    let sampling = Sampling { temperature: 0.7, seed: 5, ..GREEDY };
    let p = logits.map(|x: f32| libm::exp(f64::from(x) / 0.7));
    let total: f64 = p.iter().sum();
    for (count, p) in counts(&logits, &sampling).into_iter().zip(p) {
        let want = 4000.0 * p / total;
        let spread = libm::sqrt(want).max(3.0);
        assert!((f64::from(count) - want).abs() < 4.0 * spread, "{count} for {want}");
    }
    let other = Sampling { seed: 6, ..sampling };
    assert!((0..100).any(|p| draw(&logits, &sampling, p) != draw(&logits, &other, p)));
}

#[test]
fn filters_keep_what_their_rule_says_and_at_least_one() {
    // Probabilities 0.5, 0.3, 0.15, 0.05, out of order.
    let logits = [0.15f64, 0.5, 0.05, 0.3].map(|p| libm::log(p) as f32);
    let all = Sampling { temperature: 1.0, seed: 1, ..GREEDY };
    let kept = |s: Sampling| counts(&logits, &s).map(|n| n > 0);
    assert_eq!(kept(all), [true; 4]);
    assert_eq!(kept(Sampling { top_k: 2, ..all }), [false, true, false, true]);
    assert_eq!(kept(Sampling { top_k: 9, ..all }), [true; 4]);
    assert_eq!(kept(Sampling { top_p: 0.79, ..all }), [false, true, false, true]);
    assert_eq!(kept(Sampling { top_p: 0.81, ..all }), [true, true, false, true]);
    assert_eq!(kept(Sampling { top_p: 0.0, ..all }), [false, true, false, false]);
    assert_eq!(kept(Sampling { min_p: 0.29, ..all }), [true, true, false, true]);
    assert_eq!(kept(Sampling { min_p: 0.31, ..all }), [false, true, false, true]);
    assert_eq!(kept(Sampling { min_p: 2.0, ..all }), [false, true, false, false]);
    // top-p counts the mass of what top-k left: of 0.5 and 0.3 the first is 0.625.
    assert_eq!(kept(Sampling { top_k: 2, top_p: 0.62, ..all }), [false, true, false, false]);
}

#[test]
fn log_probabilities_sum_to_one() {
    let logits = Noise(15).units(100);
    let sum: f64 = (0..100).map(|id| libm::exp(f64::from(logprob(&logits, id)))).sum();
    assert!((sum - 1.0).abs() < 1e-6);
}
