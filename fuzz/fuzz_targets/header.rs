//! A GGUF header of any bytes, and the tokenizer and template that its metadata make; and the
//! manifest beside a file.
#![no_main]

use arith::format::Format;
use libfuzzer_sys::fuzz_target;
use text::Text;
use weights::Manifest;
use weights::gguf::write::Writer;
use weights::gguf::{Header, limits};

fuzz_target!(init: baton_fuzz::plant(seeds()), |data: &[u8]| {
    if data.starts_with(b"{") {
        return list(data);
    }
    match Header::parse(data) {
        Ok(header) => {
            assert!(header.tensors.len() as u64 <= limits::TENSORS_MAX);
            // One in sixteen: the patterns of a tokenizer take milliseconds to compile.
            let sum = data.iter().fold(0u8, |sum, &byte| sum.wrapping_add(byte));
            if sum.is_multiple_of(16)
                && let Ok(text) = Text::from_metadata(&header.metadata)
            {
                speak(&text);
            }
        }
        Err(error) => assert!(error.to_string().len() < 4 << 10, "a long error"),
    }
});

/// Short ones, so that most changes hit a count, a length or a type.
fn seeds() -> Vec<Vec<u8>> {
    let mut plain = Writer::new();
    plain
        .string("a", "b")
        .u32("general.alignment", 32)
        .f32("c", 1.0)
        .bool("d", true)
        .strings("e", &["f", "g"])
        .i32s("h", &[1, 2])
        .tensor("i", Format::F32, &[2, 1], &[0; 8]);
    let mut tokenizer = Writer::new();
    tokenizer
        .string("tokenizer.ggml.model", "gpt2")
        .string("tokenizer.ggml.pre", "qwen2")
        .strings("tokenizer.ggml.tokens", &["a", "b", "ab", "<s>", "<0x0A>"])
        .i32s("tokenizer.ggml.token_type", &[1, 1, 1, 3, 6])
        .strings("tokenizer.ggml.merges", &["a b"])
        .u32("tokenizer.ggml.eos_token_id", 3)
        .bool("tokenizer.ggml.add_bos_token", false)
        .string("tokenizer.chat_template", "{{ messages[0].content }}");
    let manifest = r#"{"version": 1, "file": "a.gguf", "tensors": [{"name": "b", "dtype": "Q8_0",
        "shape": [2, 32], "sha256": "HEX"}]}"#;
    let manifest = manifest.replace("HEX", &"0f".repeat(32));
    vec![plain.finish(), tokenizer.finish(), manifest.into_bytes()]
}

/// What reads as a manifest is written and read as the same.
fn list(text: &[u8]) {
    match Manifest::parse(text) {
        Ok(manifest) => {
            let again = Manifest::parse(manifest.to_json().as_bytes());
            assert_eq!(again.ok(), Some(manifest));
        }
        Err(error) => assert!(error.to_string().len() < 4 << 10, "a long error"),
    }
}

/// The tokenizer works, whatever it is.
fn speak(text: &Text) {
    let _ = text.encode("Hello, <|im_start|>w\u{f6}rld 123!");
    let mut reply = text.detokenizer();
    for id in [0, 1, 255, 256, u32::MAX] {
        reply.push(id);
    }
    reply.finish();
    let user = serde_json::json!({"role": "user", "content": "Hello"});
    let _ = text.render(&[user], true, &serde_json::Map::new());
}
