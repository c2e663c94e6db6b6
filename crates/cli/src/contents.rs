//! Digests of what a rank holds, and of what its model is.

use std::ops::Range;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use arith::base::Rank;
use weights::{Checkpoint, Digest, Digests, TensorInfo};
use wire::describe::Ends;

use crate::{loading, source};

/// Reading that took longer is worth a line in the log.
const LONG: Duration = Duration::from_secs(2);

/// One digest a layer and one an end: SHA-256 over the tensors' digests in name order.
pub struct Contents {
    /// Of the layers, in order.
    pub layers: Vec<Digest>,
    /// Of the ends, where they are included.
    pub ends: Option<Ends>,
}

impl Contents {
    /// Of layers `range`, and the ends where `ends`, from the file's own bytes: `rank` reads them
    /// once and keeps what they give.
    ///
    /// # Errors
    /// A tensor that the file was cut without, by name, and a file that can't be read.
    pub fn read(
        checkpoint: &Checkpoint,
        rank: Rank,
        range: Range<u32>,
        ends: bool,
    ) -> Result<Self> {
        let part = || format!("rank {rank}: layers {}:{}", range.start, range.end);
        let (started, cache) = (Instant::now(), source::cache_dir().ok());
        checkpoint.check_held(range.clone(), ends).with_context(part)?;
        let names: Vec<&str> = names(checkpoint.part(range.clone(), ends)).collect();
        let (bytes, read) = (checkpoint.bytes_of(range.clone(), ends), checkpoint.bytes_read());
        let of = || Digests::of(checkpoint, &names, cache.as_deref()).with_context(part);
        let digests = loading::told(rank, "digesting", bytes, read, of)?;
        if started.elapsed() > LONG {
            let mib = bytes >> 20;
            let seconds = started.elapsed().as_secs();
            tracing::info!("{}: read {mib} MiB for their digests in {seconds} s", part());
        }
        Self::of(checkpoint, &digests, range, ends)
    }

    /// Of the whole model as the manifest beside the file says, if there is one.
    ///
    /// # Errors
    /// None in practice: a manifest that opened has every tensor of its model.
    pub fn by_manifest(checkpoint: &Checkpoint) -> Result<Option<Self>> {
        let whole = 0..checkpoint.config().layers();
        let manifest = checkpoint.manifest();
        let contents = manifest.map(|m| Self::of(checkpoint, m.digests(), whole, true));
        contents.transpose()
    }

    fn of(
        checkpoint: &Checkpoint,
        digests: &Digests,
        range: Range<u32>,
        ends: bool,
    ) -> Result<Self> {
        let layer = |layer| digests.over(names(checkpoint.part(layer..layer + 1, false)));
        let end = |embedding: bool| {
            let names = names(checkpoint.part(0..0, true));
            digests.over(names.filter(|name| name.starts_with("token_embd") == embedding))
        };
        Ok(Self {
            layers: range.map(layer).collect::<Result<_, _>>()?,
            ends: if ends { Some(Ends { embedding: end(true)?, head: end(false)? }) } else { None },
        })
    }
}

fn names<'a>(tensors: impl Iterator<Item = &'a TensorInfo>) -> impl Iterator<Item = &'a str> {
    tensors.map(|tensor| tensor.name.as_str())
}
