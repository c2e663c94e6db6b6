//! Ops in the order of a model's layers: a backend may run them together, late or in another way,
//! as long as nobody can tell. A layer of each kind runs straight through, and once more with a row
//! read back after every op; all buffers and the state must be equal.

use arith::attention::{Heads, KvDtype};
use arith::format::{Format, Matrix, Mlx, Scales};
use arith::gdn::HeadOrder;
use arith::rope::{Pairing, RopeRows};

use super::Checks;
use super::input::{self, Kind, Noise};
use crate::{Backend, BackendError, Gdn, Normed, RowAt, RowMap, Walk};

const HIDDEN: usize = 512;
const WIDE: usize = 512;
const HEADS: Heads = Heads { query: 4, kv: 2, dim: 64 };
const EPS: f32 = 1e-6;
/// Rounds that go on from one another.
const ROUNDS: usize = 2;
/// Keys before the first round: the rows of a round cross into another tile.
const BEFORE: usize = 62;
const MLX: Format = Format::Mlx(Mlx { bits: 4, group: 64, scales: Scales::Bf16 });

pub(super) fn run<B: Backend>(checks: &mut Checks<'_, B>) {
    let counts: &[usize] = checks.level.pick(&[1, 3, 8], &[1, 2, 3, 4, 7, 8, 9, 16, 17, 33]);
    let formats = [MLX, Format::Q4K, Format::Q8_0, Format::F16];
    let all = counts.iter().copied().zip(formats.into_iter().cycle());
    // One row may go ways of its own in each format.
    for (i, (rows, format)) in all.chain([(1, Format::Q4K), (1, Format::Q4_1)]).enumerate() {
        let order = [HeadOrder::Grouped, HeadOrder::Tiled][i % 2];
        let shape = Gdn { keys: 2, values: 4, key_dim: 128, value_dim: 128, taps: 4, order };
        let case = format!("chained ops, {rows} rows, {format}, {order:?}");
        let made =
            [false, true].map(|steps| Chain::new(checks.backend, format, shape, rows, steps));
        let [straight, stepped] = made.map(|chain| checks.made(&case, chain));
        let (Some(mut straight), Some(mut stepped)) = (straight, stepped) else { return };
        for round in 0..ROUNDS {
            if checks.over() {
                return;
            }
            straight.run(round);
            stepped.run(round);
            for (want, got) in stepped.values().iter().zip(straight.values()) {
                checks.compare_values(&format!("{case}, round {round}"), want, &got);
            }
        }
    }
}

/// [`Backend::norm_project`], in `steps` by the ops that it is made of.
fn norm_project<B: Backend>(
    backend: &B,
    steps: bool,
    from: Normed<'_, B>,
    rows: usize,
    weights: &[&B::Linear],
    outs: &mut [&mut B::Rows],
) {
    if !steps {
        return backend.norm_project(from, rows, weights, outs);
    }
    let Normed { x, w, eps, n } = from;
    backend.rms_norm(x, w, eps, rows, n);
    backend.download(n, 0, &mut [0.0; HIDDEN]);
    backend.project(n, rows, weights, outs);
}

/// Both layers' weights and all that they write.
struct Chain<'a, B: Backend> {
    backend: &'a B,
    rows: usize,
    steps: bool,
    shape: Gdn,
    /// To the mixer's inputs, its output, the MLP's inputs and output, each layer's.
    recurrent: [Vec<B::Linear>; 4],
    attention: [Vec<B::Linear>; 4],
    norm: B::Vector,
    head: B::Vector,
    value: B::Vector,
    taps: B::Vector,
    bias: B::Vector,
    kv: B::Kv,
    state: B::State,
    /// Residual, normed, added.
    x: [B::Rows; 3],
    /// Channels, z, b, a, gates, convolved, output.
    gdn: [B::Rows; 7],
    /// Queries, gate, keys, values, output.
    heads: [B::Rows; 5],
    mlp: [B::Rows; 3],
}

impl<'a, B: Backend> Chain<'a, B> {
    fn new(
        backend: &'a B,
        format: Format,
        shape: Gdn,
        rows: usize,
        steps: bool,
    ) -> Result<Self, BackendError> {
        let mut noise = Noise::new(rows as u64);
        let mut linears = |cols: usize, outputs: &[usize]| {
            let one = |&rows: &usize| {
                let bytes = input::matrix(&mut noise, format, rows, cols);
                backend.linear(&Matrix { format, rows, cols, bytes: &bytes })
            };
            outputs.iter().map(one).collect::<Result<Vec<_>, _>>()
        };
        let mut layer = |into: &[usize], out: usize| {
            Ok::<_, BackendError>([
                linears(HIDDEN, into)?,
                linears(out, &[HIDDEN])?,
                linears(HIDDEN, &[WIDE, WIDE])?,
                linears(WIDE, &[HIDDEN])?,
            ])
        };
        let (channels, width, values) = (shape.channels(), shape.value_width(), shape.values);
        let (q, kv) = (HEADS.query * HEADS.dim, HEADS.kv * HEADS.dim);
        let recurrent = layer(&[channels, width, values, values], width)?;
        let attention = layer(&[q, q, kv, kv], q)?;
        let mut noise = Noise::new(3);
        let mut vector = |cols: usize| {
            let bytes: Vec<u8> = noise.normals(cols).iter().flat_map(|x| x.to_le_bytes()).collect();
            backend.vector(&Matrix { format: Format::F32, rows: 1, cols, bytes: &bytes })
        };
        let row = |width| backend.rows(rows, width);
        Ok(Self {
            backend,
            rows,
            steps,
            shape,
            recurrent,
            attention,
            norm: vector(HIDDEN)?,
            head: vector(HEADS.dim)?,
            value: vector(shape.value_dim)?,
            taps: vector(shape.taps * channels)?,
            bias: vector(values)?,
            kv: backend.kv(KvDtype::F16, 3, HEADS)?,
            state: backend.state(shape, 4)?,
            x: [row(HIDDEN)?, row(HIDDEN)?, row(HIDDEN)?],
            gdn: [
                row(channels)?,
                row(width)?,
                row(values)?,
                row(values)?,
                row(2 * values)?,
                row(channels)?,
                row(width)?,
            ],
            heads: [row(q)?, row(q)?, row(kv)?, row(kv)?, row(q)?],
            mlp: [row(WIDE)?, row(WIDE)?, row(WIDE)?],
        })
    }

    /// Reads a row, so that nothing asked for before may be left to do.
    fn step(&self) {
        if self.steps {
            self.backend.download(&self.x[0], 0, &mut [0.0; HIDDEN]);
        }
    }

    fn run(&mut self, round: usize) {
        let mut noise = Noise::new(round as u64);
        // What is no number stays in a state: it comes in the last round.
        let last = if round + 1 == ROUNDS { Kind::Nan } else { Kind::Huge };
        let kinds = [Kind::Normal, Kind::Spread, last, Kind::Outlier, Kind::Tiny];
        let kind = |row: usize| kinds[row % kinds.len()];
        let x: Vec<f32> =
            (0..self.rows).flat_map(|row| input::row(&mut noise, kind(row), HIDDEN)).collect();
        self.backend.upload(&x, &mut self.x[0]);
        // Twice, as two layers of a kind do: the second finds the round as the first left it.
        for _ in 0..2 {
            self.mix_recurrent(round);
            self.feed(false);
            self.mix_attention(round);
            self.feed(true);
        }
    }

    /// Two streams' walks where there are rows for two.
    fn mix_recurrent(&mut self, round: usize) {
        let (cut, rows) = (self.rows.div_ceil(2), self.rows);
        let place = |stream: usize, round: usize| 2 * stream + round % 2;
        let mut walks = Vec::new();
        for (stream, rows) in [0..cut, cut..rows].into_iter().enumerate() {
            let from = round.checked_sub(1).map(|before| place(stream, before));
            walks.push(Walk { rows, from, to: place(stream, round) });
        }
        walks.retain(|walk| !walk.rows.is_empty());
        let backend = self.backend;
        let [x, n, _] = &mut self.x;
        let [m, z, b, a, ..] = &mut self.gdn;
        let weights: Vec<&B::Linear> = self.recurrent[0].iter().collect();
        let from = Normed { x, w: &self.norm, eps: EPS, n };
        norm_project(backend, self.steps, from, rows, &weights, &mut [m, z, b, a]);
        self.step();
        let [_, _, b, a, gates, ..] = &mut self.gdn;
        backend.gates(b, a, &self.bias, &self.bias, rows, gates);
        self.step();
        let [m, _, _, _, _, c, _] = &mut self.gdn;
        backend.convolve(m, &self.taps, &mut self.state, &walks, c);
        self.step();
        let [_, _, _, _, gates, c, o] = &mut self.gdn;
        backend.delta(c, gates, &mut self.state, &walks, o);
        self.step();
        let [_, z, _, _, _, _, o] = &mut self.gdn;
        backend.gated_norm(o, &self.value, z, EPS, rows);
        self.step();
        backend.project(&self.gdn[6], rows, &[&self.recurrent[1][0]], &mut [&mut self.x[2]]);
        self.step();
    }

    fn mix_attention(&mut self, round: usize) {
        let (backend, rows) = (self.backend, self.rows);
        let first = BEFORE + round * rows;
        let positions: Vec<u32> = (first..first + rows).map(|p| p as u32).collect();
        let at = |&position: &u32| RowAt { table: 0, position };
        let map =
            RowMap { rows: positions.iter().map(at).collect(), tables: vec![[2, 0, 1].into()] };
        let rope = RopeRows::new(1e4, 32, &positions);
        let [x, n, _] = &mut self.x;
        let [q, gate, k, v, _] = &mut self.heads;
        let weights: Vec<&B::Linear> = self.attention[0].iter().collect();
        let from = Normed { x, w: &self.norm, eps: EPS, n };
        norm_project(backend, self.steps, from, rows, &weights, &mut [q, gate, k, v]);
        self.step();
        for i in [0, 2] {
            backend.head_norm(&mut self.heads[i], &self.head, EPS, rows);
            self.step();
        }
        for (i, heads) in [(0, HEADS.query), (2, HEADS.kv)] {
            backend.rope(&mut self.heads[i], heads, HEADS.dim, Pairing::Halves, &rope);
            self.step();
        }
        let [q, gate, k, v, out] = &mut self.heads;
        backend.kv_write(&mut self.kv, k, v, &map);
        backend.attention(q, &self.kv, &map, out);
        backend.gate(out, gate, rows);
        backend.project(out, rows, &[&self.attention[1][0]], &mut [&mut self.x[2]]);
        self.step();
    }

    /// The residual sum, and the MLP after it.
    fn feed(&mut self, attention: bool) {
        let (backend, rows) = (self.backend, self.rows);
        let weights = if attention { &self.attention } else { &self.recurrent };
        let [x, n, y] = &mut self.x;
        let [gate, up, act] = &mut self.mlp;
        backend.add(x, y, rows);
        if self.steps {
            backend.download(x, 0, &mut [0.0; HIDDEN]);
        }
        let into = [&weights[2][0], &weights[2][1]];
        if self.steps {
            backend.rms_norm(x, &self.norm, EPS, rows, n);
            backend.download(n, 0, &mut [0.0; HIDDEN]);
            backend.project(n, rows, &into, &mut [&mut *gate, &mut *up]);
            backend.download(x, 0, &mut [0.0; HIDDEN]);
            backend.silu_mul(gate, up, rows, act);
            backend.download(x, 0, &mut [0.0; HIDDEN]);
        } else {
            let from = Normed { x, w: &self.norm, eps: EPS, n };
            backend.norm_gated(from, rows, into, [gate, up], act);
        }
        backend.project(act, rows, &[&weights[3][0]], &mut [&mut *y]);
        if self.steps {
            backend.download(y, 0, &mut [0.0; HIDDEN]);
        }
        backend.add(x, y, rows);
    }

    /// All buffers, then every place of the state.
    fn values(&self) -> Vec<Vec<f32>> {
        let (rows, shape) = (self.rows, self.shape);
        let (channels, width, values) = (shape.channels(), shape.value_width(), shape.values);
        let (q, kv) = (HEADS.query * HEADS.dim, HEADS.kv * HEADS.dim);
        let read = |(from, width): (&B::Rows, usize)| {
            let mut values = vec![0.0; rows * width];
            self.backend.download(from, 0, &mut values);
            values
        };
        let widths = [channels, width, values, values, 2 * values, channels, width];
        let x = self.x.iter().zip([HIDDEN; 3]);
        let all = x.chain(self.gdn.iter().zip(widths)).chain(self.mlp.iter().zip([WIDE; 3]));
        let mut all: Vec<_> =
            all.chain(self.heads.iter().zip([q, q, kv, kv, q])).map(read).collect();
        for place in 0..4 {
            let mut s = vec![0.0; shape.state_values()];
            let mut tail = vec![0.0; shape.tail_values()];
            self.backend.download_state(&self.state, place, &mut s, &mut tail);
            all.extend([s, tail]);
        }
        all
    }
}
