//! The limits of a request's fields: as many as may be are taken, one more is refused by name.

use baton_api::Limits;
use serde_json::{Map, Value, json};

use crate::Server;
use crate::client::{get, post};

/// A field with so many of what is counted.
type Field = fn(usize) -> Value;

fn tool(n: usize) -> Value {
    json!({"type": "function", "function": {"name": format!("f{n}"), "parameters": {}}})
}

fn letters(count: usize) -> Vec<String> {
    (0..count).map(|n| format!("x{n}")).collect()
}

fn biases(count: usize) -> Value {
    let biases = (0..count).map(|id| (id.to_string(), json!(1)));
    json!({"logit_bias": biases.collect::<Map<_, _>>()})
}

#[test]
fn as_many_as_may_be_are_taken_and_one_more_is_refused_by_name() {
    let limits = Limits {
        model_bytes_max: 8,
        stops_max: 2,
        stop_bytes_max: 4,
        choices_max: 3,
        biases_max: 3,
        top_logprobs_max: 2,
        tools_max: 2,
        alternatives_max: 3,
        alternative_bytes_max: 5,
        ..Limits::default()
    };
    let server = Server::within(limits);
    let cases: [(&str, usize, Field); 9] = [
        ("model", limits.model_bytes_max, |n| json!({"model": "m".repeat(n)})),
        ("stop", limits.stops_max, |n| json!({"stop": letters(n)})),
        ("stop[0]", limits.stop_bytes_max, |n| json!({"stop": ["z".repeat(n)]})),
        ("n", limits.choices_max as usize, |n| json!({"n": n})),
        ("logit_bias", limits.biases_max, biases),
        (
            "top_logprobs",
            limits.top_logprobs_max as usize,
            |n| json!({"logprobs": true, "top_logprobs": n}),
        ),
        ("tools", limits.tools_max, |n| json!({"tools": (0..n).map(tool).collect::<Vec<_>>()})),
        ("guided_choice", limits.alternatives_max, |n| json!({"guided_choice": letters(n)})),
        (
            "guided_choice[0]",
            limits.alternative_bytes_max,
            |n| json!({"guided_choice": ["z".repeat(n)]}),
        ),
    ];
    for (param, most, field) in cases {
        let ask = |count| {
            let mut body = json!({"messages": [{"role": "user", "content": "[[say:hi]]"}]});
            body.as_object_mut().unwrap().extend(field(count).as_object().unwrap().clone());
            post(server.addr, "/v1/chat/completions", &body)
        };
        assert_eq!(ask(most).status, 200, "{param}: {most}");
        let refused = ask(most + 1);
        assert_eq!(refused.status, 400, "{param}: {}", most + 1);
        assert_eq!(refused.json()["error"]["param"], param);
    }
}

#[test]
fn the_oldest_response_makes_room_for_one_more_than_are_kept() {
    let server = Server::within(Limits { responses_max: 2, ..Limits::default() });
    let ask = || {
        let reply = post(server.addr, "/v1/responses", &json!({"input": "[[say:hi]]"}));
        format!("/v1/responses/{}", reply.json()["id"].as_str().unwrap())
    };
    let paths = [ask(), ask(), ask()];
    let found = paths.each_ref().map(|path| get(server.addr, path).status);
    assert_eq!(found, [404, 200, 200]);
}
