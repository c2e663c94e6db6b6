//! `hf:ORG/NAME`, or `hf:ORG/NAME/FILE.gguf`, from the Hugging Face hub into its own cache.

use std::path::PathBuf;

use anyhow::{Context, Result, bail};
use hf_hub::api::sync::ApiBuilder;

/// Downloads the repository's one GGUF, or the named file, with a progress bar.
///
/// # Errors
/// A name of another form, an unreachable hub, or a repository with no or several GGUF files.
pub fn pull(name: &str) -> Result<PathBuf> {
    let mut parts = name.splitn(3, '/');
    let (Some(org), Some(repo)) = (parts.next(), parts.next()) else {
        bail!("hf:{name}: expected hf:ORG/NAME or hf:ORG/NAME/FILE.gguf");
    };
    let api = ApiBuilder::from_env().with_progress(true).build()?;
    let api = api.model(format!("{org}/{repo}"));
    let file = match parts.next() {
        Some(file) => file.to_owned(),
        None => {
            let info =
                api.info().with_context(|| format!("hf:{name}: can't read its file list"))?;
            let files = info.siblings.into_iter().map(|s| s.rfilename);
            let mut files: Vec<String> = files.filter(|f| f.ends_with(".gguf")).collect();
            match files.len() {
                1 => files.swap_remove(0),
                0 => bail!("hf:{name} holds no .gguf file"),
                n => bail!(
                    "hf:{name} holds {n} .gguf files: name one, for example hf:{name}/{}",
                    files[0]
                ),
            }
        }
    };
    api.get(&file).with_context(|| format!("hf:{org}/{repo}/{file}"))
}
