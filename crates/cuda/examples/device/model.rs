//! A model's ops without its meaning: weights of noise at a real model's shapes, all on the card,
//! and one round of rows through them as the stage's programs do it.

use std::sync::Arc;

use arith::format::Format;
use arith::linear::{GROUPS, Groups};
use backend::{
    Backend, BackendError, Gdn, HeadOrder, Heads, KvDtype, Pairing, RopeRows, RowAt, RowMap,
    Together, Walk,
};
use baton_cuda::{Cuda, Kv, Linear, Rows, State, Vector};

/// The shapes of a qwen3_5 model.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    pub name: &'static str,
    pub hidden: usize,
    pub intermediate: usize,
    pub layers: usize,
    pub heads: Heads,
    pub gdn: Gdn,
    pub vocab: usize,
    /// Whether blocks end in a share of K.
    pub is_half: bool,
}

const fn size(
    name: &'static str,
    [hidden, intermediate, layers]: [usize; 3],
    [query, kv]: [usize; 2],
    values: usize,
) -> Size {
    let heads = Heads { query, kv, dim: 256 };
    let order = HeadOrder::Grouped;
    let gdn = Gdn { keys: 16, values, key_dim: 128, value_dim: 128, taps: 4, order };
    Size { name, hidden, intermediate, layers, heads, gdn, vocab: 248_320, is_half: false }
}

pub const SIZES: [Size; 3] = [
    size("27B", [5120, 17408, 64], [24, 4], 48),
    size("9B", [4096, 12288, 32], [16, 4], 32),
    size("0.8B", [1024, 3584, 24], [8, 2], 16),
];

/// What one of two cards has of a model.
pub fn half(size: Size) -> Size {
    let heads = Heads { query: size.heads.query / 2, kv: size.heads.kv / 2, ..size.heads };
    let gdn = Gdn { keys: size.gdn.keys / 2, values: size.gdn.values / 2, ..size.gdn };
    // Whole groups of K, of 68 slices.
    let intermediate = size.intermediate / 2;
    Size { intermediate, heads, gdn, vocab: size.vocab / 2, is_half: true, ..size }
}

/// Every fourth layer has attention.
const INTERVAL: usize = 4;
const EPS: f32 = 1e-6;

enum Mixer {
    Attention { into: Vec<Linear>, out: Linear, kv: Kv },
    Recurrent { into: Vec<Linear>, out: Linear, state: State },
}

struct Layer {
    mixer: Mixer,
    gate_up: [Linear; 2],
    down: Linear,
}

pub struct Model {
    pub size: Size,
    cuda: Arc<Cuda>,
    layers: Vec<Layer>,
    head: Linear,
    norm: Vector,
    vectors: Vectors,
}

/// What all layers share here.
struct Vectors {
    heads: Heads,
    /// Whether blocks end in nodes that another card has the rest of.
    meets: bool,
    hidden: usize,
    head: Vector,
    value: Vector,
    taps: Vector,
    bias: Vector,
}

/// Buffers of one round.
pub struct Round {
    map: RowMap,
    walks: Vec<Walk>,
    rope: RopeRows,
    rows: usize,
    x: Rows,
    n: Rows,
    y: Rows,
    into: Vec<Rows>,
    mixed: Rows,
    recurrent: [Rows; 7],
    mlp: [Rows; 3],
    logits: Rows,
}

/// What may be left out, to see what it costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    All,
    Linears,
    Attention,
    Delta,
    Others,
}

impl Model {
    pub fn new(
        cuda: &Arc<Cuda>,
        size: Size,
        format: Format,
        layers: usize,
        pages: usize,
    ) -> Result<Self, BackendError> {
        let linear = |rows, cols| cuda.noise(format, rows, cols);
        let ends = |rows, cols: usize| match size.is_half {
            true => {
                let groups = Groups::share(2 * cols, 0..GROUPS / 2);
                cuda.noise_share(format, groups, rows, cols)
            }
            false => linear(rows, cols),
        };
        let (hidden, gdn, heads) = (size.hidden, size.gdn, size.heads);
        let (q, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
        let mixer = |layer: usize| {
            Ok::<_, BackendError>(if layer % INTERVAL == INTERVAL - 1 {
                let into = [q, q, kv, kv].map(|rows| linear(rows, hidden));
                Mixer::Attention {
                    into: into.into_iter().collect::<Result<_, _>>()?,
                    out: ends(hidden, q)?,
                    kv: cuda.kv(KvDtype::F16, pages, heads)?,
                }
            } else {
                let into = [gdn.channels(), gdn.value_width(), gdn.values, gdn.values];
                let into = into.map(|rows| linear(rows, hidden));
                Mixer::Recurrent {
                    into: into.into_iter().collect::<Result<_, _>>()?,
                    out: ends(hidden, gdn.value_width())?,
                    state: cuda.state(gdn, 2)?,
                }
            })
        };
        let layer = |layer| {
            let wide = size.intermediate;
            Ok::<_, BackendError>(Layer {
                mixer: mixer(layer)?,
                gate_up: [linear(wide, hidden)?, linear(wide, hidden)?],
                down: ends(hidden, wide)?,
            })
        };
        let ones = |len: usize| {
            let bytes: Vec<u8> =
                std::iter::repeat_n(0.5_f32.to_le_bytes(), len).flatten().collect();
            let matrix =
                arith::format::Matrix { format: Format::F32, rows: 1, cols: len, bytes: &bytes };
            cuda.vector(&matrix)
        };
        Ok(Self {
            size,
            layers: (0..layers).map(layer).collect::<Result<_, _>>()?,
            head: linear(size.vocab, hidden)?,
            norm: ones(hidden)?,
            vectors: Vectors {
                heads,
                meets: false,
                hidden,
                head: ones(heads.dim)?,
                value: ones(gdn.value_dim)?,
                taps: ones(gdn.taps * gdn.channels())?,
                bias: ones(gdn.values)?,
            },
            cuda: cuda.clone(),
        })
    }

    /// Bytes of weights that a round reads.
    pub fn bytes(&self) -> usize {
        let layer = |layer: &Layer| {
            let (into, out) = match &layer.mixer {
                Mixer::Attention { into, out, .. } | Mixer::Recurrent { into, out, .. } => {
                    (into, out)
                }
            };
            let all = into.iter().chain([out, &layer.down]).chain(&layer.gate_up);
            all.map(Linear::bytes).sum::<usize>()
        };
        self.layers.iter().map(layer).sum::<usize>() + self.head.bytes()
    }

    /// A round of `rows` rows after `before` others of one stream.
    pub fn round(&self, before: usize, rows: usize) -> Result<Round, BackendError> {
        let Size { hidden, intermediate, heads, gdn, vocab, .. } = self.size;
        let buffer = |width| self.cuda.rows(rows, width);
        let pages = (before + rows).div_ceil(64);
        let positions: Vec<u32> = (before..before + rows).map(|p| p as u32).collect();
        let at = |&position: &u32| RowAt { table: 0, position };
        let table: Arc<[u32]> = (0..pages as u32).collect();
        let map = RowMap { rows: positions.iter().map(at).collect(), tables: vec![table] };
        let (q, kv) = (heads.query * heads.dim, heads.kv * heads.dim);
        let (wide, values) = (gdn.channels(), gdn.value_width());
        let mut x = buffer(hidden)?;
        let noise: Vec<f32> = (0..rows * hidden)
            .map(|i| ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0)
            .collect();
        self.cuda.upload(&noise, &mut x);
        Ok(Round {
            map,
            walks: vec![Walk { rows: 0..rows, from: Some(0), to: 0 }],
            rope: RopeRows::new(1e7, 64, &positions),
            rows,
            x,
            n: buffer(hidden)?,
            y: buffer(hidden)?,
            into: [q, q, kv, kv].map(buffer).into_iter().collect::<Result<_, _>>()?,
            mixed: buffer(q)?,
            recurrent: {
                let (heads, both) = (gdn.values, 2 * gdn.values);
                let widths = [wide, values, heads, heads, both, wide, values];
                let [m, z, b, a, gates, c, o] = widths.map(buffer);
                [m?, z?, b?, a?, gates?, c?, o?]
            },
            mlp: [buffer(intermediate)?, buffer(intermediate)?, buffer(intermediate)?],
            logits: self.cuda.rows(rows.min(8), vocab)?,
        })
    }

    /// Has blocks end with the other card, or not.
    pub fn set_meets(&mut self, meets: bool) {
        self.vectors.meets = meets;
    }

    /// A round as a stage runs it: rows come, layers and head run, logits go.
    pub fn step(&mut self, round: &mut Round) -> Vec<f32> {
        let rows: Vec<f32> = (0..round.rows * self.size.hidden)
            .map(|i| ((i as u32).wrapping_mul(2_654_435_761) >> 8) as f32 / 8_388_608.0 - 1.0)
            .collect();
        self.cuda.upload(&rows, &mut round.x);
        self.run(round, Part::All, true);
        let mut logits = vec![0.0; self.size.vocab];
        self.cuda.download(&round.logits, 0, &mut logits);
        logits
    }

    /// Every layer, then the head for the first rows (eight at most).
    pub fn run(&mut self, round: &mut Round, part: Part, head: bool) {
        let cuda = self.cuda.clone();
        let rows = round.rows;
        let on = |which: Part| part == Part::All || part == which;
        for layer in &mut self.layers {
            if on(Part::Others) {
                cuda.rms_norm(&round.x, &self.norm, EPS, rows, &mut round.n);
            }
            mix(&cuda, &self.vectors, part, &mut layer.mixer, round);
            let Round { x, n, y, mlp, .. } = round;
            if on(Part::Others) {
                cuda.add(x, y, rows);
                cuda.rms_norm(x, &self.norm, EPS, rows, n);
            }
            let [gate, up, act] = mlp;
            if on(Part::Linears) {
                let [a, b] = &layer.gate_up;
                cuda.project(n, rows, &[a, b], &mut [gate, up]);
            }
            if on(Part::Others) {
                cuda.silu_mul(gate, up, rows, act);
            }
            if on(Part::Linears) {
                cuda.project(act, rows, &[&layer.down], &mut [y]);
            }
            meet(&cuda, &self.vectors, y, rows);
            if on(Part::Others) {
                cuda.add(x, y, rows);
            }
        }
        if head && on(Part::Linears) {
            let count = rows.min(8);
            cuda.project(&round.n, count, &[&self.head], &mut [&mut round.logits]);
        }
    }
}

/// Ends a block with the other card, where there is one.
fn meet(cuda: &Cuda, vectors: &Vectors, y: &mut Rows, rows: usize) {
    if vectors.meets {
        let together = Together::Nodes { width: vectors.hidden, members: 2 };
        cuda.give(0, y, rows, together);
        cuda.take(0, y, rows, together);
    }
}

/// A layer's mixer over the normed rows, to what is added to the residual.
fn mix(cuda: &Cuda, vectors: &Vectors, part: Part, mixer: &mut Mixer, round: &mut Round) {
    let on = |which: Part| part == Part::All || part == which;
    let Round { rows, map, walks, rope, n, y, into, mixed, recurrent, .. } = round;
    let rows = *rows;
    match mixer {
        Mixer::Attention { into: weights, out, kv } => {
            let heads = vectors.heads;
            let weights: Vec<&Linear> = weights.iter().collect();
            if on(Part::Linears) {
                let mut outs: Vec<&mut Rows> = into.iter_mut().collect();
                cuda.project(n, rows, &weights, &mut outs);
            }
            let [q, gate, k, v] = &mut into[..] else { unreachable!() };
            if on(Part::Others) {
                cuda.head_norm(q, &vectors.head, EPS, rows);
                cuda.head_norm(k, &vectors.head, EPS, rows);
                cuda.rope(q, heads.query, heads.dim, Pairing::Halves, rope);
                cuda.rope(k, heads.kv, heads.dim, Pairing::Halves, rope);
                cuda.kv_write(kv, k, v, map);
            }
            if on(Part::Attention) {
                cuda.attention(q, kv, map, mixed);
            }
            if on(Part::Others) {
                cuda.gate(mixed, gate, rows);
            }
            if on(Part::Linears) {
                cuda.project(mixed, rows, &[out], &mut [y]);
            }
            meet(cuda, vectors, y, rows);
        }
        Mixer::Recurrent { into: weights, out, state } => {
            let weights: Vec<&Linear> = weights.iter().collect();
            let [m, z, b, a, gates, c, o] = recurrent;
            if on(Part::Linears) {
                cuda.project(n, rows, &weights, &mut [m, z, b, a]);
            }
            if on(Part::Others) {
                cuda.gates(b, a, &vectors.bias, &vectors.bias, rows, gates);
            }
            if on(Part::Delta) {
                cuda.convolve(m, &vectors.taps, state, walks, c);
                cuda.delta(c, gates, state, walks, o);
            }
            if on(Part::Others) {
                cuda.gated_norm(o, &vectors.value, z, EPS, rows);
            }
            if on(Part::Linears) {
                cuda.project(o, rows, &[out], &mut [y]);
            }
            meet(cuda, vectors, y, rows);
        }
    }
}
