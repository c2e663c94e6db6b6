//! Hostile headers: refused before anything large is allocated, never a panic.

use baton_weights::gguf::{Array, Header, Value, limits};
use baton_weights::synthetic::{self, Llama};
use proptest::prelude::*;

/// A header by hand: magic, version, counts, then `rest`.
fn header(tensors: u64, keys: u64, rest: &[u8]) -> Vec<u8> {
    let mut out = b"GGUF\x03\0\0\0".to_vec();
    out.extend(tensors.to_le_bytes());
    out.extend(keys.to_le_bytes());
    out.extend(rest);
    out
}

/// A key and the type of its value.
fn key(name: &str, kind: u32) -> Vec<u8> {
    let mut out = (name.len() as u64).to_le_bytes().to_vec();
    out.extend(name.as_bytes());
    out.extend(kind.to_le_bytes());
    out
}

/// An array's item type and count.
fn array(kind: u32, items: u64) -> Vec<u8> {
    [kind.to_le_bytes().as_slice(), &items.to_le_bytes()].concat()
}

fn said(bytes: &[u8]) -> String {
    Header::parse(bytes).unwrap_err().to_string()
}

#[track_caller]
fn over_limit(bytes: &[u8], what: &str, limit: u64) {
    let said = said(bytes);
    assert!(said.contains(what) && said.contains(&format!("limit of {limit}")), "{said}");
}

#[test]
fn counts_above_their_limits_are_refused_by_name() {
    over_limit(&header(limits::TENSORS_MAX + 1, 0, &[]), "tensor count", limits::TENSORS_MAX);
    over_limit(&header(u64::MAX, 0, &[]), "tensor count", limits::TENSORS_MAX);
    over_limit(&header(0, limits::KEYS_MAX + 1, &[]), "key count", limits::KEYS_MAX);
    let long = 257u64.to_le_bytes();
    over_limit(&header(0, 1, &[&long[..], &[0; 300]].concat()), "metadata key 0", 256);
    over_limit(&header(1, 0, &[&long[..], &[0; 300]].concat()), "name of tensor 0", 256);
    let string = [key("k", 8), u64::MAX.to_le_bytes().to_vec()].concat();
    over_limit(&header(0, 1, &string), "the value of `k`", limits::STRING_BYTES_MAX);
    let items = [key("k", 9), array(8, u64::MAX)].concat();
    over_limit(&header(0, 1, &items), "item count of `k`", limits::ARRAY_ITEMS_MAX);
    let nested = [key("k", 9), array(9, 1), array(9, 1), array(4, 0)].concat();
    over_limit(&header(0, 1, &nested), "nesting of `k`", u64::from(limits::NESTING_MAX));
    let dims = [&1u64.to_le_bytes()[..], b"t", &5u32.to_le_bytes(), &[1; 64]].concat();
    over_limit(&header(1, 0, &dims), "dim count of tensor `t`", 4);
    let dim = [&1u64.to_le_bytes()[..], b"t", &1u32.to_le_bytes(), &[0xff; 24]].concat();
    over_limit(&header(1, 0, &dim), "a dim of tensor `t`", limits::DIM_MAX);
}

#[test]
fn counts_within_their_limits_are_still_held_against_the_bytes_left() {
    for (bytes, what) in [
        (header(limits::TENSORS_MAX, 0, &[]), "the tensor count"),
        (header(0, limits::KEYS_MAX, &[]), "the metadata key count"),
        (
            header(0, 1, &[key("k", 9), array(8, limits::ARRAY_ITEMS_MAX)].concat()),
            "the item count of `k`",
        ),
        (
            header(0, 1, &[key("k", 9), array(12, limits::ARRAY_ITEMS_MAX)].concat()),
            "the item count of `k`",
        ),
        (
            header(0, 1, &[key("k", 9), array(9, limits::ARRAY_ITEMS_MAX)].concat()),
            "the item count of `k`",
        ),
    ] {
        let said = said(&bytes);
        assert!(said.contains("the file ends inside") && said.contains(what), "{said}");
    }
}

#[test]
fn what_is_malformed_is_named() {
    for (bytes, part) in [
        (b"GGUF\x01\0\0\0".to_vec(), "version 1"),
        (b"GGUF\0\0\0\x03".to_vec(), "version 50331648"),
        (header(0, 1, &[key("k", 13), vec![0; 8]].concat()), "`k` has the unknown value type 13"),
        (header(0, 1, &[key("k", 9), array(13, 0)].concat()), "unknown value type 13"),
        (
            header(0, 2, &[key("k", 7), vec![1], key("k", 7), vec![1]].concat()),
            "metadata key `k` occurs twice",
        ),
        (
            header(0, 1, &[&1u64.to_le_bytes()[..], &[0xff; 8]].concat()),
            "metadata key 0 is not valid UTF-8",
        ),
        (
            header(0, 1, &[key("general.alignment", 4), 33u32.to_le_bytes().to_vec()].concat()),
            "expected a power of two up to 65536, found 33",
        ),
        (
            header(1, 0, &[&1u64.to_le_bytes()[..], b"t", &1u32.to_le_bytes(), &[0; 20]].concat()),
            "tensor `t` has the dims [0]",
        ),
    ] {
        let said = said(&bytes);
        assert!(said.contains(part), "`{part}` is not in: {said}");
    }
}

#[test]
fn every_value_type_is_read_and_version_2_too() {
    let mut rest = Vec::new();
    let mut pair = |name: &str, kind: u32, bytes: &[u8]| {
        rest.extend(key(name, kind));
        rest.extend(bytes);
    };
    pair("u8", 0, &[200]);
    pair("i8", 1, &[0xfe]);
    pair("u16", 2, &60_000u16.to_le_bytes());
    pair("i16", 3, &(-5i16).to_le_bytes());
    pair("u32", 4, &4_000_000_000u32.to_le_bytes());
    pair("i32", 5, &(-6i32).to_le_bytes());
    pair("f32", 6, &0.5f32.to_le_bytes());
    pair("bool", 7, &[1]);
    pair("string", 8, b"\x02\0\0\0\0\0\0\0ab");
    pair("array", 9, &[array(3, 2), vec![1, 0, 0xff, 0xff]].concat());
    pair("u64", 10, &u64::MAX.to_le_bytes());
    pair("i64", 11, &(-7i64).to_le_bytes());
    pair("f64", 12, &0.1f64.to_le_bytes());
    pair("arrays", 9, &[array(9, 1), array(7, 1), vec![1]].concat());
    let mut bytes = header(0, 14, &rest);
    bytes[4] = 2;
    let parsed = Header::parse(&bytes).unwrap();
    assert_eq!((parsed.version, parsed.data_at % 32), (2, 0));
    let m = &parsed.metadata;
    assert_eq!(m.get("u8"), Some(&Value::Unsigned(200)));
    assert_eq!(m.get("i8"), Some(&Value::Signed(-2)));
    assert_eq!(m.u32("u16").unwrap(), Some(60_000));
    assert_eq!(m.get("i16"), Some(&Value::Signed(-5)));
    assert_eq!(m.u32("u32").unwrap(), Some(4_000_000_000));
    assert_eq!(m.get("i32"), Some(&Value::Signed(-6)));
    assert_eq!(m.f32("f32").unwrap(), Some(0.5));
    assert_eq!(m.bool("bool").unwrap(), Some(true));
    assert_eq!(m.str("string").unwrap(), Some("ab"));
    assert_eq!(m.i32s("array").unwrap(), Some(vec![1, -1]));
    assert_eq!(m.get("u64"), Some(&Value::Unsigned(u64::MAX)));
    assert_eq!(m.get("i64"), Some(&Value::Signed(-7)));
    assert_eq!(m.f64("f64").unwrap(), Some(0.1));
    let Some(Value::Array(Array::Arrays(items))) = m.get("arrays") else { panic!("no arrays") };
    assert_eq!(items.len(), 1);
    assert_eq!(m.str("absent").unwrap(), None);
    for wrong in [m.u32("u64").unwrap_err(), m.u32("i8").unwrap_err(), m.u32("f32").unwrap_err()] {
        assert!(wrong.to_string().contains("expected an unsigned integer below 2^32"), "{wrong}");
    }
    assert!(m.i32s("arrays").is_err() && m.strings("array").is_err() && m.bool("u8").is_err());
}

fn valid() -> Vec<u8> {
    let spec = Llama { layers: 1, hidden: 32, intermediate: 32, vocab: 258, ..Llama::default() };
    let mut bytes = synthetic::llama_writer(&spec).finish();
    bytes.truncate(Header::parse(&bytes).unwrap().data_at as usize);
    bytes
}

#[test]
fn a_header_cut_anywhere_is_refused_and_never_half_read() {
    let bytes = valid();
    let infos_end = bytes.iter().rposition(|&b| b != 0).unwrap();
    for cut in 0..infos_end {
        assert!(Header::parse(&bytes[..cut]).is_err(), "cut at {cut}");
    }
    assert!(Header::parse(&bytes).is_ok());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn a_mutated_header_never_panics(
        edits in prop::collection::vec((0usize..20_000, any::<u8>()), 1..8),
        wide in prop::option::of((0usize..20_000, any::<u64>())),
    ) {
        let mut bytes = valid();
        let length = bytes.len();
        for (at, value) in edits {
            bytes[at % length] = value;
        }
        if let Some((at, value)) = wide {
            let at = at % (length - 8);
            bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        if let Ok(header) = Header::parse(&bytes) {
            // What was read came from bytes that are there.
            prop_assert!(header.tensors.len() * 24 <= length);
            prop_assert!(header.data_at <= (length as u64).next_multiple_of(header.alignment));
        }
    }

    #[test]
    fn noise_after_the_magic_never_panics(noise in prop::collection::vec(any::<u8>(), 0..512)) {
        let _ = Header::parse(&[b"GGUF\x03\0\0\0", noise.as_slice()].concat());
    }
}
