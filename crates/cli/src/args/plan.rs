//! What `baton probe` and `baton plan` are asked.

use std::path::PathBuf;

use clap::{Args, ValueEnum};

use super::{Shared, at_least_one};

/// `baton probe`.
#[derive(Args, Debug)]
#[command(after_help = PROBE_HELP)]
pub struct Probe {
    /// Model and settings.
    #[command(flatten)]
    pub shared: Shared,
    /// What this machine is called [default: its host name].
    #[arg(long)]
    pub name: Option<String>,
    /// Where its rank will listen, for the ranks before it; may be repeated.
    #[arg(long, value_name = "HOST:PORT")]
    pub listen: Vec<String>,
    /// Measure the link to another node, at a port of a rank or of `probe --answer` there; may be
    /// repeated, once an address.
    #[arg(long, value_name = "[NAME=]HOST:PORT")]
    pub peer: Vec<String>,
    /// Then stay, and answer those who measure the link to --listen.
    #[arg(long, requires = "listen")]
    pub answer: bool,
    /// The ring's key, for --peer and --answer; without one only loopback is allowed.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Where to write it for `baton plan`, as JSON.
    #[arg(long, value_name = "FILE")]
    pub out: Option<PathBuf>,
    /// Measure even where a measurement of the last week is kept.
    #[arg(long)]
    pub again: bool,
    /// One JSON object instead of a table.
    #[arg(long)]
    pub json: bool,
}

/// `baton plan`.
#[derive(Args, Debug)]
#[command(after_help = PLAN_HELP)]
pub struct PlanArgs {
    /// Model and settings, as `baton serve` will get them.
    #[command(flatten)]
    pub shared: Shared,
    /// What `baton probe --out` wrote on each machine [default: this machine alone].
    #[arg(long, value_name = "FILE")]
    pub node: Vec<PathBuf>,
    /// Round trip and rate of one link as NAME:NAME=RTT,RATE, where NAME:NAME=none is no link, or
    /// of all that nobody measured; may be repeated [default: 0.2ms,1gbit].
    #[arg(long, value_name = "RTT,RATE")]
    pub link: Vec<String>,
    /// What counts most.
    #[arg(long, value_enum, default_value = "decode")]
    pub objective: Objective,
    /// Tokens of the prompt that the plan is for.
    #[arg(long, value_name = "TOKENS", default_value_t = 2_048, value_parser = at_least_one())]
    pub prompt: u32,
    /// The node with the endpoint.
    #[arg(long, value_name = "NAME")]
    pub head: Option<String>,
    /// A node that must hold layers; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub pin: Vec<String>,
    /// A node that must hold none; may be repeated.
    #[arg(long, value_name = "NAME")]
    pub exclude: Vec<String>,
    /// Let nodes with the same device share layers.
    #[arg(long)]
    pub groups: bool,
    /// Predict this placement instead of choosing one: NAME:FIRST-LAST,NAME:FIRST-LAST.
    #[arg(long, value_name = "RANGES", conflicts_with_all = ["pin", "exclude", "groups", "head"])]
    pub layers: Option<String>,
    /// Print the command of each node too; nothing is started.
    #[arg(long)]
    pub dry_run: bool,
    /// One JSON object instead of tables.
    #[arg(long)]
    pub json: bool,
}

/// What a plan is for.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Objective {
    /// One stream's tokens a second.
    Decode,
    /// The time to a prompt's first token.
    Prompt,
    /// All streams' tokens a second.
    Throughput,
}

impl From<Objective> for placement::Objective {
    fn from(objective: Objective) -> Self {
        match objective {
            Objective::Decode => Self::Decode,
            Objective::Prompt => Self::Prompt,
            Objective::Throughput => Self::Throughput,
        }
    }
}

const PROBE_HELP: &str = "\
Run it on each machine, with the settings that `baton serve` will have there, and copy the files.
The links between them are measured from one end, while the other answers:
  baton probe MODEL --listen 10.0.0.2:7400 --out mac.json --answer --key ring.key
  baton probe MODEL --listen 10.0.0.1:7400 --out card.json --peer mac=10.0.0.2:7400 --key ring.key
  baton plan MODEL --node card.json --node mac.json";

const PLAN_HELP: &str = "\
Example, three machines of which one is far:
  baton plan MODEL --node card.json --node mac.json --node box.json \\
    --link 0.2ms,1gbit --link card:box=5ms,100mbit --objective prompt --prompt 8192";
