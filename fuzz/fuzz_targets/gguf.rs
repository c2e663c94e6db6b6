//! A checkpoint of any bytes: config, places of the tensors, and their bytes.
#![no_main]

use std::fs::File;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::LazyLock;

use arith::attention::Heads;
use arith::format::Format;
use libfuzzer_sys::fuzz_target;
use weights::gguf::Header;
use weights::{Checkpoint, synthetic};

fuzz_target!(init: baton_fuzz::plant(seeds()), |data: &[u8]| {
    if let Some(checkpoint) = open(data) {
        assert!(Header::parse(data).is_ok());
        baton_fuzz::read(&checkpoint);
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
    specs.iter().map(|spec| synthetic::llama_writer(spec).finish()).collect()
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
