//! What a rank has in memory: its own layers, once.

use std::path::{Path, PathBuf};

use arith::attention::KvDtype;
use arith::format::Format;
use serde_json::json;
use stage::StageConfig;
use weights::Checkpoint;
use weights::synthetic::{self, Llama};
use wire::control::Shapes;
use wire::layout::Layout;

use crate::model::scratch;
use crate::ring::Server;
use crate::turn::Turn;

const MIB: u64 = 1 << 20;
const WORLD: u32 = 3;
const STREAMS: u32 = 8;

/// A checkpoint that goes away with its test.
struct Large(PathBuf);

impl Large {
    fn new(bytes: u64) -> Self {
        let path = scratch(&format!("large-{bytes}.gguf"));
        synthetic::llama(&path, &Llama::of_bytes(bytes, Format::Q8_0)).unwrap();
        assert!(path.metadata().unwrap().len() >= bytes);
        Self(path)
    }
}

impl Drop for Large {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

/// Most memory that a process ever had, bytes.
fn peak_bytes(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
    let line = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    let kib: u64 = line.split_whitespace().nth(1).unwrap().parse().unwrap();
    kib * 1024
}

/// Bytes that the layers of a rank, its ends, its caches and its largest tensor take.
fn own_bytes(path: &Path, rank: u32, size: &Size) -> (u64, u64, u64) {
    let checkpoint = Checkpoint::open(path).unwrap();
    let layout = Layout::even(checkpoint.config().layers(), WORLD).unwrap();
    let config = StageConfig {
        range: layout.range(arith::base::Rank(rank)),
        ends: rank == 0,
        kv: KvDtype::F16,
        loop_mode: false,
    };
    let shapes = Shapes {
        chunk_rows_max: size.chunk,
        round_rows_max: size.chunk + STREAMS,
        streams_max: STREAMS,
        context_max: size.context,
        // Two whole contexts and a page a stream.
        pages: size.context.div_ceil(64) * 2 + STREAMS,
    };
    let need = stage::need_bytes(&checkpoint, &config, &shapes).unwrap();
    let part = checkpoint.part(config.range, config.ends);
    let tensor = part.map(|tensor| tensor.bytes as u64).max().unwrap();
    (need.weights_bytes, need.kv_bytes, tensor)
}

/// How large the model and its prompt are.
struct Size {
    /// Bytes of the checkpoint, at least.
    bytes: u64,
    context: u32,
    chunk: u32,
    /// Bytes that a process may take beside what it must hold.
    slack: u64,
}

/// Serves a checkpoint at world 3 and answers a chat whose prompt fills a chunk; no rank may ever
/// have had more than its own, one tensor and the slack.
fn ranks_hold_their_own(size: &Size) {
    let _turn = Turn::alone();
    let (chunk, slack) = (size.chunk, size.slack);
    let model = Large::new(size.bytes);
    let [world, context, streams, rows] =
        [WORLD, size.context, STREAMS, chunk].map(|value| value.to_string());
    let args = ["--world", &world, "--context", &context, "--streams", &streams, "--chunk", &rows];
    let server = Server::ready(&model.0, &args);
    let words = "x".repeat(chunk as usize + 64);
    let (status, reply) = server.chat(&json!({
        "messages": [{"role": "user", "content": words}], "max_tokens": 4, "temperature": 0,
        "ignore_eos": true,
    }));
    assert_eq!(status, 200, "{reply}");
    let prompt = reply["usage"]["prompt_tokens"].as_u64().unwrap();
    assert!(prompt > u64::from(chunk), "{reply}");
    for rank in 0..WORLD {
        let process = match rank {
            0 => server.process.id(),
            _ => server.rank(rank) as u32,
        };
        let (own, kv, tensor) = own_bytes(&model.0, rank, size);
        let (peak, most) = (peak_bytes(process), own + kv + tensor + slack);
        let mib = |bytes: u64| bytes as f64 / MIB as f64;
        println!(
            "rank {rank}: own {:.1}, KV {:.1}, a tensor {:.1}, peak {:.1}, at most {:.1} MiB",
            mib(own),
            mib(kv),
            mib(tensor),
            mib(peak),
            mib(most)
        );
        assert!(peak <= most, "rank {rank}: {peak} bytes, at most {most}");
        assert!(peak > own, "rank {rank}: {peak} bytes hold {own} of layers");
    }
}

/// Small enough for every run; so is what it lets pass, or the layers of others would.
#[test]
fn each_rank_holds_its_own_layers_once() {
    ranks_hold_their_own(&Size { bytes: 160 * MIB, context: 256, chunk: 64, slack: 32 * MIB });
}

#[test]
#[ignore = "writes 1 GiB and takes a minute"]
fn each_rank_of_a_large_model_holds_its_own_layers_once() {
    ranks_hold_their_own(&Size { bytes: 1024 * MIB, context: 1_024, chunk: 512, slack: 64 * MIB });
}
