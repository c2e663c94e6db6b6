//! The golden files' recipe: control messages.

use arith::attention::KvDtype;
use arith::base::Rank;
use wire::control::{Agree, Berths, Describe, Fields, Message, Ready, Shapes};
use wire::describe::{Ends, RowDtype};

use crate::cases::{Case, Cases, cut, grow};

pub fn all() -> Vec<Case> {
    let groups = [describes(), agrees(), readies(), berths(), fields()];
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
        ends: Some(Ends { embedding: [0xee; 32], head: [0xdd; 32] }),
        layer_us: Some(1234),
        ..describe()
    }
}

fn describes() -> Vec<Case> {
    let mut cases = Cases::of("control");
    let good = cases.good("describe", "rank 1 of 3, layers 2:4", describe().encode().unwrap());
    let all = describe_all().encode().unwrap();
    cases.good("describe_all", "rank 0: ends, taps, a measured time", all.clone());
    let first_text = 72;
    cases.pokes(
        &good,
        0,
        "
        magic            | BadMagic     | another magic             | 0  | 54465351
        other_version    | OtherVersion | version 2                 | 4  | 02
        no_message       | OtherMessage | message 7                 | 6  | 07
        plan             | OtherMessage | a plan in a control frame | 6  | 03
        reserved         | BadReserved  | byte 7 is 1               | 7  | 01
        describe_rank    | BadRank      | rank 3 of 3               | 8  | 03
        describe_world   | BadRank      | a world of 65             | 12 | 41
        describe_empty   | BadValue     | layers 4:4                | 20 | 04
        describe_layers  | TooLarge     | layers 2:65540            | 26 | 01
        describe_hidden  | BadValue     | width 0                   | 28 | 00
        describe_planes  | TooLarge     | 17 planes                 | 32 | 11
        describe_dtype   | BadValue     | row dtype 2               | 33 | 02
        describe_kv      | BadValue     | KV dtype 3                | 34 | 03
        describe_ends    | BadValue     | ends 2                    | 35 | 02
        describe_chunk   | BadValue     | chunks of 0 rows          | 36 | 00000000
        describe_rows    | TooLarge     | 2^24 rows a round         | 40 | 00000001
        describe_taps    | TooLarge     | 2^32-1 taps               | 64 | ffffffff
        describe_tap_cut | Truncated    | 256 taps announced        | 65 | 01
    ",
    );
    let tap = all.len() - 4 * 32 - 8;
    cases.pokes(
        &all,
        tap,
        "
        describe_tap_out   | BadValue | layer 2 is rank 1's | 4 | 02
        describe_tap_twice | BadValue | layer 1 twice       | 0 | 01
    ",
    );
    cases.pokes(
        &good,
        first_text,
        "
        describe_text | BadText  | engine not UTF-8 | 2 | ff
        describe_name | TooLarge | an engine of 261 | 1 | 01
    ",
    );
    cases.bad("describe_digest", "Truncated", "half a digest", cut(&good, 16));
    cases.bad("describe_trailing", "Trailing", "a byte more", grow(&good, &[0]));
    cases.list
}

fn agrees() -> Vec<Case> {
    let mut cases = Cases::of("control");
    let mut settings = Fields::new();
    settings.put("link.encryption", "on").unwrap();
    let agree = Agree { shapes: shapes(), depth: 1, settings };
    let good = Message::Agree(agree).encode().unwrap();
    cases.good("agree", "shapes, depth 1, one setting", good.clone());
    cases.pokes(
        &good,
        0,
        "
        agree_pages    | BadValue  | no pages        | 24 | 00000000
        agree_depth_0  | BadValue  | depth 0         | 28 | 00
        agree_depth_65 | BadValue  | depth 65        | 28 | 41
        agree_count    | Truncated | 2^32-1 settings | 32 | ffffffff
    ",
    );
    cases.bad("agree_truncated", "Truncated", "a value cut short", cut(&good, 1));
    cases.bad("agree_trailing", "Trailing", "a byte more", grow(&good, &[0]));
    cases.list
}

fn readies() -> Vec<Case> {
    let mut cases = Cases::of("control");
    let good = cases.good("ready", "rank 1 is ready", ready());
    cases.pokes(
        &good,
        0,
        "
        ready_rank | BadRank | rank 64 | 8 | 40
    ",
    );
    cases.bad("ready_truncated", "Truncated", "half a rank", cut(&good, 2));
    cases.bad("ready_trailing", "Trailing", "a byte more", grow(&good, &[0]));
    cases.bad("empty", "Truncated", "no payload at all", []);
    cases.list
}

fn berths() -> Vec<Case> {
    let mut cases = Cases::of("control");
    let berths = Berths { rank: Rank(2), offer: std::array::from_fn(|i| i as u8) };
    let good = Message::Berths(berths).encode().unwrap();
    let good = cases.good("berths", "rank 2 has berths", good);
    cases.pokes(
        &good,
        0,
        "
        berths_rank_0  | BadRank | rank 0 has none | 8 | 00
        berths_rank_64 | BadRank | rank 64         | 8 | 40
    ",
    );
    cases.bad("berths_truncated", "Truncated", "half an offer", cut(&good, 64));
    cases.bad("berths_trailing", "Trailing", "a byte more", grow(&good, &[0]));
    cases.list
}

fn fields() -> Vec<Case> {
    let mut cases = Cases::of("control");
    let mut fields = Fields::new();
    cases.good("fields_none", "an empty list", Message::Fields(fields.clone()).encode().unwrap());
    for (name, value) in [("family", "llama"), ("arith", "1"), ("kv", "f16"), ("note", "")] {
        fields.put(name, value).unwrap();
    }
    let good = Message::Fields(fields).encode().unwrap();
    cases.good("fields", "four fields, by ascending name", good.clone());
    cases.pokes(
        &good,
        0,
        "
        fields_order | BadOrder | zrith before family | 14 | 7a
    ",
    );
    let mut twice = Fields::new();
    twice.put("a", "1").unwrap();
    twice.put("b", "2").unwrap();
    let twice = Message::Fields(twice).encode().unwrap();
    cases.pokes(
        &twice,
        0,
        "
        fields_twice | BadOrder | a, then a again | 20 | 61
    ",
    );
    cases.pokes(
        &good,
        0,
        "
        fields_count | Truncated | 2^31 fields                 | 11 | 80
        fields_fewer | Trailing  | three announced, four there | 8  | 03
        fields_name  | TooLarge  | a name of 261 bytes         | 13 | 01
        fields_value | TooLarge  | a value of 8193 bytes       | 20 | 20
        fields_text  | BadText   | a value not UTF-8           | 21 | ff
    ",
    );
    let nameless = grow(&good[..8], &[1, 0, 0, 0, 0, 0, 0, 0]);
    cases.bad("fields_nameless", "BadOrder", "an empty name", nameless);
    cases.list
}
