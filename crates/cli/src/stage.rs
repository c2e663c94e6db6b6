//! `baton stage`: one rank in its own process.

use std::io::Read;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, Result, ensure};
use arith::base::Rank;
use ring::key::{Key, SECRET_BYTES};

use crate::args::StageArgs;
use crate::device::Seat;
use crate::model::Model;
use crate::notify::Manager;
use crate::rank::{self, Joined, Place, Ways};
use crate::signal::Signals;
use crate::{serve, source};

/// Runs the rank until a signal, or, started by `baton serve`, until that process is gone.
///
/// # Errors
/// What keeps the rank from loading or listening.
pub fn run(args: &StageArgs) -> Result<()> {
    let rank = Rank(args.rank);
    let member = args.member as usize;
    ensure!(
        args.rank > 0 || member > 0,
        "rank 0 is `baton serve`; a stage's rank is 1 or more, or it is a --member of 1 or more"
    );
    ensure!(args.shared.layout.is_some(), "--layout is needed: all ranks must be told the same");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = runtime.block_on(async { Signals::new() })?;
    let key = match (&args.key, args.local) {
        (_, true) => Some(inherited_key()?),
        (Some(file), false) => Some(Key::load(file)?),
        (None, false) => None,
    };
    let path = source::resolve(&args.shared.model)?;
    let model = Model::open(&path, args.shared.settings(1))?;
    let next = args.next.iter().cloned().collect();
    let place = Place {
        rank,
        member,
        group: args.group.clone(),
        listen: args.listen.clone(),
        next,
        key,
        encryption: args.shared.encryption.into(),
    };
    let range = model.range(rank)?;
    let transport = match member {
        0 => Some(place.transport(&model)?),
        _ => None,
    };
    let end = Arc::new(End {
        name: place.to_string(),
        ways: Ways { transport, group: place.group(&model)? },
        stop: Arc::default(),
        loaded: AtomicBool::new(false),
    });
    if args.local {
        // Signals to a whole group reach local ranks too; they are the server's to act on, so that
        // replies can end properly first.
        end.clone().after(wait_for_parent)?;
    } else {
        end.clone().after(move || runtime.block_on(signals.ended()).into())?;
    }
    let seat = model.seat(rank, member, serve::threads(&args.shared, 1))?;
    let group = end.ways.group.as_ref();
    if group.is_some_and(|group| !rank::assemble(rank, group)) {
        return Ok(());
    }
    let (name, of) = (&end.name, model.name());
    tracing::info!("{name}: loading layers {}..{} of {of}", range.start, range.end);
    compute(&model, rank, &seat, &end, !args.local)
}

/// Loads, then serves until the rank ends: in the ring, or as a member of a group.
fn compute(model: &Model, rank: Rank, seat: &Seat, end: &End, reports: bool) -> Result<()> {
    let group = end.ways.group.as_ref();
    if let Some(transport) = &end.ways.transport {
        let mut follower = model.follower(rank, seat, Joined(transport.clone()))?;
        follower.stop = end.stop.clone();
        let mut engine = model.engine(rank, seat, group)?;
        end.loaded.store(true, Ordering::Release);
        if reports {
            report(rank)?;
        }
        follower.run(&mut *engine);
    } else if let Some(group) = group {
        let mut share = model.share(rank, seat, Some(group))?;
        end.loaded.store(true, Ordering::Release);
        if reports {
            report(rank)?;
        }
        shard::Follower::new(group.clone()).run(&mut *share);
    }
    Ok(())
}

/// Tells the service manager that the rank is loaded, and from then on that the process is alive;
/// a ring that is broken is no fault of it.
fn report(rank: Rank) -> Result<()> {
    let manager = Manager::of_this_process();
    let Some(pause) = manager.pause() else { return Ok(()) };
    manager.ready(&format!("rank {rank} is loaded"));
    std::thread::Builder::new().name("baton-alive".into()).spawn(move || {
        loop {
            manager.alive();
            std::thread::sleep(pause);
        }
    })?;
    Ok(())
}

/// How the rank ends.
struct End {
    name: String,
    ways: Ways,
    stop: Arc<AtomicBool>,
    loaded: AtomicBool,
}

impl End {
    /// Ends the rank when `wait` returns, saying why. The thread dies with the process.
    fn after(self: Arc<Self>, wait: impl FnOnce() -> String + Send + 'static) -> Result<()> {
        std::thread::Builder::new().name("baton-end".into()).spawn(move || {
            let why = wait();
            tracing::info!("{}: {why}, ending", self.name);
            self.stop.store(true, Ordering::Release);
            self.ways.shutdown();
            if !self.loaded.load(Ordering::Acquire) {
                leave();
            }
        })?;
        Ok(())
    }
}

/// Ends the process while it loads.
#[expect(clippy::disallowed_methods, reason = "loading heeds nobody and leaves nothing behind")]
fn leave() {
    std::process::exit(0);
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
