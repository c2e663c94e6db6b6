//! A made model of Llama 8B's shapes on a GPU: a prompt's chunks and steps of a reply.

use std::sync::Arc;
use std::time::Instant;

use arith::attention::{Heads, KvDtype};
use arith::base::{Generation, StreamId};
use arith::format::{Format, Matrix};
use backend::{Backend, RowAt, RowMap};
use baton_gpu::Gpu;
use stage::{Engine, Input, Shapes, Stage, StageConfig};
use weights::synthetic::{self, Llama};
use wire::plan::{Entry, Mode, Op, Plan, Want};

use super::Failure;

const LAYERS: u32 = 4;
const CHUNK: u32 = 512;
const STEPS: u32 = 64;

pub fn run(gpu: Gpu) -> Result<(), Failure> {
    let spec = Llama {
        layers: LAYERS,
        hidden: 4096,
        intermediate: 14_336,
        vocab: 32_768,
        heads: Heads { query: 32, kv: 8, dim: 128 },
        format: Format::Q4_0,
        ends_format: Format::Q8_0,
        ..Llama::default()
    };
    let path = std::env::temp_dir().join(format!("baton-gpu-{}.gguf", std::process::id()));
    synthetic::llama(&path, &spec)?;
    let checkpoint = weights::Checkpoint::open(&path)?;
    let config = StageConfig { range: 0..LAYERS, ends: true, kv: KvDtype::F16, loop_mode: false };
    let gpu = Arc::new(gpu);
    let started = Instant::now();
    let mut stage = Stage::open(Arc::clone(&gpu), &checkpoint, config)?;
    println!("loaded {} MB in {:.1} s", spec.bytes() >> 20, started.elapsed().as_secs_f64());
    std::fs::remove_file(&path)?;
    stage.prepare(&Shapes {
        chunk_rows_max: CHUNK,
        round_rows_max: CHUNK,
        streams_max: 1,
        context_max: 8192,
        pages: 128,
    })?;
    let mut stream = Stream::new(stage);
    let ids: Vec<u32> = (0..CHUNK).map(|i| 1 + i * 7 % 1000).collect();
    for context in [0, CHUNK, 2 * CHUNK, 3 * CHUNK] {
        let (seconds, device) = timed(&gpu, || stream.step(Mode::Prompt, &ids))?;
        println!(
            "chunk of {CHUNK} after {context}: {:.1} ms, {:.1} on the device, {:.0} rows/s a layer",
            seconds * 1e3,
            device * 1e3,
            f64::from(CHUNK * LAYERS) / seconds
        );
    }
    let before = gpu.tally();
    let (mut best, mut device) = (f64::INFINITY, f64::INFINITY);
    for i in 0..STEPS {
        let (seconds, inside) = timed(&gpu, || stream.step(Mode::Window, &[5 + i]))?;
        (best, device) = (best.min(seconds), device.min(inside));
    }
    let tally = gpu.tally();
    let each = |now: u64, before: u64| (now - before) as f64 / f64::from(STEPS);
    println!(
        "step after {}: {:.3} ms, {:.3} on the device; {:.0} launches, {:.1} command buffers",
        4 * CHUNK,
        best * 1e3,
        device * 1e3,
        each(tally.launches, before.launches),
        each(tally.submits, before.submits),
    );
    ops(&gpu)?;
    let mut logits = Vec::new();
    let hidden = stream.stage.hidden();
    let row = stream.rows[stream.rows.len() - hidden..].to_vec();
    let (seconds, inside) = timed(&gpu, || Ok(stream.stage.logits(&row, &mut logits)?))?;
    println!("head: {:.3} ms, {:.3} on the device", seconds * 1e3, inside * 1e3);
    Ok(())
}

/// What each op of a step takes on the device, of one row and of a chunk.
fn ops(gpu: &Gpu) -> Result<(), Failure> {
    let heads = Heads { query: 32, kv: 8, dim: 128 };
    let norm: Vec<u8> = 1.0_f32.to_le_bytes().repeat(4096);
    let norm = Matrix { format: Format::F32, rows: 1, cols: 4096, bytes: &norm };
    let w = gpu.vector(&norm)?;
    let narrow = vec![1; 18 * 4096 / 32 * 16];
    let narrow = Matrix { format: Format::Q4_0, rows: 16, cols: 4096, bytes: &narrow };
    let narrow = gpu.linear(&narrow)?;
    for (rows, context) in [(1, 1536), (512, 512)] {
        let buffer = |width| gpu.rows(rows, width);
        let (x, mut y, wide) = (buffer(4096)?, buffer(4096)?, buffer(14_336)?);
        let (mut hidden, mut few) = (buffer(14_336)?, buffer(16)?);
        let (k, v) = (buffer(1024)?, buffer(1024)?);
        let mut kv = gpu.kv(KvDtype::F16, 64, heads)?;
        let pages: Vec<u32> = (0..32).collect();
        let at = |row| RowAt { table: 0, position: (context + row) as u32 };
        let map = RowMap { rows: (0..rows).map(at).collect(), tables: vec![pages.into()] };
        let time = |name: &str, op: &mut dyn FnMut()| {
            let (started, mut best) = (Instant::now(), f64::INFINITY);
            while started.elapsed().as_secs_f64() < 0.2 {
                let all = gpu.timed(|| (0..20).for_each(|_| op()));
                best = best.min(all / 20.0);
            }
            println!("  {rows} rows: {name} {:.1} us", best * 1e6);
        };
        time("rms_norm", &mut || gpu.rms_norm(&x, &w, 1e-5, rows, &mut y));
        time("quantise and 16 outputs", &mut || {
            gpu.project(&x, rows, &[&narrow], &mut [&mut few]);
        });
        time("kv_write", &mut || gpu.kv_write(&mut kv, &k, &v, &map));
        time("attention", &mut || gpu.attention(&x, &kv, &map, &mut y));
        time("silu_mul", &mut || gpu.silu_mul(&wide, &wide, rows, &mut hidden));
        time("add", &mut || gpu.add(&mut y, &x, rows));
    }
    Ok(())
}

/// Seconds on the clock, and on the device where it tells.
fn timed(gpu: &Gpu, work: impl FnOnce() -> Result<(), Failure>) -> Result<(f64, f64), Failure> {
    let started = Instant::now();
    let mut done = Ok(());
    let device = gpu.timed(|| done = work());
    done.map(|()| (started.elapsed().as_secs_f64(), device))
}

/// One stream of a stage.
pub struct Stream {
    /// The stage.
    pub stage: Stage<Gpu>,
    generation: u32,
    first: u32,
    accepted: u32,
    /// The rows that the last step gave.
    pub rows: Vec<f32>,
}

impl Stream {
    /// Nothing computed yet.
    pub fn new(stage: Stage<Gpu>) -> Self {
        Self { stage, generation: 0, first: 0, accepted: 0, rows: Vec::new() }
    }

    /// The next rows.
    pub fn step(&mut self, mode: Mode, ids: &[u32]) -> Result<(), Failure> {
        let rows = ids.len() as u32;
        let entry = Entry {
            id: StreamId(0),
            op: if self.first == 0 { Op::Open } else { Op::Continue },
            want: Want::Last,
            first: self.first,
            rows,
            accepted: self.accepted,
            resume: 0,
            generation: Generation(self.generation),
            parents: None,
            tokens: None,
        };
        let plan = Plan { mode, entries: vec![entry], ..Plan::default() };
        self.stage.step(&plan, Input::Tokens(ids), &mut self.rows)?;
        self.first += rows;
        self.accepted = rows;
        self.generation += 1;
        Ok(())
    }
}
