//! baton-tiny, the model inside the binary: unpacked into the cache at its first use.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::source;

/// Its name as MODEL.
pub const NAME: &str = "baton-tiny";

macro_rules! files {
    ($($name:literal),* $(,)?) => {
        [$(($name, include_bytes!(concat!("../../../models/baton-tiny/", $name)) as &[u8])),*]
    };
}

/// What a loader reads of the model's folder, and its card.
static FILES: [(&str, &[u8]); 9] = files![
    "MODEL_CARD.md",
    "chat_template.jinja",
    "config.json",
    "generation_config.json",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model.safetensors.index.json",
    "tokenizer.json",
    "tokenizer_config.json",
];

/// The model's folder in the cache, written where it is not there as it is here.
///
/// # Errors
/// No place for a cache, or one that can't be written.
pub fn folder() -> Result<PathBuf> {
    let parent = source::cache_dir()?.join("embedded").join(env!("CARGO_PKG_VERSION"));
    let folder = parent.join(NAME);
    unpack(&FILES, &folder)
        .with_context(|| format!("can't unpack {NAME} to {}", folder.display()))?;
    Ok(folder)
}

/// Writes those of `files` that `folder` does not hold whole, each under its name only once it is.
fn unpack(files: &[(&str, &[u8])], folder: &Path) -> Result<()> {
    fs::create_dir_all(folder)?;
    for (name, bytes) in files {
        let path = folder.join(name);
        if fs::read(&path).is_ok_and(|held| held == *bytes) {
            continue;
        }
        let part = folder.join(format!("{name}.part-{}", std::process::id()));
        let written = fs::write(&part, bytes).and_then(|()| fs::rename(&part, &path));
        if written.is_err() {
            let _ = fs::remove_file(&part);
        }
        written?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_file_that_has_changed_or_gone_is_written_again_and_the_others_stay() {
        let folder = std::env::temp_dir().join(format!("baton-embedded-{}", std::process::id()));
        let files: [(&str, &[u8]); 3] = [("a", b"1"), ("b", b"22"), ("c", b"333")];
        unpack(&files, &folder).unwrap();
        let kept = fs::metadata(folder.join("a")).unwrap().modified().unwrap();
        fs::write(folder.join("b"), "23").unwrap();
        fs::remove_file(folder.join("c")).unwrap();
        unpack(&files, &folder).unwrap();
        for (name, bytes) in files {
            assert_eq!(fs::read(folder.join(name)).unwrap(), bytes, "{name}");
        }
        assert_eq!(fs::metadata(folder.join("a")).unwrap().modified().unwrap(), kept);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 3);
        fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn every_file_of_the_model_but_its_training_record_is_inside() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(NAME);
        let there = fs::read_dir(folder).unwrap().map(|e| e.unwrap().file_name());
        let mut there: Vec<_> = there.filter(|name| name != "results.json").collect();
        there.sort();
        assert_eq!(there, FILES.map(|(name, _)| name));
    }
}
