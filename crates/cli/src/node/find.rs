//! Where this machine has a model that a head names.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use clap::Parser;
use node::message::Wanted;

use crate::args::Shared;
use crate::model::Model;
use crate::source;

/// Settings as a head sends them.
#[derive(Parser)]
#[command(no_binary_name = true)]
struct Settings {
    #[command(flatten)]
    shared: Shared,
}

/// The file or folder: in `models`, by its name, or where the head has it. Layers are compared when
/// the ring boots; here shapes, formats and settings are.
///
/// # Errors
/// None of these, or others of the same name; each with what was found.
pub fn find(wanted: &Wanted, models: Option<&Path>) -> Result<PathBuf> {
    let in_folder = models.map(|folder| folder.join(&wanted.file)).filter(|path| path.exists());
    let mut why = Vec::new();
    let named = || source::resolve(&wanted.model);
    for found in in_folder.map(Ok).into_iter().chain(std::iter::once_with(named)) {
        let checked = found.and_then(|path| Ok((check(wanted, &path)?, path)));
        match checked {
            Ok((digest, path)) if digest == wanted.digest => return Ok(path),
            Ok((digest, path)) => why.push(format!(
                "{} is another model or under other settings: expected {:.16}, found {digest:.16}",
                path.display(),
                wanted.digest
            )),
            Err(error) => why.push(crate::line(&error)),
        }
    }
    let folder = match models {
        Some(folder) => format!("no {} in {}; ", wanted.file, folder.display()),
        None => String::new(),
    };
    bail!("{folder}{}: copy the model here, or name its folder with --models", why.join("; "))
}

/// The digest of what is there, under the head's settings.
fn check(wanted: &Wanted, path: &Path) -> Result<String> {
    let mut arguments = vec![path.to_string_lossy().into_owned()];
    arguments.extend(wanted.arguments.iter().cloned());
    let shared = Settings::try_parse_from(arguments)?.shared;
    Model::open(path, shared.settings(1))?.digest()
}
