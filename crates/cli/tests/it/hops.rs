//! What goes over the hops of a ring, and what a ring costs that waits.

use std::time::{Duration, Instant};

use serde_json::json;
use weights::synthetic;

use crate::http::ids;
use crate::model::{LAYERS, TINY};
use crate::process::s;
use crate::proxy::Way;
use crate::rig::{Rig, WORLD};
use crate::ring::{ByHand, Server};
use crate::turn::Turn;

const PROMPT: &str = "the password of the harbour master is swordfish and nobody else knows it";

/// The prompt's reply, and what went over the hop to rank 1 until it was there.
fn overheard(rig: &Rig) -> (Vec<u64>, Vec<u8>) {
    let body = json!({"prompt": PROMPT, "max_tokens": 4, "temperature": 0, "ignore_eos": true,
        "return_token_ids": true});
    let (status, reply) = rig.server().complete(&body);
    assert_eq!(status, 200, "{reply}");
    (ids(&reply["choices"][0]), rig.doors[1].tape(Way::Onward))
}

/// Payloads of the rows frames in clear bytes that hold so many rows or more.
fn rows_frames(tape: &[u8], least: u32) -> Vec<Vec<u8>> {
    let frame = |at: usize| {
        let header = tape.get(at..at + 32)?;
        let rows = u32::from_le_bytes(header[16..20].try_into().unwrap());
        let bytes = u64::from_le_bytes(header[24..32].try_into().unwrap()) as usize;
        let is_rows = header.starts_with(b"BATF\x01\0\x03\0") && rows >= least;
        is_rows.then(|| tape[at + 32..at + 32 + bytes].to_vec())
    };
    (0..tape.len()).filter_map(frame).collect()
}

fn holds(tape: &[u8], bytes: &[u8]) -> bool {
    tape.windows(bytes.len()).any(|window| window == bytes)
}

/// The same rows go over both rings; only the one without encryption shows them.
#[test]
fn a_capture_of_an_encrypted_ring_holds_neither_a_row_nor_the_prompt() {
    let _turn = Turn::alone();
    let (clear_ids, clear) = {
        let rig = Rig::start_with("capture-clear", &["--encryption", "off"]);
        overheard(&rig)
    };
    let rig = Rig::start("capture");
    let (ids, secret) = overheard(&rig);
    assert_eq!(ids, clear_ids);
    assert!(secret.len() > clear.len() / 2, "{} {}", secret.len(), clear.len());
    // The prompt goes in chunks of some rows, as the ring's pace cuts it.
    let rows = rows_frames(&clear, 8);
    assert!(rows.len() >= 2, "{} frames of rows in clear", rows.len());
    for value in rows.iter().flat_map(|rows| rows.chunks_exact(16)) {
        assert!(!holds(&secret, value), "a piece of a row");
    }
    for word in ["swordfish", "harbour", "BATF", "TFSP"] {
        assert!(!holds(&secret, word.as_bytes()), "{word}");
    }
    assert!(holds(&clear, b"BATF") && holds(&clear, b"TFSP"));
    println!("{} bytes overheard, {} in clear", secret.len(), clear.len());
}

#[test]
fn far_and_slow_hops_change_no_byte() {
    let _turn = Turn::alone();
    let rig = Rig::start("far");
    let since = Instant::now();
    for door in &rig.doors {
        door.both(|weather| weather.delay = Duration::from_millis(20));
        door.weather(Way::Onward, |weather| weather.bytes_per_s = Some(200_000));
    }
    rig.serves_again(since, s(5));
    let took = since.elapsed();
    // 24 rounds of three hops, each 20 ms long.
    assert!(took > Duration::from_millis(24 * 3 * 20), "{took:?}");
    assert_eq!(rig.doors[1].connections(), 1);
    println!("24 tokens over hops of 20 ms: {:.2} s", took.as_secs_f64());
}

/// Processor time of a process so far, all threads.
fn busy(process: u32) -> Duration {
    let stat = std::fs::read_to_string(format!("/proc/{process}/stat")).unwrap();
    // The name in parentheses may hold anything; times are the 14th and 15th field.
    let fields: Vec<&str> = stat[stat.rfind(')').unwrap()..].split_whitespace().collect();
    let ticks: u64 = fields[12].parse::<u64>().unwrap() + fields[13].parse::<u64>().unwrap();
    // SAFETY: sysconf touches no memory.
    let per_second = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    Duration::from_millis(ticks * 1_000 / per_second as u64)
}

/// Holds ranks to less than 1 % of a core over 5 s.
fn rests(rig: &Rig, ranks: &[usize], when: &str) {
    let over = s(5);
    let before: Vec<_> = ranks.iter().map(|&rank| busy(rig.rank(rank).id())).collect();
    std::thread::sleep(over);
    for (&rank, before) in ranks.iter().zip(before) {
        let used = busy(rig.rank(rank).id()) - before;
        let share = used.as_secs_f64() / over.as_secs_f64();
        println!("rank {rank} {when}: {:.1} % of a core", share * 100.0);
        assert!(share < 0.01, "rank {rank} {when}: {used:?} of {over:?}");
    }
}

#[test]
fn a_ring_that_waits_costs_nothing() {
    let _turn = Turn::alone();
    let mut rig = Rig::start("rest");
    rests(&rig, &[0, 1, 2], "idle");
    for missing in [2, 0] {
        rig.rank(missing).signal(libc::SIGKILL);
        std::thread::sleep(s(1));
        let others: Vec<usize> = (0..WORLD).filter(|&rank| rank != missing).collect();
        rests(&rig, &others, &format!("while rank {missing} is missing"));
        rig.start_rank(missing);
        rig.serves_again(Instant::now(), s(20));
    }
}

#[test]
fn ranks_meet_over_ipv6() {
    let _turn = Turn::shared();
    let mut ring = ByHand::new("ipv6", &TINY, &format!("0:4,4:{LAYERS}"));
    if std::net::TcpListener::bind("[::1]:0").is_err() {
        let _ = std::io::Write::write_all(&mut std::io::stderr(), b"skipped: IPv6: no [::1]\n");
        return;
    }
    for address in ring.addresses.iter_mut().chain(&mut ring.doors) {
        address.set_ip(std::net::Ipv6Addr::LOCALHOST.into());
    }
    let right = Server::ready(&TINY, &[]).sample();
    let _stage = ring.stage(1);
    let server = ring.serve();
    server.wait_ready(s(30));
    assert_eq!(server.sample(), right);
}

/// Bytes over every hop of the ring so far.
fn carried(rig: &Rig) -> Vec<usize> {
    rig.doors.iter().map(|door| door.tape(Way::Onward).len()).collect()
}

/// What a request of so many prompt and reply tokens carries over each hop.
fn cost(rig: &Rig, prompt: usize, reply: u32) -> Vec<usize> {
    let before = carried(rig);
    let body = json!({"prompt": vec![7; prompt], "max_tokens": reply, "temperature": 0,
        "ignore_eos": true, "draft": false});
    assert_eq!(rig.server().complete(&body).0, 200);
    // The last round is the close's, which nobody waits for.
    std::thread::sleep(Duration::from_millis(300));
    carried(rig).iter().zip(before).map(|(after, before)| after - before).collect()
}

/// A frame's header, then the records' length and tag: one record holds any frame of this test.
const FRAME: usize = 32 + 2 + 16;
/// A plan of one stream.
const PLAN: usize = FRAME + 24 + 28;
/// A beat may go out between two looks.
const BEATS: usize = 2 * (FRAME + 32);

#[test]
fn a_decoded_token_costs_one_plan_and_one_row_a_hop() {
    let _turn = Turn::alone();
    let rig = Rig::start("bytes");
    let row = 4 * synthetic::Llama::default().hidden;
    let (few, many) = (cost(&rig, 8, 8), cost(&rig, 8, 72));
    for (few, many) in few.iter().zip(&many) {
        let exact = 64 * (PLAN + FRAME + row);
        let found = many - few;
        assert!(found.abs_diff(exact) <= BEATS, "{found} bytes for 64 tokens, expected {exact}");
    }
    // Within one chunk: its rows go on to every rank, and one of them comes back.
    let (short, long) = (cost(&rig, 8, 1), cost(&rig, 32, 1));
    for (hop, (short, long)) in short.iter().zip(&long).enumerate() {
        let exact = if hop == 0 { 0 } else { 24 * row };
        let found = long - short;
        assert!(found.abs_diff(exact) <= BEATS, "hop to rank {hop}: {found}, expected {exact}");
    }
    for hidden in [576, 5120] {
        println!(
            "hidden {hidden}: {} bytes a hop and decoded token, {} a hop onward and prompt token",
            PLAN + FRAME + 4 * hidden,
            4 * hidden
        );
    }
}

/// How often the I/O thread of each rank has gone to sleep so far, which is once a wake-up.
fn woken(rig: &Rig) -> Vec<u64> {
    let of = |process: u32| {
        let tasks = std::fs::read_dir(format!("/proc/{process}/task")).unwrap();
        let mut tasks = tasks.map(|task| task.unwrap().path());
        let is_io = |task: &std::path::PathBuf| {
            std::fs::read_to_string(task.join("comm")).is_ok_and(|name| name.trim() == "baton-io")
        };
        let status = std::fs::read_to_string(tasks.find(is_io).unwrap().join("status")).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.unwrap().trim().parse().unwrap()
    };
    (0..WORLD).map(|rank| of(rig.rank(rank).id())).collect()
}

#[test]
fn a_decoded_token_wakes_no_thread_but_the_ranks_own() {
    const TOKENS: u32 = 256;
    let _turn = Turn::alone();
    let rig = Rig::start("woken");
    let before = woken(&rig);
    cost(&rig, 8, TOKENS);
    for (rank, (after, before)) in woken(&rig).iter().zip(before).enumerate() {
        let times = after - before;
        println!("rank {rank}: its I/O thread woke {times} times in {TOKENS} tokens");
        // Beats, and frames that come while the rank is still at work.
        assert!(times < u64::from(TOKENS) / 4, "rank {rank}: {times}");
    }
}
