//! `baton demo`, `baton chat` and `baton top`: at a terminal.

use arith::base::Arith;
use clap::Args;

use super::{DEFAULT_URL, parse_seconds};
use crate::source::DEFAULT_MODEL;

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

fn parse_temperature(text: &str) -> Result<f64, String> {
    let value = text.parse::<f64>().ok().filter(|value| (0.0..=2.0).contains(value));
    value.ok_or_else(|| "expected a number from 0 to 2".into())
}
