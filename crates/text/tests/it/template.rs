//! Chat templates against Jinja2, and their bounds.

use serde_json::{Map, Value, json};
use text::{Text, TextError};

use crate::{golden, metadata};

/// A tokenizer with `template`, BOS `<s>` and EOS `</s>`.
fn with_template(template: &str) -> Result<Text, TextError> {
    Text::from_metadata(&metadata(|w| {
        w.string("tokenizer.ggml.model", "gpt2")
            .strings("tokenizer.ggml.tokens", &["<s>", "</s>"])
            .strings::<&str>("tokenizer.ggml.merges", &[])
            .u32("tokenizer.ggml.bos_token_id", 0)
            .u32("tokenizer.ggml.eos_token_id", 1)
            .string("tokenizer.chat_template", template);
    }))
}

fn render(template: &str, messages: &[Value]) -> Result<String, TextError> {
    with_template(template)?.render(messages, false, &Map::new())
}

#[test]
fn templates_render_as_jinja2_renders_them() {
    for case in golden("chat-templates/cases.json").as_array().unwrap() {
        let text = with_template(case["template"].as_str().unwrap()).unwrap();
        let rendered = text.render(
            case["messages"].as_array().unwrap(),
            case["add_generation_prompt"].as_bool().unwrap(),
            case["extra"].as_object().unwrap(),
        );
        match (rendered, case.get("refusal")) {
            (Ok(found), None) => assert_eq!(found, case["text"], "{}", case["name"]),
            (Err(TextError::TemplateRefuses { reason }), Some(expected)) => {
                assert_eq!(reason, *expected, "{}", case["name"]);
            }
            (found, _) => panic!("{}: {found:?}", case["name"]),
        }
    }
}

#[test]
fn contents_are_normalised_before_the_template_sees_them() {
    let template = "{% for m in messages %}{{ m.role + ':' + m.content + ';' }}{% endfor %}";
    let messages = [
        json!({"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}),
        json!({"role": "assistant", "content": null}),
    ];
    assert_eq!(render(template, &messages).unwrap(), "user:ab;assistant:;");
    let image = [json!({"role": "user", "content": [{"type": "image_url", "image_url": {}}]})];
    let said = render(template, &image).unwrap_err().to_string();
    assert_eq!(
        said,
        "messages[0].content[0] has the type `image_url`, expected `text`"
    );
}

#[test]
fn a_request_cannot_replace_the_messages() {
    let text = with_template("{{ messages | length }}{{ add_generation_prompt }}{{ x }}").unwrap();
    let extra = json!({"messages": [], "add_generation_prompt": true, "x": 5});
    let rendered = text
        .render(&[json!({})], false, extra.as_object().unwrap())
        .unwrap();
    assert_eq!(rendered, "1False5");
}

#[test]
fn training_marks_change_nothing() {
    let marked = "a {%- generation %} b {{ '{%' }} {% endgeneration -%} c{% raw %}{% x";
    let plain = "a {%- if true %} b {{ '{%' }} {% endif -%} c{% raw %}{% x";
    assert_eq!(
        with_template(marked).unwrap_err().to_string(),
        with_template(plain).unwrap_err().to_string()
    );
    let marked = "a {%- generation %} b {%+ endgeneration -%} c";
    assert_eq!(render(marked, &[]).unwrap(), "a b c");
}

#[test]
fn templates_that_fail_say_where_and_why() {
    let said = with_template("a\n{% for %}").unwrap_err().to_string();
    assert!(said.contains("does not compile: line 2"), "{said}");
    let said = render("a\n{{ messages.x.y }}", &[])
        .unwrap_err()
        .to_string();
    assert!(
        said.contains("fails on this conversation: line 2"),
        "{said}"
    );
    let said = render("{{ raise_exception('no ' ~ 'way') }}", &[])
        .unwrap_err()
        .to_string();
    assert_eq!(said, "the chat template refuses this conversation: no way");
}

#[test]
fn a_template_that_runs_or_writes_without_end_is_stopped() {
    let spin = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    let said = render(spin, &[]).unwrap_err().to_string();
    assert_eq!(said, "the chat template did not end within 10000000 steps");
    let content = "x".repeat(1 << 20);
    let flood = "{% for a in range(99) %}{{ messages[0].content }}{% endfor %}";
    let said = render(flood, &[json!({"role": "user", "content": content})]).unwrap_err();
    assert_eq!(
        said.to_string(),
        "the rendered prompt is longer than the limit of 33554432 bytes"
    );
}

#[test]
fn todays_date_is_a_date() {
    let date = render("{{ strftime_now('%Y-%m-%d') }}", &[]).unwrap();
    assert!(date.as_str() > "2024-01-01" && date.len() == 10, "{date}");
}
