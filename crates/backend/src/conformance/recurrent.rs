//! convolve, delta and copy_state: streams walked whole, cut everywhere, row by row, from fresh and
//! from copied places. Outputs and every place of the state are compared after each round.

use std::ops::Range;

use arith::format::Format;
use arith::gdn::{self, Gates, HeadOrder};

use super::input::{self, Kind, Noise, POISON};
use super::rowwise::weights;
use super::{Checks, Level};
use crate::{Backend, Gdn, Walk};

/// What the rows of a stream are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Taste {
    Normal,
    /// States about where the flush begins.
    Faint,
    /// Rows of every finite kind, gates from 0 to 1.
    Mixed,
    /// A NaN early on.
    Spoilt,
}

const TASTES: [Taste; 4] = [Taste::Normal, Taste::Faint, Taste::Mixed, Taste::Spoilt];
const STREAMS: usize = TASTES.len();
/// Two places a stream, and one that only the first round writes.
const PLACES: usize = 2 * STREAMS + 1;

const fn shape(keys: usize, values: usize, dim: usize, taps: usize, order: HeadOrder) -> Gdn {
    Gdn { keys, values, key_dim: dim, value_dim: dim, taps, order }
}

pub(super) fn run<B: Backend>(checks: &mut Checks<'_, B>) {
    use HeadOrder::{Grouped, Tiled};
    let tiny = shape(2, 6, 32, 4, Grouped);
    let odd = Gdn { keys: 2, values: 4, key_dim: 12, value_dim: 20, taps: 2, order: Tiled };
    let most = checks.level.pool_rows();
    case(checks, tiny, 2 + most);
    case(checks, odd, 2 + most);
    case(checks, shape(4, 8, 64, 4, Tiled), 6);
    case(checks, shape(1, 2, 128, 4, Grouped), 2 + most);
    if checks.level == Level::Full {
        case(checks, Gdn { order: Tiled, ..tiny }, 2 + most);
        case(checks, Gdn { order: Grouped, ..odd }, 2 + most);
        case(checks, shape(4, 8, 64, 4, Grouped), 66);
        case(checks, shape(4, 8, 64, 2, Tiled), 66);
        case(checks, Gdn { value_dim: 128, ..shape(2, 2, 64, 3, Grouped) }, 34);
        case(checks, shape(16, 48, 128, 4, Grouped), 10);
        case(checks, shape(16, 48, 128, 4, Tiled), 10);
    }
}

/// The inputs of one stream, a row each, and what the reference makes of them.
struct Stream {
    /// `[rows, channels]` before the convolution.
    x: Vec<f32>,
    /// The same after it.
    convolved: Vec<f32>,
    /// `[rows, channels]` for the delta rule.
    qkv: Vec<f32>,
    /// `[rows, 2 * values]`.
    gates: Vec<f32>,
    /// `[rows, value width]`.
    out: Vec<f32>,
    /// S after 0, 1, .. rows.
    states: Vec<Vec<f32>>,
    /// The tails likewise.
    tails: Vec<Vec<f32>>,
}

impl Stream {
    /// `rows` rows of inputs.
    fn new(noise: &mut Noise, shape: &Gdn, taste: Taste, rows: usize) -> Self {
        let (mut x, mut qkv, mut gates) = (Vec::new(), Vec::new(), Vec::new());
        for r in 0..rows {
            let kind = kind(taste, r);
            x.extend(input::row(noise, kind, shape.channels()));
            qkv.extend(keys(noise, taste, r, shape));
            let mut values = input::row(noise, kind, shape.value_width());
            if taste == Taste::Faint {
                values.fill_with(|| noise.spread(-35, -30));
            }
            qkv.extend(values);
            gates.extend((0..2 * shape.values).map(|_| gate(noise, taste)));
        }
        let [convolved, out] = [Vec::new(), Vec::new()];
        Self { x, convolved, qkv, gates, out, states: Vec::new(), tails: Vec::new() }
    }

    /// Fills in what the reference gives.
    fn compute(&mut self, shape: &Gdn, taps: &[f32]) {
        let (channels, tail) = (shape.channels(), shape.tail_values());
        let padded = [vec![0.0; tail], self.x.clone()].concat();
        let rows: Vec<&[f32]> = padded.chunks_exact(channels).collect();
        self.convolved = vec![0.0; self.x.len()];
        for (r, out) in self.convolved.chunks_exact_mut(channels).enumerate() {
            gdn::convolve(shape, taps, &rows[r..r + shape.taps], out);
        }
        let tails = (0..=self.x.len() / channels).map(|r| padded[r * channels..][..tail].to_vec());
        self.tails = tails.collect();

        let mut s = vec![0.0; shape.state_values()];
        self.states.push(s.clone());
        for (x, gates) in
            self.qkv.chunks_exact(channels).zip(self.gates.chunks_exact(2 * shape.values))
        {
            let at = self.out.len();
            self.out.resize(at + shape.value_width(), 0.0);
            step(shape, &mut s, x, gates, &mut self.out[at..]);
            self.states.push(s.clone());
        }
    }
}

/// One row through every value head.
fn step(shape: &Gdn, s: &mut [f32], x: &[f32], gates: &[f32], out: &mut [f32]) {
    let (kd, vd, width) = (shape.key_dim, shape.value_dim, shape.key_width());
    for (h, s) in s.chunks_exact_mut(kd * vd).enumerate() {
        let key = shape.key_of(h) * kd;
        let gates = Gates { beta: gates[h], decay: gates[shape.values + h] };
        let value = &x[2 * width + h * vd..][..vd];
        let out = &mut out[h * vd..][..vd];
        gdn::step(s, &x[key..][..kd], &x[width + key..][..kd], value, gates, out);
    }
}

fn kind(taste: Taste, row: usize) -> Kind {
    const MIXED: [Kind; 6] =
        [Kind::Normal, Kind::Spread, Kind::Outlier, Kind::Tiny, Kind::Zero, Kind::Huge];
    match taste {
        Taste::Normal => Kind::Normal,
        Taste::Faint => Kind::Tiny,
        Taste::Mixed => MIXED[row % MIXED.len()],
        Taste::Spoilt if row == 1 => Kind::Nan,
        Taste::Spoilt if row == 5 => Kind::TooLarge,
        Taste::Spoilt => Kind::Normal,
    }
}

/// Queries and keys of a row, of length about 1 or less.
fn keys(noise: &mut Noise, taste: Taste, row: usize, shape: &Gdn) -> Vec<f32> {
    let scale = gdn::query_scale(shape.key_dim);
    let value = |_| match (taste, row % 5) {
        (Taste::Mixed, 2) => 0.0,
        (Taste::Mixed, 4) => noise.spread(-36, -2),
        _ => scale * noise.normal(),
    };
    (0..2 * shape.key_width()).map(value).collect()
}

/// A gate: 0 .. 1, the ends included where rows are mixed.
fn gate(noise: &mut Noise, taste: Taste) -> f32 {
    match (taste, noise.below(12)) {
        (Taste::Mixed, 0) => 0.0,
        (Taste::Mixed, 1) => 1.0,
        (Taste::Mixed, 2) => noise.spread(-36, -1).abs(),
        _ => 0.5 + noise.unit().abs() / 2.0,
    }
}

/// Rows `.1` of stream `.0`, from a place or afresh, to a place.
type Part = (usize, Range<usize>, Option<usize>, usize);

/// A state and what it must hold: a stream and its number of rows a place.
struct Run<'a, B: Backend> {
    name: &'a str,
    shape: Gdn,
    streams: &'a [Stream],
    taps: &'a B::Vector,
    state: B::State,
    holds: Vec<(usize, usize)>,
}

fn case<B: Backend>(checks: &mut Checks<'_, B>, shape: Gdn, rows: usize) {
    if checks.over() {
        return;
    }
    let Gdn { keys, values, key_dim, value_dim, taps, order } = shape;
    let name = format!("{keys} x {key_dim}, {values} x {value_dim} {order:?}, {taps} taps");
    let mut noise = Noise::new((shape.channels() + taps) as u64);
    let bytes = input::matrix(&mut noise, Format::F32, 1, taps * shape.channels());
    let Some((taps, values)) = weights(checks, &name, Format::F32, &bytes) else {
        return;
    };
    let mut streams = TASTES.map(|taste| Stream::new(&mut noise, &shape, taste, rows));
    checks.reference(&name, || streams.iter_mut().for_each(|s| s.compute(&shape, &values)));
    let made = checks.backend.state(shape, PLACES);
    let Some(state) = checks.made(&name, made) else {
        return;
    };
    let (streams, taps) = (&streams, &taps);
    let mut run = Run { name: &name, shape, streams, taps, state, holds: Vec::new() };
    run.all(checks, rows);
}

impl<B: Backend> Run<'_, B> {
    /// Every way to walk; `None` once a check failed and the rest may be left out.
    fn all(&mut self, checks: &mut Checks<'_, B>, rows: usize) -> Option<()> {
        // Every place is used, one of a sound stream with NaN, so that what is fresh later is not
        // so by chance.
        let litter = (0..PLACES).map(|p| ((p + 3) % STREAMS, 0..1 + p % 3, None, p));
        let litter: Vec<Part> = litter.collect();
        self.holds = litter.iter().map(|part| (part.0, part.1.end)).collect();
        self.round(checks, &litter)?;
        self.round(checks, &self.parts(1, |s| (0..rows, None, 2 * s + 1)))?;
        for count in checks.level.row_counts().iter().filter(|&&count| count + 2 <= rows) {
            let end = 1 + count;
            self.round(checks, &[(0, 0..1, None, 0), (2, 0..end, None, 4)])?;
            self.round(checks, &[(2, end..end + 1, Some(4), 5), (0, 1..end, Some(0), 1)])?;
        }
        let whole = rows.min(checks.level.pick(9, 33));
        for cut in 1..whole {
            self.round(checks, &self.parts(cut, |s| (0..cut, None, 2 * s)))?;
            // Some stay in their place, some go on to their other one.
            let to = |s| 2 * s + s % 2;
            self.round(checks, &self.parts(cut + 1, |s| (cut..whole, Some(2 * s), to(s))))?;
        }
        for row in 0..rows.min(7) {
            let from = |s| (row > 0).then_some(2 * s + (row + 1) % 2);
            self.round(checks, &self.parts(row, |s| (row..row + 1, from(s), 2 * s + row % 2)))?;
        }
        self.copies(checks, whole)
    }

    /// The same part of every stream, in an order turned by `turn`.
    fn parts(
        &self,
        turn: usize,
        part: impl Fn(usize) -> (Range<usize>, Option<usize>, usize),
    ) -> Vec<Part> {
        let streams = (0..STREAMS).map(|i| (i + turn) % STREAMS);
        streams.map(|s| (s, part(s))).map(|(s, (rows, from, to))| (s, rows, from, to)).collect()
    }

    /// States put aside half-way and taken up again.
    fn copies(&mut self, checks: &mut Checks<'_, B>, rows: usize) -> Option<()> {
        let made = checks.backend.state(self.shape, STREAMS);
        let mut aside = checks.made(self.name, made)?;
        let half = rows / 2;
        self.round(checks, &self.parts(2, |s| (0..half, None, 2 * s)))?;
        for s in 0..STREAMS {
            checks.backend.copy_state(&self.state, 2 * s, &mut aside, STREAMS - 1 - s);
        }
        self.round(checks, &self.parts(0, |s| (half..rows, Some(2 * s), 2 * s)))?;
        for s in 0..STREAMS {
            checks.backend.copy_state(&aside, STREAMS - 1 - s, &mut self.state, 2 * s + 1);
            self.holds[2 * s + 1] = (s, half);
        }
        self.check_places(checks)?;
        self.round(checks, &self.parts(3, |s| (half..rows, Some(2 * s + 1), 2 * s + 1)))
    }

    /// One round: both ops over all its walks, then every place.
    fn round(&mut self, checks: &mut Checks<'_, B>, parts: &[Part]) -> Option<()> {
        let mut walks = Vec::new();
        let mut count = 0;
        for (_, rows, from, to) in parts {
            walks.push(Walk { rows: count..count + rows.len(), from: *from, to: *to });
            count += rows.len();
        }
        let all = |values: fn(&Stream) -> &[f32], width: usize| -> Vec<f32> {
            let each = parts.iter().map(|(s, rows, ..)| {
                &values(&self.streams[*s])[rows.start * width..rows.end * width]
            });
            each.flatten().copied().collect()
        };
        let (channels, out) = (self.shape.channels(), self.shape.value_width());
        let x = all(|s| &s.x, channels);
        let qkv = all(|s| &s.qkv, channels);
        let gates = all(|s| &s.gates, 2 * self.shape.values);
        let want = [all(|s| &s.convolved, channels), all(|s| &s.out, out)];

        let [x, qkv, gates] = [(x, channels), (qkv, channels), (gates, 2 * self.shape.values)]
            .map(|(values, width)| buffer(checks, self.name, &values, count, width));
        let [convolved, delta] =
            [channels, out].map(|width| buffer(checks, self.name, &[], count, width));
        let (mut convolved, mut delta) = (convolved?, delta?);
        checks.backend.convolve(&x?, self.taps, &mut self.state, &walks, &mut convolved);
        checks.backend.delta(&qkv?, &gates?, &mut self.state, &walks, &mut delta);
        for (op, width, out, want) in
            [("convolve", channels, &convolved, &want[0]), ("delta", out, &delta, &want[1])]
        {
            let mut want = want.clone();
            want.resize(want.len() + 2 * width, POISON);
            let mut got = vec![0.0; want.len()];
            checks.backend.download(out, 0, &mut got);
            checks.compare_values(&format!("{op} {}, {parts:?}", self.name), &want, &got);
        }
        for &(s, ref rows, _, to) in parts {
            self.holds[to] = (s, rows.end);
        }
        self.check_places(checks)
    }

    /// S and tail of every place, those that no walk wrote included.
    fn check_places(&self, checks: &mut Checks<'_, B>) -> Option<()> {
        let mut s = vec![0.0; self.shape.state_values()];
        let mut tail = vec![0.0; self.shape.tail_values()];
        for (place, &(stream, rows)) in self.holds.iter().enumerate() {
            checks.backend.download_state(&self.state, place, &mut s, &mut tail);
            let case = format!("{}, place {place}, stream {stream} after {rows}", self.name);
            let stream = &self.streams[stream];
            checks.compare_values(&format!("state {case}"), &stream.states[rows], &s);
            checks.compare_values(&format!("tail {case}"), &stream.tails[rows], &tail);
        }
        (!checks.over()).then_some(())
    }
}

/// A buffer of `values`, and poison up to two rows past the count.
fn buffer<B: Backend>(
    checks: &mut Checks<'_, B>,
    case: &str,
    values: &[f32],
    rows: usize,
    width: usize,
) -> Option<B::Rows> {
    let made = checks.backend.rows(rows + 2, width);
    let mut buffer = checks.made(case, made)?;
    checks.backend.upload(&vec![POISON; (rows + 2) * width], &mut buffer);
    checks.backend.upload(values, &mut buffer);
    Some(buffer)
}
