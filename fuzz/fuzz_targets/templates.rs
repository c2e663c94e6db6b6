//! Chat templates of any text over messages of any form, and SmolLM2's over any messages.
#![no_main]

use std::sync::{LazyLock, Mutex};

use libfuzzer_sys::fuzz_target;
use serde_json::{Map, Value, json};
use text::{Text, TextError};
use weights::gguf::Header;
use weights::gguf::write::Writer;

/// As SmolLM2's checkpoints bring it.
const SMOLLM2: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != \
    'system' %}{{ '<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by \
    Hugging Face<|im_end|>\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\n' + \
    message['content'] + '<|im_end|>' + '\n'}}{% endfor %}{% if add_generation_prompt %}{{ \
    '<|im_start|>assistant\n' }}{% endif %}";

/// Between a template and its conversation, which is a JSON object.
const SEAM: u8 = 0;
const PROMPT_BYTES_MAX: usize = 32 << 20;

/// Its template changes with the input, its tokenizer does not.
static TEXT: LazyLock<Mutex<Text>> = LazyLock::new(|| {
    let mut out = Writer::new();
    out.string("tokenizer.ggml.model", "gpt2")
        .strings("tokenizer.ggml.tokens", &["<s>", "</s>"])
        .strings::<&str>("tokenizer.ggml.merges", &[])
        .u32("tokenizer.ggml.bos_token_id", 0)
        .u32("tokenizer.ggml.eos_token_id", 1);
    let header = Header::parse(&out.finish()).expect("a legal header");
    Mutex::new(Text::from_metadata(&header.metadata).expect("a legal tokenizer"))
});

fuzz_target!(init: baton_fuzz::plant(seeds()), |data: &[u8]| {
    let seam = data.iter().position(|&byte| byte == SEAM);
    let (template, conversation) = data.split_at(seam.unwrap_or(data.len()));
    let conversation = conversation.get(1..).and_then(|json| serde_json::from_slice(json).ok());
    let conversation: Value = conversation.unwrap_or(Value::Null);
    let template = if template.is_empty() { SMOLLM2.as_bytes() } else { template };
    let (Ok(template), Ok(mut text)) = (std::str::from_utf8(template), TEXT.lock()) else {
        return;
    };
    match text.set_template(template) {
        Ok(()) => check(render(&text, &conversation)),
        Err(error) => check(Err(error)),
    }
});

fn render(text: &Text, conversation: &Value) -> Result<String, TextError> {
    let none = Map::new();
    let messages = conversation["messages"].as_array().map_or(&[][..], Vec::as_slice);
    let extra = conversation["extra"].as_object().unwrap_or(&none);
    text.render(messages, conversation["begin"] == true, extra)
}

fn check(rendered: Result<String, TextError>) {
    match rendered {
        Ok(text) => assert!(text.len() <= PROMPT_BYTES_MAX),
        Err(error) => assert!(error.to_string().len() < 4 << 10, "a long error"),
    }
}

fn seeds() -> Vec<Vec<u8>> {
    let join = |template: &str, conversation: Value| {
        let conversation = conversation.to_string();
        [template.as_bytes(), &[SEAM], conversation.as_bytes()].concat()
    };
    let mut seeds = Vec::new();
    for case in baton_fuzz::conversations() {
        let template = case["template"].as_str().unwrap_or_default();
        let conversation = json!({
            "messages": case["messages"], "begin": case["add_generation_prompt"],
            "extra": case["extra"],
        });
        seeds.push(join(template, conversation.clone()));
        seeds.push(join("", conversation));
    }
    for template in [
        "{% set ns = namespace(s='ab') %}{% for i in range(9) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "{{ messages | tojson(indent=2, sort_keys=true, ensure_ascii=true, separators=[',', ':']) }}",
        "{{ [1] | tojson(indent=65) }}{{ 'a' * 999999999 }}{{ '{:999999999}'.format(1) }}",
        "{{ [1] | tojson(indent=999999999) }}",
        "{{ strftime_now('%d %b %Y %H') }}{{ raise_exception('no') }}",
        "{% macro f(x) %}{{ x }}{% endmacro %}{% generation %}{{ f('a' * 9) }}{% endgeneration %}",
        "{{ messages | map(attribute='role') | join(',') | upper }}{{ 'a,b'.split(',')[-1].strip() }}",
    ] {
        let messages = json!([{"role": "user", "content": [{"type": "text", "text": "Hi"}]}]);
        seeds.push(join(template, json!({"messages": messages, "begin": true})));
    }
    seeds
}
