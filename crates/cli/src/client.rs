//! A client of the endpoint: streamed chat over plain HTTP.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};

/// Longest line of a stream.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Where the endpoint is.
pub struct Client {
    agent: ureq::Agent,
    url: String,
}

/// A reply that has come to its end.
#[derive(Debug, Default)]
pub struct Streamed {
    /// Its text.
    pub text: String,
    /// Its tokens.
    pub tokens: Vec<u32>,
    /// `stop` or `length`.
    pub finish: String,
}

impl Client {
    /// A client of `url`, with or without `http://` and `/v1`.
    pub fn new(url: &str) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(5)))
            .build();
        let url = url.trim_end_matches('/').trim_end_matches("/v1");
        let scheme = if url.contains("://") { "" } else { "http://" };
        Self { agent: config.into(), url: format!("{scheme}{url}") }
    }

    /// Whether /ready says 200; else what it says.
    pub fn ready(&self) -> Result<()> {
        let mut response =
            self.agent.get(format!("{}/ready", self.url)).call().with_context(|| {
                format!("no server at {}: start one with `baton serve`", self.url)
            })?;
        if response.status() == 200 {
            return Ok(());
        }
        let text = response.body_mut().read_to_string().unwrap_or_default();
        let said: Value = serde_json::from_str(&text).unwrap_or_default();
        let (status, detail) = (said["status"].as_str(), said["detail"].as_str());
        let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        bail!("{} is not ready, but {}{detail}", self.url, status.unwrap_or(text.trim()))
    }

    /// Streams one chat reply, handing each piece of text on as it comes.
    ///
    /// # Errors
    /// The server's error, or a reply that broke off.
    pub fn chat(
        &self,
        messages: &[Value],
        max_tokens: u32,
        temperature: f64,
        mut piece: impl FnMut(&str),
    ) -> Result<Streamed> {
        let body = json!({
            "model": "baton", "messages": messages, "stream": true, "max_tokens": max_tokens,
            "temperature": temperature, "return_token_ids": true,
        });
        let mut response = self
            .agent
            .post(format!("{}/v1/chat/completions", self.url))
            .content_type("application/json")
            .send(body.to_string())
            .with_context(|| format!("no server at {}: start one with `baton serve`", self.url))?;
        if response.status() != 200 {
            let text = response.body_mut().read_to_string().unwrap_or_default();
            bail!("the server said {}: {}", response.status(), message_of(&text));
        }
        let mut reply = Streamed::default();
        let mut lines = BufReader::new(response.body_mut().as_reader());
        loop {
            let mut line = String::new();
            let mut limited = std::io::Read::take(&mut lines, LINE_BYTES_MAX);
            let broke = || format!("the reply broke off after {} tokens", reply.tokens.len());
            if limited.read_line(&mut line).with_context(broke)? == 0 {
                bail!(broke());
            }
            let Some(data) = line.trim_end().strip_prefix("data: ") else {
                continue;
            };
            if data == "[DONE]" {
                return Ok(reply);
            }
            let event: Value = serde_json::from_str(data).context("the server's event")?;
            if event.get("error").is_some() {
                bail!("{}", message_of(data));
            }
            take(&event["choices"][0], &mut reply, &mut piece);
        }
    }
}

fn take(choice: &Value, reply: &mut Streamed, piece: &mut impl FnMut(&str)) {
    if let Some(text) = choice["delta"]["content"].as_str() {
        reply.text.push_str(text);
        piece(text);
    }
    let ids = choice["token_ids"].as_array().into_iter().flatten();
    reply.tokens.extend(ids.filter_map(|id| u32::try_from(id.as_u64()?).ok()));
    if let Some(finish) = choice["finish_reason"].as_str() {
        reply.finish = finish.to_owned();
    }
}

/// The message inside OpenAI's error shape, else the text itself.
fn message_of(text: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(text).ok();
    let message = parsed.as_ref().and_then(|v| v["error"]["message"].as_str());
    message.unwrap_or(text.trim()).to_owned()
}
