//! A checkpoint of any bytes: header, config, places of the tensors, tokenizer and template; and
//! the manifest beside one.
#![no_main]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::LazyLock;

use arith::attention::Heads;
use arith::format::Format;
use libfuzzer_sys::fuzz_target;
use text::Text;
use weights::gguf::Header;
use weights::{Checkpoint, Manifest, synthetic};

fuzz_target!(init: baton_fuzz::plant(seeds()), |data: &[u8]| {
    if data.starts_with(b"{") {
        return list(data);
    }
    let opened = open(data);
    match Header::parse(data) {
        Ok(header) => {
            assert!(header.tensors.len() as u64 <= weights::gguf::limits::TENSORS_MAX);
            // One in sixteen: the patterns of a tokenizer take milliseconds to compile.
            let sum = data.iter().fold(0u8, |sum, &byte| sum.wrapping_add(byte));
            if sum.is_multiple_of(16)
                && let Ok(text) = Text::from_metadata(&header.metadata)
            {
                speak(&text);
            }
        }
        Err(error) => {
            assert!(opened.is_none(), "opened, but: {error}");
            assert!(error.to_string().len() < 4 << 10, "a long error");
        }
    }
    if let Some(checkpoint) = opened {
        read(&checkpoint);
    }
});

/// Small models of every format, and one whose head is a tensor of its own.
fn seeds() -> Vec<Vec<u8>> {
    let small = synthetic::Llama {
        layers: 1,
        hidden: 32,
        intermediate: 32,
        vocab: synthetic::VOCAB_MIN,
        heads: Heads { query: 1, kv: 1, dim: 32 },
        ..synthetic::Llama::default()
    };
    let formats = [Format::Q4_0, Format::Q4_1, Format::Q8_0, Format::F16, Format::Bf16];
    let mut specs: Vec<_> =
        formats.map(|format| synthetic::Llama { format, ..small.clone() }).into();
    specs.push(synthetic::Llama { tied: false, ..small });
    let mut seeds: Vec<Vec<u8>> =
        specs.iter().map(|spec| synthetic::llama_writer(spec).finish()).collect();
    let whole = open(&seeds[0]).expect("a legal checkpoint");
    let manifest = Manifest::of(&whole, None).expect("a whole file");
    seeds.push(manifest.to_json().into_bytes());
    seeds
}

/// A file without a name, for what reads files alone.
static FILE: LazyLock<(File, PathBuf)> = LazyLock::new(|| {
    let path = std::env::temp_dir().join(format!("baton-fuzz-{}.gguf", std::process::id()));
    let file = File::options().read(true).write(true).create_new(true).open(&path);
    let file = file.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    let _ = std::fs::remove_file(&path);
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    (file, path)
});

fn open(bytes: &[u8]) -> Option<Checkpoint> {
    let (file, path) = &*FILE;
    let written = file.set_len(bytes.len() as u64).and_then(|()| file.write_all_at(bytes, 0));
    written.expect("room in the temporary folder");
    Checkpoint::open(path).ok()
}

/// Every tensor that the checkpoint promises can be read.
fn read(checkpoint: &Checkpoint) {
    let mut buffer = Vec::new();
    for info in checkpoint.tensors() {
        let matrix = checkpoint.read(&info.name, &mut buffer);
        let matrix = matrix.expect("a tensor of a whole file");
        assert_eq!(matrix.bytes.len(), info.bytes);
        let row = matrix.cols / info.format.block_values() * info.format.block_bytes();
        assert_eq!(matrix.bytes.len(), matrix.rows * row);
        checkpoint.digest(&info.name).expect("the same");
    }
    let layers = checkpoint.config().layers();
    let all: u64 = checkpoint.tensors().iter().map(|info| info.bytes as u64).sum();
    assert_eq!(checkpoint.bytes_of(0..layers, true), all);
}

/// What reads as a manifest is written and read as the same.
fn list(text: &[u8]) {
    match Manifest::parse(text) {
        Ok(manifest) => {
            let again = Manifest::parse(manifest.to_json().as_bytes());
            assert_eq!(again.ok(), Some(manifest));
        }
        Err(error) => assert!(error.to_string().len() < 4 << 10, "a long error"),
    }
}

/// The tokenizer works, whatever it is.
fn speak(text: &Text) {
    let _ = text.encode("Hello, <|im_start|>w\u{f6}rld 123!");
    let mut reply = text.detokenizer();
    for id in [0, 1, 255, 256, u32::MAX] {
        reply.push(id);
    }
    reply.finish();
    let user = serde_json::json!({"role": "user", "content": "Hello"});
    let _ = text.render(&[user], true, &serde_json::Map::new());
}
