//! Every layout beside one machine: one hash a column, over real processes.
//!
//! A column is a model and how its replies are drawn; a cell is a layout, how many streams run at
//! once, whether tokens are drafted, and whether the prompts are computed or resumed from the
//! cache. Each cell's replies are the same four requests, two of which ask for more than tokens:
//! log probabilities, and a grammar that binds them.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use weights::synthetic::{self, Llama, Qwen35};

use crate::http::{self, ids};
use crate::model::scratch;
use crate::process::s;
use crate::ring::Server;
use crate::turn::Turn;

/// Tokens of a reply.
const REPLY: u32 = 20;
/// How replies are drawn.
const DRAWS: [&str; 2] = ["greedy", "sampled"];
/// How long ranks of a loaded machine may take to load.
const READY: Duration = s(120);

/// A model whose layers a group shares.
struct Subject {
    name: &'static str,
    path: PathBuf,
    layers: u32,
    /// Whether its prompts are read by a tokenizer of words, or byte by byte.
    words: bool,
}

/// What is asked of a cell.
#[derive(Clone, Copy, Debug)]
struct Cell {
    streams: usize,
    drafts: bool,
    resumed: bool,
}

/// What came of a cell.
struct Run {
    hash: String,
    drafted: u64,
    cached: u64,
}

fn made(name: &str, write: impl FnOnce(&Path) -> Result<(), weights::WeightsError>) -> PathBuf {
    let path = scratch(&format!("{name}.gguf"));
    let part = path.with_extension("part");
    write(&part).unwrap();
    std::fs::rename(part, &path).unwrap();
    path
}

fn baton_tiny() -> Subject {
    Subject { name: "baton-tiny", path: "baton-tiny".into(), layers: 8, words: true }
}

fn subjects() -> [Subject; 4] {
    let golden = concat!(env!("CARGO_MANIFEST_DIR"), "/../../golden/tiny-qwen3_5");
    let llama = made("columns-llama", |path| synthetic::llama(path, &Llama::shard_tiny()));
    let qwen = made("columns-qwen", |path| synthetic::qwen3_5(path, &Qwen35::shard_tiny()));
    let subject = |name, path, layers, words| Subject { name, path, layers, words };
    let tiny = Path::new(golden).join("tiny-qwen3_5-bf16.gguf");
    [
        baton_tiny(),
        subject("tiny-qwen3_5", tiny, 8, true),
        subject("shard-tiny llama", llama, 3, false),
        subject("shard-tiny qwen3_5", qwen, 3, false),
    ]
}

/// World 1, every kind of group, and rings of a group and a plain stage, either first.
fn layouts(layers: u32) -> Vec<String> {
    let groups = ["rows2", "rows3", "shards2", "shards4"].map(|kind| format!("0:{layers}@{kind}"));
    let cut = layers / 2;
    let rings =
        [format!("0:{cut}@shards2,{cut}:{layers}"), format!("0:{cut},{cut}:{layers}@shards2")];
    [vec![format!("0:{layers}")], groups.to_vec(), rings.to_vec()].concat()
}

/// The four requests of a column.
fn requests(words: bool, draws: &str) -> Vec<Value> {
    let tales = ["the sea sings to the shore, ", "a red fox runs in the snow, "];
    let times = if words { 36 } else { 11 };
    let body = |at: usize| {
        let prompt = format!("{at}: {}and then ", tales[at % 2].repeat(times));
        let mut body = json!({
            "prompt": prompt, "max_tokens": REPLY, "return_token_ids": true, "ignore_eos": true,
            "temperature": 0,
        });
        match (draws, at) {
            ("greedy", _) => {}
            // Within the best few, of a nucleus, and of all.
            (_, 0) => body["top_k"] = 20.into(),
            (_, 1) => body["top_p"] = 0.9.into(),
            (_, 2) => body["presence_penalty"] = 0.5.into(),
            _ => body["min_p"] = 0.01.into(),
        }
        if draws != "greedy" {
            (body["temperature"], body["seed"]) = (1.into(), (7 + at).into());
        }
        match at {
            2 => body["logprobs"] = 3.into(),
            3 => body["guided_regex"] = "([a-f]{3} ){9}".into(),
            _ => {}
        }
        body
    };
    (0..4).map(body).collect()
}

fn run(server: &Server, requests: &[Value], cell: Cell) -> Run {
    let answer = |body: &Value| {
        let mut body = body.clone();
        (body["draft"], body["cache_prompt"]) = (cell.drafts.into(), cell.resumed.into());
        let (status, reply) = http::post(server.addr, "/v1/completions", &body);
        assert_eq!(status, 200, "{reply}\n{}", server.process.log.text());
        reply
    };
    let mut run = Run { hash: String::new(), drafted: 0, cached: 0 };
    let mut hash = Sha256::new();
    for together in requests.chunks(cell.streams) {
        let replies: Vec<Value> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                together.iter().map(|body| scope.spawn(move || answer(body))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        for reply in replies {
            let (choice, proof) = (&reply["choices"][0], &reply["baton"]);
            assert!(ids(choice).len() > 1, "{reply}");
            hash.update(format!("{:?}{}{}", ids(choice), choice["text"], choice["logprobs"]));
            run.drafted += proof["drafted"].as_u64().unwrap();
            run.cached += proof["cached_tokens"].as_u64().unwrap();
        }
    }
    run.hash = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
    run
}

fn cells(streams: &[usize]) -> Vec<Cell> {
    let of = |streams| {
        let all = [(false, false), (true, false), (false, true), (true, true)];
        all.map(|(drafts, resumed)| Cell { streams, drafts, resumed })
    };
    streams.iter().flat_map(|&streams| of(streams)).collect()
}

/// Runs all cells of `layouts` of a model; how many there were.
fn columns(subject: &Subject, layouts: &[String], cells: &[Cell]) -> usize {
    let mut first: [Option<(String, String)>; DRAWS.len()] = [const { None }; DRAWS.len()];
    let (mut count, mut drafted) = (0, 0);
    for layout in layouts {
        let since = Instant::now();
        let args = ["--layout", layout, "--threads", "1", "--streams", "4", "--context", "1024"];
        let cache = ["--prompt-cache-gib", "0.25"];
        let mut server = Server::start(&subject.path, &[&args[..], &cache].concat());
        server.wait_ready(READY);
        for (draws, first) in DRAWS.iter().zip(&mut first) {
            let requests = requests(subject.words, draws);
            let mut kept = false;
            for &cell in cells {
                let at = format!("{} {draws}, {layout}, {cell:?}", subject.name);
                if cell.resumed && !kept {
                    // Leaves what the next ones resume from.
                    run(&server, &requests, cell);
                    kept = true;
                }
                let run = run(&server, &requests, cell);
                let (hash, from) = first.get_or_insert((run.hash.clone(), at.clone()));
                assert_eq!(run.hash, *hash, "first difference:\n  in   {at}\n  from {from}");
                assert_eq!(cell.resumed, run.cached > 0, "{} tokens were cached: {at}", run.cached);
                assert!(cell.drafts || run.drafted == 0, "{} were drafted: {at}", run.drafted);
                drafted += run.drafted;
                count += 1;
            }
        }
        assert_eq!(server.health()["layout"], layout.as_str());
        server.process.signal(libc::SIGTERM);
        server.process.ends_well(s(20));
        println!("{}: {layout}: {:.1} s", subject.name, since.elapsed().as_secs_f64());
    }
    let hashes = first.map(|first| first.unwrap().0);
    for (draws, hash) in DRAWS.iter().zip(&hashes) {
        println!("{} {draws}: {hash}", subject.name);
    }
    assert_ne!(hashes[0], hashes[1], "{}: what is sampled is what is likeliest", subject.name);
    println!("{}: {count} cells, {drafted} tokens drafted, 1 hash a column", subject.name);
    assert!(drafted > 0, "{}: nobody drafted", subject.name);
    count
}

#[test]
fn a_group_and_a_ring_with_one_reply_as_one_machine_with_drafts_cache_and_grammar() {
    let _turn = Turn::alone();
    let layouts = ["0:8", "0:4@shards2,4:8@rows2"].map(String::from);
    columns(&baton_tiny(), &layouts, &cells(&[4]));
}

#[test]
#[ignore = "minutes; `cargo xtask matrix --layouts` runs it"]
fn every_layout_has_one_hash_a_column() {
    let _turn = Turn::alone();
    let count = |subject: &Subject| columns(subject, &layouts(subject.layers), &cells(&[1, 4]));
    let all: usize = subjects().iter().map(count).sum();
    println!("layouts: {all} cells over real processes, 1 hash a column");
}
