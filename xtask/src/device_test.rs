//! What is carried to a machine with cards: the binaries, the models that they are tried on, and
//! the scripts that make a report of one card and of two.

use std::fs;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result};

use crate::step::{Steps, cargo};

/// The scripts; each says in its head what it shows.
const SCRIPTS: [(&str, &str); 2] =
    [("one_card.py", include_str!("one_card.py")), ("two_cards.py", include_str!("two_cards.py"))];
/// Small models in each format; baton-tiny is in the binary.
const MODELS: &str = "golden/tiny-qwen3_5";
const MODELS_OF: [&str; 3] = ["tiny-qwen3_5", "tiny-qwen3_5-bf16.gguf", "tiny-qwen3_5-mlx4"];

/// `cargo xtask device-test`: makes the folder, of release builds as users have them.
///
/// # Errors
/// What does not build or can't be copied.
pub fn run(steps: &mut Steps) -> Result<()> {
    let release = |rest: &[&str]| cargo(&[&["build", "--locked", "--release"], rest].concat());
    steps.run("device", &mut release(&["-p", "baton-cuda", "--example", "device"]))?;
    steps.run("baton", &mut release(&["-p", "baton", "-p", "xtask"]))?;
    let own = std::env::current_exe().context("this program's own path")?;
    let profiles = own.parent().and_then(Path::parent).context("a folder of profiles")?;
    let built = profiles.join("release");
    let folder = steps.root().join("target/device-test");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    for from in ["baton", "xtask", "examples/device"] {
        let from = built.join(from);
        let to = folder.join(from.file_name().unwrap_or_default());
        copy(&from, &to)?;
        // Symbols are most of what would travel; where there is no strip, they do.
        let _ = Command::new("strip").arg(&to).status();
    }
    for model in MODELS_OF {
        copy(&steps.root().join(MODELS).join(model), &folder.join(model))?;
    }
    for (name, text) in SCRIPTS {
        fs::write(folder.join(name), text).with_context(|| name.to_owned())?;
    }
    println!(
        "{}: carry it to a machine with a card, CUDA's libnvrtc (or BATON_NVRTC) and for two cards \
         NCCL's libnccl.so.2 (or BATON_NCCL), and run there\n  python3 one_card.py\n  python3 \
         two_cards.py",
        folder.display()
    );
    Ok(())
}

/// Copies a file, or a folder of files.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let failed = || format!("{} to {}", from.display(), to.display());
    if from.is_file() {
        fs::copy(from, to).with_context(failed)?;
        return Ok(());
    }
    fs::create_dir_all(to).with_context(failed)?;
    for entry in fs::read_dir(from).with_context(failed)? {
        let entry = entry.with_context(failed)?;
        copy(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_copied_whole_and_what_is_missing_is_named() {
        let place = std::env::temp_dir().join(format!("device-test-{}", std::process::id()));
        let (from, to) = (place.join("a/b"), place.join("c"));
        fs::create_dir_all(&from).expect("a folder");
        fs::write(from.join("d"), "text").expect("a file");
        copy(&place.join("a"), &to).expect("copied");
        assert_eq!(fs::read_to_string(to.join("b/d")).expect("a file"), "text");
        let error = copy(&place.join("none"), &to).expect_err("nothing there");
        assert!(format!("{error:#}").contains("none"), "{error:#}");
        fs::remove_dir_all(place).expect("removed");
    }
}
