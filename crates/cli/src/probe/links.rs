//! Ways to other nodes, measured over the port of a rank there, and the door that answers others.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use arith::base::Rank;
use placement::{PATHS_MAX, Path};
use ring::key::Key;
use ring::link::LinkError;
use ring::tcp::measure::measure;
use ring::tcp::{TcpConfig, Times, Transport};
use wire::control::Fields;
use wire::hello::Encryption;
use wire::preamble::Cipher;

use super::{KEPT_S, now_s};
use crate::signal;
use crate::source;

/// How long a machine that is there may take until it listens, and how often it is asked.
pub const PATIENCE: Duration = Duration::from_secs(60);
const PAUSE: Duration = Duration::from_millis(200);

/// How links are measured.
pub struct Reach<'a> {
    /// This node.
    pub name: &'a str,
    /// The ring's key.
    pub key: Option<&'a Key>,
    /// As the ranks there have it.
    pub encryption: Encryption,
    /// Whether to measure what was measured within the week.
    pub again: bool,
    /// How long who does not listen yet is asked again.
    pub patience: Duration,
}

/// The path to each of `peers`, `[NAME=]HOST:PORT`: kept ones where they are fresh. A peer that
/// does not answer has a path without a rate, which is said, so that nobody plans with it.
///
/// # Errors
/// Too many peers, another key or encryption.
pub fn paths(reach: &Reach<'_>, peers: &[String]) -> Result<Vec<Path>> {
    ensure!(peers.len() <= PATHS_MAX, "--peer: {PATHS_MAX} at most, found {}", peers.len());
    let path = |peer: &String| {
        let (node, address) = match peer.split_once('=') {
            Some((node, address)) => (Some(node.to_owned()), address),
            None => (None, peer.as_str()),
        };
        match one(reach, address) {
            Ok(path) => Ok(Path { node, ..path }),
            Err(error @ LinkError::KeylessAddress { .. }) => Err(error.into()),
            Err(error) => {
                let text = error.to_string();
                let is_mended = ["BadSecret", "OtherEncryption", "OtherCipher"];
                ensure!(!is_mended.iter().any(|name| text.contains(name)), text);
                tracing::warn!("{text}");
                Ok(Path { node, ..dead(address) })
            }
        }
    };
    peers.iter().map(path).collect()
}

/// The path to `node` at each of `addresses`, without a rate where nobody answers.
///
/// # Errors
/// No answer at any, and why.
pub fn reached(reach: &Reach<'_>, node: &str, addresses: &[String]) -> Result<Vec<Path>, String> {
    let (mut paths, mut why) = (Vec::new(), "it has no address".to_owned());
    for address in addresses {
        let path = one(reach, address).unwrap_or_else(|error| {
            why = error.to_string();
            tracing::debug!("{why}");
            dead(address)
        });
        paths.push(Path { node: Some(node.to_owned()), ..path });
    }
    match paths.iter().any(|path| path.bytes_per_s > 0.0) {
        true => Ok(paths),
        false => Err(why),
    }
}

/// A path on which nothing comes through.
pub fn dead(address: &str) -> Path {
    Path {
        address: address.to_owned(),
        node: None,
        round_trip_s: 0.0,
        bytes_per_s: 0.0,
        back_bytes_per_s: 0.0,
        measured_at: now_s(),
    }
}

/// The kept path to an address, or a measured one, which is kept.
fn one(reach: &Reach<'_>, address: &str) -> Result<Path, LinkError> {
    let kept = kept_at(reach.name, address);
    let known = kept.as_ref().ok().and_then(|kept| std::fs::read_to_string(kept).ok());
    let known: Option<Path> = known.and_then(|text| serde_json::from_str(&text).ok());
    let is_fresh = |path: &Path| now_s().abs_diff(path.measured_at) < KEPT_S;
    if let Some(path) = known.filter(|path| !reach.again && is_fresh(path)) {
        return Ok(path);
    }
    let since = Instant::now();
    let found = loop {
        let found = measure(address, reach.key, Cipher::ChaChaPoly, reach.encryption);
        let is_refused = |error: &LinkError| error.to_string().contains("refused");
        // Its node may still be timing its layers.
        if !found.as_ref().is_err_and(is_refused) || since.elapsed() > reach.patience {
            break found?;
        }
        std::thread::sleep(PAUSE);
    };
    let path = Path {
        round_trip_s: found.round_trip.as_secs_f64(),
        bytes_per_s: found.there_per_s,
        back_bytes_per_s: found.back_per_s,
        ..dead(address)
    };
    let keep = || -> Result<()> {
        let kept = kept?;
        std::fs::create_dir_all(kept.parent().context("a folder")?)?;
        Ok(std::fs::write(&kept, serde_json::to_string(&path)?)?)
    };
    if let Err(error) = keep() {
        tracing::warn!("the measurement of {address} is not kept: {error}");
    }
    Ok(path)
}

fn kept_at(name: &str, address: &str) -> Result<PathBuf> {
    let key = format!("link\n{name}\n{address}");
    Ok(source::cache_dir()?.join("probe").join(source::sha256_hex(key.as_bytes())))
}

/// A rank that no ring has: it lets nobody in but those who measure, as long as it lives.
///
/// # Errors
/// Addresses that can't be listened on.
pub fn door(
    listen: Vec<SocketAddr>,
    key: Option<Key>,
    encryption: Encryption,
) -> Result<Transport, LinkError> {
    Transport::start(TcpConfig {
        rank: Rank(0),
        world: arith::base::WORLD_MAX,
        listen,
        next: Vec::new(),
        key,
        cipher: Cipher::ChaChaPoly,
        encryption,
        fingerprint: Fields::new(),
        times: Times::default(),
    })
}

/// Answers those who measure the way to here, until SIGINT or SIGTERM.
///
/// # Errors
/// Addresses that can't be listened on.
pub fn answer(listen: Vec<SocketAddr>, key: Option<Key>, encryption: Encryption) -> Result<()> {
    ensure!(!listen.is_empty(), "--answer: say where, with --listen ADDR:PORT");
    let door = door(listen, key, encryption)?;
    for address in door.addresses() {
        println!("measure the way to here with --peer {address}; Ctrl-C ends it");
    }
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let (first, _) = runtime.block_on(async { signal::twice() })?;
    runtime.block_on(first);
    Ok(())
}

/// Paths for people.
pub fn table(paths: &[Path]) -> String {
    if paths.is_empty() {
        return String::new();
    }
    let mut text =
        String::from("\n| to | address | round trip | there | back |\n|---|---|---|---|---|\n");
    for path in paths {
        let node = path.node.as_deref().unwrap_or("?");
        let mbit = |bytes_per_s: f64| bytes_per_s * 8e-6;
        text += &match path.bytes_per_s > 0.0 {
            true => format!(
                "| {node} | {} | {:.3} ms | {:.0} Mbit/s | {:.0} Mbit/s |\n",
                path.address,
                path.round_trip_s * 1e3,
                mbit(path.bytes_per_s),
                mbit(path.back_bytes_per_s)
            ),
            false => format!("| {node} | {} | no answer | | |\n", path.address),
        };
    }
    text
}
