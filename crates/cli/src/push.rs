//! `baton push`: gives machines the layers of a model that they lack.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use indicatif::{MultiProgress, ProgressBar};
use ring::key::Key;
use store::{Access, Progress, Pushed, Shelf, StoreError};
use weights::{Checkpoint, Stock};

use crate::args::Push;
use crate::manifest::parse_range;
use crate::{bar, source};

/// How often bars move.
const TICK: Duration = Duration::from_millis(100);

/// A machine that layers go to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Target {
    /// Its addresses.
    pub addresses: Vec<String>,
    /// Its layers, where they are given.
    pub layers: Option<Range<u32>>,
}

/// Parses `HOST:PORT,..[=FIRST:END]`.
///
/// # Errors
/// Anything else.
pub fn parse_target(text: &str) -> Result<Target> {
    let (addresses, layers) = match text.split_once('=') {
        Some((addresses, layers)) => (addresses, Some(parse_range(layers)?)),
        None => (text, None),
    };
    let addresses: Vec<String> = addresses.split(',').map(str::to_owned).collect();
    for address in &addresses {
        ring::address::split(address).with_context(|| format!("`{address}`"))?;
    }
    Ok(Target { addresses, layers })
}

/// What both ends of links must agree in.
///
/// # Errors
/// A key that can't be read.
pub fn access(
    key: Option<&std::path::Path>,
    encryption: wire::hello::Encryption,
) -> Result<Access> {
    let key = key.map(Key::load).transpose()?;
    Ok(Access { encryption, ..Access::of(key) })
}

/// A push at work.
struct Pushing {
    target: Target,
    layers: Range<u32>,
    progress: Arc<Progress>,
    bar: ProgressBar,
}

/// Pushes to all machines at once and prints a line for each.
///
/// # Errors
/// A model that can't be read, and what kept a machine from having its layers; the others have
/// theirs.
pub fn run(args: &Push) -> Result<()> {
    let checkpoint = Checkpoint::open(&source::resolve(&args.model)?)?;
    let access = access(args.key.as_deref(), args.encryption.into())?;
    let all = 0..checkpoint.config().layers();
    let bytes = checkpoint.bytes_of(all.clone(), true);
    let cache = source::cache_dir().ok();
    let stock = || Stock::of(&checkpoint, cache.as_deref());
    let stock = Arc::new(bar::reading(&checkpoint, bytes, "digesting", stock)?);
    let id = stock.catalog().id();
    let shelf = Shelf::of(None);
    shelf.add(stock.clone());
    let bars = MultiProgress::new();
    let default = args.layers.clone().unwrap_or(all);
    let mut pushes = Vec::new();
    for target in &args.to {
        let layers = target.layers.clone().unwrap_or_else(|| default.clone());
        stock.catalog().wanted(layers.clone(), layers.start == 0)?;
        let (target, progress) = (target.clone(), Arc::<Progress>::default());
        pushes.push(Pushing { target, layers, progress, bar: bars.add(bar::bytes(1, "pushing")) });
    }
    let (stop, started) = (AtomicBool::new(false), Instant::now());
    let done = AtomicBool::new(false);
    let results: Vec<(Result<Pushed, Arc<StoreError>>, f64)> = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                pushes.iter().for_each(Pushing::show);
                std::thread::sleep(TICK);
            }
        });
        let (shelf, access, stop) = (&shelf, &access, &stop);
        let push = |push: &Pushing| {
            let (layers, addresses) = (push.layers.clone(), &push.target.addresses);
            let what = (id, layers.clone(), layers.start == 0);
            let pushed = store::push(shelf, what, (addresses, access), &push.progress, stop);
            (pushed, started.elapsed().as_secs_f64())
        };
        let workers: Vec<_> = pushes.iter().map(|one| scope.spawn(move || push(one))).collect();
        let results = workers.into_iter().map(|worker| match worker.join() {
            Ok(result) => result,
            Err(panic) => std::panic::resume_unwind(panic),
        });
        let results = results.collect();
        done.store(true, Ordering::Relaxed);
        results
    });
    let mut failed = Vec::new();
    for (push, (result, seconds)) in pushes.iter().zip(results) {
        push.bar.finish_and_clear();
        match result {
            Ok(pushed) => println!("{}", push.line(&pushed, seconds)),
            Err(error) => failed.push(format!("{}: {error}", push.target.addresses.join(","))),
        }
    }
    if !failed.is_empty() {
        bail!("{}", failed.join("; "));
    }
    Ok(())
}

impl Pushing {
    fn show(&self) {
        let seen = self.progress.seen();
        self.bar.set_length(seen.missing.max(1));
        self.bar.set_position(seen.moved);
    }

    fn line(&self, pushed: &Pushed, seconds: f64) -> String {
        let (seen, layers) = (self.progress.seen(), &self.layers);
        format!(
            "{}: layers {}:{}, {} bytes, {} missing, {} sent in {seconds:.2} s: {}",
            self.target.addresses.join(","),
            layers.start,
            layers.end,
            seen.all,
            seen.missing,
            seen.moved,
            pushed.path
        )
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    #[test]
    fn targets_have_addresses_and_perhaps_layers() {
        let target = parse_target("10.0.0.3:7500,[fe80::1%eth0]:7500=12:24").unwrap();
        assert_eq!(target.addresses, ["10.0.0.3:7500", "[fe80::1%eth0]:7500"]);
        assert_eq!(target.layers, Some(12..24));
        assert_eq!(parse_target("box:1").unwrap().layers, None);
        for bad in ["box", "box:1=", "box:1=3", "box:1,=0:1", "=0:1"] {
            assert!(parse_target(bad).is_err(), "{bad}");
        }
    }
}
