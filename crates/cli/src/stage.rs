//! `baton stage`: one rank in its own process.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use anyhow::{Context, Result, ensure};
use arith::base::Rank;
use backend::Backend;
use cpu::{Cpu, Isa};
use ring::key::{Key, SECRET_BYTES};

use crate::args::StageArgs;
use crate::model::Model;
use crate::rank::{Joined, Place};
use crate::{serve, signal, source};

/// Runs the rank until a signal, or, started by `baton serve`, until that process is gone.
///
/// # Errors
/// What keeps the rank from loading or listening.
pub fn run(args: &StageArgs) -> Result<()> {
    let rank = Rank(args.rank);
    ensure!(args.rank > 0, "rank 0 is `baton serve`; a stage's rank is 1 or more");
    ensure!(args.shared.layout.is_some(), "--layout is needed: all ranks must be told the same");
    let key = match (&args.key, args.local) {
        (_, true) => Some(inherited_key()?),
        (Some(file), false) => Some(Key::load(file)?),
        (None, false) => None,
    };
    let path = source::resolve(&args.shared.model)?;
    let model = Model::open(&path, args.shared.settings(1))?;
    let next = args.next.iter().cloned().collect();
    let place = Place { rank, listen: args.listen.clone(), next, key };
    model.range(rank)?;
    let transport = place.transport(&model)?;
    let cpu = Arc::new(Cpu::new(serve::threads(&args.shared, 1), Isa::Auto)?);
    let follower = model.follower(rank, cpu.device(), Joined(transport.clone()))?;
    let range = model.range(rank)?;
    tracing::info!("rank {rank}: loading layers {}..{} of {}", range.start, range.end, model.name());
    let mut engine = model.stage(rank, cpu)?;
    let stop = follower.stop.clone();
    let end: End = Arc::new(move |why| {
        tracing::info!("rank {rank}: {why}, ending");
        stop.store(true, Ordering::Release);
        transport.shutdown();
    });
    if args.local {
        watch("baton-parent", end.clone(), wait_for_parent)?;
    }
    // A terminal's Ctrl-C reaches local ranks too; it is the server's to act on, so that replies
    // can end properly first.
    let local = args.local;
    watch("baton-signal", end, move || signalled(local))?;
    follower.run(&mut engine);
    Ok(())
}

/// Ends the rank, saying why.
type End = Arc<dyn Fn(&str) + Send + Sync>;

/// Ends the rank when `wait` returns. The thread dies with the process.
fn watch(name: &str, end: End, wait: impl FnOnce() -> String + Send + 'static) -> Result<()> {
    std::thread::Builder::new().name(name.into()).spawn(move || end(&wait()))?;
    Ok(())
}

/// The key that `baton serve` wrote to our standard input.
fn inherited_key() -> Result<Key> {
    let mut secret = [0u8; SECRET_BYTES];
    std::io::stdin()
        .read_exact(&mut secret)
        .context("--local is for `baton serve`: no key came on standard input")?;
    Ok(Key::from_bytes(&secret)?)
}

/// Waits until standard input ends: the server closed it or died.
fn wait_for_parent() -> String {
    let mut rest = [0u8; 64];
    while matches!(std::io::stdin().read(&mut rest), Ok(1..)) {}
    "the server is gone".into()
}

fn signalled(local: bool) -> String {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let ended = runtime.and_then(|runtime| runtime.block_on(signal::ended(!local)));
    ended.map_or_else(|e| e.to_string(), str::to_owned)
}
