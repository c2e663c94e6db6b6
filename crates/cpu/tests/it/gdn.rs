//! Gated DeltaNet and the gates and norms beside it, against the reference backend.

use arith::base::Arith;
use arith::format::{Format, Matrix};
use arith::gdn::HeadOrder;
use backend::scalar::Scalar;
use backend::{Backend, Gdn, Walk};

use baton_cpu::{Cpu, Isa};

use crate::{Random, assert_same, backends, download, upload};

const EPS: f32 = 1e-6;
/// Places of every state here.
const PLACES: usize = 7;

fn shape([keys, values, key_dim, value_dim, taps]: [usize; 5], order: HeadOrder) -> Gdn {
    Gdn { keys, values, key_dim, value_dim, taps, order }
}

fn vector<B: Backend>(b: &B, values: &[f32]) -> B::Vector {
    let bytes: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
    let matrix = Matrix { format: Format::F32, rows: 1, cols: values.len(), bytes: &bytes };
    b.vector(&matrix).unwrap()
}

/// The inputs of a layer for some rows.
#[derive(Clone)]
struct Inputs {
    shape: Gdn,
    x: Vec<f32>,
    b: Vec<f32>,
    a: Vec<f32>,
    z: Vec<f32>,
    taps: Vec<f32>,
    dt_bias: Vec<f32>,
    amplitude: Vec<f32>,
    w: Vec<f32>,
}

impl Inputs {
    fn new(shape: Gdn, rows: usize, random: &mut Random) -> Self {
        // Rows of several sizes; some so small that what they give is flushed.
        let mut rows_of = |width: usize, most: f32| -> Vec<f32> {
            let scale =
                |r: usize| [1.0, 0.1, 2.0_f32.powi(-38), 3.0, 0.0, 2.0_f32.powi(-19)][r % 6];
            (0..rows).flat_map(|r| random.values(width, scale(r) * most)).collect()
        };
        let (x, b) = (rows_of(shape.channels(), 1.0), rows_of(shape.values, 8.0));
        let (a, z) = (rows_of(shape.values, 25.0), rows_of(shape.value_width(), 15.0));
        Self {
            shape,
            x,
            b,
            a,
            z,
            taps: random.values(shape.taps * shape.channels(), 0.7),
            dt_bias: random.values(shape.values, 4.0),
            amplitude: random.values(shape.values, 2.0).iter().map(|x| x.abs()).collect(),
            w: random.values(shape.value_dim, 2.0),
        }
    }

    fn rows(&self) -> usize {
        self.b.len() / self.shape.values
    }
}

/// What a layer gives: the rows of every op, then all places of its state.
#[derive(Clone, PartialEq)]
struct Found {
    rows: [Vec<f32>; 4],
    state: Vec<f32>,
}

impl Found {
    fn assert_is(&self, expected: &Self, case: &str) {
        let ops = ["convolve", "gates", "delta", "gated_norm"];
        for (op, (found, expected)) in ops.iter().zip(self.rows.iter().zip(&expected.rows)) {
            assert_same(found, expected, &format!("{case}, {op}"));
        }
        assert_same(&self.state, &expected.state, &format!("{case}, state"));
    }
}

/// Runs rounds of walks through a layer.
fn run<B: Backend>(b: &B, inputs: &Inputs, rounds: &[Vec<Walk>]) -> Found {
    let (shape, rows) = (inputs.shape, inputs.rows());
    let up = |data: &[f32]| {
        let mut to = b.rows(rows, data.len() / rows).unwrap();
        b.upload(data, &mut to);
        to
    };
    let (x, rb, ra, z) = (up(&inputs.x), up(&inputs.b), up(&inputs.a), up(&inputs.z));
    let (taps, w) = (vector(b, &inputs.taps), vector(b, &inputs.w));
    let (dt_bias, amplitude) = (vector(b, &inputs.dt_bias), vector(b, &inputs.amplitude));
    let mut state = b.state(shape, PLACES).unwrap();
    let mut mixed = b.rows(rows, shape.channels()).unwrap();
    let mut gates = b.rows(rows, 2 * shape.values).unwrap();
    let mut out = b.rows(rows, shape.value_width()).unwrap();
    b.gates(&rb, &ra, &dt_bias, &amplitude, rows, &mut gates);
    for walks in rounds {
        b.convolve(&x, &taps, &mut state, walks, &mut mixed);
        b.delta(&mixed, &gates, &mut state, walks, &mut out);
    }
    let get = |from: &B::Rows, width: usize| {
        let mut data = vec![0.0; rows * width];
        b.download(from, 0, &mut data);
        data
    };
    let delta = get(&out, shape.value_width());
    b.gated_norm(&mut out, &w, &z, EPS, rows);
    let mut places = Vec::new();
    for place in 0..PLACES {
        let (mut s, mut tail) = (vec![0.0; shape.state_values()], vec![0.0; shape.tail_values()]);
        b.download_state(&state, place, &mut s, &mut tail);
        places.extend(s.into_iter().chain(tail));
    }
    Found {
        rows: [
            get(&mixed, shape.channels()),
            get(&gates, 2 * shape.values),
            delta,
            get(&out, shape.value_width()),
        ],
        state: places,
    }
}

fn walk(rows: std::ops::Range<usize>, from: Option<usize>, to: usize) -> Walk {
    Walk { rows, from, to }
}

/// Compares every backend with the reference.
fn check(inputs: &Inputs, rounds: &[Vec<Walk>], case: &str) {
    let expected = run(&Scalar::default(), inputs, rounds);
    for (name, cpu) in backends() {
        run(&cpu, inputs, rounds).assert_is(&expected, &format!("{name}, {case}"));
    }
}

#[test]
fn a_walk_of_any_length_equals_the_reference() {
    let mut random = Random(41);
    for (dims, order) in [
        ([2, 6, 32, 32, 4], HeadOrder::Grouped),
        ([2, 6, 32, 32, 3], HeadOrder::Tiled),
        ([4, 8, 64, 64, 4], HeadOrder::Tiled),
        ([1, 3, 12, 20, 2], HeadOrder::Grouped),
        ([1, 2, 4, 63, 4], HeadOrder::Grouped),
    ] {
        let inputs = Inputs::new(shape(dims, order), 130, &mut random);
        for rows in [1, 2, 3, 5, 64, 130] {
            if rows > 64 && dims[1] > 6 {
                continue;
            }
            let case = format!("{dims:?} {order:?}, {rows} rows");
            check(&inputs, &[vec![walk(0..rows, None, 2)]], &case);
        }
    }
}

#[test]
fn heads_of_the_largest_models_equal_the_reference() {
    let mut random = Random(42);
    for order in [HeadOrder::Grouped, HeadOrder::Tiled] {
        let inputs = Inputs::new(shape([16, 48, 128, 128, 4], order), 3, &mut random);
        check(&inputs, &[vec![walk(0..3, None, 0)]], &format!("{order:?}"));
    }
}

#[test]
fn walks_begin_resume_and_move_side_by_side() {
    let mut random = Random(43);
    for (dims, order) in
        [([2, 6, 32, 40, 4], HeadOrder::Grouped), ([2, 4, 16, 20, 2], HeadOrder::Tiled)]
    {
        let inputs = Inputs::new(shape(dims, order), 40, &mut random);
        let rounds = [
            // Rows 7 to 9 are of no walk.
            vec![walk(0..1, None, 0), walk(1..7, None, 1), walk(10..40, None, 5)],
            // In place, to and fro, anew over an old place, and backwards in the rows.
            vec![walk(20..22, Some(0), 0), walk(0..20, Some(1), 2), walk(22..23, None, 5)],
            vec![walk(3..4, Some(2), 1), walk(2..3, Some(0), 0), walk(0..2, Some(5), 6)],
            // A walk without rows moves the state as it is.
            vec![walk(0..0, Some(6), 3), walk(0..0, None, 1), walk(4..4, Some(0), 0)],
            vec![walk(0..1, Some(3), 4)],
        ];
        for n in 1..=rounds.len() {
            check(&inputs, &rounds[..n], &format!("{dims:?}, {n} rounds"));
        }
    }
}

#[test]
fn cuts_of_a_walk_change_nothing() {
    let mut random = Random(44);
    let inputs = Inputs::new(shape([2, 4, 16, 24, 4], HeadOrder::Grouped), 34, &mut random);
    let whole = [vec![walk(0..34, None, 0)]];
    let expected = run(&Scalar::default(), &inputs, &whole);
    for piece in [1, 2, 3, 5, 33] {
        for moving in [false, true] {
            let mut rounds = Vec::new();
            let mut place = None;
            for first in (0..34).step_by(piece) {
                let last = first + piece >= 34;
                let to = if moving && !last { 1 + rounds.len() % 2 } else { 0 };
                rounds.push(vec![walk(first..34.min(first + piece), place, to)]);
                place = Some(to);
            }
            for (name, cpu) in backends() {
                let found = run(&cpu, &inputs, &rounds);
                let case = format!("{name}, pieces of {piece}, moving {moving}");
                for (found, expected) in found.rows.iter().zip(&expected.rows) {
                    assert_same(found, expected, &case);
                }
                let place = found.state.len() / PLACES;
                assert_same(&found.state[..place], &expected.state[..place], &case);
            }
        }
    }
}

/// Where the reference is not finite `found` must not be; elsewhere it must have its bytes.
fn assert_spoilt_alike(found: &[f32], expected: &[f32], case: &str) {
    for (i, (f, e)) in found.iter().zip(expected).enumerate() {
        let same = if e.is_finite() { f.to_bits() == e.to_bits() } else { !f.is_finite() };
        assert!(same, "{case}, value {i}: {f:e} is not {e:e}");
    }
}

#[test]
fn what_is_not_finite_spreads_no_further_than_in_the_reference() {
    let mut random = Random(45);
    let shape = shape([2, 6, 16, 20, 4], HeadOrder::Grouped);
    let sound = Inputs::new(shape, 12, &mut random);
    let walks = [vec![walk(0..6, None, 0), walk(6..12, None, 1)]];
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 2.0_f32.powi(61)] {
        let (x, heads) = (2 * shape.channels(), 2 * shape.values);
        let places =
            [("query", x + 3), ("key", x + 49), ("value", x + 97), ("beta", 4), ("decay", 4)];
        for (what, at) in places {
            let mut inputs = sound.clone();
            match what {
                "beta" => inputs.b[heads + at] = bad,
                "decay" => inputs.a[heads + at] = bad,
                _ => inputs.x[at] = bad,
            }
            let expected = run(&Scalar::default(), &inputs, &walks);
            for (name, cpu) in backends() {
                let found = run(&cpu, &inputs, &walks);
                let case = format!("{name}, {what} {bad}");
                for (found, expected) in found.rows.iter().zip(&expected.rows) {
                    assert_spoilt_alike(found, expected, &case);
                }
                assert_spoilt_alike(&found.state, &expected.state, &case);
            }
        }
    }
}

#[test]
fn gates_and_norms_of_heads_equal_the_reference() {
    let mut random = Random(46);
    for (heads, dim) in [(1, 5), (3, 20), (2, 64), (4, 128), (9, 256)] {
        let width = heads * dim;
        let mut x = random.values(70 * width, 3.0);
        x[2 * width] = f32::NAN;
        x[3 * width + width - 1] = 2.0_f32.powi(60);
        x[4 * width..5 * width].fill(2.0_f32.powi(-38));
        let z = random.values(70 * width, 50.0);
        let w = random.values(dim, 2.0);
        let mut normed = x.clone();
        let mut gated = x.clone();
        for head in normed.chunks_exact_mut(dim) {
            let from = head.to_vec();
            arith::norm::rms_norm(&from, &w, EPS, head);
        }
        for (head, z) in gated.chunks_exact_mut(dim).zip(z.chunks_exact(dim)) {
            arith::gdn::gated_norm(head, &w, z, EPS);
        }
        let gate = |(x, z): (&f32, &f32)| arith::float::flush(*x * arith::exp::sigmoid(*z));
        let times: Vec<f32> = x.iter().zip(&z).map(gate).collect();
        for (name, cpu) in backends() {
            let (w, rz) = (vector(&cpu, &w), upload(&cpu, &z, width));
            for rows in [1, 2, 9, 70] {
                let case = format!("{name}, {heads} of {dim}, {rows} rows");
                let n = rows * width;
                // Rows past the call's must stay.
                let left = |of: &[f32]| [&of[..n], &x[n..]].concat();
                let mut to = upload(&cpu, &x, width);
                cpu.head_norm(&mut to, &w, EPS, rows);
                assert_same(&download(&cpu, &to, x.len()), &left(&normed), &case);
                let mut to = upload(&cpu, &x, width);
                cpu.gated_norm(&mut to, &w, &rz, EPS, rows);
                assert_same(&download(&cpu, &to, x.len()), &left(&gated), &case);
                let mut to = upload(&cpu, &x, width);
                cpu.gate(&mut to, &rz, rows);
                let found = download(&cpu, &to, x.len());
                assert_spoilt_alike(&found, &left(&times), &case);
            }
        }
    }
}

#[test]
fn states_are_copied_from_place_to_place() {
    let mut random = Random(47);
    let shape = shape([8, 16, 128, 128, 4], HeadOrder::Grouped);
    let inputs = Inputs::new(shape, 2, &mut random);
    for (name, cpu) in backends() {
        let x = upload(&cpu, &inputs.x, shape.channels());
        let gates = upload(&cpu, &random.values(4 * shape.values, 0.5), 2 * shape.values);
        let taps = vector(&cpu, &inputs.taps);
        let (mut a, mut b) = (cpu.state(shape, 3).unwrap(), cpu.state(shape, 2).unwrap());
        let mut mixed = cpu.rows(2, shape.channels()).unwrap();
        let mut out = cpu.rows(2, shape.value_width()).unwrap();
        cpu.convolve(&x, &taps, &mut a, &[walk(0..2, None, 2)], &mut mixed);
        cpu.delta(&mixed, &gates, &mut a, &[walk(0..2, None, 2)], &mut out);
        cpu.copy_state(&a, 2, &mut b, 1);
        let places = [(&a, 2), (&b, 1), (&b, 0)].map(|(state, place)| {
            let mut s = vec![f32::NAN; shape.state_values()];
            let mut tail = vec![f32::NAN; shape.tail_values()];
            cpu.download_state(state, place, &mut s, &mut tail);
            [s, tail].concat()
        });
        assert!(places[0].iter().any(|s| *s != 0.0), "{name}");
        assert_same(&places[1], &places[0], &name);
        assert!(places[2].iter().all(|s| s.to_bits() == 0), "{name}");
    }
}

#[test]
fn shapes_that_the_kernels_cannot_hold_are_refused() {
    let cpu = Cpu::new(1, Isa::Auto, Arith::One).unwrap();
    for (dims, expected) in [
        ([2, 4, 16, 16, 9], "taps of a convolution: expected 2 to 8, found 9"),
        ([2, 4, 18, 16, 4], "dims of a key head: expected a multiple of 4, found 18"),
        ([2, 5, 16, 16, 4], "value heads: expected a multiple of 2, found 5"),
    ] {
        let error = cpu.state(shape(dims, HeadOrder::Grouped), 1).err().unwrap();
        assert_eq!(error.to_string(), expected);
    }
    let large = shape([16, 48, 128, 128, 4], HeadOrder::Grouped);
    let error = cpu.state(large, 1 << 30).err().unwrap().to_string();
    assert!(error.contains("recurrent state of 1073741824 places needs"), "{error}");
}

#[test]
#[should_panic(expected = "writes the place of another")]
fn two_walks_to_one_place_are_a_bug() {
    let mut random = Random(48);
    let inputs = Inputs::new(shape([1, 1, 8, 8, 2], HeadOrder::Grouped), 2, &mut random);
    let cpu = Cpu::new(1, Isa::Auto, Arith::One).unwrap();
    run(&cpu, &inputs, &[vec![walk(0..1, None, 0), walk(1..2, None, 0)]]);
}
