//! Walks `golden/wire`: good files decode and encode again byte for byte, bad ones raise the error
//! that the manifest names.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use crate::cases::{Case, all};
use crate::kind::recode;

const MANIFEST: &str = "manifest.tsv";

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../golden/wire")
}

fn to_hex(case: &Case) -> String {
    let mut text = format!("# {}\n", case.about);
    for line in case.bytes.chunks(32) {
        text.extend(line.iter().map(|byte| format!("{byte:02x}")));
        text.push('\n');
    }
    text
}

pub fn from_hex(text: &str) -> Vec<u8> {
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let digits: String = lines.collect();
    assert!(digits.len().is_multiple_of(2), "half a byte");
    let pairs = (0..digits.len()).step_by(2).map(|at| &digits[at..at + 2]);
    pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
}

fn manifest_of(cases: &[Case]) -> String {
    let lines = cases
        .iter()
        .map(|case| format!("{}\t{}\t{}\n", case.name, case.kind, case.error.unwrap_or("ok")));
    format!("file\tdecoder\tverdict\n{}", lines.collect::<String>())
}

/// (file, decoder, verdict) a line.
fn manifest() -> Vec<(String, String, String)> {
    let text = fs::read_to_string(folder().join(MANIFEST)).unwrap();
    let lines = text.lines().skip(1).map(|line| {
        let mut columns = line.split('\t').map(str::to_owned);
        let mut next = || columns.next().unwrap();
        (next(), next(), next())
    });
    lines.collect()
}

#[test]
fn every_golden_file_means_what_the_manifest_says() {
    let mut wrong = Vec::new();
    for (file, decoder, verdict) in manifest() {
        let bytes = from_hex(&fs::read_to_string(folder().join(&file)).unwrap());
        match recode(&decoder, &bytes) {
            Ok(again) if verdict == "ok" => {
                if again.is_some_and(|again| again != bytes) {
                    wrong.push(format!("{file}: encodes to other bytes"));
                }
            }
            Ok(_) => wrong.push(format!("{file}: expected {verdict}, found ok")),
            Err(error) if error.code() == verdict => {
                let text = error.to_string();
                assert!(text.starts_with(&format!("{verdict}: ")), "{text}");
            }
            Err(error) => wrong.push(format!("{file}: expected {verdict}, found {error}")),
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn the_manifest_lists_every_golden_file_and_no_other() {
    let listed: BTreeSet<String> = manifest().into_iter().map(|(file, ..)| file).collect();
    let files = fs::read_dir(folder()).unwrap().map(|file| file.unwrap().file_name());
    let files = files.map(|name| name.into_string().unwrap());
    let present: BTreeSet<String> = files.filter(|name| name.ends_with(".hex")).collect();
    assert_eq!(listed, present);
}

/// With `BATON_GOLDEN=write` in the environment, writes the folder anew instead.
#[test]
fn the_recipe_makes_the_golden_files() {
    let cases = all();
    if std::env::var("BATON_GOLDEN").is_ok_and(|value| value == "write") {
        for file in fs::read_dir(folder()).unwrap().map(|file| file.unwrap().path()) {
            if file.extension().is_some_and(|extension| extension == "hex") {
                fs::remove_file(file).unwrap();
            }
        }
        for case in &cases {
            fs::write(folder().join(&case.name), to_hex(case)).unwrap();
        }
        fs::write(folder().join(MANIFEST), manifest_of(&cases)).unwrap();
        return;
    }
    assert_eq!(fs::read_to_string(folder().join(MANIFEST)).unwrap(), manifest_of(&cases));
    for case in &cases {
        let text = fs::read_to_string(folder().join(&case.name)).unwrap();
        assert_eq!(text, to_hex(case), "{}", case.name);
    }
}

#[test]
fn every_error_of_a_decoder_has_a_golden_file() {
    let raised: BTreeSet<String> = manifest().into_iter().map(|(_, _, verdict)| verdict).collect();
    let decoders = [
        "BadMagic",
        "OtherVersion",
        "OtherCipher",
        "BadReserved",
        "OtherKind",
        "OtherMessage",
        "BadFlags",
        "TooLarge",
        "Truncated",
        "Trailing",
        "OutOfTurn",
        "BadText",
        "BadValue",
        "BadRank",
        "OtherRows",
        "BadOrder",
        "BadOp",
        "BadWant",
        "BadOpen",
        "BadResume",
        "BadMode",
        "BadCuts",
        "BadParent",
        "BadKeep",
        "NoSuchKeep",
    ];
    for name in decoders {
        assert!(raised.contains(name), "{name}");
    }
}
