//! A small HTTP/1.1 client that sees every byte, also of replies that break off.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

/// Longest wait for the next byte.
const PATIENCE: Duration = Duration::from_secs(30);

/// One request on a connection of its own; its status and JSON.
pub fn call(addr: SocketAddr, method: &str, path: &str, body: &str) -> (u16, Value) {
    try_call(addr, method, path, body).unwrap_or_else(|e| panic!("{method} {path}: {e}"))
}

/// As [`call`], where the server may be gone.
pub fn try_call(
    addr: SocketAddr,
    method: &str,
    path: &str,
    body: &str,
) -> std::io::Result<(u16, Value)> {
    let mut head = Head::ask(addr, method, path, body)?;
    let mut text = String::new();
    head.reader.read_to_string(&mut text)?;
    Ok((head.status, serde_json::from_str(&text)?))
}

/// GET.
pub fn get(addr: SocketAddr, path: &str) -> (u16, Value) {
    call(addr, "GET", path, "")
}

/// POST.
pub fn post(addr: SocketAddr, path: &str, body: &Value) -> (u16, Value) {
    call(addr, "POST", path, &body.to_string())
}

struct Head {
    status: u16,
    reader: BufReader<TcpStream>,
}

/// Sends a request on a connection of its own.
pub fn send(addr: SocketAddr, method: &str, path: &str, body: &str) -> std::io::Result<TcpStream> {
    let mut stream = TcpStream::connect_timeout(&addr, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let length = body.len();
    let request = format!(
        "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\
         Content-Type: application/json\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes())?;
    Ok(stream)
}

impl Head {
    fn ask(addr: SocketAddr, method: &str, path: &str, body: &str) -> std::io::Result<Self> {
        let mut reader = BufReader::new(send(addr, method, path, body)?);
        let mut line = String::new();
        reader.read_line(&mut line)?;
        let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
        let status = status.ok_or_else(|| std::io::Error::other(format!("no status: {line:?}")))?;
        while line.trim_end() != "" {
            line.clear();
            reader.read_line(&mut line)?;
        }
        Ok(Self { status, reader })
    }
}

/// A reply as server-sent events.
pub struct Stream {
    reader: BufReader<TcpStream>,
    pending: String,
    all: Streamed,
}

/// What comes next in a stream.
#[derive(Debug, PartialEq)]
enum Next {
    /// A chunk.
    Event(Value),
    /// `[DONE]`.
    Done,
    /// The proper end of the body.
    End,
    /// The connection broke.
    Cut,
}

/// All that a stream said.
#[derive(Debug, Default, PartialEq)]
pub struct Streamed {
    pub text: String,
    pub ids: Vec<u64>,
    pub finish: Option<String>,
    pub usage: Option<Value>,
    pub error: Option<String>,
    pub done: bool,
    pub ended: bool,
}

impl Stream {
    /// Asks; the reply must begin.
    pub fn open(addr: SocketAddr, path: &str, body: &Value) -> Self {
        Self::try_open(addr, path, &body.to_string())
            .unwrap()
            .unwrap_or_else(|(status, text)| panic!("{status}: {text}"))
    }

    /// Asks; else the status and what was said instead.
    pub fn try_open(
        addr: SocketAddr,
        path: &str,
        body: &str,
    ) -> std::io::Result<Result<Self, (u16, String)>> {
        let mut head = Head::ask(addr, "POST", path, body)?;
        if head.status != 200 {
            let mut text = String::new();
            let _ = head.reader.read_to_string(&mut text);
            return Ok(Err((head.status, text)));
        }
        Ok(Ok(Self { reader: head.reader, pending: String::new(), all: Streamed::default() }))
    }

    /// Takes the next event; false once there are none.
    pub fn step(&mut self) -> bool {
        match self.next() {
            Next::Event(event) => self.all.take(&event),
            Next::Done => self.all.done = true,
            Next::End => {
                self.all.ended = true;
                return false;
            }
            Next::Cut => return false,
        }
        true
    }

    /// What it said so far.
    pub fn all(&self) -> &Streamed {
        &self.all
    }

    fn next(&mut self) -> Next {
        loop {
            if let Some((event, rest)) = self.pending.split_once("\n\n") {
                let data = event.strip_prefix("data: ").unwrap_or_else(|| panic!("{event:?}"));
                let next = match data {
                    "[DONE]" => Next::Done,
                    data => Next::Event(serde_json::from_str(data).unwrap()),
                };
                self.pending = rest.to_owned();
                return next;
            }
            match self.chunk() {
                Ok(Some(text)) => self.pending.push_str(&text),
                Ok(None) => return Next::End,
                Err(_) => return Next::Cut,
            }
        }
    }

    /// The next piece of the chunked body.
    fn chunk(&mut self) -> std::io::Result<Option<String>> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        let size = usize::from_str_radix(line.trim(), 16).map_err(std::io::Error::other)?;
        let mut data = vec![0; size + 2];
        self.reader.read_exact(&mut data)?;
        data.truncate(size);
        let text = String::from_utf8(data).map_err(std::io::Error::other)?;
        Ok((size > 0).then_some(text))
    }

    /// Reads that many events of a reply that goes on.
    pub fn read(&mut self, events: usize) {
        for _ in 0..events {
            match self.next() {
                Next::Event(event) if event.get("error").is_none() => self.all.take(&event),
                other => panic!("the reply ended early: {other:?}"),
            }
        }
    }

    /// All of it, read to the end, whatever that is.
    pub fn finish(mut self) -> Streamed {
        while self.step() {}
        self.all
    }
}

impl Streamed {
    fn take(&mut self, event: &Value) {
        if let Some(error) = event["error"]["message"].as_str() {
            self.error = Some(error.to_owned());
            return;
        }
        if !event["usage"].is_null() {
            self.usage = Some(event["usage"].clone());
        }
        let choice = &event["choices"][0];
        let text = choice["delta"]["content"].as_str().or(choice["text"].as_str());
        self.text.push_str(text.unwrap_or_default());
        self.ids.extend(ids(choice));
        if let Some(finish) = choice["finish_reason"].as_str() {
            self.finish = Some(finish.to_owned());
        }
    }
}

/// `token_ids` of a choice.
pub fn ids(choice: &Value) -> Vec<u64> {
    let ids = choice["token_ids"].as_array().into_iter().flatten();
    ids.map(|id| id.as_u64().unwrap()).collect()
}
