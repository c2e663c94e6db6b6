//! The golden files' recipe: control messages.

use arith::attention::KvDtype;
use arith::base::Rank;
use wire::control::{Agree, Describe, Fields, Message, Ready, Shapes};
use wire::describe::{Ends, RowDtype};

use crate::cases::{Case, Cases, cut, grow, poke};

pub fn all() -> Vec<Case> {
    let groups = [describes(), agrees(), readies(), fields()];
    groups.into_iter().flatten().collect()
}

/// A ready message's payload.
pub fn ready() -> Vec<u8> {
    Message::Ready(Ready { rank: Rank(1) }).encode().unwrap()
}

pub fn shapes() -> Shapes {
    Shapes {
        chunk_rows_max: 512,
        round_rows_max: 1024,
        streams_max: 8,
        context_max: 2048,
        pages: 256,
    }
}

/// Rank 1 of 3, layers 2:4.
pub fn describe() -> Describe {
    Describe {
        rank: Rank(1),
        world: 3,
        engine: "0.1.0".into(),
        backend: "cpu".into(),
        arith: 1,
        device: "a 2-core machine".into(),
        range: 2..4,
        hidden: 64,
        planes: 1,
        row_dtype: RowDtype::F32,
        kv: KvDtype::F16,
        shapes: shapes(),
        states: 8,
        taps: vec![],
        drafter_width: 0,
        layers: vec![[2; 32], [3; 32]],
        ends: None,
        layer_us: None,
    }
}

/// Rank 0, with all that is optional.
pub fn describe_all() -> Describe {
    Describe {
        rank: Rank(0),
        range: 0..2,
        kv: KvDtype::F32,
        taps: vec![0, 1],
        drafter_width: 32,
        layers: vec![[0; 32], [1; 32]],
        ends: Some(Ends {
            embedding: [0xee; 32],
            head: [0xdd; 32],
        }),
        layer_us: Some(1234),
        ..describe()
    }
}

fn describes() -> Vec<Case> {
    let mut cases = Cases::of("control");
    let good = cases.good(
        "describe",
        "rank 1 of 3, layers 2:4",
        describe().encode().unwrap(),
    );
    let all = describe_all().encode().unwrap();
    cases.good(
        "describe_all",
        "rank 0: ends, taps, a measured time",
        all.clone(),
    );
    let first_text = 72;
    cases.bad(
        "magic",
        "BadMagic",
        "another magic",
        poke(&good, 0, b"TFSQ"),
    );
    cases.bad(
        "other_version",
        "OtherVersion",
        "version 2",
        poke(&good, 4, &[2]),
    );
    cases.bad(
        "no_message",
        "OtherMessage",
        "message 6",
        poke(&good, 6, &[6]),
    );
    cases.bad(
        "plan",
        "OtherMessage",
        "a plan in a control frame",
        poke(&good, 6, &[3]),
    );
    cases.bad(
        "reserved",
        "BadReserved",
        "byte 7 is 1",
        poke(&good, 7, &[1]),
    );
    cases.bad(
        "describe_rank",
        "BadRank",
        "rank 3 of 3",
        poke(&good, 8, &[3]),
    );
    cases.bad(
        "describe_world",
        "BadRank",
        "a world of 65",
        poke(&good, 12, &[65]),
    );
    cases.bad(
        "describe_empty",
        "BadValue",
        "layers 4:4",
        poke(&good, 20, &[4]),
    );
    cases.bad(
        "describe_layers",
        "TooLarge",
        "layers 2:65540",
        poke(&good, 26, &[1]),
    );
    cases.bad(
        "describe_hidden",
        "BadValue",
        "width 0",
        poke(&good, 28, &[0]),
    );
    cases.bad(
        "describe_planes",
        "TooLarge",
        "17 planes",
        poke(&good, 32, &[17]),
    );
    cases.bad(
        "describe_dtype",
        "BadValue",
        "row dtype 2",
        poke(&good, 33, &[2]),
    );
    cases.bad(
        "describe_kv",
        "BadValue",
        "KV dtype 3",
        poke(&good, 34, &[3]),
    );
    cases.bad("describe_ends", "BadValue", "ends 2", poke(&good, 35, &[2]));
    cases.bad(
        "describe_chunk",
        "BadValue",
        "chunks of 0 rows",
        poke(&good, 36, &[0; 4]),
    );
    cases.bad(
        "describe_rows",
        "TooLarge",
        "2^24 rows a round",
        poke(&good, 40, &[0, 0, 0, 1]),
    );
    cases.bad(
        "describe_taps",
        "TooLarge",
        "2^32-1 taps",
        poke(&good, 64, &[0xff; 4]),
    );
    cases.bad(
        "describe_tap_cut",
        "Truncated",
        "256 taps announced",
        poke(&good, 65, &[1]),
    );
    let tap = all.len() - 4 * 32 - 8;
    cases.bad(
        "describe_tap_out",
        "BadValue",
        "layer 2 is rank 1's",
        poke(&all, tap + 4, &[2]),
    );
    cases.bad(
        "describe_tap_twice",
        "BadValue",
        "layer 1 twice",
        poke(&all, tap, &[1]),
    );
    cases.bad(
        "describe_text",
        "BadText",
        "engine not UTF-8",
        poke(&good, first_text + 2, &[0xff]),
    );
    cases.bad(
        "describe_name",
        "TooLarge",
        "an engine of 261",
        poke(&good, first_text + 1, &[1]),
    );
    cases.bad(
        "describe_digest",
        "Truncated",
        "half a digest",
        cut(&good, 16),
    );
    cases.bad(
        "describe_trailing",
        "Trailing",
        "a byte more",
        grow(&good, &[0]),
    );
    cases.list
}

fn agrees() -> Vec<Case> {
    let mut cases = Cases::of("control");
    let mut settings = Fields::new();
    settings.put("link.encryption", "on").unwrap();
    let agree = Agree {
        shapes: shapes(),
        depth: 1,
        settings,
    };
    let good = Message::Agree(agree).encode().unwrap();
    cases.good("agree", "shapes, depth 1, one setting", good.clone());
    cases.bad(
        "agree_pages",
        "BadValue",
        "no pages",
        poke(&good, 24, &[0; 4]),
    );
    cases.bad(
        "agree_depth_0",
        "BadValue",
        "depth 0",
        poke(&good, 28, &[0]),
    );
    cases.bad(
        "agree_depth_65",
        "BadValue",
        "depth 65",
        poke(&good, 28, &[65]),
    );
    cases.bad(
        "agree_count",
        "Truncated",
        "2^32-1 settings",
        poke(&good, 32, &[0xff; 4]),
    );
    cases.bad(
        "agree_truncated",
        "Truncated",
        "a value cut short",
        cut(&good, 1),
    );
    cases.bad(
        "agree_trailing",
        "Trailing",
        "a byte more",
        grow(&good, &[0]),
    );
    cases.list
}

fn readies() -> Vec<Case> {
    let mut cases = Cases::of("control");
    let good = cases.good("ready", "rank 1 is ready", ready());
    cases.bad("ready_rank", "BadRank", "rank 64", poke(&good, 8, &[64]));
    cases.bad("ready_truncated", "Truncated", "half a rank", cut(&good, 2));
    cases.bad(
        "ready_trailing",
        "Trailing",
        "a byte more",
        grow(&good, &[0]),
    );
    cases.bad("empty", "Truncated", "no payload at all", []);
    cases.list
}

fn fields() -> Vec<Case> {
    let mut cases = Cases::of("control");
    let mut fields = Fields::new();
    cases.good(
        "fields_none",
        "an empty list",
        Message::Fields(fields.clone()).encode().unwrap(),
    );
    for (name, value) in [
        ("family", "llama"),
        ("arith", "1"),
        ("kv", "f16"),
        ("note", ""),
    ] {
        fields.put(name, value).unwrap();
    }
    let good = Message::Fields(fields).encode().unwrap();
    cases.good("fields", "four fields, by ascending name", good.clone());
    cases.bad(
        "fields_order",
        "BadOrder",
        "zrith before family",
        poke(&good, 14, b"z"),
    );
    let mut twice = Fields::new();
    twice.put("a", "1").unwrap();
    twice.put("b", "2").unwrap();
    let twice = Message::Fields(twice).encode().unwrap();
    cases.bad(
        "fields_twice",
        "BadOrder",
        "a, then a again",
        poke(&twice, 20, b"a"),
    );
    cases.bad(
        "fields_count",
        "Truncated",
        "2^31 fields",
        poke(&good, 11, &[0x80]),
    );
    cases.bad(
        "fields_fewer",
        "Trailing",
        "three announced, four there",
        poke(&good, 8, &[3]),
    );
    cases.bad(
        "fields_name",
        "TooLarge",
        "a name of 261 bytes",
        poke(&good, 13, &[1]),
    );
    cases.bad(
        "fields_value",
        "TooLarge",
        "a value of 8193 bytes",
        poke(&good, 20, &[0x20]),
    );
    cases.bad(
        "fields_text",
        "BadText",
        "a value not UTF-8",
        poke(&good, 21, &[0xff]),
    );
    let nameless = grow(&good[..8], &[1, 0, 0, 0, 0, 0, 0, 0]);
    cases.bad("fields_nameless", "BadOrder", "an empty name", nameless);
    cases.list
}
