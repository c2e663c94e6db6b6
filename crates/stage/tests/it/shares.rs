//! A group that shares its layers has one machine's bytes, whatever its size and split.

use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use baton_stage::{
    Chain as Guess, Engine, Fault, Shapes, Share, Split, Stage, StageConfig, Way, choices,
    share_need_bytes,
};
use weights::{Checkpoint, synthetic};

use crate::chain::{self, Chain, LAYERS, SHAPES, bits, config, cpu, same, say, tokens};
use crate::group::Together;

/// Layouts of a group; the last has more members than some models have heads.
const GROUPS: [(Split, usize); 7] = [
    (Split::Rows, 2),
    (Split::Rows, 3),
    (Split::Shards, 2),
    (Split::Shards, 3),
    (Split::Shards, 4),
    (Split::Rows, 4),
    (Split::Shards, 8),
];

/// A llama of which all shares align.
fn wide() -> &'static Checkpoint {
    static MODEL: OnceLock<Checkpoint> = OnceLock::new();
    MODEL.get_or_init(|| chain::checkpoint(&synthetic::Llama::shard_tiny()))
}

/// A qwen3_5 of which all shares align but for its tiled value heads, with a draft head.
fn wide_hybrid() -> &'static Checkpoint {
    static MODEL: OnceLock<Checkpoint> = OnceLock::new();
    let spec = synthetic::Qwen35::shard_tiny();
    MODEL.get_or_init(|| chain::made(|path| synthetic::qwen3_5(path, &spec)))
}

/// A trained model of which no shares of K align.
fn baton_tiny() -> &'static Checkpoint {
    static MODEL: OnceLock<Checkpoint> = OnceLock::new();
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/baton-tiny");
    MODEL.get_or_init(|| Checkpoint::open(&folder).unwrap())
}

fn models() -> [(&'static str, &'static Checkpoint, Shapes); 5] {
    let small = Shapes { chunk_rows_max: 64, round_rows_max: 128, pages: 16, ..SHAPES };
    [
        ("llama", chain::tiny(), SHAPES),
        ("qwen3_5", chain::hybrid(), SHAPES),
        ("shard-tiny llama", wide(), small),
        ("shard-tiny qwen3_5", wide_hybrid(), small),
        ("baton-tiny", baton_tiny(), small),
    ]
}

fn whole(checkpoint: &Checkpoint) -> StageConfig {
    config(0..checkpoint.config().layers())
}

fn alone(checkpoint: &Checkpoint) -> Box<dyn Engine> {
    let mut stage = Stage::open(cpu().clone(), checkpoint, whole(checkpoint)).unwrap();
    stage.add_draft_head(checkpoint).unwrap();
    Box::new(stage)
}

/// A prompt in chunks beside another stream, windows that settle in part, a keep, its resume, and
/// guesses where there is a draft head: the hash of every row, logit and guess.
fn life(engine: Box<dyn Engine>, shapes: Shapes) -> u64 {
    let mut hash = DefaultHasher::new();
    let mut chain = Chain::sized(vec![engine], &shapes);
    let mut take = |chain: &mut Chain, rows: &[f32]| {
        bits(rows).hash(&mut hash);
        bits(&chain.logits(rows)).hash(&mut hash);
    };
    let (a, b) = (tokens(1, 90), tokens(2, 30));
    let first = chain.round(&[say(1, 0, &a[..40]), say(2, 0, &b[..9])]).unwrap();
    take(&mut chain, &first);
    let rows = chain.saving(&[say(1, 40, &a[40..47]), say(2, 9, &b[9..10])], &[(7, 1)]).unwrap();
    take(&mut chain, &rows);
    // Two of seven stay, then one row a stream.
    let rows = chain.round(&[say(1, 2, &a[50..51]), say(2, 1, &b[10..11])]).unwrap();
    take(&mut chain, &rows);
    let rows = chain.resume(3, 7, &a[40..80]).unwrap();
    take(&mut chain, &rows);
    if chain.stages[0].drafts() {
        let tokens = &a[1..41];
        let id = arith::base::StreamId(1);
        let guess = Guess { id, first: 0, rows: 0..40, tokens, length: 3 };
        let width = chain.hidden();
        let mut best = |_: usize, _: u32, logits: &[f32]| {
            let best = logits.iter().copied().fold(f32::MIN, f32::max);
            logits.iter().position(|x| *x == best).unwrap() as u32
        };
        let guesses = chain.stages[0].draft(&[guess], &first[..40 * width], &mut best).unwrap();
        assert_eq!(guesses[0].len(), 3);
        guesses.hash(&mut hash);
    }
    hash.finish()
}

#[test]
fn a_group_of_any_size_and_split_has_one_hash() {
    for (name, checkpoint, shapes) in models() {
        let expected = life(alone(checkpoint), shapes);
        println!("{name}: whole {expected:016x}");
        for (split, count) in GROUPS {
            let group = Together::new(checkpoint, &whole(checkpoint), split, count);
            let meter = group.meter.clone();
            let found = life(Box::new(group), shapes);
            let (exchanges, sent) =
                (meter.exchanges.load(Ordering::Relaxed), meter.sent.load(Ordering::Relaxed));
            println!("{name}: {split}{count} {found:016x}, {exchanges} exchanges, {sent} values");
            assert_eq!(found, expected, "{name} at {split}{count}");
        }
    }
}
