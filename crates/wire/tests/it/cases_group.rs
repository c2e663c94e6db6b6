//! The golden files' recipe: what the members of a group send each other.

use std::borrow::Cow;

use arith::base::{Generation, StreamId};
use wire::call::{Call, Input, Report};
use wire::group::{Kind, PIECE_BYTES_MAX, Piece};
use wire::plan::{Entry, Op, Plan, Want};
use wire::slot::SlotState;

use crate::cases::{Case, Cases, cut, grow};
use crate::cases_control::shapes;

pub fn all() -> Vec<Case> {
    [pieces(), calls(), reports()].into_iter().flatten().collect()
}

/// A piece's bytes.
pub fn written(piece: &Piece<'_>) -> Vec<u8> {
    [&piece.header()[..], piece.payload].concat()
}

fn pieces() -> Vec<Case> {
    let mut cases = Cases::of("piece");
    let piece = |kind, number, payload| Piece { kind, more: false, number, payload };
    let part = piece(Kind::Part, 3, &[0, 0, 128, 63]);
    let good = cases.good("part", "1.0, all that a member gives in exchange 3", written(&part));
    cases.good("part_more", "the same, and more follows", written(&Piece { more: true, ..part }));
    cases.good("part_empty", "a member with nothing to give", written(&piece(Kind::Part, 4, &[])));
    let beat = cases.good("beat", "alive, at no exchange", written(&piece(Kind::Beat, 0, &[])));
    cases.good("beat_at_work", "at exchange 258", written(&piece(Kind::Beat, 258, &[])));
    let stop = written(&piece(Kind::Stop, 0, &[]));
    cases.good("report", "after a join", written(&piece(Kind::Report, 0, &[1, 0, 0, 0])));
    cases.pokes(
        &good,
        0,
        "
        magic    | BadMagic    | a frame of the ring         | 3 | 46
        kind     | OtherKind   | kind 6 does not exist       | 4 | 06
        flags    | BadFlags    | flag 2 does not exist       | 5 | 02
        reserved | BadReserved | byte 6 is 1                 | 6 | 01
        number_0 | OutOfTurn   | exchanges count from 1      | 8 | 00
        ",
    );
    cases.pokes(
        &beat,
        0,
        "
        beat_more   | BadFlags  | a beat has no second piece | 5 | 01
        ",
    );
    cases.pokes(&stop, 0, "stop_number | OutOfTurn | a stop has no number | 8 | 01");
    let none = written(&Piece { more: true, payload: &[], ..part });
    cases.bad("no_bytes", "Truncated", "more after nothing", none);
    cases.bad("truncated", "Truncated", "half a header", cut(&good, 12));
    let large = vec![0; PIECE_BYTES_MAX + 4];
    cases.bad("large", "TooLarge", "four bytes too many", written(&piece(Kind::Part, 1, &large)));
    cases.list
}

/// One stream opens with two rows.
fn plan() -> Plan {
    let entry = Entry {
        id: StreamId(1),
        op: Op::Open,
        want: Want::Last,
        first: 0,
        rows: 2,
        accepted: 0,
        resume: 0,
        generation: Generation(0),
        parents: None,
        tokens: None,
    };
    Plan { entries: vec![entry], ..Plan::default() }
}

fn calls() -> Vec<Case> {
    let mut cases = Cases::of("call");
    let step = |input| Call::Step { plan: Cow::Owned(plan()), input }.encode().unwrap();
    let tokens = step(Input::Tokens(vec![7, 9].into()));
    cases.good("prepare", "allocates for the shapes", Call::Prepare(shapes()).encode().unwrap());
    cases.good("step_tokens", "two rows of token ids", tokens.clone());
    let rows = step(Input::Rows(vec![1.0, 2.0, 3.0, 4.0].into()));
    cases.good("step_rows", "two rows of two values", rows.clone());
    let (best, values) = (vec![0, 20].into(), vec![0.5, -0.0, 1.0, 2.0].into());
    let logits = Call::Logits { best, rows: values }.encode().unwrap();
    let meaning = "the head of two rows of two values, 20 logits of the second";
    cases.good("logits", meaning, logits.clone());
    cases.good("skip", "stream 9 is cancelled", Call::Skip(StreamId(9)).encode().unwrap());
    let reset = cases.good("reset", "forgets every stream", Call::Reset.encode().unwrap());
    cases.good("table", "asks for the table", Call::Table.encode().unwrap());
    let meet = Call::Meet { place: "/proc/7/fd/9".into(), token: [5; 16] }.encode().unwrap();
    let meet = cases.good("meet", "offers memory to exchange through", meet);
    let met = cases.good("met", "members 0 and 1 do", Call::Met(3).encode().unwrap());
    cases.bad("meet_long", "TooLarge", "a place of 65 bytes", grow(&meet, &[b'0'; 53]));
    cases.bad("meet_text", "BadText", "a place that is no UTF-8", grow(&meet, &[0xff]));
    cases.bad("met_cut", "Truncated", "nobody is named", cut(&met, 1));
    cases.pokes(
        &reset,
        0,
        "
        other    | OtherMessage | call 9 does not exist | 0 | 09
        reserved | BadReserved  | byte 1 is 1           | 1 | 01
        ",
    );
    cases.pokes(
        &tokens,
        0,
        "
        input     | BadValue  | input 3 does not exist      | 4 | 03
        plan_long | Truncated | a plan past the call's end  | 8 | ff
        plan_huge | TooLarge  | a plan past its own limit   | 8 | ffffffff
        ",
    );
    cases.bad("token_missing", "OtherRows", "a token for two rows", cut(&tokens, 4));
    cases.bad("value_missing", "OtherRows", "three values for two rows", cut(&rows, 4));
    cases.bad("value_cut", "OtherRows", "half a value", cut(&logits, 2));
    cases.bad("logits_short", "OtherRows", "three values for two rows", cut(&logits, 4));
    cases.pokes(
        &logits,
        0,
        "
        logits_count | TooLarge | more rows than bytes | 4 | ffffffff
        ",
    );
    cases.bad("trailing", "Trailing", "one byte too many", grow(&reset, &[0]));
    cases.list
}

fn reports() -> Vec<Case> {
    let mut cases = Cases::of("report");
    let ready = cases.good("ready", "loaded, or prepared", Report::Ready.encode());
    let held = Report::Held(vec![true, false]).encode();
    let held = cases.good("held", "the second of two keeps is not held", held);
    let slot =
        SlotState { id: StreamId(3), generation: Generation(12), first: 40, rows: 2, pages: 1 };
    let table = cases.good("table", "one stream", Report::Table(vec![slot]).encode());
    let met = cases.good("met", "it reaches the memory", Report::Met(true).encode());
    cases.pokes(&met, 0, "met_other | BadValue | met is 2 | 4 | 02");
    cases.pokes(
        &ready,
        0,
        "
        other    | OtherMessage | report 5 does not exist | 0 | 05
        reserved | BadReserved  | byte 3 is 1             | 3 | 01
        ",
    );
    cases.pokes(
        &held,
        0,
        "
        keeps_many | TooLarge  | 4,097 keeps         | 4 | 01100000
        keeps_few  | Truncated | 3 keeps, 2 of them  | 4 | 03
        keep       | BadValue  | neither held nor not | 8 | 02
        ",
    );
    cases.pokes(&table, 0, "streams_many | TooLarge | 4,097 streams | 4 | 01100000");
    cases.bad("truncated", "Truncated", "half a table", cut(&table, 4));
    cases.bad("trailing", "Trailing", "one byte too many", grow(&ready, &[0]));
    cases.list
}
