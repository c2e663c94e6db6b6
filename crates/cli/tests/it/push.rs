//! Layers that are pushed to machines without the model, on real processes.

use std::io::Read;
use std::net::TcpStream;
use std::path::{Path, PathBuf};

use serde_json::json;

use crate::model::{TINY, scratch};
use crate::process::{Baton, s};
use crate::ring::{ByHand, Server};
use crate::turn::Turn;

/// A store of a test's own, empty, and where it listens.
fn depot(name: &str) -> (Baton, PathBuf, String) {
    let folder = scratch(&format!("store-{name}"));
    let _ = std::fs::remove_dir_all(&folder);
    let at = folder.to_str().unwrap();
    let depot = Baton::start(["store", "serve", "--listen", "127.0.0.1:0", "--folder", at]);
    let (_, line) = depot.log.wait("takes models on", s(20));
    let address = line.split_whitespace().last().unwrap().to_owned();
    (depot, folder, address)
}

/// What `baton push` prints: bytes that were missing, bytes that were sent, the path there.
fn push(model: &Path, to: &[String]) -> Vec<(u64, u64, PathBuf)> {
    let mut args = vec!["push".to_owned(), model.to_str().unwrap().to_owned()];
    for target in to {
        args.extend(["--to".to_owned(), target.clone()]);
    }
    let mut push = Baton::start(&args);
    push.ends_well(s(60));
    let printed = push.out.to_end(s(5));
    let line = |line: &str| {
        let number = |after: &str| {
            let words: Vec<&str> = line.split_whitespace().collect();
            let at = words.iter().position(|word| word.trim_end_matches(',') == after).unwrap();
            words[at - 1].parse().unwrap()
        };
        let path = line.rsplit_once(": ").unwrap().1;
        (number("missing"), number("sent"), PathBuf::from(path))
    };
    printed.lines().map(line).collect()
}

#[test]
fn a_ring_of_pushed_layers_replies_as_the_whole_model_and_a_second_push_sends_nothing() {
    let _turn = Turn::shared();
    let (first, folder, one) = depot("one");
    let (_second, _, two) = depot("two");
    let to = [format!("{one}=2:5"), format!("{two}=5:8")];
    let pushed = push(&TINY, &to);
    assert!(pushed.iter().all(|(missing, sent, _)| missing == sent && *sent > 0), "{pushed:?}");
    for (missing, sent, _) in push(&TINY, &to) {
        assert_eq!((missing, sent), (0, 0));
    }
    // Strangers take places, no more of them than there are.
    let strangers: Vec<TcpStream> = (0..65).map(|_| TcpStream::connect(&two).unwrap()).collect();
    let said = |mut stream: &TcpStream| stream.read(&mut [0; 8]).unwrap();
    assert!(strangers[..64].iter().all(|stranger| said(stranger) == 8));
    assert_eq!(said(&strangers[64]), 0);
    drop(strangers);
    // A cut that moves by a layer, after the store's process has been killed.
    first.signal(libc::SIGKILL);
    drop(first);
    let at = folder.to_str().unwrap();
    let _first = Baton::start(["store", "serve", "--listen", &one, "--folder", at]);
    let moved = push(&TINY, &[format!("{one}=1:5")]);
    assert!(moved[0].0 > 0 && moved[0].0 < pushed[0].0, "{moved:?} after {pushed:?}");
    let mut list = Baton::start(["store", "list", "--folder", at]);
    list.ends_well(s(20));
    let listed = list.out.to_end(s(5));
    assert!(listed.starts_with("tiny: layers 1:5 of 8, "), "{listed}");

    let body = json!({
        "messages": [{"role": "user", "content": "tell me of the sea"}], "max_tokens": 40,
        "temperature": 0.9, "seed": 3, "ignore_eos": true, "return_token_ids": true,
    });
    let reply = |server: &Server| {
        server.wait_ready(s(60));
        let (status, reply) = server.chat(&body);
        assert_eq!(status, 200, "{reply}");
        reply["choices"][0].clone()
    };
    let whole = reply(&Server::ready(&TINY, &["--threads", "1"]));
    let ring = ByHand::new("pushed", &TINY, "0:2,2:5,5:8");
    let stage = |rank: usize| {
        let model = pushed[rank - 1].2.clone();
        ByHand { model, ..ring.clone() }.stage(rank)
    };
    let (stages, server) = ([stage(1), stage(2)], ring.serve());
    assert_eq!(reply(&server), whole);
    drop((server, stages));
    // A layer that was not pushed is refused by name.
    let model = pushed[1].2.clone();
    let mut lacking = ByHand { model, ..ring.clone() }.stage(1);
    assert_eq!(lacking.exit(s(30)).code(), Some(1));
    let said = lacking.log.to_end(s(5));
    assert!(said.contains("tensor `blk.2.") && said.contains("is not in"), "{said}");
}
