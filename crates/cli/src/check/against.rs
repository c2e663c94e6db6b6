//! `baton check --against LAYOUT`: how far a placement that computes a function of its own is from
//! the ring's, position by position, over the same tokens.

use anyhow::{Context, Result, ensure};
use arith::base::{Generation, Rank, StreamId};
use stage::{Engine, Input};
use wire::plan::{Entry, Mode, Op, Plan, Want};

use super::axes::{self, SplitMix};
use crate::args::Check;
use crate::device::{Device, Devices};
use crate::model::{Model, Settings};
use crate::source;

/// The one stream.
const STREAM: StreamId = StreamId(0);
/// Differences that are listed; more are counted.
const LISTED_MAX: usize = 100;

/// Prints the comparison; the last line sums it up.
///
/// # Errors
/// A placement that does not run, or that gives other bits when it runs again.
pub fn run(args: &Check, layout: &str) -> Result<()> {
    let path = source::resolve(&args.model)?;
    let own = args.layouts.first().context("--against needs a layout to compare")?;
    let devices = args.devices.first().context("--against needs devices")?;
    let threads = args.threads.first().copied().unwrap_or(1);
    let placed = |layout: &str, devices: &Devices| -> Result<Placed> {
        let layers = weights::Checkpoint::open(&path)?.config().layers();
        let placement = axes::placements(&[layout.to_owned()], layers, args.seed)?.swap_remove(0);
        let settings = Settings {
            layout: Some(placement.layout.to_string()),
            loop_mode: placement.loop_mode,
            arith: args.arith,
            own_arith: true,
            kv: args.kv.into(),
            devices: devices.0.clone(),
            context: Some((args.prompt + args.tokens + 1).max(64)),
            streams: 1,
            chunk: args.chunks.first().copied().unwrap_or(64),
            ..Settings::default()
        };
        Placed::open(Model::open(&path, settings)?, threads)
    };
    let mut reference = placed(layout, &Devices(vec![Device::Cpu]))?;
    let mut asked = placed(own, devices)?;
    println!("reference {}", reference.name);
    println!("placement {}", asked.name);
    let report = compare(&mut reference, &mut asked, &Text::of(args))?;
    print!("{report}");
    Ok(())
}

/// What both are given.
pub(super) struct Text {
    pub(super) prompt: u32,
    pub(super) tokens: u32,
    pub(super) seed: u64,
    /// Positions after which states are compared.
    pub(super) states: Vec<u32>,
}

impl Text {
    fn of(args: &Check) -> Self {
        let last = args.prompt + args.tokens - 1;
        let states =
            if args.states.is_empty() { vec![args.prompt - 1, last] } else { args.states.clone() };
        Self { prompt: args.prompt, tokens: args.tokens, seed: args.seed, states }
    }
}

/// Ranks of a placement, one after another in this process.
pub(super) struct Placed {
    pub(super) name: String,
    engines: Vec<Box<dyn Engine>>,
    layers: u32,
    vocab: usize,
    chunk: usize,
    generation: u32,
    first: u32,
    accepted: u32,
}

impl Placed {
    pub(super) fn open(model: Model, threads: usize) -> Result<Self> {
        let mut engines = Vec::new();
        let mut name = format!("{}:", model.layout);
        for rank in (0..model.layout.world()).map(Rank) {
            ensure!(model.layout.group(rank).is_none(), "--against compares rings without groups");
            let seat = model.seat(rank, 0, threads)?;
            let mut engine = model.engine(rank, &seat, None)?;
            engine.prepare(&model.shapes)?;
            engines.push(engine);
            name.push_str(&format!(" [{}]", seat.device()));
        }
        let config = model.checkpoint.config();
        let chunk = model.shapes.chunk_rows_max as usize;
        let (layers, vocab) = (config.layers(), config.vocab());
        Ok(Self { name, engines, layers, vocab, chunk, generation: 0, first: 0, accepted: 0 })
    }

    /// Begins again.
    fn reset(&mut self) {
        self.engines.iter_mut().for_each(|engine| engine.reset());
        (self.generation, self.first, self.accepted) = (0, 0, 0);
    }

    /// Logits of the next tokens, a row each.
    fn step(&mut self, ids: &[u32]) -> Result<Vec<f32>> {
        let rows = u32::try_from(ids.len())?;
        let entry = Entry {
            id: STREAM,
            op: if self.first == 0 { Op::Open } else { Op::Continue },
            want: Want::All,
            first: self.first,
            rows,
            accepted: self.accepted,
            resume: 0,
            generation: Generation(self.generation),
            parents: None,
            tokens: None,
        };
        let plan = Plan { mode: Mode::Prompt, entries: vec![entry], ..Plan::default() };
        let (mut given, mut out) = (Vec::new(), Vec::new());
        for (rank, engine) in self.engines.iter_mut().enumerate() {
            let input = if rank == 0 { Input::Tokens(ids) } else { Input::Rows(&given) };
            engine.step(&plan, input, &mut out)?;
            engine.check()?;
            std::mem::swap(&mut given, &mut out);
        }
        (self.first, self.accepted) = (self.first + rows, rows);
        self.generation += 1;
        let mut logits = Vec::new();
        self.engines[0].logits(&given, &mut logits)?;
        Ok(logits)
    }

    /// All recurrent states after the last row.
    fn states(&self) -> Vec<State> {
        let one = |layer: u32| {
            let held = self.engines.iter().find_map(|engine| engine.state(STREAM, layer));
            held.map(|(s, tail)| (layer, [s, tail].concat()))
        };
        (0..self.layers).filter_map(one).collect()
    }
}

/// How two rows of logits differ.
#[derive(Clone, Copy, Debug, Default)]
struct Position {
    kl: f64,
    /// The largest difference of a logit.
    largest: f32,
    tops: [Top; 2],
}

/// The best token of a row, and by how much it is.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Top {
    token: usize,
    margin: f32,
}

impl Top {
    fn of(row: &[f32]) -> Self {
        let (mut best, mut second) = (0, f32::NEG_INFINITY);
        for (token, &value) in row.iter().enumerate().skip(1) {
            if value > row[best] {
                (second, best) = (row[best], token);
            } else {
                second = second.max(value);
            }
        }
        Self { token: best, margin: row[best] - second }
    }
}

impl Position {
    fn of(reference: &[f32], asked: &[f32]) -> Self {
        let log_sum = |row: &[f32]| {
            let most = row.iter().fold(f64::NEG_INFINITY, |most, &v| most.max(v.into()));
            most + row.iter().map(|&v| (f64::from(v) - most).exp()).sum::<f64>().ln()
        };
        let (all, others) = (log_sum(reference), log_sum(asked));
        let mut kl = 0.0;
        let mut largest = 0.0_f32;
        for (&a, &b) in reference.iter().zip(asked) {
            let (p, q) = (f64::from(a) - all, f64::from(b) - others);
            kl += p.exp() * (p - q);
            largest = largest.max((a - b).abs());
        }
        Self { kl: kl.max(0.0), largest, tops: [Top::of(reference), Top::of(asked)] }
    }
}

/// How far states of a position differ.
#[derive(Clone, Debug)]
struct States {
    position: u32,
    layers: usize,
    /// The layer with the largest difference, that, and the largest value of all.
    worst: (u32, f32, f32),
}

/// What a comparison found.
#[derive(Clone, Debug, Default)]
pub(super) struct Report {
    positions: Vec<Position>,
    states: Vec<States>,
}

impl Report {
    /// Positions with another best token.
    pub(super) fn differing(&self) -> usize {
        self.positions.iter().filter(|p| p.tops[0].token != p.tops[1].token).count()
    }

    /// The largest difference of a logit.
    pub(super) fn largest(&self) -> f32 {
        self.positions.iter().map(|p| p.largest).fold(0.0, f32::max)
    }

    /// Positions whose states were compared, and the largest difference.
    #[cfg(test)]
    pub(super) fn states(&self) -> (usize, f32) {
        let worst = self.states.iter().map(|states| states.worst.1).fold(0.0, f32::max);
        (self.states.len(), worst)
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for States { position, layers, worst: (layer, largest, value) } in &self.states {
            writeln!(
                f,
                "states after position {position}: {layers} layers, largest difference \
                 {largest:.3e} in layer {layer}, of values up to {value:.3e}"
            )?;
        }
        let differing = self.positions.iter().enumerate().filter(|(_, position)| {
            let [reference, asked] = position.tops;
            reference.token != asked.token
        });
        for (at, Position { tops: [reference, asked], .. }) in differing.take(LISTED_MAX) {
            writeln!(
                f,
                "position {at}: token {} by {:.3e} there, {} by {:.3e} here",
                reference.token, reference.margin, asked.token, asked.margin
            )?;
        }
        let count = self.positions.len();
        let mean = self.positions.iter().map(|p| p.kl).sum::<f64>() / count.max(1) as f64;
        let (at, most) = (self.positions.iter().enumerate())
            .max_by(|a, b| a.1.kl.total_cmp(&b.1.kl))
            .map_or((0, 0.0), |(at, position)| (at, position.kl));
        writeln!(
            f,
            "against: {count} positions, KL {mean:.3e} on average and {most:.3e} at most (position \
             {at}), largest logit difference {:.3e}, top-1 agreement {} of {count}, the same bits \
             twice",
            self.largest(),
            count - self.differing(),
        )
    }
}

/// Runs both over the reference's own tokens, the asked one twice.
pub(super) fn compare(reference: &mut Placed, asked: &mut Placed, text: &Text) -> Result<Report> {
    let mut random = SplitMix(text.seed);
    let vocab = u32::try_from(reference.vocab)?;
    let mut ids: Vec<u32> = (0..text.prompt).map(|_| random.below(vocab)).collect();
    let (rows, states) = follow(reference, &mut ids, text, true)?;
    let (own_rows, own_states) = follow(asked, &mut ids, text, false)?;
    asked.reset();
    let (again, _) = follow(asked, &mut ids, text, false)?;
    let bits = |rows: &[f32]| rows.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    ensure!(bits(&own_rows) == bits(&again), "the placement gave other bits when it ran again");
    let width = reference.vocab;
    let pairs = rows.chunks_exact(width).zip(own_rows.chunks_exact(width));
    let positions = pairs.map(|(a, b)| Position::of(a, b)).collect();
    let states = states.into_iter().zip(own_states);
    let states = states.filter_map(|((position, a), (_, b))| apart(position, &a, &b)).collect();
    Ok(Report { positions, states })
}

/// A layer, and the values of its state.
type State = (u32, Vec<f32>);
/// States by the position that they stand after.
type Held = Vec<(u32, Vec<State>)>;

/// Logits of all positions, and the states after those that are asked for. `draws` has the best
/// token follow the prompt; else `ids` hold the whole text.
fn follow(
    placed: &mut Placed,
    ids: &mut Vec<u32>,
    text: &Text,
    draws: bool,
) -> Result<(Vec<f32>, Held)> {
    let (mut rows, mut held): (Vec<f32>, Held) = (Vec::new(), Vec::new());
    let end = (text.prompt + text.tokens) as usize;
    let mut at = 0;
    while at < end {
        // A piece ends where states are asked for, and with the prompt.
        let stops = text.states.iter().map(|&position| position as usize + 1);
        let stops = stops.chain([text.prompt as usize, end]).filter(|&stop| stop > at);
        let most = if at < text.prompt as usize { at + placed.chunk } else { at + 1 };
        let to = stops.fold(most, usize::min);
        if draws && at == ids.len() {
            let last = &rows[rows.len() - placed.vocab..];
            ids.push(Top::of(last).token as u32);
        }
        rows.extend(placed.step(&ids[at..to])?);
        if text.states.contains(&(to as u32 - 1)) {
            held.push((to as u32 - 1, placed.states()));
        }
        at = to;
    }
    Ok((rows, held))
}

/// `None` for a model without recurrent layers.
fn apart(position: u32, a: &[State], b: &[State]) -> Option<States> {
    let layers = a.len();
    let one = |((layer, a), (_, b)): (&State, &State)| {
        let largest = a.iter().zip(b).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        (*layer, largest, a.iter().map(|value| value.abs()).fold(0.0, f32::max))
    };
    let all: Vec<_> = a.iter().zip(b).map(one).collect();
    let value = all.iter().map(|(_, _, value)| *value).fold(0.0, f32::max);
    let (layer, largest, _) = all.into_iter().max_by(|a, b| a.1.total_cmp(&b.1))?;
    Some(States { position, layers, worst: (layer, largest, value) })
}
