//! What shells and `man` read of the command line.

use std::io::Write;
use std::path::Path;

use anyhow::{Context, Result};
use clap::CommandFactory;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Cli;

/// Prints the completions of a shell.
pub fn complete(shell: Shell) {
    clap_complete::generate(shell, &mut Cli::command(), "baton", &mut std::io::stdout());
}

/// Prints baton(1), or writes it and a page of each command into a folder.
///
/// # Errors
/// A folder that can't be written.
pub fn man(folder: Option<&Path>) -> Result<()> {
    let command = Cli::command();
    let Some(folder) = folder else {
        let mut page = Vec::new();
        Man::new(command).render(&mut page)?;
        std::io::stdout().write_all(&page)?;
        return Ok(());
    };
    std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    clap_mangen::generate_to(command, folder).with_context(|| folder.display().to_string())?;
    println!("{}", folder.display());
    Ok(())
}
