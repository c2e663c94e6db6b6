//! The golden files' recipe: link, frames and the small messages.

use arith::base::{Epoch, Rank, Round, StreamId};
use wire::beat::Beat;
use wire::cancel::Cancel;
use wire::frame::{Frame, Header, Kind};
use wire::hello::{Answer, Encryption, Hello, Refusal, RefusalCode, Role};
use wire::plan::Plan;
use wire::preamble::{self, Cipher};
use wire::rows;
use wire::stop::Stop;

use crate::kind::written;

/// One golden file.
pub struct Case {
    pub name: String,
    /// Which decoder reads it.
    pub kind: &'static str,
    /// The error it must raise; `None` for a good file.
    pub error: Option<&'static str>,
    pub about: &'static str,
    pub bytes: Vec<u8>,
}

/// Collects the cases of one decoder.
pub struct Cases {
    kind: &'static str,
    pub list: Vec<Case>,
}

impl Cases {
    pub fn of(kind: &'static str) -> Self {
        Self {
            kind,
            list: Vec::new(),
        }
    }

    pub fn good(&mut self, name: &str, about: &'static str, bytes: impl Into<Vec<u8>>) -> Vec<u8> {
        let bytes = bytes.into();
        self.add(name, None, about, bytes.clone());
        bytes
    }

    pub fn bad(
        &mut self,
        name: &str,
        error: &'static str,
        about: &'static str,
        bytes: impl Into<Vec<u8>>,
    ) {
        self.add(name, Some(error), about, bytes.into());
    }

    /// Bad files that differ from `good` in a few bytes; a line a file:
    /// `name | error | about | offset after base | bytes in hexadecimal`.
    pub fn pokes(&mut self, good: &[u8], base: usize, table: &'static str) {
        for line in table.lines().filter(|line| !line.trim().is_empty()) {
            let columns: Vec<&'static str> = line.split('|').map(str::trim).collect();
            let [name, error, about, at, new] = columns[..] else {
                panic!("{line}")
            };
            let at = base + at.parse::<usize>().unwrap();
            self.bad(
                name,
                error,
                about,
                poke(good, at, &crate::golden::from_hex(new)),
            );
        }
    }

    fn add(
        &mut self,
        name: &str,
        error: Option<&'static str>,
        about: &'static str,
        bytes: Vec<u8>,
    ) {
        let name = format!("{}_{name}.hex", self.kind);
        self.list.push(Case {
            name,
            kind: self.kind,
            error,
            about,
            bytes,
        });
    }
}

/// `bytes` with `new` written over them at `at`.
pub fn poke(bytes: &[u8], at: usize, new: &[u8]) -> Vec<u8> {
    let mut out = bytes.to_vec();
    out[at..at + new.len()].copy_from_slice(new);
    out
}

/// All but the last `count` bytes.
pub fn cut(bytes: &[u8], count: usize) -> Vec<u8> {
    bytes[..bytes.len() - count].to_vec()
}

/// With `more` after them.
pub fn grow(bytes: &[u8], more: &[u8]) -> Vec<u8> {
    [bytes, more].concat()
}

/// Every golden file, in the manifest's order.
pub fn all() -> Vec<Case> {
    let groups = [
        preambles(),
        hellos(),
        answers(),
        frames(),
        bad_frames(),
        bad_turns(),
        parts(),
        crate::cases_control::all(),
        crate::cases_plan::all(),
        rows_(),
        stops(),
        beats(),
        cancels(),
    ];
    groups.into_iter().flatten().collect()
}

pub fn hello() -> Hello {
    Hello {
        rank: Rank(1),
        world: 3,
        role: Role::Connector,
        epoch: Epoch(0x0123_4567_89ab_cdef),
        fingerprint: std::array::from_fn(|at| at as u8),
        encryption: Encryption::On,
    }
}

fn preambles() -> Vec<Case> {
    let mut cases = Cases::of("preamble");
    let good = preamble::encode(Cipher::ChaChaPoly);
    cases.good("chachapoly", "version 1, ChaChaPoly", good);
    cases.bad(
        "http",
        "BadMagic",
        "a browser that took the wrong door",
        *b"GET / HT",
    );
    cases.pokes(
        &good,
        0,
        "
        other_version | OtherVersion | version 2 | 4 | 02
    ",
    );
    cases.bad(
        "other_cipher",
        "OtherCipher",
        "AESGCM against our ChaChaPoly",
        preamble::encode(Cipher::AesGcm),
    );
    cases.pokes(
        &good,
        0,
        "
        no_cipher    | OtherCipher | cipher 9 does not exist | 6 | 09
        bad_reserved | BadReserved | the last byte is 1      | 7 | 01
    ",
    );
    cases.list
}

fn hellos() -> Vec<Case> {
    let mut cases = Cases::of("hello");
    let good = cases.good(
        "connector",
        "rank 1 of 3 connects",
        hello().encode().unwrap(),
    );
    let alone = Hello {
        rank: Rank(0),
        world: 1,
        encryption: Encryption::Off,
        ..hello()
    };
    cases.good(
        "clear",
        "rank 0 of 1, record bodies in clear",
        alone.encode().unwrap(),
    );
    cases.pokes(
        &good,
        0,
        "
        rank_past_world | BadRank     | rank 3 of 3              | 0  | 03
        no_world        | BadRank     | a world of 0             | 4  | 00
        world_65        | BadRank     | a world of 65            | 4  | 41
        no_role         | BadValue    | role 3                   | 8  | 03
        no_encryption   | BadValue    | encryption 0             | 9  | 00
        refusal         | BadValue    | message 1 may not refuse | 10 | 02
        bad_reserved    | BadReserved | byte 11 is 1             | 11 | 01
        text            | TooLarge    | texts without a refusal  | 12 | 01
    ",
    );
    cases.bad("truncated", "Truncated", "one byte short", cut(&good, 1));
    cases.bad(
        "trailing",
        "Trailing",
        "one byte too many",
        grow(&good, &[0]),
    );
    cases.list
}

fn answers() -> Vec<Case> {
    let mut cases = Cases::of("answer");
    let acceptor = Hello {
        rank: Rank(2),
        role: Role::Acceptor,
        ..hello()
    };
    let answer = |refusal| {
        Answer {
            hello: acceptor,
            refusal,
        }
        .encode()
        .unwrap()
    };
    cases.good("welcome", "rank 2 of 3 accepts", answer(None));
    let refusals = [
        (
            "other_fingerprint",
            RefusalCode::OtherFingerprint,
            "0001020304050607",
            "ff01",
        ),
        ("other_world", RefusalCode::OtherWorld, "3", "4"),
        (
            "not_neighbour",
            RefusalCode::NotNeighbour,
            "Connector 1",
            "Connector 0",
        ),
        (
            "other_epoch",
            RefusalCode::OtherEpoch,
            "0123456789abcdef",
            "00000000000000ff",
        ),
        (
            "other_encryption",
            RefusalCode::OtherEncryption,
            "on",
            "off",
        ),
    ];
    for (name, code, expected, found) in refusals {
        let refusal = Refusal {
            code,
            expected: expected.into(),
            found: found.into(),
        };
        cases.good(
            name,
            "a refusal that rides in message 2",
            answer(Some(refusal)),
        );
    }
    let refusal = Refusal {
        code: RefusalCode::OtherWorld,
        expected: "3".into(),
        found: "4".into(),
    };
    let good = answer(Some(refusal));
    cases.pokes(
        &good,
        0,
        "
        no_refusal | BadValue | refusal 6 does not exist | 10 | 06
        long_text  | TooLarge | a text of 65 bytes       | 12 | 41
        bad_text   | BadText  | `expected` is not UTF-8  | 56 | ff
    ",
    );
    cases.bad(
        "truncated",
        "Truncated",
        "`found` is missing",
        cut(&good, 1),
    );
    cases.list
}

fn beat() -> Beat {
    Beat {
        rank: Rank(1),
        epoch: Epoch(7),
        round: Round(9),
        done: 8,
    }
}

fn rows_frame(round: u64) -> Frame {
    Frame::rows(
        Round(round),
        2,
        rows::encode(&[1.0, -2.5, f32::NAN, 0.0, -0.0, f32::INFINITY]),
    )
}

fn frames() -> Vec<Case> {
    let mut cases = Cases::of("frame");
    let cancel = Cancel {
        origin: Rank(0),
        stream: StreamId(5),
        epoch: Epoch(7),
    };
    let stop = Stop {
        origin: Rank(2),
        reason: "OtherGeneration: stream 5".into(),
    };
    let plan = Plan::default().encode().unwrap();
    cases.good(
        "control",
        "a ready message",
        written(Frame::control(crate::cases_control::ready())),
    );
    cases.good(
        "plan",
        "the keep-alive, round 4",
        written(Frame::plan(Round(4), plan.clone())),
    );
    cases.good("rows", "two rows of three values", written(rows_frame(9)));
    cases.good("stop", "a stop of rank 2", written(Frame::stop(&stop)));
    cases.good("beat", "a beat of rank 1", written(Frame::beat(&beat())));
    cases.good(
        "cancel",
        "stream 5 was given up",
        written(Frame::cancel(&cancel)),
    );
    let both = [written(Frame::plan(Round(4), plan)), written(rows_frame(4))].concat();
    cases.good("plan_and_rows", "a round: its plan, then its rows", both);
    cases.good("none", "a link that carried nothing", []);
    cases.list
}

fn bad_frames() -> Vec<Case> {
    let mut cases = Cases::of("frame");
    let plan = written(Frame::plan(Round(4), Plan::default().encode().unwrap()));
    let rows = written(rows_frame(9));
    let beat = written(Frame::beat(&beat()));
    cases.bad(
        "http",
        "BadMagic",
        "text",
        *b"GET /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
    );
    cases.pokes(
        &plan,
        0,
        "
        other_version | OtherVersion | version 2               | 4  | 02
        kind_0        | OtherKind    | kind 0                  | 6  | 00
        kind_7        | OtherKind    | kind 7                  | 6  | 07
        plan_more     | BadFlags     | only rows come in parts | 20 | 01
    ",
    );
    cases.pokes(
        &rows,
        0,
        "
        rows_flag_1 | BadFlags | flag bit 1 | 20 | 02
    ",
    );
    let mib_1 = (1u64 << 20) + 1;
    cases.bad(
        "plan_large",
        "TooLarge",
        "a plan of 1 MiB and a byte",
        poke(&plan, 24, &mib_1.to_le_bytes()),
    );
    cases.bad(
        "part_large",
        "TooLarge",
        "a part likewise",
        poke(&rows, 24, &mib_1.to_le_bytes()),
    );
    cases.pokes(
        &rows,
        0,
        "
        endless | TooLarge | 2^64-1 bytes | 24 | ffffffffffffffff
    ",
    );
    cases.pokes(
        &beat,
        0,
        "
        beat_large | TooLarge | a beat of 33 bytes | 24 | 21
    ",
    );
    cases.pokes(
        &plan,
        0,
        "
        plan_round_0 | OutOfTurn | plans belong to a round | 8 | 00
    ",
    );
    cases.pokes(
        &beat,
        0,
        "
        beat_round_1 | OutOfTurn | beats do not | 8 | 01
    ",
    );
    cases.pokes(
        &rows,
        0,
        "
        rows_0 | OtherRows | a hop of 0 rows sends no frame | 16 | 00
    ",
    );
    cases.pokes(
        &plan,
        0,
        "
        plan_rows | OtherRows | a plan has no rows | 16 | 01
    ",
    );
    cases.pokes(
        &rows,
        0,
        "
        rows_empty  | OtherRows | an empty part           | 24 | 00
        rows_uneven | OtherRows | 24 bytes are not 5 rows | 16 | 05
    ",
    );
    cases.bad("short_header", "Truncated", "31 bytes", rows[..31].to_vec());
    cases.bad(
        "short_payload",
        "Truncated",
        "a value is missing",
        cut(&rows, 4),
    );
    cases.list
}

/// A rows frame in two parts, and the same with `between` after the first.
pub fn two_parts(between: &[u8]) -> Vec<u8> {
    let part = |more, values: &[f32]| {
        let payload = rows::encode(values);
        let header = Header {
            kind: Kind::Rows,
            round: Round(9),
            rows: 2,
            more,
            payload_bytes: payload.len() as u64,
        };
        [&header.encode()[..], &payload].concat()
    };
    [
        &part(true, &[1.0, 2.0])[..],
        between,
        &part(false, &[3.0, 4.0]),
    ]
    .concat()
}

fn parts() -> Vec<Case> {
    let mut cases = Cases::of("parts");
    cases.good("two", "two rows in two parts", two_parts(&[]));
    let beat = written(Frame::beat(&beat()));
    cases.good("beat_between", "a beat between the parts", two_parts(&beat));
    cases.list
}

fn bad_turns() -> Vec<Case> {
    let mut cases = Cases::of("frame");
    let plan = written(Frame::plan(Round(9), Plan::default().encode().unwrap()));
    let control = written(Frame::control(crate::cases_control::ready()));
    let first = two_parts(&[])[..40].to_vec();
    cases.bad(
        "plan_between",
        "OutOfTurn",
        "a plan between two parts",
        two_parts(&plan),
    );
    cases.bad(
        "control_between",
        "OutOfTurn",
        "a control likewise",
        two_parts(&control),
    );
    cases.bad(
        "other_round",
        "OutOfTurn",
        "part 2 is round 8's",
        poke(&two_parts(&[]), 48, &[8]),
    );
    cases.bad(
        "other_rows",
        "OutOfTurn",
        "part 2 is of 4 rows",
        poke(&two_parts(&[]), 56, &[4]),
    );
    cases.bad(
        "one_part",
        "Truncated",
        "the second part never comes",
        first,
    );
    let large = Frame::rows(Round(1), 1, vec![0; crate::kind::ROWS_BYTES_MAX + 4]);
    let head = written(large)[..32].to_vec();
    cases.bad(
        "past_buffer",
        "TooLarge",
        "past the receiver's 4096 bytes",
        head,
    );
    cases.list
}

fn rows_() -> Vec<Case> {
    let mut cases = Cases::of("rows");
    let good = cases.good(
        "two",
        "two rows of three values, NaN and -0 kept",
        rows_frame(1).payload,
    );
    cases.bad("short", "OtherRows", "one value short", cut(&good, 4));
    cases.bad("long", "OtherRows", "one byte too many", grow(&good, &[0]));
    cases.list
}

fn stops() -> Vec<Case> {
    let mut cases = Cases::of("stop");
    let stop = |reason: &str| {
        Stop {
            origin: Rank(2),
            reason: reason.into(),
        }
        .encode()
    };
    let good = cases.good("reason", "rank 2 says why", stop("BadMode: größer"));
    cases.good("silent", "no reason", stop(""));
    cases.good("longest", "4096 of 5000 bytes", stop(&"x".repeat(5000)));
    let cut_inside = format!("x{}", "é".repeat(3000));
    cases.good("cut", "4095 bytes: no character is cut", stop(&cut_inside));
    cases.bad(
        "long",
        "TooLarge",
        "4097 bytes",
        grow(&[0; 4], &[b'x'; 4097]),
    );
    cases.bad(
        "bad_text",
        "BadText",
        "cut inside a character",
        grow(&good, &[0xc3]),
    );
    cases.bad(
        "truncated",
        "Truncated",
        "half an origin",
        good[..3].to_vec(),
    );
    cases.list
}

fn beats() -> Vec<Case> {
    let mut cases = Cases::of("beat");
    let good = cases.good("busy", "rank 1 is at round 9", beat().encode());
    let idle = Beat {
        round: Round(0),
        ..beat()
    };
    cases.good("idle", "rank 1 waits", idle.encode());
    cases.pokes(
        &good,
        0,
        "
        bad_reserved | BadReserved | byte 4 is 1 | 4 | 01
    ",
    );
    cases.bad("truncated", "Truncated", "one byte short", cut(&good, 1));
    cases.bad(
        "trailing",
        "Trailing",
        "one byte too many",
        grow(&good, &[0]),
    );
    cases.list
}

fn cancels() -> Vec<Case> {
    let mut cases = Cases::of("cancel");
    let cancel = Cancel {
        origin: Rank(0),
        stream: StreamId(5),
        epoch: Epoch(7),
    };
    let good = cases.good("stream", "stream 5 was given up", cancel.encode());
    cases.bad("truncated", "Truncated", "one byte short", cut(&good, 1));
    cases.bad(
        "trailing",
        "Trailing",
        "one byte too many",
        grow(&good, &[0]),
    );
    cases.list
}
