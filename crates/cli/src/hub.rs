//! `hf:ORG/NAME`, or `hf:ORG/NAME/FILE.gguf`, from the Hugging Face hub into its own cache.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use hf_hub::api::sync::{ApiBuilder, ApiRepo};

/// Downloads the named file, the repository's one GGUF, or its safetensors with all that goes with
/// them, with a progress bar. Gives the file or the folder.
///
/// # Errors
/// A name of another form, an unreachable hub, or a repository that holds no model or several.
pub fn pull(name: &str) -> Result<PathBuf> {
    let mut parts = name.splitn(3, '/');
    let (Some(org), Some(repo)) = (parts.next(), parts.next()) else {
        bail!("hf:{name}: expected hf:ORG/NAME or hf:ORG/NAME/FILE.gguf");
    };
    let api = ApiBuilder::from_env().with_progress(true).build()?;
    let api = api.model(format!("{org}/{repo}"));
    let get = |file: &str| api.get(file).with_context(|| format!("hf:{org}/{repo}/{file}"));
    match parts.next() {
        Some(file) => get(file),
        None => whole(name, &api, get),
    }
}

fn whole(name: &str, api: &ApiRepo, get: impl Fn(&str) -> Result<PathBuf>) -> Result<PathBuf> {
    let info = api.info().with_context(|| format!("hf:{name}: can't read its file list"))?;
    let files: Vec<String> = info.siblings.into_iter().map(|s| s.rfilename).collect();
    let gguf: Vec<&String> = files.iter().filter(|f| f.ends_with(".gguf")).collect();
    let tensors = files.iter().any(|f| f.ends_with(".safetensors"));
    match gguf.as_slice() {
        [one] => get(one),
        [] if tensors => {
            let config = get("config.json")?;
            for file in files.iter().filter(|file| is_part(file)) {
                get(file)?;
            }
            let folder = config.parent().context("a download has a folder")?;
            Ok(folder.to_path_buf())
        }
        [] => bail!("hf:{name} holds neither a .gguf file nor safetensors"),
        [first, ..] => bail!(
            "hf:{name} holds {} .gguf files: name one, for example hf:{name}/{first}",
            gguf.len()
        ),
    }
}

/// Whether a loader may read the file, at the top of a repository.
fn is_part(file: &str) -> bool {
    !file.contains('/') && [".safetensors", ".json", ".jinja"].iter().any(|e| file.ends_with(e))
}
