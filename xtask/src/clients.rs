//! Clients as PyPI has them against rings of real processes, and replies by many schemas.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};

use crate::step::{self, Steps};

/// What is installed into an environment under `target/`.
const PACKAGES: [&str; 3] = ["openai==3.57.0", "anthropic==2.14.0", "jsonschema"];
const WORLDS: [&str; 2] = ["1", "3"];
/// Longest wait for a ring that is to serve.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Tokens of a reply by schema.
const TOKENS_MAX: &str = "512";

/// Runs the clients at world 1 and 3, then `--replies` replies by schema at world 1; `--model`
/// names another model than the built-in one. Both worlds must have said the same.
///
/// # Errors
/// A client that failed, a reply that is wrong, worlds that differ.
pub fn run(steps: &mut Steps, arguments: &[String]) -> Result<()> {
    let (mut replies, mut model) = ("2000".to_owned(), "baton-tiny".to_owned());
    for pair in arguments.chunks(2) {
        match pair {
            [name, value] if name == "--replies" => replies.clone_from(value),
            [name, value] if name == "--model" => model.clone_from(value),
            _ => bail!("expected [--replies N] [--model MODEL]"),
        }
    }
    let root = steps.root().to_owned();
    let python = python(steps, &root.join("target/clients"))?;
    let scripts = root.join("xtask/src/clients");
    let mut said = Vec::new();
    for world in WORLDS {
        let server = Server::start(&model, world)?;
        said.push(server.run(&python, &scripts.join("ring.py"), &[])?);
    }
    ensure!(said[0] == said[1], "world 1 said `{}`, world 3 `{}`", said[0], said[1]);
    let server = Server::start(&model, "1")?;
    let structured =
        server.run(&python, &scripts.join("structured.py"), &[&replies, TOKENS_MAX])?;
    println!("clients: {model}, worlds 1 and 3: {}; {structured}", said[0]);
    Ok(())
}

fn python(steps: &mut Steps, folder: &Path) -> Result<PathBuf> {
    let python = folder.join("bin/python");
    let has = ["-c", "import openai, anthropic, jsonschema"];
    let quiet = Command::new(&python).args(has).stderr(Stdio::null()).status();
    if !quiet.is_ok_and(|status| status.success()) {
        steps.run("venv", Command::new("python3").args(["-m", "venv", "--clear"]).arg(folder))?;
        let install = ["-m", "pip", "install", "--quiet"];
        steps.run("pip", Command::new(&python).args(install).args(PACKAGES))?;
    }
    Ok(python)
}

/// `baton serve` on a port of its own; ends when dropped.
struct Server {
    child: Child,
    address: String,
}

impl Server {
    fn start(model: &str, world: &str) -> Result<Self> {
        let mut command = step::baton()?;
        command.args(["serve", model, "--world", world, "--port", "0"]).stderr(Stdio::piped());
        let mut child = command.stdin(Stdio::null()).spawn().context("can't start baton")?;
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

    /// Runs a script against it; its last line.
    fn run(&self, python: &Path, script: &Path, arguments: &[&str]) -> Result<String> {
        let mut command = Command::new(python);
        command.arg(script).arg(format!("http://{}", self.address)).args(arguments);
        let output = command.stderr(Stdio::inherit()).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        ensure!(output.status.success(), "{} failed:\n{text}", script.display());
        let last = text.lines().last().unwrap_or_default();
        println!("{last}");
        Ok(last.to_owned())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
