//! `baton bench`: prompt and decode speed on this machine, interleaved, medians.

mod case;
mod lines;
mod load;
mod plot;
mod table;
mod tally;
mod work;

use std::path::Path;

use anyhow::{Result, ensure};
use arith::base::{Arith, TILE_KEYS, pages_of};
use backend::Backend;
use cpu::{Cpu, Isa};
use weights::Checkpoint;
use wire::hello::Encryption;

use crate::args::Bench;
use crate::bar;
use crate::cell::Cell;
use crate::check::{Placement, placements};
use crate::model::Settings;
use crate::rank::Place;
use crate::{resident, source};
use case::Case;
pub use load::serve;
use table::Table;
use work::Work;

/// A ring under measurement.
struct Seat {
    cell: Cell,
    placement: Placement,
    arith: Arith,
    threads: usize,
    /// CPU, threads and kernels.
    device: String,
}

/// Measures every case of every seat, in turn.
///
/// # Errors
/// A layout that does not come up.
pub fn run(args: &Bench) -> Result<()> {
    let path = source::resolve(&args.model)?;
    let checkpoint = Checkpoint::open(&path)?;
    let cases = cases(args);
    let settings = settings(args, &cases, checkpoint.config().context_max())?;
    let chunk = settings.chunk;
    let seats = seats(args, &path, checkpoint.config().layers(), &settings)?;
    if args.lines {
        ensure!(
            seats.len() == 1,
            "--lines: one layout, one arithmetic and one number of threads at a time"
        );
        let work = Work::of(&checkpoint);
        // A rank has one of its own, and is weighed.
        drop(checkpoint);
        resident::give_back();
        let served = lines::serve(&seats[0], &cases, chunk, work);
        return served.and_then(|()| stop(seats));
    }
    let mut table = Table::new(&checkpoint, args.runs);
    for seat in &seats {
        for case in &cases {
            table.add(seat, *case);
        }
    }
    let bar = bar::steps((args.runs as usize + 1) * seats.len() * cases.len(), "measuring");
    for run in 0..=args.runs {
        let timings = seats.iter().flat_map(|seat| cases.iter().map(move |case| (seat, case)));
        for (at, (seat, case)) in timings.enumerate() {
            let timing = seat.cell.run(case.run(&seat.cell, chunk))?;
            // The first run warms caches.
            if run > 0 {
                table.put(at, timing);
            }
            bar.inc(1);
        }
    }
    bar.finish_and_clear();
    if args.limits {
        args.threads.iter().for_each(|&threads| table.limit(threads, cpu::limits(threads)));
    }
    if args.json {
        table.print_json()
    } else {
        table.print()
    }
    stop(seats)
}

fn cases(args: &Bench) -> Vec<Case> {
    let streams = args.streams.iter();
    let cases = streams.flat_map(|&streams| {
        args.prompt.iter().map(move |&prompt| Case { prompt, decode: args.decode, streams })
    });
    cases.collect()
}

/// Room for every case, each stream with its own pages.
fn settings(args: &Bench, cases: &[Case], context_max: u32) -> Result<Settings> {
    let most = |of: &dyn Fn(&Case) -> u32| cases.iter().map(of).max().unwrap_or(1);
    let streams = most(&|case| case.streams);
    let chunk = args.chunk;
    // Streams beyond two share the pages of two.
    let room = |case: &Case| match case.streams {
        1 | 2 => case.context(chunk),
        streams => pages_of(case.context(chunk)) * TILE_KEYS as u32 * streams.div_ceil(2),
    };
    let context = most(&room).max(64);
    ensure!(
        context <= context_max,
        "--prompt, --decode and --streams: room for {context} positions is needed, the model was \
         made for {context_max}"
    );
    let (kv, prompt_pair) = (args.kv.into(), args.prompt_pair.is_on());
    let (context, through) = (Some(context), args.exchange.into());
    Ok(Settings { context, streams, kv, chunk, through, prompt_pair, ..Settings::default() })
}

fn seats(args: &Bench, path: &Path, layers: u32, settings: &Settings) -> Result<Vec<Seat>> {
    let mut seats = Vec::new();
    for placement in placements(&args.layouts, layers, 1)? {
        for (&arith, &threads) in
            args.arith.iter().flat_map(|a| args.threads.iter().map(move |t| (a, t)))
        {
            let device = Cpu::new(threads, Isa::Auto, arith)?.device();
            let layout = Some(placement.layout.to_string());
            let loop_mode = placement.loop_mode;
            let settings = Settings { layout, loop_mode, arith, ..settings.clone() };
            let cell = match place(args)? {
                Some(place) => Cell::join(path, settings, threads, &place)?,
                None => Cell::start(path, settings, threads)?,
            };
            seats.push(Seat { cell, placement: placement.clone(), arith, threads, device });
        }
    }
    Ok(seats)
}

/// Where rank 0 stands, if the other ranks or members are started by hand.
fn place(args: &Bench) -> Result<Option<Place>> {
    if !args.by_hand.is_any() {
        return Ok(None);
    }
    let one = [args.layouts.len(), args.threads.len(), args.arith.len()] == [1, 1, 1];
    ensure!(one, "--next, --group: one layout, one arithmetic and one number of threads");
    Place::of_head(&args.by_hand, Encryption::On).map(Some)
}

fn stop(seats: Vec<Seat>) -> Result<()> {
    seats.into_iter().try_for_each(|seat| seat.cell.stop())
}
