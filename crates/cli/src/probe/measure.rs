//! Times of a model's layers on this machine.
//!
//! A layer that is run again and again keeps its weights in caches, which a whole model's layers do
//! not. So what a layer takes is measured twice: as one of many in a row, which gives the level,
//! and each kind alone, which says how the kinds share it.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::Result;
use backend::Backend;
use placement::{Costs, Curve, Kind, Point, Stack};
use stage::{Engine, Shapes, Stage, StageConfig};

use crate::bar;
use crate::device::Seat;
use crate::model::Model;
use crate::plan::kinds;

use super::walk::Walk;

/// Rows that are timed, beside a whole chunk.
const ROWS: [u32; 4] = [1, 8, 32, 64];
/// The far context; near is none.
const CONTEXT: u32 = 4_096;
/// Weights of the layers in a row.
const BYTES_MAX: u64 = 512 << 20;
/// How long one row count is timed.
const TIME: Duration = Duration::from_millis(150);
/// How long the way to the far context may take.
const WALK: Duration = Duration::from_secs(5);
/// Timings of one row count, at most, and their rows.
const TIMES_MAX: usize = 25;
const ROWS_TIMED: usize = 128;
/// Timings of the head, at most.
const ENDS_TIMES_MAX: usize = 25;
/// What is read between two of them.
const OTHERS_BYTES: usize = 64 << 20;
/// How many usual times a timing counts for at most.
const HICCUP: f64 = 8.0;

/// Times of each kind of layer, and of the ends.
///
/// # Errors
/// Tensors that can't be read, memory that is short.
pub fn measure(model: &Model, seat: &Seat) -> Result<Costs> {
    let kinds = kinds(model.checkpoint.config());
    let many = in_a_row(model, kinds.len());
    let first = |kind: Kind| kinds.iter().position(|found| *found == kind);
    let among = [Kind::Attention, Kind::Recurrent].into_iter().filter_map(first).count();
    let bar = bar::steps(among + 3, "measuring");
    let together = stretch(model, seat, many.clone(), CONTEXT)?;
    bar.inc(1);
    let far = together.last().map_or(CONTEXT, |point| point.context);
    let alone = |kind: Kind| {
        let Some(at) = first(kind) else { return Ok(None) };
        let points = stretch(model, seat, at as u32..at as u32 + 1, far)?;
        bar.inc(1);
        Ok::<_, anyhow::Error>(Some(points))
    };
    let (attention, recurrent) = (alone(Kind::Attention)?, alone(Kind::Recurrent)?);
    let count = |kind| kinds[..many.end as usize].iter().filter(|found| **found == kind).count();
    let counts = [count(Kind::Attention) as f64, count(Kind::Recurrent) as f64];
    let level = |own: &Option<Vec<Point>>| -> Vec<Point> {
        let points = own.iter().flatten().enumerate().map(|(place, point)| {
            let of = |all: &Option<Vec<Point>>| {
                all.as_ref().and_then(|all| all.get(place)).map_or(0.0, |point| point.time_s)
            };
            let alone_s = counts[0] * of(&attention) + counts[1] * of(&recurrent);
            let share = together.get(place).map_or(1.0, |point| point.time_s / alone_s);
            let context = together.get(place).map_or(point.context, |point| point.context);
            Point { context, time_s: point.time_s * share, ..*point }
        });
        points.collect()
    };
    let (attention, recurrent) = (level(&attention), level(&recurrent));
    let row_s = |points: &[Point]| points.first().map_or(0.0, |point| point.time_s);
    let stacks = stacks(model, seat, many.end, |layer| match kinds[layer] {
        Kind::Attention => row_s(&attention),
        Kind::Recurrent => row_s(&recurrent),
    })?;
    bar.inc(1);
    let ends = ends(model, seat)?;
    bar.finish_and_clear();
    Ok(Costs {
        attention: Curve::new("attention", attention)?,
        recurrent: Curve::new("recurrent", recurrent)?,
        ends: Curve::new("head", ends)?,
        round_s: 0.0,
        stacks,
    })
}

/// The first layers in shorter rows, a half and a quarter of `many`, by what one of their rows
/// takes of the `row_s` that it takes where they are many.
fn stacks(
    model: &Model,
    seat: &Seat,
    many: u32,
    row_s: impl Fn(usize) -> f64,
) -> Result<Vec<Stack>> {
    let mut stacks = Vec::new();
    for end in [many / 4, many / 2].into_iter().filter(|end| *end > 0) {
        let mut engine = open(model, seat, 0..end, false)?;
        let mut walk = Walk::new(&mut *engine, 1);
        let time_s = mean(TIMES_MAX, || {
            walk.close()?;
            walk.step_s(1)
        })?;
        let part = time_s / (0..end as usize).map(&row_s).sum::<f64>();
        let bytes = model.checkpoint.bytes_of(0..end, false);
        stacks.push(Stack { bytes, part: part.min(1.0) });
    }
    stacks.push(Stack { bytes: model.checkpoint.bytes_of(0..many, false), part: 1.0 });
    stacks.dedup_by_key(|stack| stack.bytes);
    Ok(stacks)
}

/// The first layers, as many as the weights allow, with each kind among them.
fn in_a_row(model: &Model, layers: usize) -> Range<u32> {
    let bytes = |end: u32| model.checkpoint.bytes_of(0..end, false);
    let kinds = kinds(model.checkpoint.config());
    let all = |end: u32| {
        let among = |kind: &Kind| kinds[..end as usize].contains(kind);
        kinds.iter().all(among)
    };
    let layers = layers as u32;
    let end = (1..=layers).rev().find(|end| bytes(*end) <= BYTES_MAX).unwrap_or(1);
    0..(end..=layers).find(|end| all(*end)).unwrap_or(layers)
}

/// Times of a range of layers: every row count at no context, then at a far one, `far` or what can
/// be reached in time.
fn stretch(model: &Model, seat: &Seat, range: Range<u32>, far: u32) -> Result<Vec<Point>> {
    let chunk = model.settings.chunk;
    let few = || ROWS.into_iter().filter(|rows| *rows < chunk);
    let mut engine = open(model, seat, range, false)?;
    let mut walk = Walk::new(&mut *engine, chunk);
    let mut points = Vec::new();
    for rows in few().chain([chunk]) {
        let time_s = mean(times_max(rows), || {
            walk.close()?;
            walk.step_s(rows)
        })?;
        points.push(Point { context: 0, rows, time_s });
    }
    walk.close()?;
    let started = Instant::now();
    let mut chunks_s = vec![walk.step_s(chunk)?];
    while walk.position + chunk <= far && started.elapsed() < WALK {
        chunks_s = vec![walk.step_s(chunk)?];
    }
    let mut near = Vec::new();
    for rows in few() {
        near.push((rows, mean(times_max(rows), || walk.step_s(rows))?));
    }
    // One before the place that the points name, one at it and one behind it.
    let context = walk.position;
    chunks_s.extend([walk.step_s(chunk)?, walk.step_s(chunk)?]);
    chunks_s.sort_by(f64::total_cmp);
    near.push((chunk, chunks_s[1]));
    points.extend(near.into_iter().map(|(rows, time_s)| Point { context, rows, time_s }));
    Ok(points)
}

/// Timings of so many rows: the more, the fewer, so that the context stays about the same.
fn times_max(rows: u32) -> usize {
    (ROWS_TIMED / rows as usize).clamp(3, TIMES_MAX)
}

/// Positions that the timed stream may have.
fn positions(model: &Model) -> u32 {
    let timings = ROWS.iter().map(|rows| rows * (times_max(*rows) as u32 + 1)).sum::<u32>();
    CONTEXT + timings + 4 * model.settings.chunk
}

/// Times of the head; its rows are few.
fn ends(model: &Model, seat: &Seat) -> Result<Vec<Point>> {
    let mut engine = open(model, seat, 0..1, true)?;
    let (hidden, mut logits) = (engine.hidden(), Vec::new());
    let mut points = Vec::new();
    // Between two heads the layers' weights pass through the caches.
    let others = vec![1_u64; OTHERS_BYTES / size_of::<u64>()];
    for rows in [1, 8] {
        let values = vec![0.5; rows as usize * hidden];
        let time_s = mean(ENDS_TIMES_MAX, || {
            std::hint::black_box(others.iter().sum::<u64>());
            let started = Instant::now();
            engine.logits(&values, &mut logits)?;
            Ok(started.elapsed().as_secs_f64())
        })?;
        points.push(Point { context: 0, rows, time_s });
    }
    Ok(points)
}

/// The mean of a step's times, the first of which does not count. A core that is shared halts now
/// and then, which is part of what it is; a hiccup counts as [`HICCUP`] usual times at most.
fn mean(times_max: usize, mut step: impl FnMut() -> Result<f64>) -> Result<f64> {
    step()?;
    let (started, mut times) = (Instant::now(), vec![step()?]);
    while times.len() < times_max && (times.len() < 3 || started.elapsed() < TIME) {
        times.push(step()?);
    }
    times.sort_by(f64::total_cmp);
    let most = HICCUP * times[times.len() / 2];
    Ok(times.iter().map(|time_s| time_s.min(most)).sum::<f64>() / times.len() as f64)
}

fn open(model: &Model, seat: &Seat, range: Range<u32>, ends: bool) -> Result<Box<dyn Engine>> {
    let config = StageConfig { range, ends, kv: model.settings.kv, loop_mode: false };
    let mut engine: Box<dyn Engine> = match seat {
        Seat::Cpu(cpu) => stage_on(model, cpu.clone(), config)?,
        Seat::Cuda(cuda) => stage_on(model, cuda.clone(), config)?,
        #[cfg(feature = "gpu")]
        Seat::Gpu(gpu) => stage_on(model, gpu.clone(), config)?,
    };
    let context_max = positions(model);
    engine.prepare(&Shapes {
        chunk_rows_max: model.settings.chunk,
        round_rows_max: model.settings.chunk.max(8),
        streams_max: 1,
        context_max,
        pages: placement::pages(context_max, 1),
    })?;
    Ok(engine)
}

fn stage_on<B: Backend>(
    model: &Model,
    backend: std::sync::Arc<B>,
    config: StageConfig,
) -> Result<Box<dyn Engine>> {
    Ok(Box::new(Stage::open(backend, &model.checkpoint, config)?))
}
