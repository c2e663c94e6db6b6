//! The golden files' recipe: frames, and rows in parts.

use arith::base::{Epoch, Rank, Round, StreamId};
use wire::beat::Beat;
use wire::cancel::Cancel;
use wire::frame::{Frame, Header, Kind};
use wire::plan::Plan;
use wire::rows;
use wire::stop::Stop;
use wire::tally::Tally;

use crate::cases::{Case, Cases, cut, poke};
use crate::kind::written;

pub fn all() -> Vec<Case> {
    let groups = [frames(), bad_headers(), bad_turns(), parts()];
    groups.into_iter().flatten().collect()
}

pub fn beat() -> Beat {
    Beat { rank: Rank(1), epoch: Epoch(7), round: Round(9), done: 8 }
}

pub fn tally() -> Tally {
    Tally {
        origin: Rank(2),
        link_us: 180,
        epoch: Epoch(7),
        done: 8,
        computed_us: 1_500_000,
        sent_bytes: 65_536,
        memory_bytes: 1 << 30,
    }
}

pub fn rows_frame(round: u64) -> Frame {
    Frame::rows(Round(round), 2, vec![1.0, -2.5, f32::NAN, 0.0, -0.0, f32::INFINITY])
}

pub fn berth_frame() -> Frame {
    Frame::berth(Round(9), 2, 3)
}

fn frames() -> Vec<Case> {
    let mut cases = Cases::of("frame");
    let cancel = Cancel { origin: Rank(0), stream: StreamId(5), epoch: Epoch(7) };
    let stop = Stop { origin: Rank(2), reason: "OtherGeneration: stream 5".into() };
    let plan = Plan::default().encode().unwrap();
    cases.good(
        "control",
        "a ready message",
        written(Frame::control(crate::cases_control::ready())),
    );
    cases.good("plan", "the keep-alive, round 4", written(Frame::plan(Round(4), plan.clone())));
    cases.good("rows", "two rows of three values", written(rows_frame(9)));
    cases.good("stop", "a stop of rank 2", written(Frame::stop(&stop)));
    cases.good("beat", "a beat of rank 1", written(Frame::beat(&beat())));
    cases.good("cancel", "stream 5 was given up", written(Frame::cancel(&cancel)));
    cases.good("tally", "what rank 2 has done", written(Frame::tally(&tally())));
    cases.good("berth", "two rows in berth 3", written(berth_frame()));
    let both = [written(Frame::plan(Round(4), plan)), written(rows_frame(4))].concat();
    cases.good("plan_and_rows", "a round: its plan, then its rows", both);
    cases.good("none", "a link that carried nothing", []);
    cases.list
}

fn bad_headers() -> Vec<Case> {
    let mut cases = Cases::of("frame");
    let text = *b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n";
    cases.bad("http", "BadMagic", "text", text);
    cases.pokes(
        &written(Frame::plan(Round(4), Plan::default().encode().unwrap())),
        0,
        "
        other_version | OtherVersion | version 2                  | 4  | 02
        kind_0        | OtherKind    | kind 0                     | 6  | 00
        kind_9        | OtherKind    | kind 9                     | 6  | 09
        plan_round_0  | OutOfTurn    | plans belong to a round    | 8  | 00
        plan_rows     | OtherRows    | a plan has no rows         | 16 | 01
        plan_more     | BadFlags     | only rows come in parts    | 20 | 01
        plan_large    | TooLarge     | a plan of 1 MiB and a byte | 24 | 01001000
    ",
    );
    cases.pokes(
        &written(Frame::beat(&beat())),
        0,
        "
        beat_round_1 | OutOfTurn | beats belong to none | 8  | 01
        beat_large   | TooLarge  | a beat of 33 bytes   | 24 | 21
    ",
    );
    cases.pokes(
        &written(berth_frame()),
        0,
        "
        berth_round_0 | OutOfTurn | rows belong to a round  | 8  | 00
        berth_rows_0  | OtherRows | no rows in a berth      | 16 | 00
        berth_large   | TooLarge  | a number of five bytes  | 24 | 05
    ",
    );
    let rows = written(rows_frame(9));
    cases.pokes(
        &rows,
        0,
        "
        rows_0      | OtherRows | a hop of 0 rows sends no frame | 16 | 00
        rows_uneven | OtherRows | 24 bytes are not 5 rows        | 16 | 05
        rows_flag_1 | BadFlags  | flag bit 1                     | 20 | 02
        rows_empty  | OtherRows | an empty part                  | 24 | 00
        part_large  | TooLarge  | a part of 1 MiB and a byte     | 24 | 01001000
        endless     | TooLarge  | 2^64-1 bytes                   | 24 | ffffffffffffffff
    ",
    );
    cases.bad("short_header", "Truncated", "31 bytes", rows[..31].to_vec());
    cases.bad("short_payload", "Truncated", "a value is missing", cut(&rows, 4));
    cases.list
}

/// A part of two rows.
fn part(more: bool, payload: &[u8]) -> Vec<u8> {
    let payload_bytes = payload.len() as u64;
    let header = Header { kind: Kind::Rows, round: Round(9), rows: 2, more, payload_bytes };
    [&header.encode()[..], payload].concat()
}

/// A rows frame in two parts, and the same with `between` after the first.
pub fn two_parts(between: &[u8]) -> Vec<u8> {
    let [first, second] = [[1.0, 2.0], [3.0, 4.0]].map(|values| rows::encode(&values));
    [&part(true, &first)[..], between, &part(false, &second)].concat()
}

/// Two rows whose parts end within a value; the first `bytes` of them.
pub fn cut_values(bytes: usize) -> Vec<u8> {
    let payload = rows::encode(&[1.0, 2.0, 3.0, f32::NAN]);
    let (first, second) = payload[..bytes].split_at(6);
    let (second, third) = second.split_at(1);
    [part(true, first), part(true, second), part(false, third)].concat()
}

fn parts() -> Vec<Case> {
    let mut cases = Cases::of("parts");
    cases.good("two", "two rows in two parts", two_parts(&[]));
    let beat = written(Frame::beat(&beat()));
    cases.good("beat_between", "a beat between the parts", two_parts(&beat));
    cases.good("cut_values", "parts that end within a value", cut_values(16));
    cases.list
}

fn bad_turns() -> Vec<Case> {
    let mut cases = Cases::of("frame");
    let plan = written(Frame::plan(Round(9), Plan::default().encode().unwrap()));
    let control = written(Frame::control(crate::cases_control::ready()));
    let first = two_parts(&[])[..40].to_vec();
    cases.bad("plan_between", "OutOfTurn", "a plan between two parts", two_parts(&plan));
    cases.bad("control_between", "OutOfTurn", "a control likewise", two_parts(&control));
    let berth = written(berth_frame());
    cases.bad("berth_between", "OutOfTurn", "a berth likewise", two_parts(&berth));
    cases.bad("other_round", "OutOfTurn", "part 2 is round 8's", poke(&two_parts(&[]), 48, &[8]));
    cases.bad("other_rows", "OutOfTurn", "part 2 is of 4 rows", poke(&two_parts(&[]), 56, &[4]));
    cases.bad("one_part", "Truncated", "the second part never comes", first);
    cases.bad("half_values", "OtherRows", "two rows of a value and a half", cut_values(12));
    cases.bad("part_of_value", "OtherRows", "14 bytes are no values", cut_values(14));
    let large = Frame::rows(Round(1), 1, vec![0.0; crate::kind::ROWS_BYTES_MAX / 4 + 1]);
    let head = written(large)[..32].to_vec();
    cases.bad("past_buffer", "TooLarge", "past the receiver's 4096 bytes", head);
    cases.list
}
