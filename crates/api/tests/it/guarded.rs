//! Keys, origins, limits and what is counted.

use std::io::Write;
use std::sync::Arc;

use baton_api::{Keys, Limits};
use serde_json::json;

use crate::Server;
use crate::client::{Reply, connect, get, post};

const CHAT: &str = "/v1/chat/completions";

fn ask(server: &Server, headers: &str, method: &str, path: &str, body: &str) -> Reply {
    let mut stream = connect(server.addr);
    let length = body.len();
    write!(
        stream,
        "{method} {path} HTTP/1.1\r\nHost: test\r\n{headers}Content-Length: {length}\r\n\r\n{body}"
    )
    .unwrap();
    Reply::read(stream)
}

fn keyed() -> Server {
    let keys = Keys::given("alice sk-alice-key,sk-other-key").unwrap();
    Server::configured(move |app| app.keys = Some(Arc::new(keys)))
}

#[test]
fn a_server_with_keys_takes_none_without_and_counts_by_name() {
    let server = keyed();
    let body = json!({"messages": [{"role": "user", "content": "[[say:hi]]"}]}).to_string();
    for headers in ["", "Authorization: Bearer sk-wrong-key\r\n", "Authorization: sk-alice-key\r\n"]
    {
        for (method, path) in [("POST", CHAT), ("GET", "/v1/models"), ("GET", "/metrics")] {
            let reply = ask(&server, headers, method, path, &body);
            assert_eq!((reply.status, reply.header("www-authenticate")), (401, Some("Bearer")));
            assert_eq!(reply.json()["error"]["code"], "invalid_api_key");
        }
    }
    let headers = "Authorization: Bearer sk-alice-key\r\n";
    let reply = ask(&server, headers, "POST", CHAT, &body);
    assert_eq!(reply.status, 200);
    let mut proof = reply.json()["baton"].clone();
    let longer = body.replace("hi", "ho");
    assert_eq!(ask(&server, "X-Api-Key: sk-other-key\r\n", "POST", CHAT, &longer).status, 200);
    assert_eq!(get(server.addr, "/health").json(), json!({"status": "ok"}));
    let mut health = ask(&server, headers, "GET", "/health", "").json();
    assert_eq!(health["world"], 2);
    // Of the key that asks, and no other's.
    let of_it = |value: &mut serde_json::Value| value["token_sha256"].take();
    assert_eq!(of_it(&mut health["last_reply"]), of_it(&mut proof));
    let text = ask(&server, headers, "GET", "/metrics", "").body().0;
    let text = String::from_utf8(text).unwrap();
    for line in [
        "baton_requests_total{key=\"alice\",status=\"200\"} 1",
        "baton_requests_total{key=\"key-2\",status=\"200\"} 1",
        "baton_requests_total{key=\"unknown\",status=\"401\"} 6",
        "baton_key_tokens_total{key=\"alice\",kind=\"generation\"} 2",
        "vllm:generation_tokens_total{model_name=\"org/fake\"} 4",
        "vllm:time_to_first_token_seconds_count{model_name=\"org/fake\"} 2",
        "vllm:request_success_total{model_name=\"org/fake\",finished_reason=\"stop\"} 2",
        "vllm:num_requests_waiting{model_name=\"org/fake\"} 0",
        "vllm:request_time_per_output_token_seconds_count{model_name=\"org/fake\"} 2",
        "vllm:prefix_cache_hits_total{model_name=\"org/fake\"} 0",
        "vllm:num_preemptions_total{model_name=\"org/fake\"} 0",
        "baton_ready 1",
    ] {
        assert!(text.lines().any(|found| found == line), "{line} is not in\n{text}");
    }
}

#[test]
fn other_origins_are_let_in_only_where_they_are_named() {
    let origin = "Origin: https://page.example\r\n";
    let allowed = |server: &Server, method| {
        let reply = ask(server, origin, method, "/v1/models", "");
        let allowed = reply.header("access-control-allow-origin").map(str::to_owned);
        (reply.status, allowed)
    };
    let closed = Server::start();
    assert_eq!(allowed(&closed, "GET"), (200, None));
    assert_eq!(allowed(&closed, "OPTIONS").0, 405);
    let page = Some("https://page.example".to_owned());
    for origins in ["*", "https://page.example"] {
        let open = Server::configured(move |app| app.origins = vec![origins.into()]);
        assert_eq!(allowed(&open, "GET"), (200, page.clone()));
        assert_eq!(allowed(&open, "OPTIONS"), (204, page.clone()));
    }
    let other = Server::configured(|app| app.origins = vec!["https://other.example".into()]);
    assert_eq!(allowed(&other, "GET"), (200, None));
}

#[test]
fn requests_past_the_limit_and_replies_past_their_time_are_refused_and_ended() {
    let server = Server::within(Limits { requests_max: 1, ..Limits::default() });
    let endless = json!({"prompt": "[[endless]]", "stream": true});
    let running = post(server.addr, "/v1/completions", &endless);
    assert_eq!(running.status, 200);
    let refused = post(server.addr, "/v1/completions", &json!({"prompt": "[[say:a]]"}));
    assert_eq!((refused.status, refused.header("retry-after")), (429, Some("5")));
    running.leave();

    let server = Server::within(Limits { reply_timeout_ms: 100, ..Limits::default() });
    let late = post(server.addr, "/v1/completions", &json!({"prompt": "[[mute]]"}));
    assert_eq!((late.status, late.json()["error"]["code"].as_str()), (504, Some("reply_timeout")));
}

#[test]
fn the_page_is_whole_without_a_key_and_asks_this_server_alone() {
    let server = keyed();
    let mut whole = String::new();
    for path in ["/", "/page.css", "/page.js"] {
        let reply = get(server.addr, path);
        assert_eq!(reply.status, 200);
        assert!(reply.header("content-security-policy").unwrap().contains("connect-src 'self'"));
        whole += &String::from_utf8(reply.body().0).unwrap();
    }
    // A namespace is a name; nobody asks for it.
    let urls = whole.replace("http://www.w3.org/2000/svg", "").matches("://").count();
    assert_eq!(urls, 0, "it works offline");
    // Every element that the script looks for is there.
    for id in whole.split("$(\"").skip(1).filter_map(|rest| rest.split('"').next()) {
        assert!(whole.contains(&format!("id=\"{id}\"")), "{id}");
    }
}
