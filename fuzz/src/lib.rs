//! Where the fuzz targets begin: seeds made of the golden files and of synthetic checkpoints.
//!
//! A target writes its seeds itself, before libFuzzer reads the corpus, into the folder that
//! `BATON_FUZZ_SEEDS` names. `cargo xtask fuzz` sets it.
#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};

use serde_json::Value;
use weights::Checkpoint;

/// Names the folder that takes the seeds.
const SEEDS: &str = "BATON_FUZZ_SEEDS";

/// Writes `seeds`, one a file, if a folder was named for them.
///
/// # Panics
/// Where the folder can't be written: a target without its seeds would find little.
pub fn plant(seeds: impl IntoIterator<Item = Vec<u8>>) {
    let Some(folder) = std::env::var_os(SEEDS).map(PathBuf::from) else {
        return;
    };
    for (at, seed) in seeds.into_iter().enumerate() {
        let path = folder.join(format!("seed-{at:03}"));
        if let Err(error) = std::fs::write(&path, seed) {
            panic!("{}: {error}", path.display());
        }
    }
}

/// Every tensor that a whole checkpoint promises can be read.
///
/// # Panics
/// Where one can't, or is not what it was said to be.
pub fn read(checkpoint: &Checkpoint) {
    let mut buffer = Vec::new();
    for info in checkpoint.tensors() {
        let Ok(matrix) = checkpoint.read(&info.name, &mut buffer) else {
            panic!("{}: expected a tensor of a whole model", info.name);
        };
        assert_eq!(matrix.bytes.len(), matrix.rows * matrix.row_bytes());
        assert_eq!(matrix.rows * matrix.cols, info.rows * info.cols);
        assert!(checkpoint.digest(&info.name).is_ok());
    }
    let layers = checkpoint.config().layers();
    let trunk = |layer: Option<u32>| layer.is_none_or(|layer| layer < layers);
    let tensors = checkpoint.tensors().iter().filter(|info| trunk(info.layer()));
    let all: u64 = tensors.map(|info| info.bytes as u64).sum();
    assert_eq!(checkpoint.bytes_of(0..layers, true), all);
}

/// A file of `golden/`.
fn golden(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../golden").join(name);
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The golden messages of the wire that one of `decoders` reads: the decoder's name and the bytes.
pub fn wire(decoders: &[&str]) -> Vec<(String, Vec<u8>)> {
    let manifest = golden("wire/manifest.tsv");
    let lines = manifest.lines().skip(1).filter_map(|line| {
        let mut columns = line.split('\t');
        let (file, decoder) = (columns.next()?, columns.next()?);
        let wanted = decoders.contains(&decoder);
        wanted.then(|| (decoder.to_owned(), from_hex(&golden(&format!("wire/{file}")))))
    });
    lines.collect()
}

fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u8> = text
        .lines()
        .filter(|line| !line.starts_with('#'))
        .flat_map(str::bytes)
        .filter_map(|digit| char::from(digit).to_digit(16).map(|digit| digit as u8))
        .collect();
    let (pairs, _) = digits.as_chunks::<2>();
    pairs.iter().map(|[high, low]| high << 4 | low).collect()
}

/// The golden conversations: template, messages, whether the reply begins, other variables.
pub fn conversations() -> Vec<Value> {
    match serde_json::from_str(&golden("chat-templates/cases.json")) {
        Ok(Value::Array(cases)) => cases,
        other => panic!("golden/chat-templates/cases.json: expected an array, found {other:?}"),
    }
}

/// Cuts `data` at its first byte.
pub fn choice(data: &[u8]) -> Option<(u8, &[u8])> {
    data.split_first().map(|(&first, rest)| (first, rest))
}
