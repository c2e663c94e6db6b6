//! Tokenizers from metadata.

use proptest::prelude::*;
use serde_json::{Map, json};
use text::{Text, TextError};
use weights::gguf::Header;
use weights::gguf::write::Writer;
use weights::synthetic::{self, byte_char};

use crate::{golden, ids, metadata};

/// A byte-level vocabulary with `merges` and what they make, then the special `<s>` and `</s>`
/// and the user-defined `[x]`.
fn small(
    pre: &str,
    merges: &[&str],
    change: impl FnOnce(&mut Writer) -> &mut Writer,
) -> Result<Text, TextError> {
    let mut tokens: Vec<String> = (0..=255).map(|byte| byte_char(byte).to_string()).collect();
    tokens.extend(merges.iter().map(|merge| merge.replacen(' ', "", 1)));
    let mut types = vec![1; tokens.len()];
    let bos = tokens.len() as u32;
    tokens.extend(["<s>".to_owned(), "</s>".to_owned(), "[x]".to_owned()]);
    types.extend([3, 3, 4]);
    Text::from_metadata(&metadata(|writer| {
        writer
            .string("tokenizer.ggml.model", "gpt2")
            .string("tokenizer.ggml.pre", pre)
            .strings("tokenizer.ggml.tokens", &tokens)
            .i32s("tokenizer.ggml.token_type", &types)
            .strings("tokenizer.ggml.merges", merges)
            .u32("tokenizer.ggml.bos_token_id", bos)
            .u32("tokenizer.ggml.eos_token_id", bos + 1);
        change(writer);
    }))
}

fn nothing(writer: &mut Writer) -> &mut Writer {
    writer
}

/// The tokens of `input` as texts, parted by `|`.
fn cut(text: &Text, input: &str) -> String {
    let ids = text.encode_plain(input).unwrap();
    let parts: Vec<_> =
        ids.iter().map(|id| String::from_utf8_lossy(text.token_bytes(*id))).collect();
    parts.join("|")
}

#[test]
fn the_qwen35_cases_come_out_as_the_reference_has_them() {
    let golden = golden("qwen35-tokenizer/tokenizer.json");
    let strings = |key: &str| -> Vec<String> {
        golden[key].as_array().unwrap().iter().map(|s| s.as_str().unwrap().to_owned()).collect()
    };
    let types: Vec<i32> = ids(&golden["types"]).into_iter().map(|kind| kind as i32).collect();
    let text = Text::from_metadata(&metadata(|writer| {
        writer
            .string("tokenizer.ggml.model", "gpt2")
            .string("tokenizer.ggml.pre", golden["pre"].as_str().unwrap())
            .strings("tokenizer.ggml.tokens", &strings("tokens"))
            .i32s("tokenizer.ggml.token_type", &types)
            .strings("tokenizer.ggml.merges", &strings("merges"));
    }))
    .unwrap();
    for case in golden["cases"].as_array().unwrap() {
        let found = text.encode(case["text"].as_str().unwrap()).unwrap();
        assert_eq!(found, ids(&case["ids"]), "{}", case["text"]);
        let bytes: Vec<u8> = found.iter().flat_map(|&id| text.token_bytes(id)).copied().collect();
        assert_eq!(String::from_utf8(bytes).unwrap(), case["decoded"].as_str().unwrap());
    }
}

#[test]
fn marks_join_letters_in_qwen35_alone_and_both_normalise() {
    // U+0303 after `q` has no composed form: it stays a mark.
    let merges = ["\u{cc} \u{125}", "q \u{cc}\u{125}"];
    let cut = |pre| cut(&small(pre, &merges, nothing).unwrap(), "q\u{303}");
    assert_eq!(cut("qwen35"), "q\u{303}");
    assert_eq!(cut("qwen2"), "q|\u{303}");
    for pre in ["qwen2", "qwen35"] {
        let text = small(pre, &[], nothing).unwrap();
        assert_eq!(text.encode("e\u{301}").unwrap(), text.encode("é").unwrap());
    }
    let plain = small("gpt-2", &[], nothing).unwrap();
    assert_ne!(plain.encode("e\u{301}").unwrap(), plain.encode("é").unwrap());
}

#[test]
fn a_llama_bpe_word_that_is_a_token_is_taken_whole() {
    // `abc` is a token that the merges never reach.
    let merges = ["b c", "a b", "ab c"];
    assert_eq!(cut(&small("gpt-2", &merges, nothing).unwrap(), "abc"), "a|bc");
    assert_eq!(cut(&small("llama-bpe", &merges, nothing).unwrap(), "abc"), "abc");
}

#[test]
fn special_tokens_are_parsed_in_prompts_and_control_tokens_not_in_plain_text() {
    let text = small("gpt-2", &[], nothing).unwrap();
    let (bos, user) = (256, 258);
    assert_eq!(text.encode("a<s>b[x]").unwrap(), [97, bos, 98, user]);
    assert_eq!(text.encode_plain("<s>[x]").unwrap(), [60, 115, 62, user]);
    assert_eq!(text.vocab(), 259);
    assert!(text.is_control(bos) && !text.is_control(user) && !text.is_control(999));
    assert_eq!(text.token_bytes(999), b"");
}

#[test]
fn bos_is_added_once_where_the_checkpoint_asks_for_it() {
    fn add(w: &mut Writer) -> &mut Writer {
        w.bool("tokenizer.ggml.add_bos_token", true)
    }
    let text = small("gpt-2", &[], add).unwrap();
    assert_eq!(text.encode("a").unwrap(), [256, 97]);
    assert_eq!(text.encode("<s>a").unwrap(), [256, 97]);
    assert_eq!(text.encode("").unwrap(), [256]);
    assert_eq!(text.encode_plain("a").unwrap(), [97]);
    assert_eq!(small("gpt-2", &[], nothing).unwrap().encode("a").unwrap(), [97]);
    assert_eq!(small("llama-bpe", &[], nothing).unwrap().encode("a").unwrap(), [256, 97]);
}

#[test]
fn replies_end_at_eos_at_eot_and_at_known_turn_ends() {
    let text = small("gpt-2", &[], |w| w.u32("tokenizer.ggml.eot_token_id", 5));
    assert_eq!(text.unwrap().stop_tokens(), [5, 257]);
    let turn_end = Text::from_metadata(&metadata(|w| {
        w.string("tokenizer.ggml.model", "gpt2")
            .strings("tokenizer.ggml.tokens", &["a", "<|im_end|>", "<|eot_id|>", "<|eot_id|>"])
            .i32s("tokenizer.ggml.token_type", &[1, 3, 1, 4])
            .strings::<&str>("tokenizer.ggml.merges", &[])
            .u32("tokenizer.ggml.eos_token_id", 0);
    }));
    // The ordinary token of that name does not count.
    assert_eq!(turn_end.unwrap().stop_tokens(), [0, 1, 3]);
}

#[test]
fn what_is_not_supported_or_contradicts_itself_is_refused_by_name() {
    #[track_caller]
    fn says(result: Result<Text, TextError>, parts: &[&str]) {
        let said = result.unwrap_err().to_string();
        for part in parts {
            assert!(said.contains(part), "`{part}` is not in: {said}");
        }
    }
    says(small("tekken", &[], nothing), &["pre-tokenizer `tekken`", "smollm, qwen2, qwen35"]);
    says(small("gpt-2", &["a b", "ab zz"], nothing), &["merge 1 (`ab zz`)"]);
    says(
        small("gpt-2", &[], |w| w.u32("tokenizer.ggml.eot_token_id", 259)),
        &["`tokenizer.ggml.eot_token_id`", "below 259, found 259"],
    );
    says(
        Text::from_metadata(&metadata(|w| {
            w.string("tokenizer.ggml.model", "llama");
        })),
        &["tokenizer model `llama`", "`gpt2`"],
    );
    says(Text::from_metadata(&metadata(|_| ())), &["`tokenizer.ggml.model` is missing"]);
    says(
        Text::from_metadata(&metadata(|w| {
            w.string("tokenizer.ggml.model", "gpt2")
                .strings("tokenizer.ggml.tokens", &["a", "b"])
                .i32s("tokenizer.ggml.token_type", &[1]);
        })),
        &["token_type` has 1 items, expected 2"],
    );
}

#[test]
fn a_merge_whose_join_is_no_token_is_refused_and_does_not_overrun() {
    let result = Text::from_metadata(&metadata(|w| {
        w.string("tokenizer.ggml.model", "gpt2")
            .strings("tokenizer.ggml.tokens", &["ab", "cd"])
            .strings("tokenizer.ggml.merges", &["ab cd"]);
    }));
    assert!(result.unwrap_err().to_string().contains("merge 0 (`ab cd`)"));
}

#[test]
fn special_tokens_have_a_limit_together() {
    let special = |bytes: usize| {
        let tokens = ["a".repeat(200 << 10), "b".repeat(bytes), "c".repeat(1 << 20)];
        Text::from_metadata(&metadata(|w| {
            w.string("tokenizer.ggml.model", "gpt2")
                .strings("tokenizer.ggml.tokens", &tokens)
                .i32s("tokenizer.ggml.token_type", &[3, 4, 1])
                .strings::<&str>("tokenizer.ggml.merges", &[]);
        }))
    };
    assert!(special(56 << 10).is_ok());
    let said = special((56 << 10) + 1).unwrap_err().to_string();
    assert!(said.contains("262145 bytes together, more than the limit of 262144"), "{said}");
}

#[test]
fn the_byte_level_tokenizer_is_the_one_of_synthetic_checkpoints() {
    let spec = synthetic::Llama { vocab: 258, ..synthetic::Llama::default() };
    let file = synthetic::llama_writer(&spec).finish();
    let from_file = Text::from_metadata(&Header::parse(&file).unwrap().metadata).unwrap();
    let built_in = Text::byte_level();
    assert_eq!((from_file.vocab(), built_in.vocab()), (258, 258));
    assert_eq!((from_file.stop_tokens(), built_in.stop_tokens()), (&[257][..], &[257][..]));
    let messages = [json!({"role": "user", "content": "héllo\n"})];
    let prompt = built_in.render(&messages, true, &Map::new()).unwrap();
    assert_eq!(prompt, "<|im_start|>user\nhéllo\n<|im_end|>\n<|im_start|>assistant\n");
    assert_eq!(from_file.render(&messages, true, &Map::new()).unwrap(), prompt);
    let ids = built_in.encode(&prompt).unwrap();
    assert_eq!((ids[0], ids[1], ids.len()), (256, u32::from(b'u'), 1 + 12 + 1 + 2 + 9 + 1));
    assert_eq!(from_file.encode(&prompt).unwrap(), ids);
    assert!(built_in.notes().is_empty() && from_file.notes().is_empty());
    assert_eq!(
        small("gpt-2", &[], nothing).unwrap().notes(),
        ["the checkpoint has no chat template: using ChatML"]
    );
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_tokens_of_a_text_spell_it(input in any::<String>()) {
        for pre in ["gpt-2", "smollm", "llama-bpe"] {
            let text = small(pre, &["a b", "\u{120} a"], nothing).unwrap();
            let ids = text.encode_plain(&input).unwrap();
            let bytes: Vec<u8> = ids.iter().flat_map(|&id| text.token_bytes(id)).copied().collect();
            prop_assert_eq!(bytes, input.as_bytes());
        }
    }
}
