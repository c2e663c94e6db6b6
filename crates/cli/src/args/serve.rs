//! `baton serve`, `baton stage` and `baton doctor`: the ranks of a ring.

use std::net::{SocketAddr, ToSocketAddrs};
use std::path::PathBuf;

use arith::format::Format;
use clap::{Args, ValueEnum};
use sched::Drafters;

use super::{ByHand, ByNodes, Shared};
use crate::model::Settings;

/// Who guesses tokens ahead.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Drafter {
    /// Copies, and the draft head where the model has one (default).
    #[default]
    Auto,
    /// Nobody.
    None,
    /// The model's own draft head.
    Mtp,
    /// Copies of the context.
    Copy,
}

/// How the draft head's matrices are held.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum DraftHead {
    /// As the file has them (default).
    #[default]
    Stored,
    /// 8 bits a weight.
    #[value(name = "q8_0")]
    Q8,
    /// 4 bits a weight.
    #[value(name = "q4_0")]
    Q4,
}

impl DraftHead {
    /// Another format than the file's.
    pub fn format(self) -> Option<Format> {
        match self {
            Self::Stored => None,
            Self::Q8 => Some(Format::Q8_0),
            Self::Q4 => Some(Format::Q4_0),
        }
    }
}

impl From<Drafter> for Drafters {
    fn from(drafter: Drafter) -> Self {
        match drafter {
            Drafter::Auto => Self { copy: true, mtp: true, reach: None },
            Drafter::None => Self::default(),
            Drafter::Mtp => Self { mtp: true, ..Self::default() },
            Drafter::Copy => Self { copy: true, ..Self::default() },
        }
    }
}

/// `baton serve`.
#[derive(Args, Debug)]
pub struct Serve {
    /// Model and ring.
    #[command(flatten)]
    pub shared: Shared,
    /// Ranks on this machine, layers shared evenly.
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "layout")]
    pub world: u32,
    /// What `baton plan --json` wrote: its layout is served unless another is given, and what it
    /// predicted stands beside what is measured in /metrics and /health.
    #[arg(long, value_name = "FILE")]
    pub plan: Option<PathBuf>,
    /// Address of the endpoint.
    #[arg(long, value_name = "ADDR", default_value = "127.0.0.1")]
    pub host: std::net::IpAddr,
    /// Port of the endpoint; 0 takes a free one.
    #[arg(long, default_value_t = 8080)]
    pub port: u16,
    /// Take requests with a key of FILE only: one a line, KEY or NAME KEY, mode 0600; read again
    /// when it changes. Keys may stand in BATON_API_KEYS instead, separated by commas.
    #[arg(long, value_name = "FILE")]
    pub api_key_file: Option<PathBuf>,
    /// Let pages of this origin ask, or of any with *; may be repeated.
    #[arg(long, value_name = "ORIGIN")]
    pub cors: Vec<String>,
    /// Most requests that wait for a free stream; more get 429.
    #[arg(long, value_name = "N", default_value_t = Settings::default().queue)]
    pub queue: u32,
    /// Rounds in flight [default: one more than there are ranks; 1 for one rank].
    #[arg(long, value_name = "N")]
    pub depth: Option<u32>,
    /// Who guesses tokens ahead, which moves no byte of a reply: copies of the context, the model's
    /// own draft head, both where there are both, or nobody.
    #[arg(long, value_enum, default_value = "auto")]
    pub drafter: Drafter,
    /// How the model's draft head is held, which moves no byte of a reply either: as the file has
    /// it, or in fewer bits, which is faster and right less often.
    #[arg(long, value_enum, default_value = "stored")]
    pub draft_head: DraftHead,
    /// How long requests wait for a ring that broke before they fail; 0 fails them at once.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub continue_s: u32,
    /// Longest time that running replies get to finish after Ctrl-C or SIGTERM [default: 30, or
    /// 180 with --nodes].
    #[arg(long, value_name = "SECONDS")]
    pub drain: Option<u32>,
    /// Where the others are, if agents run them.
    #[command(flatten)]
    pub by_nodes: ByNodes,
    /// Where the others are, if they are started by hand.
    #[command(flatten)]
    pub by_hand: ByHand,
}

/// `baton stage`.
#[derive(Args, Debug)]
pub struct StageArgs {
    /// Model and ring.
    #[command(flatten)]
    pub shared: Shared,
    /// This rank, 1 to world-1; also 0 for a --member of its group.
    #[arg(long, value_name = "N")]
    pub rank: u32,
    /// Which member of the rank's group, from 1; the leader, 0, is the rank of the ring.
    #[arg(long, value_name = "N", default_value_t = 0, requires = "group")]
    pub member: u32,
    /// Where the members of the rank's group listen, in order and the same on each, where the
    /// layout makes the rank a group, as 0:32@shards2 does.
    #[arg(long, value_name = "HOST:PORT,..", value_delimiter = ',')]
    pub group: Vec<String>,
    /// Where the rank before this one connects to.
    #[arg(long, value_name = "ADDR:PORT", required_unless_present = "member",
          value_parser = parse_address)]
    pub listen: Vec<SocketAddr>,
    /// The next rank (rank 0 for the last).
    #[arg(long, value_name = "HOST:PORT", required_unless_present_any = ["local", "member"])]
    pub next: Option<String>,
    /// The ring's key; without one only loopback is allowed.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Started by `baton serve`: key and next rank come on standard input, whose end ends the rank.
    #[arg(long, hide = true)]
    pub local: bool,
}

/// `baton doctor`.
#[derive(Args, Debug)]
pub struct Doctor {
    /// This rank; 0 is `baton serve`.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub rank: u32,
    /// Which member of the rank's group this is; 0, the leader, has the rank's place in the ring.
    #[arg(long, value_name = "N", default_value_t = 0)]
    pub member: u32,
    /// As `baton serve` and `baton stage` take them.
    #[command(flatten)]
    pub place: Serve,
}

/// An address and port; an IPv6 address may name its interface, as in `[fe80::1%eth0]:7400`.
pub(super) fn parse_address(text: &str) -> Result<SocketAddr, String> {
    if let Some((host, port)) = text.rsplit_once("]:")
        && host.contains('%')
    {
        let port = port.parse::<u16>().map_err(|e| format!("port {port}: {e}"))?;
        let mut found =
            (host.trim_start_matches('['), port).to_socket_addrs().map_err(|e| e.to_string())?;
        return found.next().ok_or_else(|| "no such interface".into());
    }
    text.parse()
        .map_err(|_| "expected address:port, as 10.0.0.1:7400 or [fe80::1%eth0]:7400".into())
}
