//! `baton check --proof`: computes a served reply again, on one rank here, and holds its proof
//! against what comes out.

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
    /// The object `baton` of the reply.
    proof: Value,
    finish_reason: String,
}

/// Reads FILE, the request's body and then the reply as it came, and computes the reply again.
///
/// # Errors
/// A file that holds no such pair; a reply that is another than the proof says, with both hashes.
pub fn run(args: &Check, file: &Path) -> Result<()> {
    let exchange = parse(&read(file)?)?;
    let named = |name: &str| {
        exchange.proof[name].as_str().with_context(|| format!("the proof has no text '{name}'"))
    };
    let (claimed, placement) = (named("token_sha256")?, named("placement")?);
    let arith: Arith = named("arith")?.parse().map_err(anyhow::Error::msg)?;
    let path = source::resolve(&args.model)?;
    let found = compute(args, &path, arith, &exchange)?;
    let hash = hex(&found.token_sha256);
    ensure!(
        hash == claimed,
        "the proof does not hold: its {claimed} is not the {hash} of the {} tokens that one rank \
         gives; was it this model, with the --kv {} of the server?",
        found.tokens,
        arith::attention::KvDtype::from(args.kv).name(),
    );
    println!(
        "proof holds: {} tokens, {hash}, served by {placement} in arith {arith}, computed again by \
         one rank",
        found.tokens
    );
    Ok(())
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
    let proof = chunks.iter().rev().map(|chunk| &chunk["baton"]).find(|proof| proof.is_object());
    let finish = chunks.iter().rev().find_map(|c| c["choices"][0]["finish_reason"].as_str());
    match (proof, finish) {
        (Some(proof), Some(finish)) => {
            Ok(Exchange { request, proof: proof.clone(), finish_reason: finish.to_owned() })
        }
        _ => bail!("the reply after the request has no object 'baton', or it did not end"),
    }
}

/// What one rank makes of the request.
fn compute(args: &Check, path: &Path, arith: Arith, exchange: &Exchange) -> Result<api::Run> {
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
    let reply = reply_tokens(exchange)?;
    // Where the server's context, or the client's bound, cut the reply it is cut here; a token
    // more shows that it did not end by itself.
    let most = if exchange.finish_reason == "length" { reply } else { reply.saturating_add(1) };
    request.max_tokens = request.max_tokens.min(most.max(1));
    let context = prompt.saturating_add(request.max_tokens).saturating_add(1).max(16);
    let settings = Settings { context: Some(context.min(context_max)), ..settings };
    let threads = args.threads.first().copied().unwrap_or(1);
    let cell = Cell::start(path, settings, threads)?;
    let mut transcript = Transcript::new(&text, asked.options.stop, manner);
    let run = cell.run(async {
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
    })?;
    cell.stop()?;
    Ok(run)
}

/// Tokens of the served reply.
fn reply_tokens(exchange: &Exchange) -> Result<u32> {
    let tokens = exchange.proof["tokens"].as_u64().context("the proof has no number 'tokens'")?;
    Ok(u32::try_from(tokens)?)
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
        let expected =
            Exchange { request: request.clone(), proof: proof(), finish_reason: "stop".into() };
        let whole = format!("{request}{end}\n");
        assert_eq!(parse(&whole).unwrap(), expected);
        let stream = format!("{request}\ndata: {piece}\n\ndata: {end}\n\ndata: [DONE]\n\n");
        assert_eq!(parse(&stream).unwrap(), expected);
        for broken in [String::new(), request.to_string(), format!("{request}{piece}")] {
            assert!(parse(&broken).is_err(), "{broken}");
        }
    }
}
