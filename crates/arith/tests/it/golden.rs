//! By bytes against `golden/arith/cases.txt`, which `make.py` beside it computes in exact rationals
//! from the formulas of `docs/arithmetic.md`. A change here is a change of the arithmetic's number.

use arith::base::Arith;
use arith::exp::{exp, log1p, sigmoid, silu, softplus};
use arith::float::flush;
use arith::format::{Format, Matrix};
use arith::gdn::{self, Gates, Gdn, HeadOrder};
use arith::rope::{Pairing, RopeRows, rotate};
use arith::{a8, a16, attention, linear, norm, sample};

use super::Noise;

const CASES: &str = include_str!("../../../../golden/arith/cases.txt");

fn case(name: &str) -> Vec<&'static str> {
    let line = CASES.lines().find(|line| line.split(' ').next() == Some(name));
    line.unwrap().split(' ').skip(1).collect()
}

fn assert_bits(name: &str, got: &[f32]) {
    let got: Vec<String> = got.iter().map(|x| format!("{:08x}", x.to_bits())).collect();
    assert_eq!(got, case(name), "{name}");
}

#[test]
fn a_quantised_row_has_the_golden_bytes() {
    let row = a16::quantise(&Noise(1).units(300)).unwrap();
    let q = row.q.iter().map(|q| format!("{:04x}", *q as u16));
    let d = row.d.iter().map(|d| format!("{:08x}", d.to_bits()));
    assert_eq!(q.chain(d).collect::<Vec<_>>(), case("a16"));

    let row = a8::quantise(&Noise(1).units(300)).unwrap();
    let q = row.q.iter().map(|q| format!("{:02x}", *q as u8));
    let d = row.d.iter().map(|d| format!("{:08x}", d.to_bits()));
    assert_eq!(q.chain(d).collect::<Vec<_>>(), case("a8"));
}

#[test]
fn block_linears_have_the_golden_bytes() {
    let mlx = |kind: &str| format!("MLX{kind}").parse().unwrap();
    let mlx = ["2/32/F16", "3/64/BF16", "4/64/BF16", "5/128/F32", "6/32/F32", "8/128/F16"].map(mlx);
    for format in Format::plain_all().filter(|format| !format.is_float()).chain(mlx) {
        let mut noise = Noise(2);
        let x = noise.units(2336 / format.unit_values() * format.unit_values());
        let bytes: Vec<u8> = (0..4).flat_map(|_| noise.row_bytes(format, x.len())).collect();
        let matrix = Matrix { format, rows: 4, cols: x.len(), bytes: &bytes };
        let mut out = [0.0; 4];
        linear::linear(Arith::One, &matrix, &x, &mut out);
        assert_bits(&format.to_string(), &out);
        linear::linear(Arith::Two, &matrix, &x, &mut out);
        assert_bits(&format!("{format}:2"), &out);
    }
}

#[test]
fn a_float_linear_has_the_golden_bytes() {
    let mut noise = Noise(3);
    let x = noise.units(2100);
    let bytes: Vec<u8> = noise.units(4 * x.len()).iter().flat_map(|w| w.to_le_bytes()).collect();
    let matrix = Matrix { format: Format::F32, rows: 4, cols: x.len(), bytes: &bytes };
    let mut out = [0.0; 4];
    for arith in Arith::ALL {
        linear::linear(arith, &matrix, &x, &mut out);
        assert_bits("F32", &out);
    }
}

#[test]
fn norm_and_rope_have_the_golden_bytes() {
    let mut noise = Noise(4);
    let (x, w) = (noise.units(77), noise.units(77));
    let mut out = [0.0; 77];
    norm::rms_norm(&x, &w, 1e-5, &mut out);
    assert_bits("rms_norm", &out);

    let x = Noise(5).units(12);
    let table = RopeRows::new(1e5, 10, &[777]);
    for (name, pairing) in [("rope_adjacent", Pairing::Adjacent), ("rope_halves", Pairing::Halves)]
    {
        let mut out = x.clone();
        rotate(&mut out, 1, 12, pairing, &table, 0);
        assert_bits(name, &out);
    }
}

#[test]
fn attention_over_two_chunks_has_the_golden_bytes() {
    let mut noise = Noise(6);
    let (k, v) = (noise.units(8 * 700), noise.units(8 * 700));
    let q: Vec<f32> = noise.units(64).iter().map(|x| 8.0 * x).collect();
    let mut out = [0.0; 64];
    for (q, out) in q.chunks(8).zip(out.chunks_mut(8)) {
        attention::attend(q, &k, &v, 8, out);
    }
    assert_bits("attend", &out);
}

#[test]
fn the_functions_have_the_golden_bytes() {
    let points: Vec<f32> = Noise(7).units(40).iter().map(|x| 40.0 * x).collect();
    for (name, f) in [
        ("exp", exp as fn(f32) -> f32),
        ("sigmoid", sigmoid),
        ("silu", silu),
        ("softplus", softplus),
        ("log1p", |x| log1p(x.abs())),
    ] {
        assert_bits(name, &points.iter().map(|&x| f(x)).collect::<Vec<_>>());
    }
}

const GDN: Gdn =
    Gdn { keys: 2, values: 4, key_dim: 36, value_dim: 3, taps: 4, order: HeadOrder::Grouped };

/// Five rows through every value head.
fn delta(gdn: &Gdn, rows: &[f32], gates: &[f32], out: &mut Vec<f32>) -> Vec<f32> {
    let mut state = vec![0.0; gdn.state_values()];
    for (x, gates) in rows.chunks_exact(gdn.channels()).zip(gates.chunks_exact(8)) {
        for (h, s) in state.chunks_exact_mut(36 * 3).enumerate() {
            let key = 36 * gdn.key_of(h);
            let mut y = [0.0; 3];
            let gates = Gates { beta: gates[h], decay: gates[4 + h] };
            let value = &x[144 + 3 * h..][..3];
            gdn::step(s, &x[key..][..36], &x[72 + key..][..36], value, gates, &mut y);
            out.extend(y);
        }
    }
    state
}

#[test]
fn five_rows_of_gated_deltanet_have_the_golden_bytes() {
    let mut noise = Noise(8);
    let taps = noise.units(4 * 156);
    let dt_bias = noise.units(4);
    let amplitude: Vec<f32> = noise.units(4).iter().map(|x| (4.0 * x).abs()).collect();
    let padded = [vec![0.0; 3 * 156], noise.units(5 * 156)].concat();
    let rows: Vec<&[f32]> = padded.chunks_exact(156).collect();
    let mut convolved = vec![0.0; 5 * 156];
    for (rows, out) in rows.windows(4).zip(convolved.chunks_exact_mut(156)) {
        gdn::convolve(&GDN, &taps, rows, out);
    }
    assert_bits("convolve", &convolved);

    let mut gates = Vec::new();
    for _ in 0..5 {
        let (b, a) = (noise.units(4), noise.units(4));
        gates.extend(b.iter().map(|b| gdn::beta(8.0 * b)));
        gates.extend((0..4).map(|h| gdn::decay(8.0 * a[h], dt_bias[h], amplitude[h])));
    }
    assert_bits("gates", &gates);

    let faint: Vec<f32> = convolved
        .iter()
        .enumerate()
        .map(|(i, x)| if i % 156 < 144 { *x } else { flush(x / (1 << 27) as f32) })
        .collect();
    let tiled = Gdn { order: HeadOrder::Tiled, ..GDN };
    for (name, gdn, rows) in
        [("grouped", GDN, &convolved), ("tiled", tiled, &convolved), ("faint", GDN, &faint)]
    {
        let mut out = Vec::new();
        let state = delta(&gdn, rows, &gates, &mut out);
        assert_bits(&format!("delta_{name}"), &out);
        assert_bits(&format!("state_{name}"), &state);
    }

    let (w, mut x, z) = (noise.units(77), noise.units(77), noise.units(77));
    let z: Vec<f32> = z.iter().map(|z| 8.0 * z).collect();
    gdn::gated_norm(&mut x, &w, &z, 1e-6);
    assert_bits("gated_norm", &x);
}

#[test]
fn the_noise_of_a_draw_is_the_golden_one() {
    let keys = [(0, 0, 0), (1, 2, 3), (u64::MAX, 4095, 49151), (42, 7, 2)];
    for ((seed, position, id), want) in keys.into_iter().zip(case("noise")) {
        let (got, want) = (sample::noise(seed, position, id), want.parse::<f64>().unwrap());
        assert!((got - want).abs() <= 1e-13 * want.abs(), "{got} {want}");
    }
}
