//! What `baton node` and `baton replan` are asked.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::parse_seconds;
use super::serve::parse_address;
use crate::args::DEFAULT_URL;
use crate::device::Device;

/// `baton node`.
#[derive(Args, Debug)]
#[command(after_help = NODE_HELP)]
pub struct NodeArgs {
    /// Where heads connect to; the rank that they give it listens on the next port. More of them
    /// are other addresses for that rank, of which the best is used.
    #[arg(long, value_name = "ADDR:PORT", required = true, value_parser = parse_address)]
    pub listen: Vec<SocketAddr>,
    /// The key that heads prove; without one only loopback is allowed.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// What this machine is called [default: its host name].
    #[arg(long)]
    pub name: Option<String>,
    /// Answer heads that ask on the link who has an agent, as `serve --nodes auto` does.
    #[arg(long)]
    pub announce: bool,
    /// What its rank computes on: cpu, cuda:N or gpu:N.
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Cpu)]
    pub device: Device,
    /// Compute threads of its rank [default: the cores of this machine].
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Most memory of its rank [default: what is free].
    #[arg(long, value_name = "GIB")]
    pub memory_limit: Option<f64>,
    /// A folder with models, beside those that are found by name.
    #[arg(long, value_name = "FOLDER")]
    pub models: Option<PathBuf>,
    /// Where layers that it was given are kept [default: beside the cache].
    #[arg(long, value_name = "FOLDER")]
    pub store: Option<PathBuf>,
    /// Most room for them, in GiB; what was used longest ago goes first.
    #[arg(long, value_name = "GIB", default_value_t = 200.0)]
    pub store_gib: f64,
    /// Where what its rank says is kept, in two files of 4 MiB [default: beside the cache].
    #[arg(long, value_name = "FOLDER")]
    pub journal: Option<PathBuf>,
}

/// What `baton serve` does with nodes.
#[derive(Args, Clone, Debug)]
pub struct ByNodes {
    /// Give ranks to machines that run `baton node`: a file that lists them, or auto for those with
    /// --announce that answer on the link and prove the key; auto=ADDR names this machine's own
    /// address there.
    #[arg(long, value_name = "FILE|auto",
          conflicts_with_all = ["layout", "world", "next", "group"])]
    pub nodes: Option<PathBuf>,
    /// How long a node that is gone may take to come back before its layers go elsewhere.
    #[arg(long, value_name = "SECONDS", default_value = "5", value_parser = parse_seconds,
          requires = "nodes")]
    pub replan_wait: f64,
    /// Measure machines and the ways between them even where measurements of the last week are
    /// kept.
    #[arg(long, requires = "nodes")]
    pub again: bool,
    /// What is measured is held against the plan in windows of so many seconds.
    #[arg(long, value_name = "SECONDS", default_value = "10", value_parser = parse_seconds,
          requires = "nodes", hide = true)]
    pub window_s: f64,
    /// Which node holds which layers, instead of the best: NAME:FIRST-LAST,NAME:FIRST-LAST. Where
    /// one of them is gone the best of what is left takes its place.
    #[arg(long, value_name = "RANGES", requires = "nodes")]
    pub layers: Option<String>,
}

/// `baton replan`.
#[derive(Args, Debug)]
pub struct Replan {
    /// The server.
    #[arg(long, default_value = DEFAULT_URL)]
    pub url: String,
}

const NODE_HELP: &str = "\
On each machine but the one that serves, with the same key on all:
  baton node --listen 10.0.0.2:7500 --key ring.key
and on that one, with the others in nodes.toml:
  baton serve MODEL --nodes nodes.toml";
