//! `baton record` and `baton accept`.

use std::path::PathBuf;

use clap::Args;

use super::DEFAULT_URL;

/// `baton record`.
#[derive(Args, Debug)]
pub struct Record {
    /// The file to write; it must not be there yet.
    pub oracle: PathBuf,
    /// A server of one machine.
    #[arg(long, value_name = "URL", default_value = DEFAULT_URL)]
    pub url: String,
}

/// `baton accept`.
#[derive(Args, Debug)]
pub struct Accept {
    /// What `baton record` wrote.
    pub oracle: PathBuf,
    /// The server to hold against it, in whatever layout.
    #[arg(value_name = "URL", default_value = DEFAULT_URL)]
    pub url: String,
}
