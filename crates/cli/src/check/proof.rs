//! `baton check --proof`: computes a served reply again, on one rank here, and holds its proof
//! against what comes out.

use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use api::{Asked, Endpoint, Limits, Meter, Transcript};
use arith::base::Arith;
use sched::Event;
use serde_json::Value;
use text::Text;

use crate::args::Check;
use crate::cell::Cell;
use crate::model::{Model, Settings};
use crate::source::{self, hex};

/// Largest file that is read.
const FILE_BYTES_MAX: u64 = 64 << 20;

/// A request and what was answered.
#[derive(Debug, PartialEq)]
struct Exchange {
    request: Value,
    /// Each of the replies.
    replies: Vec<Reply>,
}

/// One reply.
#[derive(Debug, PartialEq)]
struct Reply {
    /// Its object `baton`.
    proof: Value,
    finish_reason: String,
}

/// Reads FILE, the request's body and then the reply as it came, and computes the reply again.
///
/// # Errors
/// A file that holds no such pair; a reply that is another than the proof says, with both hashes.
pub fn run(args: &Check, file: &Path) -> Result<()> {
    let exchange = parse(&read(file)?)?;
    let arith = exchange.replies[0].named("arith")?;
    ensure!(
        !arith.starts_with("own"),
        "the proof holds for its placement alone: its arithmetic is {arith}"
    );
    let arith: Arith = arith.parse().map_err(anyhow::Error::msg)?;
    let path = source::resolve(&args.model)?;
    let runs = compute(args, &path, arith, &exchange)?;
    for (reply, found) in exchange.replies.iter().zip(runs) {
        let (claimed, placement) = (reply.named("token_sha256")?, reply.named("placement")?);
        let hash = hex(&found.token_sha256);
        ensure!(
            hash == claimed,
            "the proof does not hold: its {claimed} is not the {hash} of the {} tokens that one \
             rank gives; was it this model, with the --kv {} of the server?",
            found.tokens,
            arith::attention::KvDtype::from(args.kv).name(),
        );
        println!(
            "proof holds: {} tokens, {hash}, served by {placement} in arith {arith}, computed \
             again by one rank",
            found.tokens
        );
    }
    Ok(())
}

impl Reply {
    fn named(&self, name: &str) -> Result<&str> {
        self.proof[name].as_str().with_context(|| format!("the proof has no text '{name}'"))
    }

    /// Tokens that were served.
    fn tokens(&self) -> Result<u32> {
        let tokens = self.proof["tokens"].as_u64().context("the proof has no number 'tokens'")?;
        Ok(u32::try_from(tokens)?)
    }

    /// Most tokens to compute of at most `most`. Where the server's context, or the client's
    /// bound, cut the reply it is cut here; a token more shows that it did not end by itself.
    fn tokens_max(&self, most: u32) -> Result<u32> {
        let tokens = self.tokens()?;
        let own = if self.finish_reason == "length" { tokens } else { tokens.saturating_add(1) };
        Ok(most.min(own.max(1)))
    }
}

fn read(file: &Path) -> Result<String> {
    let mut text = String::new();
    let mut input: Box<dyn Read> = match file.to_str() {
        Some("-") => Box::new(std::io::stdin()),
        _ => Box::new(std::fs::File::open(file).with_context(|| file.display().to_string())?),
    };
    input.by_ref().take(FILE_BYTES_MAX + 1).read_to_string(&mut text)?;
    let limit = FILE_BYTES_MAX;
    ensure!(text.len() as u64 <= limit, "{}: more than {limit} bytes", file.display());
    Ok(text)
}

/// The request is the first JSON value; the reply is the second, or a stream of events.
fn parse(text: &str) -> Result<Exchange> {
    let mut values = serde_json::Deserializer::from_str(text).into_iter::<Value>();
    let request = values.next().context("the file is empty; expected a request and its reply")?;
    let request = request.context("expected the request's body first")?;
    let rest = text[values.byte_offset()..].trim_start();
    let chunks: Vec<Value> = if rest.starts_with("data:") {
        let data = rest.lines().filter_map(|line| line.strip_prefix("data:"));
        let events = data.map(str::trim).filter(|data| *data != "[DONE]");
        events.map(serde_json::from_str).collect::<Result<_, _>>()
    } else {
        serde_json::Deserializer::from_str(rest).into_iter().collect::<Result<_, _>>()
    }
    .context("expected the reply after the request")?;
    let (mut proofs, mut finishes) = (BTreeMap::new(), BTreeMap::new());
    for chunk in &chunks {
        let choices = chunk["choices"].as_array().map_or(&[][..], Vec::as_slice);
        for choice in choices {
            if let Some(finish) = choice["finish_reason"].as_str() {
                finishes.insert(choice["index"].as_u64().unwrap_or(0), finish.to_owned());
            }
        }
        // A stream's last chunk of each reply has its proof, and what holds all replies a list.
        let only = choices.first().and_then(|choice| choice["index"].as_u64()).unwrap_or(0);
        match &chunk["baton"] {
            Value::Array(all) => proofs.extend((0u64..).zip(all.iter().cloned())),
            proof @ Value::Object(_) => drop(proofs.insert(only, proof.clone())),
            _ => {}
        }
    }
    let same = proofs.keys().eq(finishes.keys()) && !proofs.is_empty();
    ensure!(same, "the reply after the request has no object 'baton', or it did not end");
    let reply = |(proof, finish_reason)| Reply { proof, finish_reason };
    let replies = proofs.into_values().zip(finishes.into_values()).map(reply).collect();
    Ok(Exchange { request, replies })
}

/// What one rank makes of the request, reply by reply.
fn compute(args: &Check, path: &Path, arith: Arith, exchange: &Exchange) -> Result<Vec<api::Run>> {
    let body = exchange.request.to_string();
    let endpoint = match exchange.request.get("messages") {
        Some(_) => Endpoint::Chat,
        None => Endpoint::Completion,
    };
    let asked = Asked::read(endpoint, body.as_bytes(), &Limits::default())?;
    let settings = Settings { arith, kv: args.kv.into(), ..Settings::default() };
    let model = Model::open(path, settings.clone())?;
    let text = Text::from_checkpoint(&model.checkpoint)?;
    let context_max = model.checkpoint.config().context_max();
    let (tokens, manner) = asked.encode(&text, context_max)?;
    let prompt = u32::try_from(tokens.len())?;
    let mut request = asked.schedule(tokens, context_max, &text)?;
    request.guide.grammar = asked.lone_grammar(&text, &manner)?;
    let most = exchange.replies.iter().map(|reply| reply.tokens_max(request.max_tokens));
    let most = most.collect::<Result<Vec<u32>>>()?;
    let longest = most.iter().max().copied().unwrap_or(1);
    let context = prompt.saturating_add(longest).saturating_add(1).max(16);
    let settings = Settings { context: Some(context.min(context_max)), ..settings };
    let threads = args.threads.first().copied().unwrap_or(1);
    let cell = Cell::start(path, settings, threads)?;
    let mut runs = Vec::with_capacity(most.len());
    for (choice, max_tokens) in (0u64..).zip(most) {
        let mut request = sched::Request { max_tokens, ..request.clone() };
        request.sampling.seed = request.sampling.seed.wrapping_add(choice);
        let transcript = Transcript::new(&text, asked.options.stop.clone(), manner.clone());
        runs.push(again(&cell, request, transcript)?);
    }
    cell.stop()?;
    Ok(runs)
}

/// Computes one reply.
fn again(cell: &Cell, request: sched::Request, mut transcript: Transcript) -> Result<api::Run> {
    cell.run(async {
        let mut reply = cell.handle().submit(request).await?;
        let mut meter = Meter::new(std::time::Instant::now());
        while let Some(event) = reply.next().await {
            match event {
                Event::Token { id, .. } => {
                    meter.token(id);
                    if transcript.token(id, None).1.is_some() {
                        return Ok(meter.run());
                    }
                }
                Event::Done { .. } => return Ok(meter.run()),
                Event::Failed(failure) => return Err(failure.into()),
                _ => {}
            }
        }
        bail!("the reply ended without a word")
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use serde_json::json;

    fn proof() -> Value {
        json!({"token_sha256": "ab", "placement": "0:4", "arith": "1"})
    }

    #[test]
    fn a_request_and_its_reply_are_read_whole_or_as_a_stream() {
        let request = json!({"prompt": "a"});
        let end = json!({"choices": [{"finish_reason": "stop"}], "baton": proof()});
        let piece = json!({"choices": [{"text": "b", "finish_reason": null}]});
        let reply = |finish: &str| Reply { proof: proof(), finish_reason: finish.into() };
        let expected = Exchange { request: request.clone(), replies: vec![reply("stop")] };
        let whole = format!("{request}{end}\n");
        assert_eq!(parse(&whole).unwrap(), expected);
        let stream = format!("{request}\ndata: {piece}\n\ndata: {end}\n\ndata: [DONE]\n\n");
        assert_eq!(parse(&stream).unwrap(), expected);
        let choice = |index, finish| json!({"index": index, "finish_reason": finish});
        let (one, two) = (choice(0, "length"), choice(1, "stop"));
        let both = json!({"choices": [one, two], "baton": [proof(), proof()]});
        let several =
            Exchange { request: request.clone(), replies: vec![reply("length"), reply("stop")] };
        assert_eq!(parse(&format!("{request}{both}")).unwrap(), several);
        let ends = [two, one].map(|choice| json!({"choices": [choice], "baton": proof()}));
        let stream = ends.map(|end| format!("data: {end}\n\n")).concat();
        assert_eq!(parse(&format!("{request}\n{stream}")).unwrap(), several);
        for broken in [String::new(), request.to_string(), format!("{request}{piece}")] {
            assert!(parse(&broken).is_err(), "{broken}");
        }
    }
}
