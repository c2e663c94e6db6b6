//! `/v1/responses` and `/v1/messages`, whole and streamed.

use serde_json::{Value, json};

use crate::Server;
use crate::client::{get, post, send};

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const CALL: &str = "[[say:Well.\n<tool_call>{\"name\": \"weather\", \"arguments\": \
                    {\"city\": \"Ulm\"}}</tool_call>]]";

fn ok(server: &Server, path: &str, body: &Value) -> Value {
    let reply = post(server.addr, path, body);
    assert_eq!(reply.status, 200, "{body}");
    reply.json()
}

/// A stream's events, each with the name that its type repeats.
fn events(server: &Server, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = true.into();
    let text = String::from_utf8(post(server.addr, path, &body).body().0).unwrap();
    let event = |event: &str| {
        let (name, data) = event.split_once('\n').unwrap();
        let data: Value = serde_json::from_str(data.strip_prefix("data: ").unwrap()).unwrap();
        assert_eq!(data["type"], name.strip_prefix("event: ").unwrap());
        data
    };
    text.trim_end().split("\n\n").map(event).collect()
}

fn types(events: &[Value]) -> Vec<&str> {
    let mut types: Vec<&str> = events.iter().map(|e| e["type"].as_str().unwrap()).collect();
    types.dedup();
    types
}

fn prompt(server: &Server) -> String {
    let request = server.submitted().pop().unwrap();
    let bytes = request.prompt.iter().filter_map(|id| u8::try_from(*id).ok()).collect();
    String::from_utf8(bytes).unwrap()
}

#[test]
fn a_response_can_be_continued_read_and_deleted() {
    let server = Server::start();
    let body = json!({"input": "[[say:one]]", "instructions": "Be brief.", "max_output_tokens": 9});
    let first = ok(&server, RESPONSES, &body);
    assert_eq!((&first["object"], &first["status"]), (&json!("response"), &json!("completed")));
    assert_eq!(first["output"][0]["content"][0]["text"], "one");
    assert_eq!(first["usage"]["output_tokens"], 3);
    assert_eq!(first["usage"]["input_tokens_details"]["cached_tokens"], 0);
    assert_eq!(first["baton"]["tokens"], 3);
    assert_eq!(first["instructions"], "Be brief.");
    assert!(prompt(&server).contains("system\nBe brief."));
    let id = first["id"].as_str().unwrap();
    let input = json!([{"role": "user", "content": [{"type": "input_text", "text": "and on"}]}]);
    ok(&server, RESPONSES, &json!({"input": input, "previous_response_id": id}));
    let told = prompt(&server);
    assert!(told.contains("assistant\none") && told.ends_with("and on\nassistant\n"), "{told}");
    assert!(!told.contains("Be brief."), "instructions are of one request");
    let path = format!("{RESPONSES}/{id}");
    assert_eq!(get(server.addr, &path).json(), first);
    assert_eq!(send(server.addr, "DELETE", &path, "").json()["deleted"], true);
    assert_eq!(get(server.addr, &path).status, 404);
    let gone = post(server.addr, RESPONSES, &json!({"input": "x", "previous_response_id": id}));
    assert_eq!((gone.status, &gone.json()["error"]["code"]), (404, &json!("response_not_found")));
    let unkept = ok(&server, RESPONSES, &json!({"input": "[[say:x]]", "store": false}));
    let path = format!("{RESPONSES}/{}", unkept["id"].as_str().unwrap());
    assert_eq!(get(server.addr, &path).status, 404);
}

#[test]
fn a_response_streams_its_items_in_order() {
    let server = Server::start();
    let tool = json!({"type": "function", "name": "weather", "parameters": {"type": "object"}});
    let events = events(&server, RESPONSES, &json!({"input": CALL, "tools": [tool]}));
    assert_eq!(
        types(&events),
        [
            "response.created",
            "response.in_progress",
            "response.output_item.added",
            "response.content_part.added",
            "response.output_text.delta",
            "response.output_text.done",
            "response.content_part.done",
            "response.output_item.done",
            "response.output_item.added",
            "response.function_call_arguments.delta",
            "response.function_call_arguments.done",
            "response.output_item.done",
            "response.completed",
        ]
    );
    let numbers = events.iter().map(|event| event["sequence_number"].as_u64().unwrap());
    assert!(numbers.eq(0..events.len() as u64));
    let output = &events.last().unwrap()["response"]["output"];
    assert_eq!(output[0]["content"][0]["text"], "Well.");
    assert_eq!(
        (&output[1]["name"], &output[1]["arguments"]),
        (&json!("weather"), &json!("{\"city\":\"Ulm\"}"))
    );
    let long = json!({"input": "[[endless]]", "max_output_tokens": 4});
    let events = self::events(&server, RESPONSES, &long);
    assert_eq!(
        events.last().unwrap()["response"]["incomplete_details"]["reason"],
        "max_output_tokens"
    );
    let broken = self::events(&server, RESPONSES, &json!({"input": "[[break:2]]"}));
    assert_eq!(broken.last().unwrap()["type"], "response.failed");
}

fn message(content: Value, more: Value) -> Value {
    let mut body = json!({"max_tokens": 200, "messages": [{"role": "user", "content": content}]});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    body
}

#[test]
fn a_message_has_blocks_and_a_reason_to_stop() {
    let server = Server::start();
    let reply =
        ok(&server, MESSAGES, &message(json!("[[say:hi]]"), json!({"system": "Be brief."})));
    assert_eq!((&reply["type"], &reply["stop_reason"]), (&json!("message"), &json!("end_turn")));
    assert_eq!(reply["content"], json!([{"type": "text", "text": "hi"}]));
    assert_eq!(reply["usage"]["output_tokens"], 2);
    assert_eq!(reply["usage"]["cache_read_input_tokens"], 0);
    assert_eq!(reply["baton"]["tokens"], 2);
    assert!(prompt(&server).contains("system\nBe brief."));
    let stops = json!({"stop_sequences": ["END"]});
    let reply = ok(&server, MESSAGES, &message(json!("[[say:aENDb]]"), stops));
    assert_eq!(
        (&reply["stop_reason"], &reply["stop_sequence"]),
        (&json!("stop_sequence"), &json!("END"))
    );
    let tools = json!({"tools": [{"name": "weather", "input_schema": {"type": "object"}}]});
    let reply = ok(&server, MESSAGES, &message(json!(CALL), tools.clone()));
    assert_eq!(reply["stop_reason"], "tool_use");
    let call = &reply["content"][1];
    assert_eq!((&call["name"], &call["input"]), (&json!("weather"), &json!({"city": "Ulm"})));
    let result =
        json!([{"type": "tool_result", "tool_use_id": call["id"], "content": "[[say:5]]"}]);
    let mut body = message(result, tools);
    body["messages"]
        .as_array_mut()
        .unwrap()
        .insert(0, json!({"role": "assistant", "content": reply["content"]}));
    assert_eq!(ok(&server, MESSAGES, &body)["content"][0]["text"], "5");
    let count = ok(
        &server,
        "/v1/messages/count_tokens",
        &json!({"messages": [{"role": "user", "content": "a"}]}),
    );
    assert!(count["input_tokens"].as_u64().unwrap() > 1);
}

#[test]
fn a_message_streams_its_blocks() {
    let server = Server::start();
    let tools = json!({"tools": [{"name": "weather", "input_schema": {"type": "object"}}]});
    let events = events(&server, MESSAGES, &message(json!(CALL), tools));
    assert_eq!(
        types(&events),
        [
            "message_start",
            "ping",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "content_block_start",
            "content_block_delta",
            "content_block_stop",
            "message_delta",
            "message_stop",
        ]
    );
    let end = &events[events.len() - 2];
    assert_eq!(end["delta"]["stop_reason"], "tool_use");
    let broken = self::events(&server, MESSAGES, &message(json!("[[break:2]]"), json!({})));
    assert_eq!(broken.last().unwrap()["error"]["type"], "overloaded_error");
}

#[test]
fn what_is_wrong_is_named_in_each_apis_shape() {
    let server = Server::start();
    for (body, param) in [
        (json!({}), "input"),
        (json!({"input": 5}), "input"),
        (json!({"input": [{"type": "computer_call"}]}), "input[0].type"),
        (json!({"input": [{"type": "function_call"}]}), "input[0].call_id"),
        (json!({"input": "x", "max_output_tokens": 0}), "max_output_tokens"),
        (json!({"input": "x", "background": true}), "background"),
        (json!({"input": "x", "temperature": "hot"}), "temperature"),
    ] {
        let reply = post(server.addr, RESPONSES, &body);
        assert_eq!((reply.status, &reply.json()["error"]["param"]), (400, &json!(param)), "{body}");
    }
    let image = json!([{"type": "image", "source": {}}]);
    for (body, param) in [
        (json!({"messages": []}), "max_tokens"),
        (json!({"max_tokens": 5}), "messages"),
        (message(json!(5), json!({})), "messages[0].content"),
        (message(image, json!({})), "messages[0].content[0].type"),
        (message(json!("x"), json!({"tools": [{}]})), "tools[0].name"),
        (message(json!("x"), json!({"tool_choice": {"type": "x"}})), "tool_choice.type"),
    ] {
        let reply = post(server.addr, MESSAGES, &body);
        let status = reply.status;
        let reply = reply.json();
        assert_eq!((status, &reply["error"]["param"]), (400, &json!(param)), "{body}");
        assert_eq!(
            (&reply["type"], &reply["error"]["type"]),
            (&json!("error"), &json!("invalid_request_error"))
        );
    }
}
