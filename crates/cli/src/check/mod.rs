//! `baton check`: the same bytes in every cell, or the first cell that differs.

#[cfg(test)]
mod acceptance;
mod against;
mod axes;
mod conformance;
mod load;
#[cfg(test)]
mod matrix;
mod proof;
#[cfg(test)]
#[path = "../../tests/it/proxy.rs"]
#[allow(dead_code, clippy::unwrap_used, reason = "shared with the tests over processes")]
mod proxy;
#[cfg(test)]
mod speed;
#[cfg(test)]
mod tests;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use weights::Checkpoint;

pub use axes::{Placement, placements};
pub use load::{Load, Outcome, one};

use crate::args::Check;
use crate::cell::Cell;
use crate::device::{Device, Devices};
use crate::model::Settings;
use crate::source::{self, hex};

/// Where a cell stands on every axis.
#[derive(Clone, Debug)]
struct Coordinates {
    placement: Placement,
    threads: usize,
    chunk: u32,
    streams: u32,
    depth: u32,
    devices: Devices,
}

impl std::fmt::Display for Coordinates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { placement, threads, chunk, streams, depth, devices } = self;
        write!(
            f,
            "layout {placement}, threads {threads}, chunk {chunk}, streams {streams}, depth {depth}"
        )?;
        match &devices.0[..] {
            [Device::Cpu] => Ok(()),
            _ => write!(f, ", devices {devices}"),
        }
    }
}

/// Runs the check; the last line is the verdict.
///
/// # Errors
/// The first cell whose hash differs from the first cell's, and everything that keeps a cell from
/// running.
pub fn run(args: &Check) -> Result<()> {
    if let Some(file) = &args.proof {
        return proof::run(args, file);
    }
    if let Some(layout) = &args.against {
        return against::run(args, layout);
    }
    if let Some(level) = args.conformance {
        return conformance::run(args, level);
    }
    let path = source::resolve(&args.model)?;
    let checkpoint = Checkpoint::open(&path)?;
    let config = checkpoint.config();
    let cells = cells(args, config.layers())?;
    check_sizes(args, config.context_max(), &cells)?;
    let vocab = u32::try_from(config.vocab())?;
    let load = Load::new(vocab, args.prompt, args.tokens, args.seed);
    println!("{}: {} cells of {} replies", path.display(), cells.len(), load.len());
    let started = Instant::now();
    let mut reference: Option<Outcome> = None;
    for (index, at) in cells.iter().enumerate() {
        let since = Instant::now();
        let outcome = run_cell(&path, settings(args, at), at.threads, &load)
            .with_context(|| format!("cell {} of {}: {at}", index + 1, cells.len()))?;
        println!(
            "{:>4}/{} {} {} {:5.1} s  {at}",
            index + 1,
            cells.len(),
            &hex(&outcome.tokens)[..12],
            &hex(&outcome.logits)[..12],
            since.elapsed().as_secs_f64(),
        );
        match &reference {
            None => reference = Some(outcome),
            Some(first) => compare(first, &outcome, &cells[0], at)?,
        }
    }
    if let Some(first) = reference {
        println!("tokens {}", hex(&first.tokens));
        println!("logits {}", hex(&first.logits));
        let mut both = first.tokens.to_vec();
        both.extend(first.logits);
        println!("{:.0} s", started.elapsed().as_secs_f64());
        println!("one hash: {} over {} cells", source::sha256_hex(&both), cells.len());
    }
    Ok(())
}

fn cells(args: &Check, layers: u32) -> Result<Vec<Coordinates>> {
    let placements = placements(&args.layouts, layers, args.seed)?;
    let sizes = [
        placements.len(),
        args.threads.len(),
        args.chunks.len(),
        args.streams.len(),
        args.depths.len(),
        args.devices.len(),
    ];
    if sizes.contains(&0) {
        bail!("every axis needs a value");
    }
    let total: usize = sizes.iter().product();
    if total > axes::CELLS_MAX {
        bail!("{total} cells: at most {}", axes::CELLS_MAX);
    }
    let picked = if args.pairwise { axes::pairwise(&sizes) } else { axes::every(&sizes) };
    let cell = |at: &Vec<usize>| Coordinates {
        placement: placements[at[0]].clone(),
        threads: args.threads[at[1]],
        chunk: args.chunks[at[2]],
        streams: args.streams[at[3]],
        depth: args.depths[at[4]],
        devices: args.devices[at[5]].clone(),
    };
    Ok(picked.iter().map(cell).collect())
}

/// Refuses what some cell could not run with before the first one runs.
fn check_sizes(args: &Check, context_max: u32, cells: &[Coordinates]) -> Result<()> {
    for at in cells {
        settings(args, at).shapes(context_max)?;
        let threads_max = cpu::THREADS_MAX;
        ensure!(at.threads <= threads_max, "--threads {}: at most {threads_max}", at.threads);
    }
    Ok(())
}

fn settings(args: &Check, at: &Coordinates) -> Settings {
    Settings {
        layout: Some(at.placement.layout.to_string()),
        loop_mode: at.placement.loop_mode,
        compares: true,
        arith: args.arith,
        kv: args.kv.into(),
        devices: at.devices.0.clone(),
        context: Some((args.prompt + args.tokens + 1).max(64)),
        streams: at.streams,
        chunk: at.chunk,
        depth: Some(at.depth),
        through: args.exchange.into(),
        ..Settings::default()
    }
}

fn run_cell(path: &Path, settings: Settings, threads: usize, load: &Load) -> Result<Outcome> {
    let streams = settings.streams;
    let cell = Cell::start(path, settings, threads)?;
    let outcome = cell.run(load.run(cell.handle(), streams))?;
    cell.stop()?;
    Ok(outcome)
}

/// Names the first reply and token that differ.
fn compare(
    first: &Outcome,
    other: &Outcome,
    at: &Coordinates,
    other_at: &Coordinates,
) -> Result<()> {
    if first.tokens == other.tokens && first.logits == other.logits {
        return Ok(());
    }
    for (index, (a, b)) in first.replies.iter().zip(&other.replies).enumerate() {
        if a == b {
            continue;
        }
        let step = a.tokens.iter().zip(&b.tokens).position(|(x, y)| x != y);
        let what = match step {
            Some(step) => format!("token {step}: {} and {}", a.tokens[step], b.tokens[step]),
            None => format!(
                "logits: {} and {}",
                &hex(&a.logits_sha256)[..12],
                &hex(&b.logits_sha256)[..12]
            ),
        };
        bail!("first difference: reply {index}, {what}\n  in   {other_at}\n  from {at}");
    }
    bail!("first difference: the number of replies, in {other_at}")
}
