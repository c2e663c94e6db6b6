//! By bytes against `golden/arith/cases.txt`, which `make.py` beside it computes in exact rationals
//! from the formulas of `docs/arithmetic.md`. A change here is a change of the arithmetic's number.

use arith::exp::{exp, log1p, sigmoid, silu, softplus};
use arith::format::{Format, Matrix};
use arith::rope::{Pairing, RopeRows, rotate};
use arith::{a16, attention, linear, norm, sample};

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
}

#[test]
fn block_linears_have_the_golden_bytes() {
    for format in [Format::Q4_0, Format::Q4_1, Format::Q8_0] {
        let mut noise = Noise(2);
        let x = noise.units(2336);
        let bytes: Vec<u8> = (0..4).flat_map(|_| noise.row_bytes(format, x.len())).collect();
        let matrix = Matrix { format, rows: 4, cols: x.len(), bytes: &bytes };
        let mut out = [0.0; 4];
        linear::linear(&matrix, &x, &mut out);
        assert_bits(&format.to_string(), &out);
    }
}

#[test]
fn a_float_linear_has_the_golden_bytes() {
    let mut noise = Noise(3);
    let x = noise.units(2100);
    let bytes: Vec<u8> = noise.units(4 * x.len()).iter().flat_map(|w| w.to_le_bytes()).collect();
    let matrix = Matrix { format: Format::F32, rows: 4, cols: x.len(), bytes: &bytes };
    let mut out = [0.0; 4];
    linear::linear(&matrix, &x, &mut out);
    assert_bits("F32", &out);
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

#[test]
fn the_noise_of_a_draw_is_the_golden_one() {
    let keys = [(0, 0, 0), (1, 2, 3), (u64::MAX, 4095, 49151), (42, 7, 2)];
    for ((seed, position, id), want) in keys.into_iter().zip(case("noise")) {
        let (got, want) = (sample::noise(seed, position, id), want.parse::<f64>().unwrap());
        assert!((got - want).abs() <= 1e-13 * want.abs(), "{got} {want}");
    }
}
