//! Log probabilities, choices, tools, reasoning, formats, tokens.

use serde_json::{Value, json};
use text::Text;

use crate::Server;
use crate::client::post;

const CHAT: &str = "/v1/chat/completions";
const COMPLETION: &str = "/v1/completions";
/// Opens reasoning where it is asked for, and shows its tools.
const REASONER: &str = "{% if tools %}{{ tools|tojson }}<tool_call>{% endif %}\
    {% for m in messages %}{{ m.content }}{% endfor %}\
    {% if enable_thinking is not false %}<think>\n{% else %}<think></think>{% endif %}";

fn ok(server: &Server, path: &str, body: &Value) -> Value {
    let reply = post(server.addr, path, body);
    assert_eq!(reply.status, 200, "{body}");
    reply.json()
}

fn reasoner() -> Server {
    let mut text = Text::byte_level();
    text.set_template(REASONER).unwrap();
    Server::speaking(text)
}

fn user(text: &str) -> Value {
    json!([{"role": "user", "content": text}])
}

fn weather() -> Value {
    let parameters = json!({"type": "object", "properties": {"city": {"type": "string"}}});
    json!([{"type": "function", "function": {"name": "weather", "parameters": parameters}}])
}

const CALL: &str = "[[say:Well.\n<tool_call>{\"name\": \"weather\", \"arguments\": \
                    {\"city\": \"Ulm\"}}</tool_call>]]";

#[test]
fn chat_logprobs_come_with_their_bytes_and_alternatives() {
    let server = Server::start();
    let body = json!({"messages": user("[[say:hi]]"), "logprobs": true, "top_logprobs": 2});
    let reply = ok(&server, CHAT, &body);
    let content = reply["choices"][0]["logprobs"]["content"].as_array().unwrap();
    assert_eq!(content.len(), 2);
    assert_eq!((&content[0]["token"], &content[0]["bytes"]), (&json!("h"), &json!([104])));
    assert_eq!(content[0]["top_logprobs"].as_array().unwrap().len(), 2);
    assert_eq!(server.submitted()[0].guide.logprobs, Some(2));
}

#[test]
fn an_echo_brings_the_prompt_with_its_log_probabilities() {
    let server = Server::start();
    let prompt = "[[say:éy]]";
    let body = json!({"prompt": prompt, "echo": true, "logprobs": 1});
    for stream in [false, true] {
        let mut body = body.clone();
        body["stream"] = stream.into();
        let (mut text, mut tokens, mut offsets, mut values) =
            (String::new(), vec![], vec![], vec![]);
        let choices = if stream {
            let chunks = post(server.addr, COMPLETION, &body).chunks();
            chunks.iter().map(|chunk| chunk["choices"][0].clone()).collect()
        } else {
            vec![ok(&server, COMPLETION, &body)["choices"][0].clone()]
        };
        for choice in choices {
            text += choice["text"].as_str().unwrap();
            let logprobs = &choice["logprobs"];
            tokens.extend(logprobs["tokens"].as_array().cloned().unwrap_or_default());
            offsets.extend(logprobs["text_offset"].as_array().cloned().unwrap_or_default());
            values.extend(logprobs["token_logprobs"].as_array().cloned().unwrap_or_default());
        }
        assert_eq!(text, format!("{prompt}éy"));
        assert_eq!(tokens.len(), prompt.len() + 3);
        assert!(values[0].is_null() && values[1..].iter().all(Value::is_f64), "{values:?}");
        assert_eq!((&offsets[0], &offsets[5]), (&json!(0), &json!(5)));
    }
    let body = json!({"prompt": prompt, "echo": true, "max_tokens": 0});
    let reply = ok(&server, COMPLETION, &body);
    assert_eq!(reply["choices"][0]["text"], prompt);
    assert_eq!(reply["usage"]["completion_tokens"], 0);
    // sha256sum </dev/null
    let nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
    assert_eq!(reply["baton"]["token_sha256"], nothing);
}

#[test]
fn several_choices_have_seeds_of_their_own() {
    let server = Server::start();
    let body = json!({"messages": user("[[say:ab]]"), "n": 3, "seed": 7, "stream": true,
        "stream_options": {"include_usage": true}});
    let chunks = post(server.addr, CHAT, &body).chunks();
    let mut texts = vec![String::new(); 3];
    for chunk in &chunks {
        for choice in chunk["choices"].as_array().unwrap() {
            let index = choice["index"].as_u64().unwrap() as usize;
            texts[index] += choice["delta"]["content"].as_str().unwrap_or_default();
        }
    }
    assert_eq!(texts, ["ab", "ab", "ab"]);
    assert_eq!(chunks.last().unwrap()["usage"]["completion_tokens"], 6);
    let seeds: Vec<u64> = server.submitted().iter().map(|r| r.sampling.seed).collect();
    assert_eq!(seeds, [7, 8, 9]);
    let whole = ok(&server, CHAT, &json!({"messages": user("[[say:ab]]"), "n": 2}));
    assert_eq!(whole["choices"][1]["index"], 1);
    assert_eq!(whole["choices"][1]["message"]["content"], "ab");
}

#[test]
fn penalties_and_bias_reach_the_sampler() {
    let server = Server::start();
    let body = json!({"prompt": "[[say:a]]", "frequency_penalty": 0.5, "presence_penalty": -1,
        "repetition_penalty": 1.2, "logit_bias": {"97": 5, "98": -100}});
    ok(&server, COMPLETION, &body);
    let guide = &server.submitted()[0].guide;
    let penalties = guide.penalties;
    assert_eq!((penalties.frequency, penalties.presence, penalties.repetition), (0.5, -1.0, 1.2));
    assert_eq!(guide.bias, [(97, 5.0), (98, -100.0)].into());
}

#[test]
fn calls_come_whole_and_streamed() {
    let server = Server::start();
    let body = json!({"messages": user(CALL), "tools": weather()});
    let reply = ok(&server, CHAT, &body);
    let choice = &reply["choices"][0];
    assert_eq!(choice["finish_reason"], "tool_calls");
    let message = &choice["message"];
    assert_eq!(message["content"], "Well.");
    let call = &message["tool_calls"][0];
    assert!(call["id"].as_str().unwrap().starts_with("call_"));
    let function = json!({"name": "weather", "arguments": "{\"city\":\"Ulm\"}"});
    assert_eq!((&call["type"], &call["function"]), (&json!("function"), &function));

    let body = json!({"messages": user(CALL), "tools": weather(), "stream": true});
    let chunks = post(server.addr, CHAT, &body).chunks();
    let calls: Vec<&Value> = chunks
        .iter()
        .map(|chunk| &chunk["choices"][0]["delta"]["tool_calls"][0])
        .filter(|call| !call.is_null())
        .collect();
    assert_eq!(calls[0]["function"], json!({"name": "weather", "arguments": ""}));
    assert!(calls[0]["id"].is_string() && calls[1]["id"].is_null());
    assert_eq!(calls[1]["function"]["arguments"], "{\"city\":\"Ulm\"}");
    // With none to be called it is text.
    let body = json!({"messages": user(CALL), "tools": weather(), "tool_choice": "none"});
    let reply = ok(&server, CHAT, &body);
    assert!(reply["choices"][0]["message"]["content"].as_str().unwrap().contains("<tool_call>"));
}

#[test]
fn reasoning_is_told_apart_and_counted() {
    let server = reasoner();
    let body = json!({"messages": user("[[say:hm</think>\n\nyes]]")});
    let reply = ok(&server, CHAT, &body);
    let message = &reply["choices"][0]["message"];
    assert_eq!((&message["reasoning_content"], &message["content"]), (&json!("hm"), &json!("yes")));
    let details = &reply["usage"]["completion_tokens_details"];
    assert_eq!(details["reasoning_tokens"], "hm</think>".len());
    for without in [
        json!({"enable_thinking": false}),
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
        json!({"reasoning_effort": "none"}),
    ] {
        let mut body = json!({"messages": user("[[say:yes]]")});
        body.as_object_mut().unwrap().extend(without.as_object().unwrap().clone());
        let reply = ok(&server, CHAT, &body);
        let message = &reply["choices"][0]["message"];
        assert_eq!(
            (&message["reasoning_content"], &message["content"]),
            (&Value::Null, &json!("yes"))
        );
    }
}

#[test]
fn what_constrains_a_reply_reaches_the_sampler() {
    let server = reasoner();
    let schema =
        json!({"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}});
    for field in [
        json!({"response_format": {"type": "json_object"}}),
        json!({"response_format": schema}),
        json!({"guided_regex": "a+"}),
        json!({"guided_choice": ["a", "b"]}),
        json!({"structured_outputs": {"json": {"type": "object"}}}),
        json!({"guided_grammar": "start: \"a\""}),
        json!({"thinking_budget": 5}),
        json!({"tools": weather(), "tool_choice": "required"}),
        json!({"tools": weather(),
            "tool_choice": {"type": "function", "function": {"name": "weather"}}}),
    ] {
        let mut body = json!({"messages": user("[[say:a]]")});
        body.as_object_mut().unwrap().extend(field.as_object().unwrap().clone());
        ok(&server, CHAT, &body);
        assert!(server.submitted().last().unwrap().guide.grammar.is_some(), "{body}");
    }
}

#[test]
fn each_wrong_field_is_named() {
    let server = Server::start();
    let named = json!({"type": "function", "function": {"name": "other"}});
    for (field, param) in [
        (json!({"n": 17}), "n"),
        (json!({"n": 0}), "n"),
        (json!({"top_logprobs": 2}), "top_logprobs"),
        (json!({"logprobs": true, "top_logprobs": 21}), "top_logprobs"),
        (json!({"logprobs": 3}), "logprobs"),
        (json!({"frequency_penalty": 2.5}), "frequency_penalty"),
        (json!({"presence_penalty": "x"}), "presence_penalty"),
        (json!({"repetition_penalty": 0}), "repetition_penalty"),
        (json!({"logit_bias": [1]}), "logit_bias"),
        (json!({"logit_bias": {"a": 1}}), "logit_bias.a"),
        (json!({"logit_bias": {"5": 101}}), "logit_bias.5"),
        (json!({"logit_bias": {"999999": 1}}), "logit_bias.999999"),
        (json!({"tools": {}}), "tools"),
        (json!({"tools": [{"type": "web_search"}]}), "tools[0].type"),
        (json!({"tools": [{"type": "function"}]}), "tools[0].function"),
        (json!({"tools": [{"function": {"name": "a b"}}]}), "tools[0].function.name"),
        (json!({"tool_choice": "required"}), "tool_choice"),
        (json!({"tools": weather(), "tool_choice": "maybe"}), "tool_choice"),
        (json!({"tools": weather(), "tool_choice": named}), "tool_choice.function.name"),
        (json!({"response_format": {"type": "xml"}}), "response_format.type"),
        (json!({"response_format": {"type": "json_schema"}}), "response_format.json_schema"),
        (json!({"guided_regex": "["}), "guided_regex"),
        (json!({"guided_choice": []}), "guided_choice"),
        (json!({"guided_regex": "a", "guided_choice": ["a"]}), "guided_choice"),
        (json!({"reasoning_effort": "huge"}), "reasoning_effort"),
        (json!({"thinking_budget": -1}), "thinking_budget"),
    ] {
        let mut body = json!({"messages": user("hi")});
        body.as_object_mut().unwrap().extend(field.as_object().unwrap().clone());
        let reply = post(server.addr, CHAT, &body);
        assert_eq!(reply.status, 400, "{body}");
        assert_eq!(reply.json()["error"]["param"], param, "{body}");
    }
    assert!(server.submitted().is_empty());
}

#[test]
fn text_becomes_tokens_and_text_again() {
    let server = Server::start();
    let body = json!({"prompt": "é<|im_end|>", "return_token_strs": true});
    let reply = ok(&server, "/tokenize", &body);
    assert_eq!((&reply["tokens"], &reply["count"]), (&json!([195, 169, 257]), &json!(3)));
    assert_eq!(reply["token_strs"][2], "<|im_end|>");
    let plain = json!({"prompt": "<|im_end|>", "add_special_tokens": false});
    assert_eq!(ok(&server, "/tokenize", &plain)["count"], 10);
    let chat = ok(&server, "/tokenize", &json!({"messages": user("a")}));
    assert_eq!(chat["tokens"][0], 256);
    let back = ok(&server, "/detokenize", &json!({"tokens": [195, 169, 257]}));
    assert_eq!(back["prompt"], "é");
    for (path, body, param) in [
        ("/tokenize", json!({}), "prompt"),
        ("/tokenize", json!({"prompt": 5}), "prompt"),
        ("/detokenize", json!({"tokens": [1, 258]}), "tokens[1]"),
        ("/detokenize", json!({}), "tokens"),
    ] {
        let reply = post(server.addr, path, &body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{body}");
    }
}
