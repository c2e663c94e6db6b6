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
    assert_eq!(said, "messages[0].content[0] has the type `image_url`, expected `text`");
}

#[test]
fn a_template_can_be_replaced_by_one_that_compiles() {
    let mut text = with_template("{{ bos_token }}a").unwrap();
    assert!(text.set_template("{% for %}").is_err());
    assert_eq!(text.render(&[], false, &Map::new()).unwrap(), "<s>a");
    text.set_template("{{ bos_token }}b").unwrap();
    assert_eq!(text.render(&[], false, &Map::new()).unwrap(), "<s>b");
}

#[test]
fn a_request_cannot_replace_the_messages() {
    let text = with_template("{{ messages | length }}{{ add_generation_prompt }}{{ x }}").unwrap();
    let extra = json!({"messages": [], "add_generation_prompt": true, "x": 5});
    let rendered = text.render(&[json!({})], false, extra.as_object().unwrap()).unwrap();
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
    let said = render("a\n{{ messages.x.y }}", &[]).unwrap_err().to_string();
    assert!(said.contains("fails on this conversation: line 2"), "{said}");
    let said = render("{{ raise_exception('no ' ~ 'way') }}", &[]).unwrap_err().to_string();
    assert_eq!(said, "the chat template refuses this conversation: no way");
}

#[test]
fn a_template_that_runs_or_writes_without_end_is_stopped() {
    let spin = "{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}";
    let said = render(spin, &[]).unwrap_err().to_string();
    assert_eq!(said, "the chat template did not end within 2000000 steps");
    let content = "x".repeat(1 << 20);
    let flood = "{% for a in range(99) %}{{ messages[0].content }}{% endfor %}";
    let said = render(flood, &[json!({"role": "user", "content": content})]).unwrap_err();
    assert_eq!(said.to_string(), "the rendered prompt is longer than the limit of 33554432 bytes");
}

/// A loop that sets `ns.x` a hundred thousand times, between two pieces of a template.
fn grown(value: &str, after: &str) -> Result<String, TextError> {
    let set = format!("{{% set ns.x = {value} %}}");
    let turns = format!("{{% for i in range(99999) %}}{set}{{% endfor %}}");
    render(&format!("{{% set ns = namespace(x=1) %}}{turns}{after}"), &[])
}

#[test]
fn a_namespace_takes_plain_values_of_few_levels() {
    for (value, reason) in [
        ("[ns.x]", "more than 200 lists and maps"),
        ("{'a': ns.x}", "more than 200 lists and maps"),
        ("ns", "more than 200 lists and maps"),
        ("ns | items", "more than 200 lists and maps"),
        ("range", "expected plain data"),
    ] {
        let said = match grown(value, "{{ ns.x }}{{ ns.x | tojson }}{{ ns }}") {
            Err(error) => error.to_string(),
            Ok(text) => panic!("{value}: {text}"),
        };
        assert!(said.contains(reason), "{value}: {said}");
    }
}

#[test]
fn what_a_namespace_takes_it_gives_back() {
    let kept = "{% set ns = namespace(n=1, d={}) %}{% set ns.d = {'b': [1, 'x', none], 'a': m} %}\
        {% set ns.n, ns.t = ns.n + 1, ns.d.b %}{% set ns.i = [3, 4] | map('string') %}\
        {{ ns.d | tojson }}{{ ns.n }}{{ ns.t }}{{ ns.i | join('-') }}{{ ns.d.a is undefined }}";
    let rendered = render(kept, &[]).unwrap();
    let expected = r#"{"b": [1, "x", null], "a": null}2[1, 'x', None]3-4True"#;
    assert_eq!(rendered, expected);
}

#[test]
fn a_template_that_nests_as_deep_as_it_is_long_is_no_harm() {
    let deep = |unit: &str, end: &str| {
        let count = (60 << 10) / unit.len();
        format!("{{{{ {}{end} }}}}", unit.repeat(count))
    };
    for template in [
        deep("-", "1"),
        deep("not ", "1"),
        deep("1+", "1"),
        deep("1 if 1 else ", "1"),
        deep("messages.", "x"),
        format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(5_000)),
        "{% set a = [[[[[[[[a]]]]]]]] %}".repeat(2_000) + "{{ a }}{{ a | tojson }}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}".to_owned(),
        "{% for a in [[1]] recursive %}{{ loop([a]) }}{% endfor %}".to_owned(),
    ] {
        // A thread of the server has 2 MiB of stack.
        let thread = std::thread::Builder::new().stack_size(2 << 20);
        let rendered = thread.spawn(move || render(&template, &[]).map(drop));
        let _ = rendered.unwrap().join().unwrap();
    }
    let said = with_template(&" ".repeat((64 << 10) + 1)).unwrap_err();
    assert!(said.to_string().contains("65537 bytes, more than the limit of 65536"));
}

#[test]
fn what_a_template_asks_for_is_paid_before_it_is_made() {
    for template in [
        "{{ '{:1000000000}'.format(1) }}",
        "{{ ('{:99999}' * 9999).format(1) }}",
        "{{ 'a' * 999999999 }}",
        "{% set ns = namespace(s='ab') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}\
            {% endfor %}",
        "{{ ([('a' * 999999)] * 999999) | tojson }}",
        "{{ range(99999) | list | tojson(separators=['x' * 999999, ':']) }}",
    ] {
        let said = render(template, &[]).unwrap_err().to_string();
        assert!(said.contains("2000000 steps"), "{template}: {said}");
    }
    let said = render("{{ [1] | tojson(indent=65) }}", &[]).unwrap_err();
    assert!(said.to_string().contains("an indent of at most 64"), "{said}");
    let said = render("{{ raise_exception('\u{e9}' * 9999) }}", &[]).unwrap_err();
    assert!(said.to_string().len() < 1_100, "{}", said.to_string().len());
}

#[test]
fn todays_date_is_a_date() {
    let date = render("{{ strftime_now('%Y-%m-%d') }}", &[]).unwrap();
    assert!(date.as_str() > "2024-01-01" && date.len() == 10, "{date}");
}
