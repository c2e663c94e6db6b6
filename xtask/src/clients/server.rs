//! `baton serve`, for a client.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};

use crate::step;

/// Longest wait for a ring that is to serve.
const READY_TIMEOUT: Duration = Duration::from_secs(120);

/// `baton serve` on a port of its own; ends when dropped.
pub struct Server {
    child: Child,
    address: String,
}

impl Server {
    /// A ring of `world` ranks that is ready.
    ///
    /// # Errors
    /// One that does not get ready.
    pub fn start(model: &str, world: &str, more: &[&str]) -> Result<Self> {
        let mut command = step::baton()?;
        command.args(["serve", model, "--world", world, "--port", "0"]).args(more);
        let mut child = command
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .context("can't start baton: `cargo build -p baton` makes it")?;
        let log = child.stderr.take().context("its log is a pipe")?;
        let mut server = Self { child, address: String::new() };
        let mut lines = BufReader::new(log).lines();
        for line in lines.by_ref() {
            if let Some((_, rest)) = line?.split_once("http://") {
                server.address = rest.split('/').next().unwrap_or_default().to_owned();
                break;
            }
        }
        ensure!(!server.address.is_empty(), "`baton serve {model}` ended before it served");
        // The log goes on, and a full pipe would stop the server.
        std::thread::spawn(move || lines.for_each(drop));
        let started = Instant::now();
        while !server.is_ready() {
            ensure!(started.elapsed() < READY_TIMEOUT, "the ring of {world} does not get ready");
            std::thread::sleep(Duration::from_millis(100));
        }
        Ok(server)
    }

    /// Where it serves.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    fn is_ready(&self) -> bool {
        let ask = || -> std::io::Result<bool> {
            let mut stream = TcpStream::connect(&self.address)?;
            let request = "GET /ready HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n";
            stream.write_all(request.as_bytes())?;
            let mut head = [0; 12];
            stream.read_exact(&mut head)?;
            Ok(head.ends_with(b" 200"))
        };
        ask().unwrap_or(false)
    }

    /// Runs a script against it, whose first argument is the address; its last line.
    ///
    /// # Errors
    /// One that fails, with what it said.
    pub fn run(&self, mut script: Command, arguments: &[&str]) -> Result<String> {
        script.arg(self.url()).args(arguments);
        let output = script.stderr(Stdio::inherit()).output();
        let output = output.with_context(|| format!("can't run {script:?}"))?;
        let text = String::from_utf8_lossy(&output.stdout);
        print!("{text}");
        ensure!(output.status.success(), "{script:?} failed");
        Ok(text.lines().last().unwrap_or_default().to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
