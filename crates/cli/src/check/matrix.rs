//! Drafts over rings: whoever guesses, whatever the ring, the same bytes.
#![allow(clippy::unwrap_used, reason = "tests")]

use std::fmt;
use std::time::Instant;

use anyhow::{Result, ensure};
use arith::base::{Arith, Rank};
use sched::sample::Sampling;
use sched::{Drafters, Event, Request};
use sha2::{Digest, Sha256};
use stage::Fault;
use text::Text;
use weights::Checkpoint;

use super::acceptance::{prompts, rendered, tiny};
use crate::cell::Cell;
use crate::device::{Device, Devices};
use crate::model::Settings;
use crate::source::hex;

/// Drafts a window: some of them are wrong, so windows roll back.
const REACH: u32 = 4;
/// Who guesses.
const DRAFTERS: [(&str, bool, bool); 4] =
    [("off", false, false), ("copy", true, false), ("mtp", false, true), ("both", true, true)];
/// How the requests of a column are drawn.
const COLUMNS: [&str; 2] = ["greedy", "sampled"];
/// One run after another in one ring: no kept state yet, started from one, and from one again.
const LIVES: [&str; 3] = ["fresh", "resumed", "cached twice"];

/// What one run came to.
struct Run {
    hash: [u8; 32],
    drafted: u32,
    accepted: u32,
    cached: u32,
}

/// A text to copy in which other words follow each time on so many alike that copies part and ride
/// in windows that are trees, of which the second path is right now and then.
fn parting() -> String {
    let ends = ["ran home.", "went in.", "sat down.", "ate a cake."];
    let said = ends.map(|end| format!(" The bee saw the old red house and the tree and {end}"));
    format!("Repeat after me:{}", said.concat())
}

/// Two stories, texts to copy, and a long conversation whose last turn repeats some of it.
fn requests(text: &Text, column: &str) -> Vec<Request> {
    let (stories, copies) = (prompts(text, "stories"), prompts(text, "copy"));
    let parting = rendered(text, &parting());
    let long: Vec<u32> = copies.iter().skip(2).take(4).flatten().copied().collect();
    let sampling = match column {
        "greedy" => Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, seed: 0 },
        _ => Sampling { temperature: 1.0, top_k: 20, top_p: 0.95, min_p: 0.0, seed: 7 },
    };
    let request = |prompt: &Vec<u32>, max_tokens| Request {
        prompt: prompt.clone(),
        max_tokens,
        stop_tokens: Vec::new(),
        sampling,
        hash_logits: true,
        ..Request::default()
    };
    let short = [&stories[0], &copies[0], &long, &stories[1]];
    let mut requests = short.map(|prompt| request(prompt, 24)).to_vec();
    requests.insert(3, request(&parting, 72));
    requests
}

/// Runs the requests, `streams` at a time.
async fn run(cell: &Cell, requests: &[Request], streams: usize) -> Result<Run> {
    let mut run = Run { hash: [0; 32], drafted: 0, accepted: 0, cached: 0 };
    let mut hash = Sha256::new();
    for group in requests.chunks(streams) {
        let mut replies = Vec::new();
        for request in group {
            replies.push(cell.handle().submit(request.clone()).await?);
        }
        for mut reply in replies {
            while let Some(event) = reply.next().await {
                match event {
                    Event::Token { id, .. } => hash.update(id.to_le_bytes()),
                    Event::Done { logits_sha256, drafted, accepted, cached, .. } => {
                        hash.update(logits_sha256.unwrap());
                        run.drafted += drafted;
                        run.accepted += accepted;
                        run.cached += cached;
                    }
                    other => panic!("{other:?}"),
                }
            }
        }
    }
    run.hash = hash.finalize().into();
    Ok(run)
}

/// A cell's ranks, what they compute on, depth and streams at a time.
#[derive(Clone, Copy, Debug)]
struct Ring {
    world: u32,
    devices: &'static [Device],
    depth: u32,
    streams: usize,
}

impl fmt::Display for Ring {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { world, depth, streams, .. } = self;
        let devices = Devices(self.devices.to_vec());
        write!(f, "world {world}, {devices}, depth {depth}, streams {streams}")
    }
}

/// Runs all cells of `rings`, with a defect in some rank; the verdict.
fn matrix(rings: &[Ring], fault: Option<(Rank, Fault)>) -> Result<String> {
    let checkpoint = Checkpoint::open(&tiny())?;
    let text = Text::from_checkpoint(&checkpoint)?;
    let columns = COLUMNS.map(|column| requests(&text, column));
    let mut first: [Option<([u8; 32], String)>; COLUMNS.len()] = [const { None }; COLUMNS.len()];
    let (mut cells, mut drafted, mut accepted) = (0, 0, 0);
    for (name, copy, mtp) in DRAFTERS {
        for ring in rings {
            let settings = Settings {
                world: ring.world,
                devices: ring.devices.to_vec(),
                depth: Some(ring.depth),
                streams: 4,
                chunk: 96,
                context: Some(1024),
                drafters: Drafters { copy, mtp, reach: Some(REACH) },
                prompt_cache_gib: None,
                fault,
                ..Settings::default()
            };
            let since = Instant::now();
            let cell = Cell::start(&tiny(), settings, 1)?;
            let at = format!("drafts {name}, {ring}");
            let mut counts = (0, 0);
            for (column, requests) in columns.iter().enumerate() {
                for (life, lives) in LIVES.iter().enumerate() {
                    let at = format!("{}, {at}, {lives}", COLUMNS[column]);
                    let run = cell.run(run(&cell, requests, ring.streams))?;
                    let (hash, from) = first[column].get_or_insert((run.hash, at.clone()));
                    ensure!(
                        *hash == run.hash,
                        "first difference: {} and {}\n  in   {at}\n  from {from}",
                        &hex(&run.hash)[..12],
                        &hex(hash)[..12]
                    );
                    ensure!(column + life == 0 || run.cached > 0, "nothing was cached: {at}");
                    counts = (counts.0 + run.drafted, counts.1 + run.accepted);
                    cells += 1;
                }
            }
            cell.stop()?;
            let is_sound = (copy || mtp) == (counts.0 > 0) && counts.1 <= counts.0;
            ensure!(is_sound, "{} drafted and {} accepted: {at}", counts.0, counts.1);
            (drafted, accepted) = (drafted + counts.0, accepted + counts.1);
            let (ms, (all, right)) = (since.elapsed().as_millis(), counts);
            println!("{at}: {all} drafted, {right} accepted, {ms} ms");
        }
    }
    for (column, first) in COLUMNS.iter().zip(&first) {
        let hash = first.as_ref().map(|(hash, _)| hex(hash)).unwrap_or_default();
        println!("{column}: {hash}");
    }
    ensure!(accepted > drafted / 4 && accepted < drafted, "{accepted} of {drafted} accepted");
    Ok(format!("matrix: {cells} cells, 1 hash a column"))
}

/// Every combination, on the CPU.
fn rings(worlds: &[u32], depths: &[u32], streams: &[usize]) -> Vec<Ring> {
    let mut rings = Vec::new();
    for &world in worlds {
        for &depth in depths {
            let of = |&streams| Ring { world, devices: &[Device::Cpu], depth, streams };
            rings.extend(streams.iter().map(of));
        }
    }
    rings
}

#[test]
fn drafts_move_no_byte() {
    println!("{}", matrix(&rings(&[2], &[3], &[4]), None).unwrap());
}

#[test]
fn a_resumed_stream_s_draft_head_guesses_as_a_fresh_one_s() {
    let text = Text::from_checkpoint(&Checkpoint::open(&tiny()).unwrap()).unwrap();
    let drafters = Drafters { copy: false, mtp: true, reach: Some(2) };
    let settings =
        Settings { context: Some(1024), drafters, prompt_cache_gib: None, ..Settings::default() };
    let cell = Cell::start(&tiny(), settings, 1).unwrap();
    let mut requests = requests(&text, "greedy")[2..3].to_vec();
    requests[0].max_tokens = 64;
    let run = || cell.run(run(&cell, &requests, 1)).unwrap();
    let (fresh, resumed) = (run(), run());
    println!(
        "fresh: {} of {}, resumed behind {}: {} of {}",
        fresh.accepted, fresh.drafted, resumed.cached, resumed.accepted, resumed.drafted
    );
    assert!(fresh.cached == 0 && resumed.cached > 100, "{}", resumed.cached);
    assert_eq!((fresh.accepted, fresh.drafted), (resumed.accepted, resumed.drafted));
    cell.stop().unwrap();
}

#[test]
fn a_state_kept_from_a_rejected_row_is_the_first_difference() {
    let fault = Some((Rank(1), Fault::StateStays));
    let error = matrix(&rings(&[2], &[1], &[4]), fault).unwrap_err().to_string();
    println!("{error}");
    assert!(error.starts_with("first difference: ") && error.contains("drafts "), "{error}");
}

#[test]
#[ignore = "minutes; `cargo xtask matrix` runs it"]
fn drafts_move_no_byte_in_any_ring() {
    println!("{}", matrix(&rings(&[1, 2, 3], &[1, 3], &[1, 4]), None).unwrap());
}

#[test]
fn a_sibling_that_is_seen_is_the_first_difference() {
    let fault = Some((Rank(0), Fault::SiblingSeen));
    let error = matrix(&rings(&[1], &[1], &[4]), fault).unwrap_err().to_string();
    println!("{error}");
    assert!(error.starts_with("first difference: ") && error.contains("drafts copy"), "{error}");
}

#[test]
fn drafts_move_no_byte_on_a_card() {
    if let Err(error) = Device::Cuda(0).open(1, Arith::One, false) {
        let line = format!("skipped: drafts on a CUDA card: {error}\n");
        let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
        return;
    }
    let of = |world, devices, streams| Ring { world, devices, depth: 3, streams };
    let alone: &[Device] = &[Device::Cuda(0)];
    let mixed: &[Device] = &[Device::Cuda(0), Device::Cpu];
    let cpu = of(1, &[Device::Cpu], 4);
    let rings = [cpu, of(1, alone, 1), of(1, alone, 4), of(2, alone, 4), of(2, mixed, 4)];
    println!("{}", matrix(&rings, None).unwrap());
    let fault = Some((Rank(0), Fault::SiblingSeen));
    let error = matrix(&[of(1, alone, 4)], fault).unwrap_err().to_string();
    println!("{error}");
    assert!(error.starts_with("first difference: ") && error.contains("drafts copy"), "{error}");
}
