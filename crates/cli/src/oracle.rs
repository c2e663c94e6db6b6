//! `baton record` and `baton accept`: what one machine replies, kept in a file, and whether another
//! server, however it is placed, replies the same.

use std::io::{Read, Write};
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::args::{Accept, Record};
use crate::client::Client;

/// The file's format.
const VERSION: u32 = 1;
/// Largest oracle that is read.
const FILE_BYTES_MAX: u64 = 16 << 20;
/// Most cases of an oracle.
const CASES_MAX: usize = 1_000;
/// Tokens of a reply.
const TOKENS: u32 = 24;

/// What one machine replied.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
struct Oracle {
    /// [`VERSION`].
    baton_oracle: u32,
    runtime: Runtime,
    cases: Vec<Case>,
}

/// What a reply's bytes depend on beside the request.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
struct Runtime {
    model: String,
    engine: String,
    arith: String,
}

/// A conversation, and the hashes of its replies.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(deny_unknown_fields)]
struct Case {
    name: String,
    /// The user's turns; each is asked behind the replies to those before it.
    turns: Vec<String>,
    /// Sampling and whatever else a request may hold.
    options: Value,
    replies: Vec<Said>,
}

/// A reply, without its text.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields)]
struct Said {
    tokens: u64,
    token_sha256: String,
}

/// A server as it answers now.
struct Server {
    client: Client,
    runtime: Runtime,
    placement: String,
}

impl Server {
    fn reach(url: &str) -> Result<Self> {
        let client = Client::new(url);
        client.ready()?;
        let listed = client.get("/v1/models")?;
        let model = &listed["data"][0];
        let text = |value: &Value, what: &str| {
            let text = value.as_str().map(str::to_owned);
            text.with_context(|| format!("{url} is no baton server of this kind: no {what}"))
        };
        let body = json!({"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 1});
        let proof = client.ask("/v1/chat/completions", &body)?["baton"].take();
        let runtime = Runtime {
            model: text(&model["id"], "model")?,
            engine: text(&model["engine"], "engine version")?,
            arith: text(&proof["arith"], "arithmetic in its proof")?,
        };
        Ok(Self { client, runtime, placement: text(&proof["placement"], "placement")? })
    }

    /// Holds a case's conversation; a reply a turn.
    fn hold(&self, case: &Case) -> Result<Vec<Said>> {
        let (mut messages, mut said) = (Vec::new(), Vec::new());
        for turn in &case.turns {
            messages.push(json!({"role": "user", "content": turn}));
            let mut body = json!({"messages": messages, "max_tokens": TOKENS});
            if let (Some(body), Some(options)) = (body.as_object_mut(), case.options.as_object()) {
                body.extend(options.clone());
            }
            let reply = self.client.ask("/v1/chat/completions", &body)?;
            let proof = &reply["baton"];
            let (tokens, hash) = (proof["tokens"].as_u64(), proof["token_sha256"].as_str());
            let (Some(tokens), Some(hash)) = (tokens, hash) else {
                bail!("the reply has no proof: found {proof}");
            };
            said.push(Said { tokens, token_sha256: hash.to_owned() });
            let text = reply["choices"][0]["message"]["content"].as_str().unwrap_or_default();
            messages.push(json!({"role": "assistant", "content": text}));
        }
        Ok(said)
    }
}

/// What is asked: greedy and sampled, short and long, in two turns, and past every cache.
fn cases() -> Vec<Case> {
    let case = |name: &str, turns: &[&str], options: Value| Case {
        name: name.into(),
        turns: turns.iter().map(|&turn| turn.to_owned()).collect(),
        options,
        replies: Vec::new(),
    };
    let story = "Tell me a story about a brave rabbit named Tom.";
    let greedy = || json!({"temperature": 0});
    let sampled = |seed: u32| json!({"temperature": 0.8, "top_p": 0.95, "seed": seed});
    let long = "The rabbit looked over the wall, and saw a garden there. ".repeat(24);
    vec![
        case("greedy", &[story], greedy()),
        case("sampled", &[story], sampled(7)),
        case("sampled-again", &["What is a river?"], sampled(8)),
        case(
            "penalties",
            &[story],
            json!({"temperature": 0.7, "top_k": 40, "frequency_penalty": 0.5, "seed": 9}),
        ),
        case("undrafted", &[story], json!({"temperature": 0, "draft": false})),
        case("long", &[&long], greedy()),
        case("two-turn", &[story, "And what did Tom do then?"], greedy()),
        case("cold", &[story], json!({"temperature": 0, "cache_prompt": false})),
    ]
}

/// Writes the oracle of the server at `args.url`.
///
/// # Errors
/// A server of more than one machine, or one whose replies differ from run to run; a file that is
/// there already.
pub fn record(args: &Record) -> Result<()> {
    let file = &args.oracle;
    ensure!(!file.exists(), "{}: is there already; an oracle is not written over", file.display());
    let server = Server::reach(&args.url)?;
    let placement = &server.placement;
    ensure!(
        !placement.contains([',', '@']),
        "{} is placed as {placement}: an oracle is recorded from one machine that holds all layers",
        args.url
    );
    let mut cases = cases();
    for case in &mut cases {
        case.replies = server.hold(case).with_context(|| case.name.clone())?;
        let again = server.hold(case).with_context(|| case.name.clone())?;
        same(case, &again)?;
        println!("{}: {}", case.name, shown(&case.replies));
    }
    let oracle = Oracle { baton_oracle: VERSION, runtime: server.runtime.clone(), cases };
    let mut out = std::fs::File::create_new(file).with_context(|| file.display().to_string())?;
    out.write_all(serde_json::to_string_pretty(&oracle)?.as_bytes())?;
    out.write_all(b"\n").with_context(|| file.display().to_string())?;
    let Runtime { model, engine, arith } = server.runtime;
    println!("recorded {}: {model}, engine {engine}, arith {arith}", file.display());
    Ok(())
}

/// Holds the server at `args.url` against an oracle: each case twice.
///
/// # Errors
/// Another model, engine or arithmetic; the first reply that differs, with both hashes.
pub fn accept(args: &Accept) -> Result<()> {
    let oracle = read(&args.oracle)?;
    let server = Server::reach(&args.url)?;
    let (ours, theirs) = (&oracle.runtime, &server.runtime);
    for (what, expected, found) in [
        ("model", &ours.model, &theirs.model),
        ("engine", &ours.engine, &theirs.engine),
        ("arith", &ours.arith, &theirs.arith),
    ] {
        ensure!(
            expected == found,
            "the oracle is of {what} {expected}, the server has {found}: record one from one \
             machine with that"
        );
    }
    let mut tokens = 0;
    for case in &oracle.cases {
        for _ in 0..2 {
            let again = server.hold(case).with_context(|| case.name.clone())?;
            same(case, &again)?;
            tokens += again.iter().map(|said| said.tokens).sum::<u64>();
        }
        println!("{}: {}, twice", case.name, shown(&case.replies));
    }
    let (count, placement) = (oracle.cases.len(), &server.placement);
    println!("accepted {placement}: {count} cases, twice each, {tokens} tokens");
    Ok(())
}

fn same(case: &Case, again: &[Said]) -> Result<()> {
    for (turn, (expected, found)) in case.replies.iter().zip(again).enumerate() {
        ensure!(
            expected == found,
            "{}, turn {}: expected {} tokens {}, found {} tokens {}",
            case.name,
            turn + 1,
            expected.tokens,
            expected.token_sha256,
            found.tokens,
            found.token_sha256
        );
    }
    Ok(())
}

fn shown(replies: &[Said]) -> String {
    let each = replies.iter().map(|said| {
        let hash = said.token_sha256.get(..12).unwrap_or(&said.token_sha256);
        format!("{} tokens {hash}", said.tokens)
    });
    each.collect::<Vec<_>>().join(", then ")
}

fn read(file: &Path) -> Result<Oracle> {
    let name = || file.display().to_string();
    let mut text = String::new();
    let input = std::fs::File::open(file).with_context(name)?;
    input.take(FILE_BYTES_MAX + 1).read_to_string(&mut text).with_context(name)?;
    ensure!(text.len() as u64 <= FILE_BYTES_MAX, "{}: more than {FILE_BYTES_MAX} bytes", name());
    parse(&text).with_context(|| format!("{}: no oracle of `baton record`", name()))
}

fn parse(text: &str) -> Result<Oracle> {
    let oracle: Oracle = serde_json::from_str(text)?;
    let found = oracle.baton_oracle;
    ensure!(found == VERSION, "baton_oracle: expected {VERSION}, found {found}");
    let count = oracle.cases.len();
    ensure!((1..=CASES_MAX).contains(&count), "cases: expected 1 to {CASES_MAX}, found {count}");
    for case in &oracle.cases {
        let (turns, replies) = (case.turns.len(), case.replies.len());
        ensure!(
            turns > 0 && turns == replies,
            "case {}: expected a reply a turn, found {turns} turns and {replies} replies",
            case.name
        );
    }
    Ok(oracle)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn oracle() -> Oracle {
        let runtime = Runtime { model: "m".into(), engine: "0".into(), arith: "1".into() };
        let mut cases = cases();
        for case in &mut cases {
            let said = Said { tokens: 3, token_sha256: "ab".repeat(32) };
            case.replies = vec![said; case.turns.len()];
        }
        Oracle { baton_oracle: VERSION, runtime, cases }
    }

    #[test]
    fn an_oracle_reads_as_it_was_written() {
        let text = serde_json::to_string_pretty(&oracle()).unwrap();
        assert_eq!(parse(&text).unwrap(), oracle());
    }

    #[test]
    fn a_file_that_is_no_oracle_is_refused() {
        let refused = |change: &dyn Fn(&mut Oracle)| {
            let mut oracle = oracle();
            change(&mut oracle);
            parse(&serde_json::to_string(&oracle).unwrap()).unwrap_err().to_string()
        };
        assert!(refused(&|oracle| oracle.baton_oracle = 2).contains("expected 1, found 2"));
        assert!(refused(&|oracle| oracle.cases.clear()).contains("expected 1 to 1000, found 0"));
        let short = refused(&|oracle| oracle.cases[6].replies.truncate(1));
        assert!(short.contains("case two-turn: expected a reply a turn"), "{short}");
        assert!(parse("{}").is_err());
    }

    #[test]
    fn another_reply_is_named_with_both_hashes() {
        let oracle = oracle();
        let mut other = oracle.cases[6].replies.clone();
        assert!(same(&oracle.cases[6], &other).is_ok());
        other[1].token_sha256 = "cd".repeat(32);
        let error = same(&oracle.cases[6], &other).unwrap_err().to_string();
        assert!(error.starts_with("two-turn, turn 2: expected 3 tokens abab"), "{error}");
    }
}
