//! Replies: tokens to text, and stop strings in it.

use proptest::prelude::*;
use text::Text;
use text::stop::{Piece, StopStrings};
use tokenizers::Decoder;
use tokenizers::decoders::byte_level::ByteLevel;
use weights::synthetic::byte_char;

fn stream(text: &Text, ids: &[u32]) -> Vec<String> {
    let mut detokenizer = text.detokenizer();
    let mut pieces: Vec<String> = ids.iter().map(|&id| detokenizer.push(id)).collect();
    pieces.push(detokenizer.finish());
    pieces
}

fn bytes(text: &str) -> Vec<u32> {
    text.bytes().map(u32::from).collect()
}

#[test]
fn a_character_appears_with_its_last_byte() {
    let text = Text::byte_level();
    assert_eq!(stream(&text, &bytes("aé🙂b")), ["a", "", "é", "", "", "", "🙂", "b", ""]);
}

#[test]
fn control_tokens_are_left_out_even_inside_a_character() {
    let text = Text::byte_level();
    assert_eq!(stream(&text, &[256, 0xc3, 257, 0xa9, 999]), ["", "", "", "é", "", ""]);
}

#[test]
fn bytes_that_can_be_no_character_are_replaced_once_that_is_certain() {
    let text = Text::byte_level();
    assert_eq!(stream(&text, &[0xff, 97]), ["\u{fffd}", "a", ""]);
    assert_eq!(stream(&text, &[0xf0, 0x9f, 97]), ["", "", "\u{fffd}a", ""]);
    assert_eq!(stream(&text, &[0xf0, 0x9f]), ["", "", "\u{fffd}"]);
    assert_eq!(stream(&text, &[0xc3, 0xc3, 0xa9]), ["", "\u{fffd}", "é", ""]);
}

#[test]
fn byte_tokens_stand_for_their_byte_and_odd_tokens_for_themselves() {
    let text = Text::from_metadata(&crate::metadata(|w| {
        w.string("tokenizer.ggml.model", "gpt2")
            .strings("tokenizer.ggml.tokens", &["<0xC3>", "<0xA9>", "日\u{120}", "\u{120}a"])
            .i32s("tokenizer.ggml.token_type", &[6, 6, 4, 1])
            .strings::<&str>("tokenizer.ggml.merges", &[]);
    }))
    .unwrap();
    assert_eq!(stream(&text, &[0, 1, 2, 3]), ["", "é", "日\u{120}", " a", ""]);
}

proptest! {
    #[test]
    fn the_pieces_are_the_whole_as_the_tokenizer_library_decodes_it(
        ids in prop::collection::vec(
            prop_oneof![0u32..258, Just(0xf0), Just(0x9f), Just(0xe2)], 0..40),
        spelt in "[aé日🙂 ]{0,6}",
    ) {
        let text = Text::byte_level();
        let ids: Vec<u32> = ids.into_iter().chain(bytes(&spelt)).collect();
        let shown = ids.iter().filter(|&&id| id < 256);
        let tokens = shown.map(|&id| byte_char(id as u8).to_string()).collect();
        let whole = ByteLevel::default().decode_chain(tokens).unwrap().concat();
        prop_assert_eq!(stream(&text, &ids).concat(), whole);
    }
}

fn piece(text: &str, hit: bool) -> Piece {
    Piece { text: text.to_owned(), hit }
}

fn stops(stops: &[&str]) -> StopStrings {
    StopStrings::new(stops.iter().map(|&stop| stop.to_owned()).collect())
}

#[test]
fn a_tail_that_may_begin_a_stop_string_is_held_back_until_it_does_not() {
    let mut stop = stops(&["END", "<|x|>"]);
    assert_eq!(stop.push("one E"), piece("one ", false));
    assert_eq!(stop.push("N"), piece("", false));
    assert_eq!(stop.push("E<"), piece("ENE", false));
    assert_eq!(stop.push("|x|>never"), piece("", true));
    assert_eq!(stop.push("more"), piece("", true));
    assert_eq!(stop.finish(), "");
}

#[test]
fn all_that_may_begin_a_stop_string_is_held_not_just_its_last_character() {
    let mut stop = stops(&["aab"]);
    assert_eq!(stop.push("aaa"), piece("a", false));
    assert_eq!(stop.push("b"), piece("", true));
}

#[test]
fn what_is_held_back_at_the_end_is_shown() {
    let mut stop = stops(&["END"]);
    assert_eq!(stop.push("THE EN"), piece("THE ", false));
    assert_eq!(stop.finish(), "EN");
}

#[test]
fn the_stop_string_that_is_complete_first_counts_and_the_longest_of_equals() {
    assert_eq!(stops(&["bcd", "c"]).push("abcd"), piece("ab", true));
    assert_eq!(stops(&["c", "abc", "bc"]).push("xabc"), piece("x", true));
    assert_eq!(stops(&["aab"]).push("aaab"), piece("a", true));
    assert_eq!(stops(&["", "é"]).push("caf\u{e9}"), piece("caf", true));
    assert_eq!(stops(&[]).push("abc"), piece("abc", false));
}

/// The text before the stop string that is complete first, by trying every end.
fn before_stop(text: &str, stops: &[String]) -> (String, bool) {
    for end in 0..=text.len() {
        let starts = stops.iter().filter(|stop| text.as_bytes()[..end].ends_with(stop.as_bytes()));
        if let Some(longest) = starts.map(String::len).max() {
            return (text[..end - longest].to_owned(), true);
        }
    }
    (text.to_owned(), false)
}

proptest! {
    #[test]
    fn the_cut_into_pieces_changes_nothing_and_nothing_shown_is_taken_back(
        pieces in prop::collection::vec("[abé]{0,4}", 0..12),
        strings in prop::collection::vec("[abé]{1,4}", 0..4),
    ) {
        let mut stop = StopStrings::new(strings.clone());
        let (mut shown, mut hit) = (String::new(), false);
        for text in &pieces {
            let piece = stop.push(text);
            prop_assert!(!hit || piece == self::piece("", true));
            shown.push_str(&piece.text);
            hit = piece.hit;
        }
        shown.push_str(&stop.finish());
        prop_assert_eq!((shown, hit), before_stop(&pieces.concat(), &strings));
    }
}
