//! What the ranks of a ring tell of their work: reports at rank 0, and one trace through all.

use std::collections::BTreeSet;

use crate::http;
use crate::model::TINY;
use crate::process::{s, wait_for};
use crate::ring::Server;
use crate::turn::Turn;

/// The word after `name=` in a line of the log.
fn field<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let rest = line.split(&format!(" {name}=")).nth(1)?;
    rest.split_whitespace().next()
}

#[test]
fn every_rank_reports_its_work_and_names_a_request_alike() {
    let _turn = Turn::shared();
    let args = ["--world", "3", "--threads", "1", "--log", "baton::span=debug,info"];
    let server = Server::ready(&TINY, &args);
    server.sample();
    let worked = |rank: usize| {
        let ranks = server.health()["ranks"].clone();
        let told = &ranks[rank];
        let counted = told["rounds"].as_u64()? > 20 && told["computed_s"].as_f64()? > 0.0;
        (counted && told["sent_bytes"].as_u64()? > 1000).then_some(ranks)
    };
    for rank in 0..3 {
        // A report comes a second after the one before, and only while rounds go on.
        let seen = wait_for(s(10), || {
            server.sample();
            worked(rank)
        });
        assert!(seen.is_some(), "rank {rank}: {}", server.health());
    }
    let (status, _) = http::get(server.addr, "/openapi.json");
    assert_eq!(status, 200);
    // A request's end travels with the next round, so all but the last have ended everywhere.
    let whole = wait_for(s(10), || {
        let log = server.process.log.text();
        let of = |rank: &str| -> BTreeSet<String> {
            let lines = log.lines().filter(|line| field(line, "rank") == Some(rank));
            lines.filter_map(|line| field(line, "trace")).map(str::to_owned).collect()
        };
        let (first, second, third) = (of("0"), of("1"), of("2"));
        let shared = first.intersection(&second).filter(|trace| third.contains(*trace)).count();
        (shared >= 3).then_some(())
    });
    assert!(whole.is_some(), "{}", server.process.log.text());
}
