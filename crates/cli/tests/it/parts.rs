//! Machines that hold the file of their own layers only: `baton cut` and `baton manifest`.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use weights::Checkpoint;
use weights::synthetic::Llama;

use crate::model::{TINY, scratch, tiny};
use crate::process::{Baton, s};
use crate::ring::{ByHand, Server};
use crate::turn::Turn;

const LAYOUT: &str = "0:2,2:5,5:8";

/// An empty folder of a test's own.
fn folder(name: &str) -> PathBuf {
    let folder = scratch(name);
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

/// What a command prints that must succeed.
fn printed(args: &[&str]) -> PathBuf {
    let mut process = Baton::start(args);
    process.ends_well(s(30));
    PathBuf::from(process.out.to_end(s(5)))
}

/// What a command says that must fail.
fn refusal(args: &[&str]) -> String {
    ended(Baton::start(args))
}

fn ended(mut process: Baton) -> String {
    assert_eq!(process.exit(s(30)).code(), Some(1), "{}", process.log.text());
    let said = process.log.to_end(s(5));
    said.lines().last().unwrap().to_owned()
}

/// The tiny checkpoint's layers `range` in a folder of their own.
fn part(name: &str, range: &str) -> PathBuf {
    let folder = folder(&format!("part-{name}-{}", range.replace(':', "-")));
    let file = printed(&["cut", TINY.to_str().unwrap(), range, folder.to_str().unwrap()]);
    assert_eq!((file.parent(), file.file_name()), (Some(&*folder), TINY.file_name()));
    folder
}

/// A ring of three by hand, each rank with its own model.
fn ring(name: &str, models: [&Path; 3]) -> (Server, [Baton; 2]) {
    let ring = ByHand::new(name, models[0], LAYOUT);
    let stage = |rank: usize| {
        let model = models[rank].to_owned();
        ByHand { model, ..ring.clone() }.stage(rank)
    };
    let stages = [stage(1), stage(2)];
    (ring.serve(), stages)
}

fn reply(server: &Server) -> Value {
    server.wait_ready(s(60));
    let (status, reply) = server.chat(&json!({
        "messages": [{"role": "user", "content": "tell me of the sea"}], "max_tokens": 40,
        "temperature": 0.9, "seed": 3, "ignore_eos": true, "return_token_ids": true,
    }));
    assert_eq!(status, 200, "{reply}");
    assert_eq!(reply["model"], "tiny", "{reply}");
    reply["choices"][0].clone()
}

#[test]
fn ranks_with_their_own_layers_alone_give_the_whole_models_reply() {
    let _turn = Turn::shared();
    let whole = reply(&Server::ready(&TINY, &["--threads", "1"]));
    let parts = ["0:2", "2:5", "5:8"].map(|range| part("one", range));
    for rank_0 in [&TINY, &parts[0]] {
        let (server, stages) = ring("parts", [rank_0, &parts[1], &parts[2]]);
        assert_eq!(reply(&server), whole);
        drop(stages);
    }
}

/// `code` in the line that both ends of the refusal log.
#[track_caller]
fn refused((server, stages): (Server, [Baton; 2]), rank: usize, code: &str) {
    let (_, line) = server.process.log.wait(code, s(20));
    assert!(line.contains(&format!("rank {rank}")), "{line}");
    if rank > 0 {
        stages[rank - 1].log.wait(code, s(20));
    }
}

#[test]
fn a_flipped_byte_in_a_part_is_named_by_rank_and_layer() {
    let _turn = Turn::shared();
    let spoilt = part("spoilt", "2:5");
    let file = spoilt.join("tiny.gguf");
    let checkpoint = Checkpoint::open(&file).unwrap();
    let tensor = checkpoint.info("blk.4.ffn_down.weight").unwrap();
    let mut bytes = std::fs::read(&file).unwrap();
    bytes[tensor.offset().unwrap() as usize + tensor.bytes / 2] ^= 1;
    std::fs::write(&file, bytes).unwrap();
    // Rank 0 has the whole file, or knows the other layers by its manifest alone.
    for rank_0 in [&*TINY, &part("spoilt", "0:2")] {
        let ring = ring("spoilt", [rank_0, &spoilt, &TINY]);
        refused(ring, 1, "OtherTensor: rank 1: describe.layer 4");
    }
}

#[test]
fn a_rank_whose_folder_lacks_its_layers_says_which_tensor_and_ends() {
    let _turn = Turn::shared();
    let short = part("short", "2:4");
    let stage = ByHand::new("short", &short, LAYOUT).stage(1);
    let said = ended(stage);
    for part in
        ["rank 1: layers 2:5", "`blk.4.attn_k.weight` is not in", "tiny.gguf", "`baton cut`"]
    {
        assert!(said.contains(part), "{said}");
    }
    let said = refusal(&["serve", short.to_str().unwrap(), "--port", "0"]);
    assert!(said.contains("rank 0: layers 0:8") && said.contains("is not in"), "{said}");
    std::fs::remove_file(short.join("baton.manifest.json")).unwrap();
    let said = ended(ByHand::new("short", &short, LAYOUT).stage(1));
    assert!(said.contains("no baton.manifest.json for this file"), "{said}");
}

#[test]
fn rank_0_takes_the_model_for_what_its_manifest_says() {
    let _turn = Turn::shared();
    let folder = folder("manifest");
    let file = folder.join("tiny.gguf");
    std::fs::copy(&*TINY, &file).unwrap();
    let manifest = printed(&["manifest", folder.to_str().unwrap()]);
    assert_eq!(manifest, folder.join("baton.manifest.json"));
    let (server, stages) = ring("manifest", [&folder, &TINY, &TINY]);
    reply(&server);
    drop((server, stages));
    // Another file came under the name since.
    let reseeded = tiny("reseeded-manifest", &Llama { seed: 9, ..Llama::default() });
    std::fs::rename(reseeded, &file).unwrap();
    refused(ring("manifest", [&folder, &TINY, &TINY]), 0, "OtherTensor: rank 0: describe.layer 0");
}

#[test]
fn a_cut_that_cannot_be_made_says_why() {
    let _turn = Turn::shared();
    let folder = part("refused", "2:5");
    let (tiny, to) = (TINY.to_str().unwrap(), folder.to_str().unwrap());
    for (range, part) in [
        ("5", "FIRST:END"),
        ("3:x", "FIRST:END"),
        ("3:3", "not empty"),
        ("3:9", "within 0:8"),
        ("3:4", "exists"),
    ] {
        let mut process = Baton::start(["cut", tiny, range, to]);
        assert!(!process.exit(s(30)).success());
        let said = process.log.to_end(s(5));
        assert!(said.contains(part), "{range}: {said}");
    }
    let said = refusal(&["cut", to, "4:6", scratch("never").to_str().unwrap()]);
    assert!(said.contains("`blk.5.attn_k.weight` is not in"), "{said}");
    let said = refusal(&["manifest", to]);
    assert!(said.contains("is not in"), "{said}");
}
