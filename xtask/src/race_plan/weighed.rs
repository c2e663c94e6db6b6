//! What a placement holds while it serves: rank 0 as an endpoint, which a benchmark is not.

use std::path::Path;
use std::process::Stdio;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::machine::Rack;
use super::placed::{Bench, CHUNK, Placed, Running};

/// Seconds that a placement may take until it serves.
const READY_MAX_S: u32 = 60;
/// Seconds that its reply may take.
const REPLY_MAX_S: u32 = 60;
/// Where rank 0 serves, on its own machine.
const PORT: u16 = 8_080;

impl Bench {
    /// Bytes that each rank of a plan holds after a reply to a prompt of the case's tokens.
    ///
    /// # Errors
    /// A ring that does not come up or does not reply.
    pub fn weigh(&self, rack: &Rack, plan: &Value) -> Result<Vec<f64>> {
        let placed = Placed::of(plan)?;
        let stages = self.stages(rack, &placed)?;
        let mut head = Rack::command(placed.at(0)?, &self.baton, &self.cache);
        head.arg("serve").arg(&self.model).args(["--layout", placed.layout]);
        head.args(["--threads", "1", "--streams", "1", "--prompt-cache-gib", "0"]);
        head.args(["--context", &self.context().to_string(), "--chunk", CHUNK]);
        head.args(["--host", "127.0.0.1", "--port", &PORT.to_string()]);
        self.join(rack, &placed, &mut head)?;
        let head = Running(head.stdin(Stdio::null()).spawn().context("rank 0")?);
        self.reply(placed.at(0)?)?;
        std::iter::once(&head).chain(&stages).map(|rank| resident_bytes(rank.0.id())).collect()
    }

    /// Has the endpoint of `machine` reply once.
    fn reply(&self, machine: usize) -> Result<()> {
        let (prompt, decode) = self.case;
        let ids: Vec<u32> = (0..prompt).map(|at| at % 200 + 1).collect();
        let body = json!({ "model": "any", "prompt": ids, "max_tokens": decode });
        let mut curl = Rack::command(machine, Path::new("curl"), &self.cache);
        curl.args(["--silent", "--show-error", "--fail-with-body", "--retry-all-errors"]);
        curl.args(["--retry", &READY_MAX_S.to_string(), "--retry-delay", "1"]);
        curl.args(["--max-time", &REPLY_MAX_S.to_string(), "--json", &body.to_string()]);
        curl.arg(format!("http://127.0.0.1:{PORT}/v1/completions"));
        let ran = curl.stdin(Stdio::null()).output().context("curl")?;
        let said = [&ran.stdout, &ran.stderr].map(|out| String::from_utf8_lossy(out));
        let replied = ran.status.success() && said[0].contains("completion_tokens");
        ensure!(replied, "no reply of rank 0: {}{}", said[0], said[1].trim());
        Ok(())
    }
}

fn resident_bytes(pid: u32) -> Result<f64> {
    let status = std::fs::read_to_string(Path::new("/proc").join(format!("{pid}/status")))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.split_whitespace().next()?.parse::<f64>().ok());
    let kib = kib.context("a process says what it holds")?;
    ensure!(kib > 0.0, "process {pid} holds nothing");
    Ok(kib * 1024.0)
}
