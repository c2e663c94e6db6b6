//! The golden files' recipe: the handshake and the small messages.

use arith::base::{Epoch, Rank, Round, StreamId};
use wire::beat::Beat;
use wire::cancel::Cancel;
use wire::hello::{Answer, Encryption, Hello, Refusal, RefusalCode, Role};
use wire::limit::MEASURE_BYTES_MAX;
use wire::measure::Measure;
use wire::preamble::{self, Cipher};
use wire::stop::Stop;
use wire::tally::Tally;

use crate::cases_frame::{beat, rows_frame, tally};

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
        Self { kind, list: Vec::new() }
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
            let [name, error, about, at, new] = columns[..] else { panic!("{line}") };
            let at = base + at.parse::<usize>().unwrap();
            self.bad(name, error, about, poke(good, at, &crate::golden::from_hex(new)));
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
        self.list.push(Case { name, kind: self.kind, error, about, bytes });
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
        crate::cases_frame::all(),
        crate::cases_control::all(),
        crate::cases_plan::all(),
        rows_(),
        stops(),
        beats(),
        cancels(),
        crate::cases_group::all(),
        tallies(),
        measures(),
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
    cases.bad("http", "BadMagic", "a browser that took the wrong door", *b"GET / HT");
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
    let good = cases.good("connector", "rank 1 of 3 connects", hello().encode().unwrap());
    let alone = Hello { rank: Rank(0), world: 1, encryption: Encryption::Off, ..hello() };
    cases.good("clear", "rank 0 of 1, record bodies in clear", alone.encode().unwrap());
    let measurer = Hello { rank: Rank(0), role: Role::Measurer, epoch: Epoch(0), ..hello() };
    cases.good("measurer", "somebody who measures the link", measurer.encode().unwrap());
    cases.pokes(
        &good,
        0,
        "
        rank_past_world | BadRank     | rank 3 of 3              | 0  | 03
        no_world        | BadRank     | a world of 0             | 4  | 00
        world_65        | BadRank     | a world of 65            | 4  | 41
        no_role         | BadValue    | role 4                   | 8  | 04
        no_encryption   | BadValue    | encryption 0             | 9  | 00
        refusal         | BadValue    | message 1 may not refuse | 10 | 02
        bad_reserved    | BadReserved | byte 11 is 1             | 11 | 01
        text            | TooLarge    | texts without a refusal  | 12 | 01
    ",
    );
    cases.bad("truncated", "Truncated", "one byte short", cut(&good, 1));
    cases.bad("trailing", "Trailing", "one byte too many", grow(&good, &[0]));
    cases.list
}

fn answers() -> Vec<Case> {
    let mut cases = Cases::of("answer");
    let hello = Hello { rank: Rank(2), role: Role::Acceptor, ..hello() };
    let answer = |refusal| Answer { hello, refusal }.encode().unwrap();
    let refused = |code, expected: &str, found: &str| {
        answer(Some(Refusal { code, expected: expected.into(), found: found.into() }))
    };
    cases.good("welcome", "rank 2 of 3 accepts", answer(None));
    let about = "a refusal that rides in message 2";
    let world = cases.good("other_world", about, refused(RefusalCode::OtherWorld, "3", "4"));
    let rank = refused(RefusalCode::NotNeighbour, "Connector 1", "Connector 0");
    cases.good("not_neighbour", about, rank);
    let clear = refused(RefusalCode::OtherEncryption, "on", "off");
    cases.good("other_encryption", about, clear);
    let model = refused(RefusalCode::OtherFingerprint, "0001020304050607", "ff01020304050607");
    cases.good("other_fingerprint", about, model);
    let epoch = refused(RefusalCode::OtherEpoch, "0123456789abcdef", "00000000000000ff");
    cases.good("other_epoch", about, epoch);
    cases.pokes(
        &world,
        0,
        "
        no_refusal | BadValue | refusal 6 does not exist | 10 | 06
        long_text  | TooLarge | a text of 65 bytes       | 12 | 41
        bad_text   | BadText  | `expected` is not UTF-8  | 56 | ff
    ",
    );
    cases.bad("truncated", "Truncated", "`found` is missing", cut(&world, 1));
    cases.list
}

fn rows_() -> Vec<Case> {
    let mut cases = Cases::of("rows");
    let good = cases.good(
        "two",
        "two rows of three values, NaN and -0 kept",
        wire::rows::encode(&rows_frame(1).values),
    );
    cases.bad("short", "OtherRows", "one value short", cut(&good, 4));
    cases.bad("long", "OtherRows", "one byte too many", grow(&good, &[0]));
    cases.list
}

fn stops() -> Vec<Case> {
    let mut cases = Cases::of("stop");
    let stop = |reason: &str| Stop { origin: Rank(2), reason: reason.into() }.encode();
    let good = cases.good("reason", "rank 2 says why", stop("BadMode: größer"));
    cases.good("silent", "no reason", stop(""));
    cases.good("longest", "4096 of 5000 bytes", stop(&"x".repeat(5000)));
    let cut_inside = format!("x{}", "é".repeat(3000));
    cases.good("cut", "4095 bytes: no character is cut", stop(&cut_inside));
    cases.bad("long", "TooLarge", "4097 bytes", grow(&[0; 4], &[b'x'; 4097]));
    cases.bad("bad_text", "BadText", "cut inside a character", grow(&good, &[0xc3]));
    cases.bad("truncated", "Truncated", "half an origin", good[..3].to_vec());
    cases.list
}

fn beats() -> Vec<Case> {
    let mut cases = Cases::of("beat");
    let good = cases.good("busy", "rank 1 is at round 9", beat().encode());
    let idle = Beat { round: Round(0), ..beat() };
    cases.good("idle", "rank 1 waits", idle.encode());
    cases.pokes(
        &good,
        0,
        "
        bad_reserved | BadReserved | byte 4 is 1 | 4 | 01
    ",
    );
    cases.bad("truncated", "Truncated", "one byte short", cut(&good, 1));
    cases.bad("trailing", "Trailing", "one byte too many", grow(&good, &[0]));
    cases.list
}

fn tallies() -> Vec<Case> {
    let mut cases = Cases::of("tally");
    let good = cases.good("busy", "rank 2 has done 8 rounds", tally().encode());
    let none = Tally { origin: Rank(1), ..Tally::default() };
    cases.good("none", "rank 1 has done and knows nothing", none.encode());
    cases.bad("truncated", "Truncated", "one byte short", cut(&good, 1));
    cases.bad("trailing", "Trailing", "one byte too many", grow(&good, &[0]));
    cases.list
}

fn measures() -> Vec<Case> {
    let mut cases = Cases::of("measure");
    cases.good("echo", "round trip 7", Measure::Echo(7).encode());
    let most = Measure::Give(MEASURE_BYTES_MAX).encode();
    cases.good("give", "as much as may be asked for", most);
    cases.good("took", "a take's bytes came within 9 ms", Measure::Took(9_000).encode());
    let good = cases.good("take", "a KiB follows", Measure::Take(1_024).encode());
    cases.pokes(
        &good,
        0,
        "
        bad_magic    | BadMagic    | not a measurement        | 0  | 00
        other_kind   | OtherKind   | kind 5                   | 4  | 05
        bad_reserved | BadReserved | byte 5 is 1              | 5  | 01
        nothing      | BadValue    | no bytes follow          | 9  | 00
        huge         | TooLarge    | more than 64 MiB follow  | 12 | 01
    ",
    );
    cases.bad("truncated", "Truncated", "one byte short", cut(&good, 1));
    cases.bad("trailing", "Trailing", "one byte too many", grow(&good, &[0]));
    cases.list
}

fn cancels() -> Vec<Case> {
    let mut cases = Cases::of("cancel");
    let cancel = Cancel { origin: Rank(0), stream: StreamId(5), epoch: Epoch(7) };
    let good = cases.good("stream", "stream 5 was given up", cancel.encode());
    cases.bad("truncated", "Truncated", "one byte short", cut(&good, 1));
    cases.bad("trailing", "Trailing", "one byte too many", grow(&good, &[0]));
    cases.list
}
