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

/// How matrices of a size are stored unless told otherwise.
const FORMAT: Format = Format::Q8_0;

/// Most tokens of a vocabulary that is asked for.
const VOCAB_MAX: usize = 1 << 20;

/// How large a checkpoint.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Size {
    Bytes(u64),
    /// The shape whose shares align, for groups.
    ShardTiny,
    /// Of the 27B model; qwen3_5 alone.
    Large,
}

/// What the command is asked for.
#[derive(Debug, PartialEq)]
struct Asked {
    family: Family,
    size: Size,
    /// Of a shape its own unless given.
    format: Option<Format>,
    /// What llama.cpp calls `Q4_K_M`, instead of one format.
    mixed: bool,
    seed: u64,
    /// Tokens, of a size or shape its own unless given.
    vocab: Option<usize>,
    out: PathBuf,
}

/// Makes the checkpoint and says what it is.
///
/// # Errors
/// An argument that can't be, a file that is there already or can't be written.
pub fn run(arguments: &[String]) -> Result<()> {
    let asked = parse(arguments)?;
    ensure!(!asked.out.exists(), "{} is there already", asked.out.display());
    let out = &asked.out;
    let started = Instant::now();
    let (layers, hidden) = match asked.family {
        Family::Llama => {
            let mut spec = match asked.size {
                Size::Bytes(bytes) => Llama::of_bytes(bytes, asked.format.unwrap_or(FORMAT)),
                Size::ShardTiny => Llama::shard_tiny(),
                Size::Large => bail!("--shape 27b: of --family qwen3_5 alone"),
            };
            if let Some(format) = asked.format {
                (spec.format, spec.ends_format, spec.q4_k_m) = (format, format, asked.mixed);
            }
            spec.seed = asked.seed;
            spec.vocab = asked.vocab.unwrap_or(spec.vocab);
            synthetic::llama(out, &spec)?;
            (spec.layers, spec.hidden)
        }
        Family::Qwen35 => {
            let mut spec = match asked.size {
                Size::Bytes(bytes) => Qwen35::of_bytes(bytes, asked.format.unwrap_or(FORMAT)),
                Size::ShardTiny => Qwen35::shard_tiny(),
                Size::Large => Qwen35::shape_27b(),
            };
            if let Some(format) = asked.format {
                (spec.format, spec.ends_format, spec.q4_k_m) = (format, format, asked.mixed);
            }
            spec.seed = asked.seed;
            spec.vocab = asked.vocab.unwrap_or(spec.vocab);
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
    let (mut size, mut out) = (None, None);
    let (mut family, mut format, mut seed) = (Family::Llama, None, 1);
    let (mut mixed, mut vocab) = (false, None);
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().with_context(|| format!("{word} needs a value"));
        match word.as_str() {
            "--bytes" => size = Some(Size::Bytes(parse_bytes(value()?)?)),
            "--shape" => size = Some(parse_shape(value()?)?),
            "--family" => family = parse_family(value()?)?,
            "--format" => {
                let name = value()?;
                mixed = name == "Q4_K_M";
                format = Some(parse_format(if mixed { "Q4_K" } else { name })?);
            }
            "--vocab" => vocab = Some(parse_vocab(value()?)?),
            "--seed" => seed = value()?.parse().context("--seed: expected a number")?,
            flag if flag.starts_with('-') => bail!("synthetic: there is no {flag}"),
            path if out.is_none() => out = Some(Path::new(path).to_owned()),
            more => bail!("synthetic: one file at a time, found {more} too"),
        }
    }
    Ok(Asked {
        family,
        size: size.context("synthetic: --bytes is needed, for example 1GiB, or --shape")?,
        format,
        mixed,
        seed,
        vocab,
        out: out.context("synthetic: the file's path is needed")?,
    })
}

/// `1GiB`, `160MiB`, `64KiB` or plain bytes.
pub fn parse_bytes(text: &str) -> Result<u64> {
    let units = [("KiB", 10), ("MiB", 20), ("GiB", 30)];
    let unit = units.iter().find(|(unit, _)| text.ends_with(unit));
    let (number, shift) = match unit {
        Some((unit, shift)) => (text.trim_end_matches(unit), *shift),
        None => (text, 0),
    };
    let bytes = number.parse::<u64>().ok().and_then(|n| n.checked_mul(1 << shift));
    bytes.with_context(|| format!("--bytes {text}: expected bytes like 1GiB or 160MiB"))
}

fn parse_shape(text: &str) -> Result<Size> {
    match text {
        "shard-tiny" => Ok(Size::ShardTiny),
        "27b" => Ok(Size::Large),
        _ => bail!("--shape {text}: expected shard-tiny or 27b"),
    }
}

fn parse_vocab(text: &str) -> Result<usize> {
    let least = synthetic::VOCAB_MIN;
    let vocab = text.parse().ok().filter(|vocab| (least..=VOCAB_MAX).contains(vocab));
    vocab.with_context(|| format!("--vocab {text}: expected {least} to {VOCAB_MAX} tokens"))
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
            size: Size::Bytes(3 << 20),
            format: Some(Format::Q4K),
            mixed: false,
            seed: 7,
            vocab: None,
            out: "a.gguf".into(),
        };
        assert_eq!(asked, expected);
        let asked = parsed("a.gguf --bytes 1 --format Q4_K_M").unwrap();
        assert_eq!((asked.format, asked.mixed), (Some(Format::Q4K), true));
        let asked = parsed("a.gguf --bytes 12").unwrap();
        assert_eq!((asked.size, asked.format, asked.seed), (Size::Bytes(12), None, 1));
        assert_eq!(asked.family, Family::Llama);
        let asked = parsed("--shape shard-tiny --vocab 248320 a.gguf").unwrap();
        assert_eq!((asked.size, asked.vocab), (Size::ShardTiny, Some(248_320)));
    }

    #[test]
    fn what_cannot_be_is_named() {
        for (line, part) in [
            ("a.gguf", "--bytes is needed"),
            ("--bytes 1GiB", "path is needed"),
            ("--bytes 1GB a.gguf", "--bytes 1GB"),
            ("--bytes 99999999999GiB a.gguf", "--bytes 99999999999GiB"),
            ("--bytes", "--bytes needs a value"),
            ("--shape wide a.gguf", "--shape wide: expected shard-tiny"),
            ("--format Q3_K a.gguf", "--format Q3_K: expected F32"),
            ("--width 3", "no --width"),
            ("--vocab 3", "--vocab 3: expected 258 to 1048576"),
            ("--vocab 1048577", "--vocab 1048577"),
            ("--bytes 1 a.gguf b.gguf", "b.gguf too"),
        ] {
            let said = parsed(line).unwrap_err().to_string();
            assert!(said.contains(part), "`{part}` is not in: {said}");
        }
    }
}
