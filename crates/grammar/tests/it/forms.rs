use baton_grammar::{Body, CallForm, Form};
use serde_json::json;

use super::{calls, form, parsed, says};

#[test]
fn json_follows_its_schema_whatever_the_model_wants() {
    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "age", "tags"],
        "properties": {
            "name": {"type": "string", "maxLength": 8}, "age": {"type": "integer"},
            "tags": {"type": "array", "items": {"enum": ["a", "b"]}, "maxItems": 3},
        },
    });
    for seed in 0..6 {
        let said = parsed(&says(&form(Body::Json(schema.clone())), "I think that", seed));
        assert!(said["name"].is_string() && said["age"].is_i64() && said["tags"].is_array());
        assert_eq!(said.as_object().unwrap().len(), 3, "{said}");
    }
    assert!(parsed(&says(&form(Body::Json(json!({"type": "object"}))), "[1]", 1)).is_object());
}

#[test]
fn a_regex_a_choice_and_lark_are_followed() {
    let regex = form(Body::Regex("[0-9]{3}-[a-f]/x".into()));
    let said = says(&regex, "hello", 3);
    assert!(said.len() == 7 && said.ends_with("/x") && said.as_bytes()[3] == b'-', "{said}");
    let choice = form(Body::Choice(vec!["yes".into(), "no \"way\"".into()]));
    assert_eq!(says(&choice, "no", 1), "no \"way\"");
    assert_eq!(says(&choice, "yo", 1), "yes");
    let lark = form(Body::Lark("start: \"a\"+ WORD\nWORD: /[x-z]{2}/".into()));
    let said = says(&lark, "aaab", 2);
    assert!(said.starts_with("aaa") && said.trim_start_matches('a').len() == 2, "{said}");
}

#[test]
fn reasoning_comes_first_and_is_free() {
    let body = Body::Choice(vec!["yes".into(), "no".into()]);
    let open = Form { open: None, after: Some("</think>".into()), body: body.clone() };
    assert_eq!(says(&open, "so: {}</think>\n\nno", 1), "so: {}</think>\n\nno");
    let maybe = Form { open: Some("<think>".into()), after: Some("</think>".into()), body };
    assert_eq!(says(&maybe, "<think>hm</think>yes", 1), "<think>hm</think>yes");
    assert_eq!(says(&maybe, "yes", 1), "yes");
}

#[test]
fn calls_are_well_formed_in_every_form() {
    for seed in 0..4 {
        let said = says(&calls(CallForm::Tagged, false), "", seed);
        let inner = said.trim_end().strip_prefix("<tool_call>\n").unwrap();
        let call = parsed(inner.strip_suffix("\n</tool_call>").unwrap());
        assert!(call["name"] == "clock" || call["arguments"]["days"].is_i64(), "{call}");
        let call = parsed(&says(&calls(CallForm::Bare, false), "", seed));
        assert!(call["parameters"].is_object());
    }
    let wish = "<tool_call>\n<function=weather>\n<parameter=city>\nUlm </x>\n</parameter>\n\
                <parameter=days>\n2\n</parameter>\n<parameter=unit>\nC\n</parameter>\n\
                </function>\n</tool_call>";
    assert_eq!(says(&calls(CallForm::Xml, false), wish, 1), wish);
    let clock = "<tool_call>\n<function=clock>\n</function>\n</tool_call>";
    let two = format!("{wish}\n{clock}");
    assert_eq!(says(&calls(CallForm::Xml, true), &two, 1), two);
}
