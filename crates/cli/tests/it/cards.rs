//! Rings and groups on two CUDA cards, emulated ones too: CONTRIBUTING.md says how.

use crate::model::TINY;
use crate::nodes::long;
use crate::process::{s, send_signal};
use crate::ring::Server;

/// A process that computes on the second card, and halts while NCCL carries what it gives.
struct Halts {
    layout: &'static str,
    who: &'static str,
    /// Why the others go on without it.
    lost: &'static str,
    /// What is said once NCCL carries.
    way: &'static str,
}

const HALTS: [Halts; 2] = [
    Halts {
        layout: "0:4,4:8",
        who: "rank 1",
        lost: "RingSilent: rank 1",
        way: "rank 0: rows go to the rank after",
    },
    Halts {
        layout: "0:8@shards2",
        who: "rank 0, member 1",
        lost: "ShardLost: member 1",
        way: "member 0 of 2: exchanges go between devices",
    },
];

#[test]
#[ignore = "wants two cards; a minute on emulated ones"]
fn a_process_that_halts_while_nccl_carries_is_given_up_and_comes_back() {
    for halts in HALTS {
        let server = Server::ready(
            &TINY,
            &[
                "--layout",
                halts.layout,
                "--device",
                "cuda:0|cuda:1",
                "--exchange",
                "nccl",
                "--threads",
                "1",
                "--context",
                "4096",
                "--continue-s",
                "60",
            ],
        );
        let log = &server.process.log;
        log.wait(halts.way, s(30));
        let body = long(100);
        let expected = server.stream(&body).finish().ids;
        let mut reply = server.stream(&body);
        reply.read(5);
        let (_, line) = log.wait(&format!("{}: process ", halts.who), s(1));
        let process = line.rsplit(' ').next().unwrap().parse().unwrap();
        let seen = log.len();
        send_signal(process, libc::SIGSTOP);
        // Beats are missed for six seconds at most.
        log.wait_after(seen, halts.lost, s(12));
        send_signal(process, libc::SIGCONT);
        log.wait_after(seen, halts.way, s(30));
        let reply = reply.finish();
        assert!(reply.done && reply.ids == expected, "{reply:?}\n{}", log.text());
    }
}
