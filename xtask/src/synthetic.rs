//! `cargo xtask synthetic`: a checkpoint of any size from a seed, to try sizes without a download.
//! It is streamed to the disk; its words are noise.

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result, bail, ensure};
use arith::format::Format;
use weights::gguf::types;
use weights::synthetic::{self, Llama, Qwen35};

/// Families that there are checkpoints of.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Family {
    Llama,
    Qwen35,
}

/// What the command is asked for.
#[derive(Debug, PartialEq)]
struct Asked {
    family: Family,
    bytes: u64,
    format: Format,
    /// What llama.cpp calls `Q4_K_M`, instead of one format.
    mixed: bool,
    seed: u64,
    out: PathBuf,
}

/// Makes the checkpoint and says what it is.
///
/// # Errors
/// An argument that can't be, a file that is there already or can't be written.
pub fn run(arguments: &[String]) -> Result<()> {
    let asked = parse(arguments)?;
    ensure!(!asked.out.exists(), "{} is there already", asked.out.display());
    let (out, seed, q4_k_m) = (&asked.out, asked.seed, asked.mixed);
    let started = Instant::now();
    let (layers, hidden) = match asked.family {
        Family::Llama => {
            let spec = Llama { seed, q4_k_m, ..Llama::of_bytes(asked.bytes, asked.format) };
            synthetic::llama(out, &spec)?;
            (spec.layers, spec.hidden)
        }
        Family::Qwen35 => {
            let spec = Qwen35 { seed, q4_k_m, ..Qwen35::of_bytes(asked.bytes, asked.format) };
            synthetic::qwen3_5(out, &spec)?;
            (spec.layers, spec.hidden)
        }
    };
    println!(
        "{}: {layers} layers of width {hidden}, {} bytes, {:.1} s",
        out.display(),
        out.metadata()?.len(),
        started.elapsed().as_secs_f64()
    );
    Ok(())
}

fn parse(arguments: &[String]) -> Result<Asked> {
    let (mut bytes, mut out) = (None, None);
    let (mut family, mut format, mut seed) = (Family::Llama, Format::Q8_0, 1);
    let mut mixed = false;
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--bytes" => bytes = Some(parse_bytes(value()?)?),
            "--family" => family = parse_family(value()?)?,
            "--format" => {
                let name = value()?;
                mixed = name == "Q4_K_M";
                format = parse_format(if mixed { "Q4_K" } else { name })?;
            }
            "--seed" => seed = value()?.parse().context("--seed: expected a number")?,
            flag if flag.starts_with('-') => bail!("synthetic: there is no {flag}"),
            path if out.is_none() => out = Some(Path::new(path).to_owned()),
            more => bail!("synthetic: one file at a time, found {more} too"),
        }
    }
    Ok(Asked {
        family,
        bytes: bytes.context("synthetic: --bytes is needed, for example 1GiB")?,
        format,
        mixed,
        seed,
        out: out.context("synthetic: the file's path is needed")?,
    })
}

/// `1GiB`, `160MiB`, `64KiB` or plain bytes.
fn parse_bytes(text: &str) -> Result<u64> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let unit = units.iter().find(|(unit, _)| text.ends_with(unit));
    let (number, shift) = match unit {
        Some((unit, shift)) => (text.trim_end_matches(unit), *shift),
        None => (text, 0),
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    bytes.with_context(|| format!("--bytes {text}: expected bytes like 1GiB or 160MiB"))
}

fn parse_family(text: &str) -> Result<Family> {
    match text {
        "llama" => Ok(Family::Llama),
        "qwen3_5" => Ok(Family::Qwen35),
        _ => bail!("--family {text}: expected llama or qwen3_5"),
    }
}

/// A format that GGUF has, by its name.
///
/// # Errors
/// Another name.
pub fn parse_format(text: &str) -> Result<Format> {
    let format = text.parse().ok().filter(|&format| types::number(format).is_some());
    format.with_context(|| format!("--format {text}: expected {}", types::READ))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn parsed(line: &str) -> Result<Asked> {
        let words: Vec<String> = line.split(' ').map(String::from).collect();
        parse(&words)
    }

    #[test]
    fn sizes_have_units_and_defaults_hold() {
        let line = "--bytes 3MiB --format Q4_K --seed 7 --family qwen3_5 a.gguf";
        let asked = parsed(line).unwrap();
        let expected = Asked {
            family: Family::Qwen35,
            bytes: 3 << 20,
            format: Format::Q4K,
            mixed: false,
            seed: 7,
            out: "a.gguf".into(),
        };
        assert_eq!(asked, expected);
        let asked = parsed("a.gguf --bytes 1 --format Q4_K_M").unwrap();
        assert_eq!((asked.format, asked.mixed), (Format::Q4K, true));
        let asked = parsed("a.gguf --bytes 12").unwrap();
        assert_eq!((asked.bytes, asked.format, asked.seed), (12, Format::Q8_0, 1));
        assert_eq!(asked.family, Family::Llama);
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (line, part) in [
            ("a.gguf", "--bytes is needed"),
            ("--bytes 1GiB", "path is needed"),
            ("--bytes 1GB a.gguf", "--bytes 1GB"),
            ("--bytes 99999999999GiB a.gguf", "--bytes 99999999999GiB"),
            ("--bytes", "--bytes needs a value"),
            ("--format Q3_K a.gguf", "--format Q3_K: expected F32"),
            ("--width 3", "no --width"),
            ("--bytes 1 a.gguf b.gguf", "b.gguf too"),
        ] {
            let said = parsed(line).unwrap_err().to_string();
            assert!(said.contains(part), "`{part}` is not in: {said}");
        }
    }
}
