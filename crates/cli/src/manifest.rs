//! `baton manifest` and `baton cut`: a machine needs the file of its own layers only.

use std::ops::Range;
use std::path::Path;

use anyhow::{Context, Result};
use weights::{Checkpoint, Manifest};

use crate::{bar, source};

/// Writes the manifest beside MODEL and prints its path.
///
/// # Errors
/// A model that is no whole one, and a folder that can't be written.
pub fn run(model: &str) -> Result<()> {
    let checkpoint = Checkpoint::open(&source::resolve(model)?)?;
    let manifest = digested(&checkpoint)?;
    let folder = checkpoint.path().parent().unwrap_or(Path::new("."));
    println!("{}", manifest.write(folder)?.display());
    Ok(())
}

/// Writes layers `range` of MODEL into `folder`, with a manifest of the whole model, and prints
/// the new file's path.
///
/// # Errors
/// A range that the model doesn't have or this file of it doesn't hold, and a folder that can't be
/// written or holds such a file already.
pub fn cut(model: &str, range: &Range<u32>, folder: &Path) -> Result<()> {
    let checkpoint = Checkpoint::open(&source::resolve(model)?)?;
    let manifest = match checkpoint.manifest() {
        Some(manifest) => manifest.clone(),
        None => digested(&checkpoint)?,
    };
    let bytes = checkpoint.bytes_of(range.clone(), range.start == 0);
    let cut = || weights::cut(&checkpoint, &manifest, range.clone(), folder);
    println!("{}", bar::reading(&checkpoint, bytes, "copying", cut)?.display());
    Ok(())
}

/// The manifest of a model, of which what is not kept is read.
fn digested(checkpoint: &Checkpoint) -> Result<Manifest> {
    let bytes = checkpoint.bytes_of(0..checkpoint.config().layers(), true);
    let of = || Manifest::of(checkpoint, source::cache_dir().ok().as_deref());
    Ok(bar::reading(checkpoint, bytes, "digesting", of)?)
}

/// Parses `FIRST:END`.
///
/// # Errors
/// Anything else.
pub fn parse_range(text: &str) -> Result<Range<u32>> {
    let range = || {
        let (first, end) = text.split_once(':')?;
        Some(first.parse().ok()?..end.parse().ok()?)
    };
    range().with_context(|| format!("{text}: expected layers FIRST:END, for example 10:20"))
}
