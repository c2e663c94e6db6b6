//! `baton demo`: a ring of processes answers, then one rank alone proves the same bytes.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use sched::Request;
use serde_json::json;
use text::Text;

use crate::args::Demo;
use crate::cell::Cell;
use crate::check;
use crate::client::{Client, Streamed, Wish};
use crate::model::{Model, Settings};
use crate::rank::loopback_ports;
use crate::{chat, source};

/// How long the ring may take to become ready.
const READY_TIMEOUT: Duration = Duration::from_secs(120);
/// Context of the demo.
const CONTEXT: u32 = 2_048;

/// Downloads the model where needed, serves it over `world` ranks, streams a reply and compares.
///
/// # Errors
/// Whatever fails on the way; a reply that differs from one rank's.
pub fn run(args: &Demo) -> Result<()> {
    let path = source::resolve(&args.model)?;
    let path_text = path.to_string_lossy().into_owned();
    let (world, arith, context) = (args.world, args.arith, Some(CONTEXT));
    let settings = Settings { world, arith, context, ..Settings::default() };
    let model = Model::open(&path, settings)?;
    println!("{}: {} ranks on loopback, layers {}", model.name(), args.world, model.layout);
    let port = loopback_ports(1)?[0].port();
    let mut ring = Ring::start(&path_text, args, port)?;
    let client = Client::new(&format!("http://127.0.0.1:{port}"));
    ring.wait_ready(&client)?;
    println!("\n> {}\n", args.prompt);
    let messages = [json!({"role": "user", "content": args.prompt})];
    let wish = Wish { max_tokens: args.max_tokens, ..Wish::default() };
    let started = Instant::now();
    let reply = client.chat(&messages, &wish, |piece| {
        chat::show(piece);
        true
    })?;
    let seconds = started.elapsed().as_secs_f64();
    println!("\n");
    ring.end()?;
    println!("{} tokens in {seconds:.1} s over {} ranks", reply.tokens.len(), args.world);
    prove(args, &path, &model, &messages, &reply)
}

/// Runs the same request on one rank in this process.
fn prove(
    args: &Demo,
    path: &std::path::Path,
    model: &Model,
    messages: &[serde_json::Value],
    reply: &Streamed,
) -> Result<()> {
    let text = Text::from_checkpoint(&model.checkpoint)?;
    let prompt = text.encode(&text.render(messages, true, &serde_json::Map::new())?)?;
    let settings = Settings { arith: args.arith, context: Some(CONTEXT), ..Settings::default() };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let cell = Cell::start(path, settings, cores)?;
    let request = Request {
        prompt,
        max_tokens: args.max_tokens,
        stop_tokens: text.stop_tokens().to_vec(),
        hash_logits: true,
        ..Request::default()
    };
    let alone = cell.run(check::one(cell.handle(), request))?;
    cell.stop()?;
    let hash = |tokens: &[u32]| {
        let bytes: Vec<u8> = tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
        source::sha256_hex(&bytes)
    };
    let (ring, one) = (hash(&reply.tokens), hash(&alone.tokens));
    ensure!(ring == one, "{} ranks gave {ring}, one rank {one}: please report this", args.world);
    println!("one hash: {one} from {} ranks and from 1", args.world);
    Ok(())
}

/// `baton serve` as a child of this process.
struct Ring(Child);

impl Ring {
    fn start(model: &str, args: &Demo, port: u16) -> Result<Self> {
        let child = Command::new(std::env::current_exe()?)
            .args(["--log", "warn", "serve", model])
            .args(["--world", &args.world.to_string(), "--port", &port.to_string()])
            .args(["--arith", &args.arith.to_string()])
            .args(["--context", &CONTEXT.to_string()])
            .stdin(Stdio::null())
            .spawn()
            .context("can't start the ring")?;
        Ok(Self(child))
    }

    fn wait_ready(&mut self, client: &Client) -> Result<()> {
        let until = Instant::now() + READY_TIMEOUT;
        while client.ready().is_err() {
            if let Some(status) = self.0.try_wait()? {
                bail!("the ring did not start ({status}), as said above");
            }
            if Instant::now() > until {
                bail!("the ring was not ready within {} s", READY_TIMEOUT.as_secs());
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(())
    }

    /// Ends it as a user would, by SIGTERM.
    fn end(mut self) -> Result<()> {
        self.terminate();
        let status = self.0.wait()?;
        ensure!(status.success(), "the ring ended with {status}");
        Ok(())
    }

    fn terminate(&mut self) {
        let Ok(pid) = libc::pid_t::try_from(self.0.id()) else {
            return;
        };
        // SAFETY: kill has no memory effects; the child is not reaped yet, so the pid is its own.
        unsafe { libc::kill(pid, libc::SIGTERM) };
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        if let Ok(None) = self.0.try_wait() {
            self.terminate();
            let _ = self.0.wait();
        }
    }
}
