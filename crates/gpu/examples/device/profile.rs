//! Where the time of a chunk of a prompt and of a step goes, kernel by kernel.

use std::sync::Arc;
use std::time::Instant;

use arith::attention::KvDtype;
use baton_gpu::Gpu;
use stage::{Engine, Shapes, Stage, StageConfig};
use wire::plan::Mode;

use super::Failure;
use super::model::Stream;

const CHUNK: u32 = 512;
/// Steps before the one that is looked at: pipelines are made in the first.
const STEPS: u32 = 8;

/// A whole model on one device: a chunk after another, then a step after both.
pub fn run(gpu: Gpu, model: &str) -> Result<(), Failure> {
    let checkpoint = weights::Checkpoint::open(model.as_ref())?;
    let layers = checkpoint.config().layers();
    let config = StageConfig { range: 0..layers, ends: true, kv: KvDtype::F16, loop_mode: false };
    let gpu = Arc::new(gpu);
    let mut stage = Stage::open(Arc::clone(&gpu), &checkpoint, config)?;
    stage.prepare(&Shapes {
        chunk_rows_max: CHUNK,
        round_rows_max: CHUNK,
        streams_max: 1,
        context_max: 2048,
        pages: 32,
    })?;
    let mut stream = Stream::new(stage);
    let ids: Vec<u32> = (0..CHUNK).map(|i| 1 + i * 7 % 1000).collect();
    stream.step(Mode::Prompt, &ids)?;
    shares(&gpu, &format!("{CHUNK} rows after {CHUNK}"), || stream.step(Mode::Prompt, &ids))?;
    let mut best = f64::INFINITY;
    for i in 0..STEPS {
        let started = Instant::now();
        stream.step(Mode::Window, &[5 + i])?;
        best = best.min(started.elapsed().as_secs_f64());
    }
    println!("a step as it is, the best of {STEPS}: {:.2} ms", best * 1e3);
    shares(&gpu, &format!("a step after {}", 2 * CHUNK), || stream.step(Mode::Window, &[3]))?;
    let (mut logits, width) = (Vec::new(), stream.stage.hidden());
    let row = stream.rows[stream.rows.len() - width..].to_vec();
    stream.stage.logits(&row, &mut logits)?;
    shares(&gpu, "the head", || Ok(stream.stage.logits(&row, &mut logits)?))
}

/// Prints each kernel's launches, time and share of what `work` asks for.
fn shares(
    gpu: &Gpu,
    what: &str,
    work: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let mut done = Ok(());
    let mut kernels: Vec<_> = gpu.profiled(|| done = work()).into_iter().collect();
    done?;
    kernels.sort_by(|a, b| b.1.1.total_cmp(&a.1.1));
    let all: f64 = kernels.iter().map(|(_, (_, seconds))| seconds).sum();
    let launches: u64 = kernels.iter().map(|(_, (launches, _))| launches).sum();
    println!("{what}: {launches} launches, {:.2} ms one by one", all * 1e3);
    for (name, (launches, seconds)) in kernels {
        let (ms, share) = (seconds * 1e3, 100.0 * seconds / all);
        println!("  {name:<16} {launches:>5} {ms:>10.2} ms {share:>5.1} %");
    }
    Ok(())
}
