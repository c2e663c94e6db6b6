//! The golden files' recipe: plans.

use arith::base::{Generation, StreamId};
use wire::plan::{Entry, Keep, KeepOp, Mode, Op, Plan, ROOT, Want};

use crate::cases::{Case, Cases, cut, grow, poke};

/// Offsets in a plan's payload.
const ENTRY: usize = 24;
const ENTRY_BYTES: usize = 28;

pub fn all() -> Vec<Case> {
    let groups = [good(), bad_heads(), bad_entries(), bad_tails(), bad_keeps()];
    groups.into_iter().flatten().collect()
}

fn entry(id: u32, op: Op, first: u32, rows: u32, generation: u32) -> Entry {
    Entry {
        id: StreamId(id),
        op,
        want: if rows > 0 { Want::Last } else { Want::None },
        first,
        rows,
        accepted: 0,
        resume: 0,
        generation: Generation(generation),
        parents: None,
        tokens: None,
    }
}

/// Four streams and a cut: 24 + 4 * 28 + 4 = 140 bytes.
fn round() -> Plan {
    let settled = Entry { accepted: 1, ..entry(2, Op::Continue, 40, 1, 9) };
    Plan {
        mode: Mode::Prompt,
        entries: vec![
            entry(1, Op::Open, 0, 7, 0),
            settled,
            entry(5, Op::Close, 63, 0, 12),
            entry(9, Op::Cancel, 0, 0, 3),
        ],
        cuts: vec![4],
        keeps: vec![],
    }
}

/// A tree window of four rows with token ids, wanted whole.
fn tree() -> Plan {
    let window = Entry {
        want: Want::All,
        accepted: 1,
        parents: Some(vec![ROOT, 0, 0, 2]),
        tokens: Some(vec![11, 12, 13, 14]),
        ..entry(3, Op::Continue, 100, 4, 50)
    };
    Plan { entries: vec![window], ..Plan::default() }
}

/// A stream from a kept state, a save and a drop.
fn resume() -> Plan {
    let keep = |key, stream, position, op| Keep {
        key,
        stream: StreamId(stream),
        position,
        op,
        held: true,
    };
    Plan {
        mode: Mode::Prompt,
        entries: vec![
            Entry { resume: 64, ..entry(1, Op::Resume, 64, 3, 0) },
            Entry { accepted: 1, ..entry(2, Op::Continue, 128, 0, 7) },
        ],
        cuts: vec![],
        keeps: vec![
            keep(0xfeed, 1, 64, KeepOp::Restore),
            keep(0xbeef, 2, 128, KeepOp::Save),
            keep(0xdead, 0, 0, KeepOp::Drop),
        ],
    }
}

fn good() -> Vec<Case> {
    let mut cases = Cases::of("plan");
    let bytes = |plan: &Plan| plan.encode().unwrap();
    cases.good("keep_alive", "no streams: a legal round", bytes(&Plan::default()));
    let round = bytes(&round());
    assert_eq!(round.len(), 140);
    cases.good("round", "open, continue, close, cancel, one cut", round);
    cases.good("tree", "a tree window with token ids", bytes(&tree()));
    cases.good("resume", "restore, save and drop", bytes(&resume()));
    let mut echo = resume();
    echo.keeps[1].held = false;
    cases.good("echo", "a stage could not save", bytes(&echo));
    cases.list
}

fn bad_heads() -> Vec<Case> {
    let mut cases = Cases::of("plan");
    let good = round().encode().unwrap();
    cases.pokes(
        &good,
        0,
        "
        magic           | BadMagic     | another magic                  | 0  | 42415446
        other_version   | OtherVersion | version 2                      | 4  | 02
        describe        | OtherMessage | a describe in a plan frame     | 6  | 01
        prefix_reserved | BadReserved  | byte 7 is 1                    | 7  | 01
        streams         | Truncated    | 2^32-1 streams                 | 8  | ffffffff
        fewer_streams   | OtherRows    | none, but 8 rows               | 8  | 00
        rows            | OtherRows    | 9 rows, but the streams have 8 | 12 | 09
        cuts            | Truncated    | 2^32-1 cuts                    | 16 | ffffffff
        fewer_cuts      | Trailing     | no cuts, but four bytes        | 16 | 00
        mode            | BadMode      | mode 2                         | 20 | 02
        reserved        | BadReserved  | byte 21 is 1                   | 21 | 01
        keeps           | TooLarge     | 4097 keeps                     | 22 | 0110
        keeps_cut       | Truncated    | 4096 keeps, none there         | 22 | 0010
    ",
    );
    cases.bad("short_head", "Truncated", "23 bytes", good[..23].to_vec());
    cases.bad("truncated", "Truncated", "one byte short", cut(&good, 1));
    cases.bad("trailing", "Trailing", "one byte too many", grow(&good, &[0]));
    cases.list
}

fn bad_entries() -> Vec<Case> {
    let mut cases = Cases::of("plan");
    let good = round().encode().unwrap();
    let at = |stream: usize, offset: usize| ENTRY + stream * ENTRY_BYTES + offset;
    let poke_at = |stream, offset, new: &[u8]| poke(&good, at(stream, offset), new);
    cases.pokes(
        &good,
        ENTRY,
        "
        same_id         | BadOrder    | stream 1 twice          | 28 | 01
        descending_id   | BadOrder    | stream 0 after 1        | 28 | 00
        no_op           | BadOp       | op 0                    | 4  | 00
        op_6            | BadOp       | op 6                    | 4  | 06
        flag_2          | BadFlags    | flag bit 2              | 5  | 04
        want_3          | BadWant     | want 3                  | 6  | 03
        stream_reserved | BadReserved | byte 7 of an entry      | 7  | 01
        open_first      | BadOpen     | an open at position 1   | 8  | 01
        open_accepted   | BadOpen     | an open that settles    | 16 | 01
        open_generation | BadOpen     | an open of generation 1 | 24 | 01
        open_resume     | BadResume   | an open that resumes    | 20 | 01
        far_rows        | OtherRows   | past the last position  | 36 | ffffffff
    ",
    );
    let close = poke(&poke_at(2, 12, &[1]), 12, &[9]);
    cases.bad("close_rows", "OtherRows", "a close with a row", close);
    let cancel = poke(&poke_at(3, 12, &[1]), 12, &[9]);
    cases.bad("cancel_rows", "OtherRows", "a cancel with a row", cancel);
    let many = poke(&poke_at(1, 12, &[0, 0, 0x20]), 12, &[7, 0, 0x20]);
    cases.bad("many_rows", "TooLarge", "2^21 rows", many);
    cases.list
}

fn bad_tails() -> Vec<Case> {
    let mut cases = Cases::of("plan");
    let good = round().encode().unwrap();
    let last = good.len() - 4;
    cases.pokes(
        &good,
        last,
        "
        cut_0 | BadCuts | a cut before the first row | 0 | 00
        cut_8 | BadCuts | a cut after the last row   | 0 | 08
    ",
    );
    let two = Plan { cuts: vec![4, 5], ..round() }.encode().unwrap();
    cases.pokes(
        &two,
        two.len() - 4,
        "
        cut_twice | BadCuts | 4, then 4 | 0 | 04
    ",
    );
    let tree = tree().encode().unwrap();
    let parents = ENTRY + ENTRY_BYTES;
    cases.pokes(
        &tree,
        parents,
        "
        own_parent   | BadParent | row 1 is its own parent | 2 | 01
        late_parent  | BadParent | row 2 hangs on row 3    | 4 | 03
        first_parent | BadParent | row 0 hangs on 0        | 0 | 0000
    ",
    );
    cases.bad("tokens_cut", "Truncated", "a token is missing", cut(&tree, 4));
    cases.pokes(
        &tree,
        ENTRY,
        "
        tokens_none | Trailing | no flag, but tokens | 5 | 01
    ",
    );
    cases.list
}

fn bad_keeps() -> Vec<Case> {
    let mut cases = Cases::of("plan");
    let resume = resume().encode().unwrap();
    let keeps = ENTRY + 2 * ENTRY_BYTES;
    cases.pokes(
        &resume,
        ENTRY,
        "
        resume_0     | BadResume | resume 0            | 20 | 00
        resume_first | BadResume | resume 65, first 64 | 20 | 41
    ",
    );
    cases.pokes(
        &resume,
        keeps,
        "
        no_restore     | NoSuchKeep  | a save instead     | 16 | 01
        other_stream   | NoSuchKeep  | stream 2's restore | 8  | 02
        other_position | NoSuchKeep  | restored at 65     | 12 | 41
        keep_op        | BadKeep     | keep op 4          | 16 | 04
        keep_status    | BadKeep     | status 2           | 17 | 02
        keep_reserved  | BadReserved | byte 23 of a keep  | 23 | 01
    ",
    );
    cases.list
}
