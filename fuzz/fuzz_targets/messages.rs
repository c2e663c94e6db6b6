//! Every message alone: what decodes encodes to the same bytes and decodes to the same value. Plans
//! then go to a stage's table, descriptions to rank 0's check.
#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;
use stage::Slots;
use wire::WireError;
use wire::beat::Beat;
use wire::call::{Call, Report};
use wire::cancel::Cancel;
use wire::control::{Describe, Fields, Message};
use wire::describe::RowDtype;
use wire::hello::{Answer, Hello};
use wire::layout::Layout;
use wire::measure::Measure;
use wire::plan::Plan;
use wire::preamble::{self, Cipher};
use wire::ring_check::{Expected, check_ring};
use wire::stop::Stop;
use wire::tally::Tally;

/// The decoders, as the golden manifest names them; an input's first byte chooses.
const DECODERS: [&str; 13] = [
    "preamble", "hello", "answer", "control", "plan", "rows", "stop", "beat", "cancel", "call",
    "report", "tally", "measure",
];

fuzz_target!(
    init: baton_fuzz::plant(baton_fuzz::wire(&DECODERS).into_iter().map(|(decoder, mut bytes)| {
        let at = DECODERS.iter().position(|name| *name == decoder);
        bytes.insert(0, at.unwrap_or_default() as u8);
        bytes
    })),
    |data: &[u8]| {
        let Some((choice, bytes)) = baton_fuzz::choice(data) else {
            return;
        };
        match DECODERS[usize::from(choice) % DECODERS.len()] {
            "preamble" => greet(bytes),
            "hello" => same(bytes, Hello::decode, Hello::encode, meet),
            "answer" => same(bytes, Answer::decode, Answer::encode, |answer| meet(&answer.hello)),
            "control" => same(bytes, Message::decode, Message::encode, control),
            "plan" => same(bytes, Plan::decode, Plan::encode, apply),
            "rows" => rows(bytes),
            "stop" => same(bytes, Stop::decode, |stop| Ok(stop.encode()), |_| {}),
            "beat" => same(bytes, Beat::decode, |beat| Ok(beat.encode().to_vec()), |_| {}),
            "call" => call(bytes),
            "report" => same(bytes, Report::decode, |report| Ok(report.encode()), |_| {}),
            "measure" => same(bytes, Measure::decode, |it| Ok(it.encode().to_vec()), |_| {}),
            "tally" => same(bytes, Tally::decode, |it| Ok(it.encode().to_vec()), |_| {}),
            _ => same(bytes, Cancel::decode, |cancel| Ok(cancel.encode().to_vec()), |_| {}),
        }
    }
);

/// Decodes, and if that works: encodes to the same bytes, decodes to the same value, and uses it.
fn same<T: PartialEq + std::fmt::Debug>(
    bytes: &[u8],
    decode: impl Fn(&[u8]) -> Result<T, WireError>,
    encode: impl Fn(&T) -> Result<Vec<u8>, WireError>,
    then: impl FnOnce(&T),
) {
    match decode(bytes) {
        Ok(value) => {
            let again = encode(&value).expect("what was decoded can be encoded");
            assert_eq!(again, bytes, "{value:?} encodes to other bytes");
            assert_eq!(decode(&again).as_ref(), Ok(&value));
            then(&value);
        }
        Err(error) => assert!(error.to_string().len() < 16 << 10, "a long error"),
    }
}

fn greet(bytes: &[u8]) {
    let Some(theirs) = bytes.first_chunk() else {
        return;
    };
    for cipher in [Cipher::ChaChaPoly, Cipher::AesGcm] {
        let taken = preamble::check(cipher, theirs).is_ok();
        assert_eq!(taken, *theirs == preamble::encode(cipher));
    }
}

/// Both ends of a link with this peer.
fn meet(peer: &Hello) {
    let answer = Answer { hello: *peer, refusal: OWN.refuse(peer) };
    let bytes = answer.encode().expect("a refusal fits message 2");
    assert_eq!(Answer::decode(&bytes), Ok(answer));
}

static OWN: LazyLock<Hello> = LazyLock::new(|| Hello {
    rank: arith::base::Rank(1),
    world: 3,
    role: wire::hello::Role::Acceptor,
    epoch: arith::base::Epoch(5),
    fingerprint: [7; 32],
    encryption: wire::hello::Encryption::On,
});

fn control(message: &Message) {
    match message {
        Message::Describe(describe) => describe_ring(describe),
        Message::Fields(fields) => compare(fields),
        Message::Agree(agree) => compare(&agree.settings),
        _ => {}
    }
}

/// Rank 0 hears the same description from every rank.
fn describe_ring(describe: &Describe) {
    let Ok(layout) = Layout::even(describe.range.end, describe.world.min(describe.range.end))
    else {
        return;
    };
    let described = vec![describe.clone(); describe.world as usize];
    let expected = Expected {
        layout: &layout,
        layers: describe.range.end,
        engine: &describe.engine,
        arith: describe.arith,
        mixed: false,
        hidden: describe.hidden,
        planes: describe.planes,
        row_dtype: RowDtype::F32,
        kv: describe.kv,
        context_min: 64,
        streams_min: 1,
        layer_digests: &[],
        ends: None,
    };
    let accepted = check_ring(&described, &expected).is_ok();
    assert!(!accepted || describe.world == 1, "ranks that hold the same layers");
}

fn compare(fields: &Fields) {
    assert_eq!(fields.first_difference(fields), None);
    let none = Fields::new();
    assert_eq!(fields.first_difference(&none).is_some(), !fields.is_empty());
    assert_eq!(fields.digest() == none.digest(), fields.is_empty());
}

/// A stage's table takes the plan twice; a refusal changes nothing.
fn apply(plan: &Plan) {
    assert!(plan.echoes(plan));
    let rows = plan.rows();
    assert!(plan.wanted().iter().all(|&row| row < rows));
    let mut slots = Slots::new(stage::Shapes {
        chunk_rows_max: 256,
        round_rows_max: 512,
        streams_max: 16,
        context_max: 1024,
        pages: 64,
    });
    for _ in 0..2 {
        let before = (slots.table(), slots.pages_free());
        match slots.apply(plan) {
            Ok(_) => {
                let held: u32 = slots.table().iter().map(|slot| slot.pages).sum();
                assert_eq!(held + slots.pages_free(), 64, "a page was lost or made");
            }
            Err(_) => assert_eq!((slots.table(), slots.pages_free()), before),
        }
    }
}

/// A call's values may be NaN, so bytes are compared, not values.
fn call(bytes: &[u8]) {
    if let Ok(call) = Call::decode(bytes) {
        assert_eq!(call.encode().expect("what was decoded can be encoded"), bytes);
        if let Call::Step { plan, .. } = call {
            apply(&plan);
        }
    }
}

fn rows(bytes: &[u8]) {
    for width in [1, 3, usize::MAX] {
        if let Ok(values) = wire::rows::decode(bytes, bytes.len() / 4 / width, width) {
            assert_eq!(wire::rows::encode(&values), bytes);
        }
    }
}
