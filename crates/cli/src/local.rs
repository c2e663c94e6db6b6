//! The other ranks of a ring on this machine, as processes: started, watched, restarted with
//! backoff, and ended with the server. Each holds our end of its standard input open; when that
//! closes, for whatever reason, the rank ends itself.

use std::io::Write;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ring::backoff::Backoff;
use ring::key::SECRET_BYTES;
use wire::layout::Layout;
use zeroize::Zeroizing;

use crate::args::Shared;
use crate::device;
use crate::rank::Place;

/// A rank that ran so long has recovered: its next restart waits the shortest pause again.
const RECOVERED: Duration = Duration::from_secs(30);
/// How often a running rank is looked at.
const LOOK: Duration = Duration::from_millis(50);
/// How long ranks may take to end before they are killed.
const END_TIMEOUT: Duration = Duration::from_secs(5);

/// What a rank process is started with.
#[derive(Clone)]
pub struct Recipe {
    /// Model and ring.
    pub shared: Shared,
    /// The settled layout.
    pub layout: String,
    /// Compute threads of each rank.
    pub threads: usize,
    /// The ring's secret.
    pub secret: Zeroizing<[u8; SECRET_BYTES]>,
    /// Log filter.
    pub log: String,
}

/// The rank processes of this machine.
pub struct Locals {
    ending: Arc<AtomicBool>,
    keepers: Vec<JoinHandle<()>>,
}

impl Locals {
    /// Starts every place but that of rank 0, or of its leader.
    ///
    /// # Errors
    /// A process or thread that can't be started.
    pub fn start(recipe: &Recipe, places: &[Place]) -> Result<Self> {
        let ending = Arc::new(AtomicBool::new(false));
        let mut locals = Self { ending: ending.clone(), keepers: Vec::new() };
        for place in places.iter().filter(|p| p.rank.0 > 0 || p.member > 0) {
            let child = recipe.spawn(place)?;
            let (recipe, place, ending) = (recipe.clone(), place.clone(), ending.clone());
            let name = format!("baton-keep-{}", place.rank);
            let keep = move || keep(&recipe, &place, child, &ending);
            locals.keepers.push(std::thread::Builder::new().name(name).spawn(keep)?);
        }
        Ok(locals)
    }

    /// Ends every rank and waits for it.
    pub fn end(mut self) {
        self.finish();
    }

    fn finish(&mut self) {
        self.ending.store(true, Ordering::Release);
        for keeper in self.keepers.drain(..) {
            let _ = keeper.join();
        }
    }
}

impl Drop for Locals {
    fn drop(&mut self) {
        self.finish();
    }
}

impl Recipe {
    /// What a rank is started by.
    fn command(&self, place: &Place) -> Result<Command> {
        let binary = std::env::current_exe().context("this program's own path")?;
        let shared = &self.shared;
        let mut command = Command::new(binary);
        command.args(["--log", &self.log, "stage", "--local"]);
        command.arg(&shared.model);
        command.args(["--rank", &place.rank.to_string(), "--layout", &self.layout]);
        let layout = Layout::parse(&self.layout)?;
        let device = device::of(&shared.device.0, &layout, place.rank, place.member);
        command.args(["--device", &device.to_string()]);
        command.args(["--threads", &self.threads.to_string()]).args(shared.arguments());
        if !place.group.is_empty() {
            command.args(["--group", &place.group.join(",")]);
        }
        if place.member > 0 {
            command.args(["--member", &place.member.to_string()]);
        }
        for address in &place.listen {
            command.args(["--listen", &address.to_string()]);
        }
        for next in &place.next {
            command.args(["--next", next]);
        }
        Ok(command)
    }

    fn spawn(&self, place: &Place) -> Result<Child> {
        let mut child = self
            .command(place)?
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .with_context(|| format!("can't start {place}"))?;
        if let Some(stdin) = &mut child.stdin {
            // A child that is gone already is found by its keeper.
            let _ = stdin.write_all(&self.secret[..]);
        }
        tracing::info!("{place}: process {}", child.id());
        Ok(child)
    }
}

/// Watches one rank; starts it again when it dies.
fn keep(recipe: &Recipe, place: &Place, child: Child, ending: &AtomicBool) {
    let (mut child, mut since) = (Some(child), Instant::now());
    let mut backoff = Backoff::default();
    while !ending.load(Ordering::Acquire) {
        let status = match &mut child {
            Some(running) => running.try_wait().ok().flatten(),
            None => Some(ExitStatus::default()),
        };
        let Some(status) = status else {
            std::thread::sleep(LOOK);
            continue;
        };
        if since.elapsed() > RECOVERED {
            backoff.reset();
        }
        let pause = backoff.next_pause();
        tracing::warn!("{place}: its process ended ({status}); again in {} ms", pause.as_millis());
        let until = Instant::now() + pause;
        while Instant::now() < until && !ending.load(Ordering::Acquire) {
            std::thread::sleep(LOOK.min(pause));
        }
        if ending.load(Ordering::Acquire) {
            return;
        }
        since = Instant::now();
        child = recipe.spawn(place).map_err(|e| tracing::warn!("{place}: {e:#}")).ok();
    }
    if let Some(child) = child {
        finish(child, place);
    }
}

/// Closes the rank's standard input, which ends it; kills it if it does not.
fn finish(mut child: Child, place: &Place) {
    drop(child.stdin.take());
    let until = Instant::now() + END_TIMEOUT;
    while Instant::now() < until {
        if !matches!(child.try_wait(), Ok(None)) {
            return;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    tracing::warn!("{place}: did not end in time, killed");
    let _ = child.kill();
    let _ = child.wait();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use arith::base::Rank;
    use clap::Parser;

    use super::*;
    use crate::args::{Cli, Command as Words};

    #[test]
    fn a_rank_of_a_ring_and_a_member_of_a_group_exchange_through_what_was_asked_for() {
        let line = "baton serve baton-tiny --layout 0:4,4:8 --exchange cards";
        let Words::Serve(args) = Cli::parse_from(line.split(' ')).command else { unreachable!() };
        let recipe = Recipe {
            shared: args.shared,
            layout: "0:4,4:8".into(),
            threads: 1,
            secret: Zeroizing::new([0; SECRET_BYTES]),
            log: "info".into(),
        };
        let mut place = Place {
            rank: Rank(1),
            member: 0,
            group: Vec::new(),
            listen: Vec::new(),
            next: Vec::new(),
            key: None,
            encryption: recipe.shared.encryption.into(),
        };
        for group in [vec![], vec!["127.0.0.1:1".to_owned()]] {
            place.group = group;
            let command = recipe.command(&place).unwrap();
            let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
            assert!(words.windows(2).any(|two| two == ["--exchange", "cards"]), "{words:?}");
        }
    }
}
