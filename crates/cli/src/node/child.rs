//! A node's rank: the layers that it takes, then a process that ends with its agent; and a node's
//! measurement.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{self, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, ensure};
use node::journal::Journal;
use node::message::{Coming, Launch, Wanted};
use placement::Facts;
use ring::key::SECRET_BYTES;
use serde_json::Value;

use super::find::find;
use super::supply::{Supply, Taking};

/// How long a rank may take to end before it is killed.
const END_TIMEOUT: Duration = Duration::from_secs(3);
/// Most bytes of a measurement.
const MEASURED_BYTES_MAX: u64 = 1 << 20;
/// Longest last line of a rank that is repeated.
const WHY_BYTES_MAX: usize = 400;
/// Longest piece of what a rank says.
const LINE_BYTES_MAX: u64 = 4_096;
const GIB: f64 = (1u64 << 30) as f64;

/// What processes are started with.
pub struct Starter {
    /// The node's name.
    pub name: String,
    /// As `--device` takes it.
    pub device: String,
    /// Compute threads.
    pub threads: usize,
    /// Most memory, in GiB.
    pub memory_limit: Option<f64>,
    /// Where models are.
    pub models: Option<PathBuf>,
    /// Where the rank listens.
    pub listen: Vec<SocketAddr>,
    /// Where what it says is kept.
    pub journal: PathBuf,
    /// Log filter.
    pub log: String,
    /// Layers that other machines give.
    pub supply: Arc<Supply>,
}

/// A rank, from the first layer that it takes to the end of its process.
pub enum Child {
    /// Its layers come.
    Takes(Box<(Taking, Launch)>),
    /// It runs.
    Runs(Running),
}

/// A rank's process.
pub struct Running {
    process: process::Child,
    /// When it is killed.
    until: Option<Instant>,
    last: Arc<std::sync::Mutex<String>>,
}

/// What a measurement gave.
pub enum Measured {
    /// Facts, for the head's planner.
    Facts(Value),
    /// There is no such model here, and nobody said where to take it; why.
    Lacks(String),
}

impl Starter {
    /// Starts a rank, once the layers that this machine lacks are here. The calling thread must
    /// outlive it.
    ///
    /// # Errors
    /// No such model here or elsewhere, or a process that can't be started.
    pub fn start(&self, launch: &Launch) -> Result<Child> {
        let units = launch.wanted.units.as_ref();
        let found = match units.is_some_and(|units| units.instead) {
            true => Err(anyhow!("its file holds other values")),
            false => find(&launch.wanted, self.models.as_deref()),
        };
        match (found, units) {
            (Ok(model), _) => Ok(Child::Runs(self.run(launch, &model)?)),
            (Err(_), Some(units)) => {
                let (first, end) = launch.layers;
                let who = format!("{}, rank {}", self.name, launch.rank);
                let taking = Taking::start(self.supply.clone(), units, first..end, who)?;
                Ok(Child::Takes(Box::new((taking, launch.clone()))))
            }
            (Err(error), None) => Err(error),
        }
    }

    fn run(&self, launch: &Launch, model: &Path) -> Result<Running> {
        let secret = launch.secret.bytes().filter(|secret| secret.len() == SECRET_BYTES);
        let secret = secret.context("the head gave no secret for the ring")?;
        let mut command = self.command()?;
        command.args(["--log", &self.log, "stage", "--local"]).arg(model);
        self.settings(&mut command, &launch.wanted);
        command.args(&launch.arguments);
        for address in &self.listen {
            command.args(["--listen", &address.to_string()]);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        let mut process = command.spawn().context("can't start a rank")?;
        if let Some(stdin) = &mut process.stdin {
            // A process that is gone already is found by its keeper.
            let _ = stdin.write_all(&secret);
        }
        let last = Arc::default();
        if let Some(said) = process.stderr.take() {
            let (name, rank) = (self.name.clone(), launch.rank);
            let journal = Journal::open(&self.journal.join("rank.log"));
            let last = Arc::clone(&last);
            let keep = move || keep(said, journal, &last, &format!("{name}, rank {rank}"));
            std::thread::Builder::new().name("baton-journal".into()).spawn(keep)?;
        }
        tracing::info!("rank {} of {}: process {}", launch.rank, launch.layout, process.id());
        Ok(Running { process, until: None, last })
    }

    /// Measures what this machine is to a placement of the model.
    ///
    /// # Errors
    /// What a measurement fails of.
    pub fn measure(&self, wanted: &Wanted, again: bool) -> Result<Measured> {
        let model = match (find(wanted, self.models.as_deref()), &wanted.units) {
            (Ok(model), _) => model,
            (Err(_), Some(units)) => self.supply.texts(units)?,
            (Err(error), None) => return Ok(Measured::Lacks(crate::line(&error))),
        };
        let mut command = self.command()?;
        command.args(["--log", &self.log, "probe", "--json", "--name", &self.name]).arg(model);
        if again {
            command.arg("--again");
        }
        self.settings(&mut command, wanted);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().context("can't start a measurement")?;
        let mut said = String::new();
        if let Some(out) = &mut process.stdout {
            out.take(MEASURED_BYTES_MAX).read_to_string(&mut said)?;
        }
        let ended = process.wait_with_output()?;
        let text = String::from_utf8_lossy(&ended.stderr);
        let why = text.lines().last().unwrap_or_default();
        ensure!(ended.status.success(), "the measurement failed: {why}");
        let mut facts: Facts = serde_json::from_str(&said).context("the measurement")?;
        if let Some(gib) = self.memory_limit {
            facts.node.memory_bytes = facts.node.memory_bytes.min((gib * GIB) as u64);
        }
        Ok(Measured::Facts(serde_json::to_value(facts)?))
    }

    /// Lets others take the model's units from this machine, which has its file.
    ///
    /// # Errors
    /// No such model here, or one that can't be read.
    pub fn give(&self, wanted: &Wanted) -> Result<()> {
        self.supply.give(&find(wanted, self.models.as_deref())?)
    }

    /// This program, to end with the thread that starts it.
    fn command(&self) -> Result<Command> {
        let mut command = Command::new(std::env::current_exe().context("this program's path")?);
        command.env("NO_COLOR", "1");
        #[cfg(target_os = "linux")]
        // SAFETY: between fork and exec only prctl is called, which is async-signal-safe.
        unsafe {
            std::os::unix::process::CommandExt::pre_exec(&mut command, || {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        Ok(command)
    }

    /// The head's settings, and this node's own where it has none for it.
    fn settings(&self, command: &mut Command, wanted: &Wanted) {
        let is_said = |flag: &str| wanted.arguments.iter().any(|argument| argument == flag);
        command.args(&wanted.arguments);
        if !is_said("--device") {
            command.args(["--device", &self.device]);
        }
        if !is_said("--threads") {
            command.args(["--threads", &self.threads.to_string()]);
        }
    }
}

impl Child {
    /// What it waits for, while it does.
    pub fn coming(&self) -> Option<Coming> {
        match self {
            Self::Takes(taken) => Some(taken.0.coming()),
            Self::Runs(_) => None,
        }
    }

    /// Asks it to end; [`Child::ended`] kills it where that takes too long.
    pub fn end(&mut self) {
        match self {
            Self::Takes(taken) => taken.0.stop(),
            Self::Runs(running) => running.end(),
        }
    }

    /// How it ended, once it has. Once all its layers are here, its process starts.
    pub fn ended(&mut self, starter: &Starter) -> Option<String> {
        let (taking, launch) = match self {
            Self::Runs(running) => return running.ended(),
            Self::Takes(taken) => &mut **taken,
        };
        let started = taking.taken()?.and_then(|model| starter.run(launch, &model));
        match started {
            Ok(running) => {
                *self = Self::Runs(running);
                None
            }
            Err(error) => {
                let why = crate::line(&error);
                tracing::warn!("rank {}: {why}", launch.rank);
                Some(why)
            }
        }
    }
}

impl Running {
    fn end(&mut self) {
        drop(self.process.stdin.take());
        self.until.get_or_insert(Instant::now() + END_TIMEOUT);
    }

    fn ended(&mut self) -> Option<String> {
        if self.until.is_some_and(|until| Instant::now() >= until) {
            let _ = self.process.kill();
        }
        let status = match self.process.try_wait() {
            Ok(status) => status?.to_string(),
            Err(error) => error.to_string(),
        };
        let last = self.last.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let last = last.trim();
        Some(if last.is_empty() { status } else { format!("{status}: {last}") })
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Writes what a rank says to its journal, and remembers its last line.
fn keep(
    said: impl Read,
    journal: std::io::Result<Journal>,
    last: &std::sync::Mutex<String>,
    who: &str,
) {
    let mut journal = journal.map_err(|error| tracing::warn!("{who}: no journal: {error}")).ok();
    let mut reader = BufReader::new(said);
    let mut line = Vec::new();
    while matches!(reader.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line), Ok(1..)) {
        if let Some(Err(error)) = journal.as_mut().map(|journal| journal.write(&line)) {
            tracing::warn!("{who}: no journal any more: {error}");
            journal = None;
        }
        let text = String::from_utf8_lossy(&line[..line.len().min(WHY_BYTES_MAX)]).into_owned();
        *last.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = text;
        line.clear();
    }
}
