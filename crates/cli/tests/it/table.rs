//! The table of faults: what befalls each rank while the ring is idle, reads a prompt or decodes,
//! and what clients, /ready, logs and processes show of it, with times.
//!
//! `cargo xtask faults` prints it in full; a part of it is an ordinary test.

use std::fmt;
use std::time::{Duration, Instant};

use crate::process::{s, wait_for};
use crate::proxy::{Door, Way};
use crate::rig::{Phase, Rig, WORLD};
use crate::strangers::{Stranger, are_dropped};
use crate::turn::Turn;

/// A dead peer is known within this time.
const DEAD: Duration = s(1);
/// A silent one within this.
const SILENT: Duration = s(7);
/// The ring serves again within this, once the cause is gone.
const READY: Duration = s(5);
/// How long a peer that accepts stays silent, or a hello half sent.
const MUTE: Duration = s(3);
/// How long a rank is away that somebody has to start again.
const AWAY: Duration = s(45);

/// What befalls a rank, or the hop to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Fault {
    Kill,
    /// For so long that every join of rank 0 has timed out and its pauses are at their longest.
    Absence,
    Stop,
    Fin,
    Reset,
    HalfClose,
    Flip,
    Stall,
    SilentPeer,
    HalfHello,
    Stranger(Stranger),
    /// A reset in the middle of two hundred silent strangers.
    Crowd,
}

const FAULTS: [Fault; 15] = [
    Fault::Kill,
    Fault::Absence,
    Fault::Stop,
    Fault::Fin,
    Fault::Reset,
    Fault::HalfClose,
    Fault::Flip,
    Fault::Stall,
    Fault::SilentPeer,
    Fault::HalfHello,
    Fault::Stranger(Stranger::Http),
    Fault::Stranger(Stranger::Tls),
    Fault::Stranger(Stranger::Noise),
    Fault::Stranger(Stranger::Silent),
    Fault::Crowd,
];

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Kill => "SIGKILL",
            Self::Absence => "SIGKILL, away 45 s",
            Self::Stop => "SIGSTOP, SIGCONT",
            Self::Fin => "hop closed (FIN)",
            Self::Reset => "hop reset (RST)",
            Self::HalfClose => "hop half closed",
            Self::Flip => "bit flipped",
            Self::Stall => "hop stalled",
            Self::SilentPeer => "RST, then a silent peer",
            Self::HalfHello => "RST, then half a hello",
            Self::Stranger(Stranger::Http) => "stranger: HTTP",
            Self::Stranger(Stranger::Tls) => "stranger: TLS",
            Self::Stranger(Stranger::Noise) => "20 strangers: noise",
            Self::Stranger(Stranger::Silent) => "200 silent strangers",
            Self::Crowd => "RST among 200 silent",
        })
    }
}

/// One row of the table.
struct Row {
    fault: Fault,
    phase: Phase,
    rank: usize,
    client: String,
    ready: String,
    log: String,
    alive: usize,
    weights_kept: bool,
    /// Until every rank that runs knew, and the client.
    known: Option<Duration>,
    /// From the end of the cause to a right reply.
    again: Option<Duration>,
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Option<Duration>| {
            time.map_or("-".into(), |t| format!("{:.0} ms", t.as_secs_f64() * 1e3))
        };
        let weights = if self.weights_kept { "kept" } else { "LOADED AGAIN" };
        write!(
            f,
            "| {} | {:?} | {} | {} | {} | {} | {} of {WORLD}, weights {weights} | {} | {} |",
            self.fault,
            self.phase,
            self.rank,
            cell(&self.client),
            cell(&self.ready),
            cell(&self.log),
            self.alive,
            ms(self.known),
            ms(self.again)
        )
    }
}

/// Text that fits a table.
fn cell(text: &str) -> String {
    let text = text.replace('|', "/");
    match text.char_indices().nth(110) {
        Some((at, _)) => format!("{}...", &text[..at]),
        None => text,
    }
}

impl Fault {
    /// Whether the rank's process ends.
    fn is_deadly(self) -> bool {
        matches!(self, Self::Kill | Self::Absence)
    }

    /// Whether nobody should notice.
    fn is_harmless(self) -> bool {
        matches!(self, Self::Stranger(_))
    }

    fn limit(self) -> Duration {
        match self {
            Self::Stop | Self::Stall => SILENT,
            _ => DEAD,
        }
    }

    /// Lets it befall `rank`; from when on it could be known.
    fn strike(self, rig: &Rig, rank: usize) -> Instant {
        let door = &rig.doors[rank];
        let now = Instant::now();
        match self {
            Self::Kill | Self::Absence => rig.rank(rank).signal(libc::SIGKILL),
            Self::Stop => rig.rank(rank).signal(libc::SIGSTOP),
            Self::Fin => door.cut(),
            Self::Reset | Self::Crowd => door.reset(),
            Self::HalfClose => door.half_close(Way::Onward),
            Self::Stall => door.both(|weather| weather.stalled = true),
            Self::SilentPeer => {
                door.door(Door::Silent);
                door.reset();
            }
            Self::HalfHello => {
                door.weather(Way::Onward, |weather| weather.bytes_max = Some(30));
                door.reset();
            }
            Self::Flip => {
                door.flip_next(Way::Onward);
                // An idle link carries a beat every 2 s.
                return wait_for(s(4), || door.flipped(Way::Onward)).unwrap();
            }
            Self::Stranger(_) => unreachable!("strangers strike nobody"),
        }
        now
    }

    /// Ends its cause, where it does not end by itself; from when on the ring can come back.
    fn relent(self, rig: &mut Rig, rank: usize, struck: Instant) -> Instant {
        match self {
            Self::Kill => rig.start_rank(rank),
            Self::Absence => {
                std::thread::sleep(AWAY.saturating_sub(struck.elapsed()));
                rig.start_rank(rank);
            }
            Self::Stop => {
                let (logged, gone) = (rig.rank(rank).log.len(), Instant::now());
                rig.rank(rank).signal(libc::SIGCONT);
                if rank == 0 {
                    // It says that it is ready until it has heard what it slept through.
                    rig.rank(0).log.wait_after(logged, "the ring broke", s(5));
                }
                return gone;
            }
            Self::SilentPeer | Self::HalfHello => {
                std::thread::sleep(MUTE.saturating_sub(struck.elapsed()));
                rig.doors[rank].clear();
                rig.doors[rank].reset();
            }
            Self::Stall | Self::Flip => rig.doors[rank].clear(),
            _ => return struck,
        }
        Instant::now()
    }
}

/// Everybody who can notice the fault does, within its limit.
struct Noticed {
    client: String,
    ready: String,
    log: String,
    at: Instant,
}

/// One cell: the fault, and all that follows from it.
fn run(rig: &mut Rig, fault: Fault, phase: Phase, rank: usize) -> Row {
    if let Fault::Stranger(stranger) = fault {
        return visit(rig, fault, stranger, phase, rank);
    }
    let crowd = (fault == Fault::Crowd).then(|| Stranger::Silent.knock(rig.address(rank)));
    let company = rig.company(phase);
    let client = rig.client(phase);
    let logged = rig.logged();
    let struck = fault.strike(rig, rank);
    let noticed = notice(rig, fault, rank, &logged, client.as_ref(), struck);
    let alive = rig.alive();
    let kept = rig.kept_weights(&logged, Some(rank).filter(|_| fault.is_deadly()));
    let gone = fault.relent(rig, rank, struck);
    // The one that could not speak before.
    let client = match client {
        Some(client) if noticed.client.is_empty() => client.seen(s(5)).unwrap().what,
        _ => noticed.client,
    };
    for other in company {
        let other = other.seen(s(10)).unwrap_or_else(|| panic!("a reply hangs: {}", rig.logs()));
        let expected = if fault.is_deadly() && rank == 0 { "cut off" } else { "error event" };
        assert!(other.what.starts_with(expected), "{fault}, {phase:?}: {}", other.what);
    }
    let again = rig.serves_again(gone, READY + s(20));
    drop(crowd);
    let kept = kept && (fault.is_deadly() || rig.kept_weights(&logged, None));
    Row {
        fault,
        phase,
        rank,
        client,
        ready: noticed.ready,
        log: noticed.log,
        alive,
        weights_kept: kept,
        known: Some(noticed.at - struck),
        again: Some(again),
    }
}

fn notice(
    rig: &Rig,
    fault: Fault,
    rank: usize,
    logged: &[usize],
    client: Option<&crate::rig::Client>,
    struck: Instant,
) -> Noticed {
    // Past the limit, so that a late notice is a time in the table and not a hang.
    let patience = fault.limit() + s(10);
    let away = (fault == Fault::Stop || fault.is_deadly()).then_some(rank);
    let mut at = struck;
    let mut seen = None;
    // A client of a stopped server can't know; one of a killed server sees its connection end.
    if (fault, rank) != (Fault::Stop, 0) {
        seen = client.map(|client| {
            client.seen(patience).unwrap_or_else(|| panic!("client: {}", rig.logs()))
        });
        at = seen.as_ref().map_or(at, |seen| at.max(seen.at));
    }
    let mut ready = "no answer".to_owned();
    if away != Some(0) {
        let down = wait_for(patience, || Some(rig.ready()).filter(|(status, _)| *status != 200));
        let (status, detail) = down.unwrap_or_else(|| panic!("/ready: {}", rig.logs()));
        ready = format!("{status}: {detail}");
        // When it turned is in rank 0's log; the client's end, in the middle of a reply, is later.
    }
    let mut log = String::new();
    for other in (0..WORLD).filter(|other| Some(*other) != away) {
        let what = if other == 0 { "the ring broke" } else { "waiting for the ring" };
        let (when, line) = rig.rank(other).log.wait_after(logged[other], what, patience);
        at = at.max(when);
        if log.is_empty() {
            let broke = rig.rank(other).log.wait_after(logged[other], "the ring", patience).1;
            log = if other == 0 { line } else { broke };
        }
    }
    let log = log.split_once("WARN ").map_or(log.clone(), |(_, said)| said.to_owned());
    Noticed { client: seen.map(|seen| seen.what).unwrap_or_default(), ready, log, at }
}

/// Strangers at a rank's port: nobody notices, and they are gone soon.
fn visit(rig: &mut Rig, fault: Fault, stranger: Stranger, phase: Phase, rank: usize) -> Row {
    let right = (phase != Phase::Idle).then(|| rig.short_client(phase).seen(s(60)).unwrap());
    let logged = rig.logged();
    let client = right.as_ref().map(|_| rig.short_client(phase));
    std::thread::sleep(Duration::from_millis(50));
    let dropped = are_dropped(stranger.knock(rig.address(rank)));
    assert!(dropped < s(3));
    let (status, _) = rig.ready();
    let mut said = String::new();
    if let (Some(client), Some(right)) = (client, right) {
        let seen = client.seen(s(60)).unwrap();
        assert_eq!(right.what, "whole", "{}", rig.logs());
        assert_eq!(seen.ids, right.ids, "{}\n{}", seen.what, rig.logs());
        said = format!("{}, the right bytes", seen.what);
    }
    rig.serves_again(Instant::now(), s(1));
    let broke: usize = (0..WORLD).map(|r| rig.rank(r).log.count_after(logged[r], "broke")).sum();
    assert_eq!(broke, 0, "{}", rig.logs());
    Row {
        fault,
        phase,
        rank,
        client: said,
        ready: status.to_string(),
        log: format!("nothing; gone after {:.0} ms", dropped.as_secs_f64() * 1e3),
        alive: rig.alive(),
        weights_kept: rig.kept_weights(&logged, None),
        known: None,
        again: None,
    }
}

/// Runs cells, prints their rows and holds them to the limits.
fn table(rig: &mut Rig, cells: impl Iterator<Item = (Fault, Phase, usize)>) {
    println!("| fault | phase | rank | client | /ready | log | processes | known | ready again |");
    println!("|---|---|---|---|---|---|---|---|---|");
    let (mut count, mut late) = (0, Vec::new());
    let (mut dead, mut silent, mut ready) = (Duration::ZERO, Duration::ZERO, Duration::ZERO);
    for (fault, phase, rank) in cells {
        let row = run(rig, fault, phase, rank);
        println!("{row}");
        count += 1;
        let known = row.known.unwrap_or_default();
        let worst = if fault.limit() == SILENT { &mut silent } else { &mut dead };
        *worst = known.max(*worst);
        let again = row.again.unwrap_or_default();
        ready = ready.max(again);
        let runs = WORLD - usize::from(fault.is_deadly());
        let in_time = known <= fault.limit() && again <= READY;
        if !in_time || !row.weights_kept || row.alive != runs {
            late.push(row.to_string());
        }
        if fault.is_harmless() {
            assert_eq!(row.ready, "200");
        }
    }
    println!(
        "faults: {count} cells, worst dead {:.2} s, worst silent {:.2} s, worst ready {:.2} s",
        dead.as_secs_f64(),
        silent.as_secs_f64(),
        ready.as_secs_f64()
    );
    assert!(late.is_empty(), "not as it must be:\n{}", late.join("\n"));
}

const PHASES: [Phase; 3] = [Phase::Idle, Phase::Prompt, Phase::Decode];

/// Each kind of fault once, each rank, each phase.
#[test]
fn faults_show_where_and_when_they_must() {
    let _turn = Turn::alone();
    let cells = [
        (Fault::Kill, Phase::Prompt, 1),
        (Fault::Kill, Phase::Decode, 0),
        (Fault::Stop, Phase::Decode, 2),
        (Fault::Fin, Phase::Idle, 2),
        (Fault::Reset, Phase::Decode, 0),
        (Fault::Flip, Phase::Decode, 1),
        (Fault::HalfClose, Phase::Prompt, 2),
        (Fault::SilentPeer, Phase::Decode, 1),
        (Fault::HalfHello, Phase::Idle, 0),
        (Fault::Stranger(Stranger::Http), Phase::Decode, 0),
        (Fault::Stranger(Stranger::Tls), Phase::Decode, 1),
        (Fault::Stranger(Stranger::Noise), Phase::Decode, 2),
        (Fault::Stranger(Stranger::Silent), Phase::Idle, 1),
        (Fault::Crowd, Phase::Decode, 1),
    ];
    table(&mut Rig::start("table"), cells.into_iter());
}

/// All of it: about ten minutes.
#[test]
#[ignore = "run by `cargo xtask faults`"]
fn every_fault_in_every_phase_at_every_rank() {
    let _turn = Turn::alone();
    let ranks = |fault, phase| (0..WORLD).map(move |rank| (fault, phase, rank));
    let cells = FAULTS.into_iter().flat_map(|fault| {
        let phases = PHASES.into_iter();
        // A long absence is the same whatever it began in.
        let phases = phases.filter(move |&p| fault != Fault::Absence || p == Phase::Idle);
        phases.flat_map(move |phase| ranks(fault, phase))
    });
    table(&mut Rig::start("table-full"), cells);
}
