//! Where rank 0 finds the others, where it does not start them itself.

use std::net::SocketAddr;
use std::path::PathBuf;

use clap::Args;

use super::serve::parse_address;

/// The other ranks, and the members of rank 0's group, that are started by hand.
#[derive(Args, Debug)]
pub struct ByHand {
    /// The next rank, where the other ranks of the layout are started by hand.
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

impl ByHand {
    /// Whether any is.
    pub fn is_any(&self) -> bool {
        self.next.is_some() || !self.group.is_empty()
    }
}
