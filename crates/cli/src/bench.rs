//! `baton bench`: prompt and decode speed of layouts on this machine, interleaved, medians.

use std::time::Instant;

use anyhow::{Result, bail};
use arith::sample::Sampling;
use sched::{Event, Request};
use serde_json::json;

use crate::args::Bench;
use crate::cell::Cell;
use crate::check::{Placement, placements};
use crate::model::Settings;
use crate::source;

/// Measures; one line a layout.
///
/// # Errors
/// A layout that does not come up.
pub fn run(args: &Bench) -> Result<()> {
    let path = source::resolve(&args.model)?;
    let layers = weights::Checkpoint::open(&path)?.config().layers();
    let placements = placements(&args.layouts, layers, 1)?;
    let context = Some((args.prompt + args.decode + 16).max(64));
    let mut cells = Vec::new();
    for placement in &placements {
        let layout = Some(placement.layout.to_string());
        let loop_mode = placement.loop_mode;
        let arith = args.arith;
        let settings =
            Settings { layout, loop_mode, arith, context, streams: 1, ..Settings::default() };
        cells.push(Cell::start(&path, settings, args.threads)?);
    }
    let mut rates: Vec<(Vec<f64>, Vec<f64>)> = vec![(Vec::new(), Vec::new()); cells.len()];
    for run in 0..=args.runs {
        for (cell, rates) in cells.iter().zip(&mut rates) {
            let (prompt, decode) = cell.run(once(cell, args))?;
            // The first run warms caches.
            if run > 0 {
                rates.0.push(prompt);
                rates.1.push(decode);
            }
        }
    }
    for (placement, (prompt, decode)) in placements.iter().zip(rates) {
        report(args, placement, prompt, decode);
    }
    cells.into_iter().try_for_each(Cell::stop)
}

/// Prompt and decode tokens/s of one run.
async fn once(cell: &Cell, args: &Bench) -> Result<(f64, f64)> {
    let request = Request {
        prompt: (0..args.prompt.max(1)).map(|i| 1 + i * 7 % 1000).collect(),
        max_tokens: args.decode.max(2),
        stop_tokens: Vec::new(),
        sampling: Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 },
        prompt_logits: false,
        hash_logits: false,
    };
    let started = Instant::now();
    let mut reply = cell.handle().submit(request).await?;
    let (mut first, mut tokens) = (None, 0u32);
    while let Some(event) = reply.next().await {
        match event {
            Event::Token { .. } => {
                tokens += 1;
                first.get_or_insert_with(Instant::now);
            }
            Event::Failed(failure) => return Err(failure.into()),
            _ => {}
        }
    }
    let Some(first) = first else { bail!("no token came") };
    let prompt = f64::from(args.prompt) / (first - started).as_secs_f64();
    Ok((prompt, f64::from(tokens - 1) / first.elapsed().as_secs_f64()))
}

fn report(args: &Bench, placement: &Placement, mut prompt: Vec<f64>, mut decode: Vec<f64>) {
    let (prompt, decode) = (spread(&mut prompt), spread(&mut decode));
    if args.json {
        let line = json!({
            "layout": placement.to_string(), "threads": args.threads, "runs": args.runs,
            "prompt_tokens": args.prompt, "prompt_tokens_per_s": prompt.0,
            "prompt_min": prompt.1, "prompt_max": prompt.2,
            "decode_tokens": args.decode, "decode_tokens_per_s": decode.0,
            "decode_min": decode.1, "decode_max": decode.2,
        });
        println!("{line}");
        return;
    }
    println!(
        "layout {placement}, {} threads a rank: prompt {} {:.1} tokens/s ({:.1}..{:.1}), decode {} {:.1} tokens/s ({:.1}..{:.1}), median of {}",
        args.threads,
        args.prompt,
        prompt.0,
        prompt.1,
        prompt.2,
        args.decode,
        decode.0,
        decode.1,
        decode.2,
        args.runs
    );
}

/// Median, least and most.
fn spread(values: &mut [f64]) -> (f64, f64, f64) {
    values.sort_by(f64::total_cmp);
    let at = |i: usize| values.get(i).copied().unwrap_or(f64::NAN);
    (at(values.len() / 2), at(0), at(values.len().saturating_sub(1)))
}
