//! Clients that go away in the middle of a reply.

use std::time::{Duration, Instant};

use crate::model::TINY;
use crate::process::{s, wait_for};
use crate::ring::Server;
use crate::turn::Turn;

/// Clients in a row that go away.
const TIMES: u32 = 50;
/// A round of the tiny model takes about a millisecond; scheduling and the look at /health are the
/// rest.
const FREED: Duration = Duration::from_millis(500);

/// The round that closes a stream comes right after its last token.
fn gives_every_page_back(server: &Server) {
    let empty = || (server.health()["kv_pages_used"] == 0).then_some(());
    assert!(wait_for(s(1), empty).is_some(), "{}", server.health());
}

#[test]
fn a_client_that_goes_away_frees_its_stream_within_a_round() {
    let _turn = Turn::alone();
    let server = Server::ready(&TINY, &["--world", "3", "--threads", "1"]);
    let right = server.sample();
    let mut longest = Duration::ZERO;
    for _ in 0..TIMES {
        let mut reply = server.endless();
        reply.read(3);
        assert_eq!(server.health()["running"], 1);
        drop(reply);
        let left = Instant::now();
        let freed = wait_for(FREED, || (server.health()["running"] == 0).then_some(()));
        assert!(freed.is_some(), "{}", server.health());
        longest = longest.max(left.elapsed());
    }
    println!("a stream was free again after {:.0} ms at most", longest.as_secs_f64() * 1e3);
    gives_every_page_back(&server);
    // Nobody asks for anything: after the rounds under way there are no more.
    let is_still = wait_for(s(2), || {
        let rounds = server.health()["rounds"].clone();
        std::thread::sleep(Duration::from_millis(100));
        (server.health()["rounds"] == rounds).then_some(())
    });
    assert!(is_still.is_some(), "rounds without a stream: {}", server.health());
    assert_eq!(server.sample(), right);
}

#[test]
fn a_client_that_goes_away_before_its_first_token_frees_its_stream() {
    let _turn = Turn::alone();
    let server = Server::ready(&TINY, &["--streams", "2"]);
    let right = server.sample();
    for _ in 0..10 {
        // More than there are streams: some wait when their clients leave.
        let replies: Vec<_> = (0..5).map(|_| server.ask()).collect();
        drop(replies);
        let idle = wait_for(s(5), || {
            let health = server.health();
            (health["running"] == 0 && health["waiting"] == 0).then_some(())
        });
        assert!(idle.is_some(), "{}", server.health());
    }
    assert_eq!(server.sample(), right);
    gives_every_page_back(&server);
}
