//! `baton check`: one hash over every way to run a model.

use std::time::Instant;

use crate::model::{TINY, smollm2};
use crate::process::{Baton, s};
use crate::turn::Turn;

/// Runs a check that must agree; the cells it compared.
fn agrees(args: &[&str], limit_s: u64) -> usize {
    let mut check = Baton::start(std::iter::once(&"check").chain(args));
    let started = Instant::now();
    let status = check.exit(s(limit_s));
    let said = check.out.to_end(s(5));
    assert_eq!(status.code(), Some(0), "{said}\n{}", check.log.text());
    check.leaves_nothing(s(0));
    let verdict = said.lines().last().unwrap();
    println!("{verdict}, {:.1} s", started.elapsed().as_secs_f64());
    let words: Vec<&str> = verdict.split(' ').collect();
    let ["one", "hash:", hash, "over", cells, "cells"] = words[..] else { panic!("{said}") };
    assert_eq!(hash.len(), 64, "{verdict}");
    cells.parse().unwrap()
}

#[test]
fn every_way_to_run_the_tiny_model_gives_one_hash() {
    let _turn = Turn::alone();
    let mut args = vec![TINY.to_str().unwrap(), "--pairwise", "--layouts", "1;2;3;r3;loop"];
    args.extend(["--threads", "1,2", "--chunks", "1,7,64", "--streams", "1,4"]);
    args.extend(["--depths", "1,3", "--prompt", "200", "--tokens", "8"]);
    assert!(agrees(&args, 120) >= 7 * 3);
}

#[test]
fn groups_of_every_kind_give_one_machines_hash() {
    let _turn = Turn::alone();
    let layouts = "1;0:8@rows2;0:8@rows3;0:8@shards2;0:8@shards4;0:3@shards2,3:8;0:4,4:8@rows2";
    let mut args = vec![TINY.to_str().unwrap(), "--layouts", layouts, "--threads", "1"];
    args.extend(["--chunks", "64", "--streams", "1,4", "--prompt", "100", "--tokens", "6"]);
    assert_eq!(agrees(&args, 120), 14);
}

#[test]
fn every_way_to_run_the_tiny_model_in_arith_2_gives_one_hash() {
    let _turn = Turn::alone();
    let mut args = vec![TINY.to_str().unwrap(), "--pairwise", "--arith", "2"];
    args.extend(["--layouts", "1;3;loop", "--threads", "1,2", "--chunks", "1,64"]);
    args.extend(["--streams", "1,4", "--prompt", "100", "--tokens", "4"]);
    assert!(agrees(&args, 60) >= 6);
}

#[test]
fn every_way_to_run_smollm2_gives_one_hash() {
    let Some(model) = smollm2("every_way_to_run_smollm2_gives_one_hash") else {
        return;
    };
    let _turn = Turn::alone();
    let mut args = vec![model.to_str().unwrap(), "--pairwise", "--layouts", "1;2;3;r10;loop"];
    args.extend(["--threads", "1,2", "--chunks", "1,7,64,512", "--streams", "1,4"]);
    args.extend(["--prompt", "80", "--tokens", "4"]);
    assert!(agrees(&args, 600) >= 14 * 4);
}
