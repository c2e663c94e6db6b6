//! A raw HTTP/1.1 client: what goes over the wire is what the test wrote.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use serde_json::Value;

pub const PATIENCE: Duration = Duration::from_secs(20);

/// A reply whose head has been read.
pub struct Reply {
    pub status: u16,
    pub headers: Vec<(String, String)>,
    reader: BufReader<TcpStream>,
}

pub fn connect(addr: SocketAddr) -> TcpStream {
    let stream = TcpStream::connect(addr).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream
}

/// The bytes of a request.
pub fn request_bytes(method: &str, path: &str, body: &str) -> Vec<u8> {
    format!(
        "{method} {path} HTTP/1.1\r\nHost: test\r\nContent-Type: application/json\r\n\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
    .into_bytes()
}

/// Sends a request on a connection of its own; returns once the head is there.
pub fn send(addr: SocketAddr, method: &str, path: &str, body: &str) -> Reply {
    let mut stream = connect(addr);
    stream.write_all(&request_bytes(method, path, body)).unwrap();
    Reply::read(stream)
}

pub fn post(addr: SocketAddr, path: &str, body: &Value) -> Reply {
    send(addr, "POST", path, &body.to_string())
}

pub fn get(addr: SocketAddr, path: &str) -> Reply {
    send(addr, "GET", path, "")
}

impl Reply {
    pub fn read(stream: TcpStream) -> Self {
        let mut reader = BufReader::new(stream);
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let status = line.split(' ').nth(1).and_then(|s| s.parse().ok());
        let status = status.unwrap_or_else(|| panic!("no status line: {line:?}"));
        let mut headers = Vec::new();
        loop {
            line.clear();
            reader.read_line(&mut line).unwrap();
            let Some((name, value)) = line.trim_end().split_once(": ") else {
                break;
            };
            headers.push((name.to_ascii_lowercase(), value.to_owned()));
        }
        Self { status, headers, reader }
    }

    pub fn header(&self, name: &str) -> Option<&str> {
        let found = self.headers.iter().find(|(n, _)| n == name);
        found.map(|(_, value)| value.as_str())
    }

    /// The next piece of a chunked body; `None` at its proper end.
    fn chunk(&mut self) -> Option<Vec<u8>> {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        let size = usize::from_str_radix(line.trim(), 16);
        let size = size.unwrap_or_else(|_| panic!("the body was cut: {line:?}"));
        let mut data = vec![0; size + 2];
        self.reader.read_exact(&mut data).unwrap();
        data.truncate(size);
        (size > 0).then_some(data)
    }

    /// The whole body, and the connection for the next request.
    pub fn body(mut self) -> (Vec<u8>, TcpStream) {
        let mut body = Vec::new();
        if let Some(length) = self.header("content-length") {
            body = vec![0; length.parse().unwrap()];
            self.reader.read_exact(&mut body).unwrap();
        } else {
            while let Some(chunk) = self.chunk() {
                body.extend(chunk);
            }
        }
        (body, self.reader.into_inner())
    }

    pub fn json(self) -> Value {
        let (body, _) = self.body();
        serde_json::from_slice(&body).unwrap()
    }

    /// The next event of a stream.
    pub fn event(&mut self) -> Option<String> {
        self.chunk().map(|chunk| String::from_utf8(chunk).unwrap())
    }

    /// All `data:` values of a stream that ends properly.
    pub fn events(self) -> Vec<String> {
        let text = String::from_utf8(self.body().0).unwrap();
        assert!(text.ends_with("\n\n"), "{text:?}");
        text.trim_end()
            .split("\n\n")
            .map(|event| event.strip_prefix("data: ").unwrap().to_owned())
            .collect()
    }

    /// The stream's chunks; the last event must be `[DONE]`.
    pub fn chunks(self) -> Vec<Value> {
        let mut events = self.events();
        assert_eq!(events.pop().as_deref(), Some("[DONE]"));
        events.iter().map(|e| serde_json::from_str(e).unwrap()).collect()
    }

    /// Closes the connection, as a client that goes away does.
    pub fn leave(self) {
        drop(self.reader);
    }
}
