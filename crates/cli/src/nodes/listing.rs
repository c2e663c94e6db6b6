//! Which nodes there are, as a user says it, and the model as each of them looks for it.

use std::path::{Path, PathBuf};

use anyhow::Result;
use node::file::{Listed, Nodes as File};
use node::message::Wanted;
use ring::key::Key;

use super::auto::{self, Link};
use crate::args::Serve;
use crate::model::Model;

/// What the file says, with its keys read.
pub struct Listing {
    pub(super) file: File,
    pub(super) keys: Vec<Option<Key>>,
    /// The link that is asked instead of a file, and the key of nodes there.
    pub(super) auto: Option<(Link, Option<Key>)>,
}

impl Listing {
    /// Reads the file and its keys, or takes `auto` or `auto=ADDR`; `key` is everybody's where the
    /// file names none.
    ///
    /// # Errors
    /// What is wrong with the file, an address or a key.
    pub fn read(path: &Path, key: Option<&Path>) -> Result<Self> {
        if let Some(via) = auto::parse(path)? {
            let key = key.map(Key::load).transpose()?;
            let auto = Some((Link::new(via, key.clone()), key));
            return Ok(Self { file: File::default(), keys: Vec::new(), auto });
        }
        let file = File::read(path)?;
        // As the file has it, beside the file.
        let beside = |key: &PathBuf| path.parent().map_or_else(|| key.clone(), |at| at.join(key));
        let all = file.key.as_ref().map(beside).or_else(|| key.map(Path::to_path_buf));
        let load = |node: &Listed| {
            let own = node.key.as_ref().map(beside).or_else(|| all.clone());
            Ok(own.map(|own| Key::load(&own)).transpose()?)
        };
        let keys = file.nodes.iter().map(load).collect::<Result<_>>()?;
        Ok(Self { file, keys, auto: None })
    }
}

/// The model as nodes look for it.
pub fn wanted(args: &Serve, model: &Model) -> Result<Wanted> {
    let path = model.checkpoint.path();
    let file = path.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(Wanted {
        model: args.shared.model.clone(),
        file: file.unwrap_or_default(),
        digest: model.digest()?,
        arguments: args.shared.arguments(),
        units: None,
    })
}

/// As a node of the file looks for it.
pub fn wanted_by(node: &Listed, wanted: &Wanted) -> Wanted {
    let mut wanted = wanted.clone();
    for (flag, value) in [
        ("--device", node.device.clone()),
        ("--threads", node.threads.map(|threads| threads.to_string())),
    ] {
        wanted.arguments.extend(value.into_iter().flat_map(|value| [flag.to_owned(), value]));
    }
    wanted
}
