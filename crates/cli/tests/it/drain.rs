//! SIGTERM and Ctrl-C.

use serde_json::json;

use crate::http::Stream;
use crate::model::{LAYERS, TINY};
use crate::process::{Baton, s, wait_for};
use crate::ring::{ByHand, Server, failed_by_name, greedy};
use crate::turn::Turn;

/// Tokens of a reply that is under way while the server drains.
const LONG: u32 = 3_000;

fn long_reply(server: &Server) -> Stream {
    let mut body = greedy("a long story", LONG);
    body["ignore_eos"] = true.into();
    let mut reply = server.stream(&body);
    reply.read(5);
    reply
}

/// What runs goes on to its end, what is new is refused, and all processes end well.
fn drains(mut server: Server, signal: impl Fn(&Baton)) {
    let reply = long_reply(&server);
    signal(&server.process);
    let refused = wait_for(s(5), || match server.complete(&greedy("late", 4)) {
        (200, _) => None,
        refused => Some(refused),
    });
    let (status, error) = refused.unwrap();
    assert_eq!((status, &error["error"]["code"]), (503, &json!("draining")), "{error}");
    assert_eq!(server.get("/ready").0, 503);
    let all = reply.finish();
    assert!(all.done && all.error.is_none(), "{:?}", all.error);
    assert_eq!((all.ids.len(), all.finish.as_deref()), (LONG as usize, Some("length")));
    server.process.ends_well(s(10));
    let log = server.process.log.to_end(s(5));
    assert!(!log.contains(" WARN ") && !log.contains(" ERROR "), "{log}");
}

#[test]
fn sigterm_lets_replies_finish_on_one_rank() {
    let _turn = Turn::alone();
    drains(Server::ready(&TINY, &[]), |p| p.signal(libc::SIGTERM));
}

#[test]
fn sigterm_lets_replies_finish_on_three_ranks() {
    let _turn = Turn::alone();
    drains(Server::ready(&TINY, &["--world", "3"]), |p| p.signal(libc::SIGTERM));
}

#[test]
fn ctrl_c_reaches_every_rank_and_lets_replies_finish() {
    let _turn = Turn::alone();
    drains(Server::ready(&TINY, &["--world", "3"]), |p| p.signal_group(libc::SIGINT));
}

/// As a service manager does it.
#[test]
fn sigterm_to_every_rank_lets_replies_finish() {
    let _turn = Turn::alone();
    drains(Server::ready(&TINY, &["--world", "3"]), |p| {
        p.signal_group(libc::SIGTERM);
    });
}

#[test]
fn a_reply_that_outlasts_the_drain_ends_by_name() {
    let _turn = Turn::alone();
    let mut server = Server::ready(&TINY, &["--world", "3", "--drain", "1"]);
    let mut reply = server.endless();
    reply.read(5);
    server.process.signal(libc::SIGTERM);
    let all = reply.finish();
    assert!(failed_by_name(&all).contains("shutting down"), "{all:?}");
    server.process.ends_well(s(10));
}

#[test]
fn a_second_signal_ends_replies_by_name() {
    let _turn = Turn::alone();
    for signal in [libc::SIGINT, libc::SIGTERM] {
        let mut server = Server::ready(&TINY, &["--world", "3"]);
        let mut reply = server.endless();
        reply.read(5);
        // Twice at once, as `timeout` does it, is one wish.
        server.process.signal(signal);
        server.process.signal_group(signal);
        std::thread::sleep(std::time::Duration::from_millis(900));
        assert!(server.process.is_alive());
        reply.read(5);
        server.process.signal(signal);
        let all = reply.finish();
        assert!(failed_by_name(&all).contains("shutting down"), "{all:?}");
        server.process.ends_well(s(5));
    }
}

#[test]
fn a_ring_that_lacks_a_rank_ends_at_once() {
    let _turn = Turn::shared();
    let ring = ByHand::new("lacking", &TINY, &format!("0:4,4:{LAYERS}"));
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut server = ring.serve();
        assert_eq!(server.get("/ready").0, 503);
        server.process.signal(signal);
        server.process.ends_well(s(3));
    }
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut stage = ring.stage(1);
        stage.log.wait("waiting for the ring", s(10));
        stage.signal(signal);
        stage.ends_well(s(3));
    }
}

#[test]
fn a_server_that_still_starts_ends_at_once() {
    let _turn = Turn::shared();
    let args = ["serve", TINY.to_str().unwrap(), "--port", "0", "--world", "3"];
    for said in ["serving", "rank 2: process", "rank 0: loading"] {
        let mut process = Baton::start(args);
        process.log.wait(said, s(20));
        process.signal(libc::SIGTERM);
        process.ends_well(s(5));
    }
}
