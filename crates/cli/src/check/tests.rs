#![allow(clippy::unwrap_used, reason = "tests")]

use std::path::PathBuf;
use std::sync::LazyLock;

use arith::base::Rank;
use clap::Parser;
use stage::Fault;
use weights::synthetic::{self, Llama};

use super::*;
use crate::args::{Cli, Command};

/// A checkpoint of three layers.
static MODEL: LazyLock<PathBuf> = LazyLock::new(|| {
    let name = format!("baton-check-{}.gguf", std::process::id());
    let path = std::env::temp_dir().join(name);
    synthetic::llama(&path, &Llama::default()).unwrap();
    path
});

/// Compares three ranks, the last with a defect, with one sound rank.
fn three_against_one(fault: Option<Fault>) -> Result<()> {
    let line =
        "baton check --layouts 1;3 --threads 1 --chunks 16 --streams 2 --tokens 4 --prompt 20";
    let Command::Check(mut args) = Cli::parse_from(line.split(' ')).command else {
        panic!("no check");
    };
    args.model = MODEL.to_str().unwrap().into();
    let cells = cells(&args, Checkpoint::open(&MODEL)?.config().layers())?;
    let load = Load::new(258, args.prompt, args.tokens, args.seed);
    let run = |at, fault: Option<Fault>| {
        let mut settings = settings(&args, at);
        settings.fault = fault.map(|fault| (Rank(2), fault));
        run_cell(&MODEL, settings, at.threads, &load)
    };
    let (one, three) = (run(&cells[0], None)?, run(&cells[1], fault)?);
    compare(&one, &three, &cells[0], &cells[1])
}

#[test]
fn three_sound_ranks_equal_one() {
    three_against_one(None).unwrap();
}

#[test]
fn a_rank_that_lacks_a_layer_is_the_first_difference() {
    let error = three_against_one(Some(Fault::SkipLayer(2))).unwrap_err().to_string();
    assert!(error.starts_with("first difference: reply 0, "), "{error}");
    assert!(error.contains("in   layout 0:1,1:2,2:3, threads 1, chunk 16, streams 2"), "{error}");
}

#[test]
fn a_rank_that_forgets_a_generation_is_named() {
    let error = three_against_one(Some(Fault::DropGeneration)).unwrap_err();
    let error = format!("{error:#}");
    assert!(error.contains("OtherGeneration") && error.contains("rank 2"), "{error}");
}
