//! A client of the endpoint: streamed chat over plain HTTP.

use std::io::{BufRead, BufReader};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::{Value, json};
use ureq::Body;
use ureq::http::Response;

/// Longest line of a stream.
const LINE_BYTES_MAX: u64 = 1 << 20;

/// Where a client finds its key.
const KEY: &str = "BATON_API_KEY";

/// Where the endpoint is.
#[derive(Clone)]
pub struct Client {
    agent: ureq::Agent,
    url: String,
    /// `Bearer KEY`, where there is one.
    key: Option<String>,
}

/// A piece of a reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece<T> {
    /// Of the answer.
    Content(T),
    /// Of what was thought before it.
    Reasoning(T),
}

impl Piece<&str> {
    /// On its own.
    pub fn to_owned(self) -> Piece<String> {
        match self {
            Self::Content(text) => Piece::Content(text.into()),
            Self::Reasoning(text) => Piece::Reasoning(text.into()),
        }
    }
}

impl Piece<String> {
    /// Without its memory.
    pub fn as_ref(&self) -> Piece<&str> {
        match self {
            Self::Content(text) => Piece::Content(text),
            Self::Reasoning(text) => Piece::Reasoning(text),
        }
    }
}

/// How a reply is to be drawn.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wish {
    /// Its most tokens.
    pub max_tokens: u32,
    /// 0 is greedy.
    pub temperature: f64,
    /// Of the prompt where there is none.
    pub seed: Option<u64>,
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
    /// A client of `url`, with or without `http://` and `/v1`; its key is in `BATON_API_KEY`.
    pub fn new(url: &str) -> Self {
        let config = ureq::Agent::config_builder()
            .http_status_as_error(false)
            .timeout_connect(Some(Duration::from_secs(5)))
            .build();
        let url = url.trim_end_matches('/').trim_end_matches("/v1");
        let scheme = if url.contains("://") { "" } else { "http://" };
        let key = std::env::var(KEY).ok().map(|key| format!("Bearer {}", key.trim()));
        Self { agent: config.into(), url: format!("{scheme}{url}"), key }
    }

    /// A small reply in JSON.
    ///
    /// # Errors
    /// As [`Client::text`].
    pub fn get(&self, path: &str) -> Result<Value> {
        serde_json::from_str(&self.text(path)?).with_context(|| format!("{path}: not JSON"))
    }

    /// A small reply.
    ///
    /// # Errors
    /// No server, or one that says no.
    pub fn text(&self, path: &str) -> Result<String> {
        let mut request = self.agent.get(format!("{}{path}", self.url));
        if let Some(key) = &self.key {
            request = request.header("Authorization", key);
        }
        let mut response = request.call().with_context(|| self.nobody())?;
        let text = response.body_mut().read_to_string()?;
        if response.status() != 200 {
            bail!("{path}: the server said {}: {}", response.status(), message_of(&text));
        }
        Ok(text)
    }

    /// Sends JSON; the response, whatever its status.
    ///
    /// # Errors
    /// No server.
    pub fn post(&self, path: &str, body: &Value) -> Result<Response<Body>> {
        let request = self.agent.post(format!("{}{path}", self.url));
        let mut request = request.content_type("application/json");
        if let Some(key) = &self.key {
            request = request.header("Authorization", key);
        }
        request.send(body.to_string()).with_context(|| self.nobody())
    }

    fn nobody(&self) -> String {
        format!("no server at {}: start one with `baton serve`", self.url)
    }

    /// Whether /ready says 200; else what it says.
    pub fn ready(&self) -> Result<()> {
        let ready = self.agent.get(format!("{}/ready", self.url));
        let mut response = ready.call().with_context(|| self.nobody())?;
        if response.status() == 200 {
            return Ok(());
        }
        let text = response.body_mut().read_to_string().unwrap_or_default();
        let said: Value = serde_json::from_str(&text).unwrap_or_default();
        let (status, detail) = (said["status"].as_str(), said["detail"].as_str());
        let detail = detail.map(|detail| format!(": {detail}")).unwrap_or_default();
        bail!("{} is not ready, but {}{detail}", self.url, status.unwrap_or(text.trim()))
    }

    /// What `path` answers to `body`, as JSON.
    ///
    /// # Errors
    /// No server, or one that says no.
    pub fn ask(&self, path: &str, body: &Value) -> Result<Value> {
        let mut response = self.post(path, body)?;
        let text = response.body_mut().read_to_string()?;
        if response.status() != 200 {
            bail!("{path}: the server said {}: {}", response.status(), message_of(&text));
        }
        serde_json::from_str(&text).with_context(|| format!("{path}: not JSON"))
    }

    /// Streams one chat reply, handing each piece of text on as it comes; a reply whose `piece`
    /// says false ends there, for the server too.
    ///
    /// # Errors
    /// The server's error, or a reply that broke off.
    pub fn chat(
        &self,
        messages: &[Value],
        wish: &Wish,
        mut piece: impl FnMut(Piece<&str>) -> bool,
    ) -> Result<Streamed> {
        let mut body = json!({
            "model": "baton", "messages": messages, "stream": true, "max_tokens": wish.max_tokens,
            "temperature": wish.temperature, "return_token_ids": true,
        });
        if let Some(seed) = wish.seed {
            body["seed"] = seed.into();
        }
        let mut response = self.post("/v1/chat/completions", &body)?;
        if response.status() != 200 {
            let text = response.body_mut().read_to_string().unwrap_or_default();
            let hint =
                if response.status() == 401 { " (the key is read from BATON_API_KEY)" } else { "" };
            bail!("the server said {}: {}{hint}", response.status(), message_of(&text));
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
            if !take(&event["choices"][0], &mut reply, &mut piece) {
                return Ok(reply);
            }
        }
    }
}

/// Takes an event's choice; whether the reply is to go on.
fn take(choice: &Value, reply: &mut Streamed, piece: &mut impl FnMut(Piece<&str>) -> bool) -> bool {
    let mut goes_on = true;
    if let Some(text) = choice["delta"]["reasoning_content"].as_str() {
        goes_on &= piece(Piece::Reasoning(text));
    }
    if let Some(text) = choice["delta"]["content"].as_str() {
        reply.text.push_str(text);
        goes_on &= piece(Piece::Content(text));
    }
    let ids = choice["token_ids"].as_array().into_iter().flatten();
    reply.tokens.extend(ids.filter_map(|id| u32::try_from(id.as_u64()?).ok()));
    if let Some(finish) = choice["finish_reason"].as_str() {
        reply.finish = finish.to_owned();
    }
    goes_on
}

/// The message inside OpenAI's error shape, else the text itself.
fn message_of(text: &str) -> String {
    let parsed: Option<Value> = serde_json::from_str(text).ok();
    let message = parsed.as_ref().and_then(|v| v["error"]["message"].as_str());
    message.unwrap_or(text.trim()).to_owned()
}
