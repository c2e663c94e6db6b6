//! A group that shares its layers has one machine's bytes, whatever its size and split.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::sync::OnceLock;
use std::sync::atomic::Ordering;

use arith::attention::Heads;
use arith::gdn::{Gdn, HeadOrder};
use baton_stage::{
    Chain as Guess, Engine, Fault, Shapes, Share, Split, Stage, StageConfig, Traffic, choices,
    share_need_bytes,
};
use weights::config::{Mixer, Qwen35};
use weights::{Checkpoint, Config, synthetic};
use wire::plan::Op;

use crate::chain::{self, Chain, SHAPES, bits, config, cpu, say, tokens};
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
pub fn wide() -> &'static Checkpoint {
    static MODEL: OnceLock<Checkpoint> = OnceLock::new();
    MODEL.get_or_init(|| chain::checkpoint(&synthetic::Llama::shard_tiny()))
}

/// A qwen3_5 of which all shares align but for its tiled value heads, with a draft head.
pub fn wide_hybrid() -> &'static Checkpoint {
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

pub fn models() -> [(&'static str, &'static Checkpoint, Shapes); 5] {
    let small = Shapes { chunk_rows_max: 128, round_rows_max: 192, pages: 16, ..SHAPES };
    [
        ("llama", chain::tiny(), SHAPES),
        ("qwen3_5", chain::hybrid(), SHAPES),
        ("shard-tiny llama", wide(), small),
        ("shard-tiny qwen3_5", wide_hybrid(), small),
        ("baton-tiny", baton_tiny(), small),
    ]
}

pub fn whole(checkpoint: &Checkpoint) -> StageConfig {
    config(0..checkpoint.config().layers())
}

pub fn alone(checkpoint: &Checkpoint) -> Box<dyn Engine> {
    let mut stage = Stage::open(cpu().clone(), checkpoint, whole(checkpoint)).unwrap();
    stage.add_draft_head(checkpoint).unwrap();
    Box::new(stage)
}

/// A prompt in chunks beside another stream, windows that settle in part, a keep, its resume,
/// prompts that may go in pairs, and guesses where there is a draft head: the hash of every row,
/// logit and guess.
fn life(engine: Box<dyn Engine>, shapes: Shapes) -> u64 {
    let mut hash = DefaultHasher::new();
    let mut chain = Chain::sized(vec![engine], &shapes);
    let mut take = |chain: &mut Chain, rows: &[f32]| {
        bits(rows).hash(&mut hash);
        bits(&chain.logits(rows)).hash(&mut hash);
        [1, 7].map(|count| chain.best(rows, count)).hash(&mut hash);
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
    chain.close(1, Op::Close).unwrap();
    chain.close(2, Op::Close).unwrap();
    let rows = chain.round(&[say(3, 40, &b), say(4, 0, &a), say(5, 0, &tokens(5, 61))]).unwrap();
    take(&mut chain, &rows);
    let rows = chain.round(&[say(4, 90, &a[..70]), say(5, 61, &tokens(6, 70))]).unwrap();
    take(&mut chain, &rows);
    let rows = chain.round(&[say(4, 70, &a[..1]), say(5, 70, &b[..1])]).unwrap();
    take(&mut chain, &rows);
    if chain.stages[0].drafts() {
        let tokens = &a[1..41];
        let id = arith::base::StreamId(3);
        let guess = Guess { id, first: 0, rows: 0..40, accepted: 40, tokens, length: 3 };
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

#[test]
fn a_planted_fault_in_a_group_changes_bytes() {
    let shapes = models()[2].2;
    let expected = life(alone(wide()), shapes);
    let four = (Split::Shards, 4);
    let faults = [Fault::OtherTree, Fault::SwappedPieces, Fault::ShiftedShare, Fault::StaleTwin];
    for fault in faults {
        let group = Together::planted(wide(), &whole(wide()), four, Some(fault));
        assert_ne!(life(Box::new(group), shapes), expected, "{fault:?}");
    }
}

/// Two rows of the head that are the same give two equal logits, of different members.
#[test]
fn a_tie_across_members_goes_to_the_lower_id() {
    let checkpoint = chain::made(|path| {
        let spec = synthetic::Llama { tied: false, ..synthetic::Llama::default() };
        synthetic::llama(path, &spec)?;
        let opened = Checkpoint::open(path)?;
        let head = opened.info("output.weight")?.clone();
        let (row, at) = (head.bytes / head.rows, head.offset().unwrap() as usize);
        let mut bytes = std::fs::read(path).unwrap();
        // The upper half of the vocabulary repeats the lower one.
        let half = head.rows / 2 * row;
        bytes.copy_within(at..at + half, at + half);
        std::fs::write(path, bytes).unwrap();
        Ok(())
    });
    // The best candidate of each row, from whole rows and from what is asked for alone.
    let best = |engine: Box<dyn Engine>| {
        let mut chain = Chain::new(vec![engine]);
        let rows = chain.feed(1, &tokens(3, 40), 40);
        let (logits, vocab) = (chain.logits(&rows), chain.stages[0].vocab());
        let whole: Vec<u32> = logits.chunks_exact(vocab).map(arith::head::argmax).collect();
        let alone: Vec<u32> = chain.best(&rows, 1).into_iter().map(|(id, _)| id).collect();
        assert_eq!(chain.best(&rows, 2).len(), 2 * alone.len());
        (whole, alone)
    };
    let (expected, same) = best(alone(&checkpoint));
    let half = checkpoint.config().vocab() as u32 / 2;
    assert!(expected == same && expected.iter().all(|id| *id < half), "{expected:?}");
    let group = |fault| {
        let (config, two) = (whole(&checkpoint), (Split::Shards, 2));
        Box::new(Together::planted(&checkpoint, &config, two, fault))
    };
    assert_eq!(best(group(None)), (expected.clone(), same));
    let higher: Vec<u32> = expected.iter().map(|id| id + half).collect();
    assert_eq!(best(group(Some(Fault::HigherTie))), (expected, higher));
}

#[test]
fn a_member_that_ends_is_a_lost_shard_by_name() {
    let open = |exchange| {
        let config = whole(wide());
        Stage::open_share(cpu().clone(), wide(), config, Split::Shards, Box::new(exchange)).unwrap()
    };
    let mut members = baton_stage::exchange::local(2).into_iter().map(open);
    let (mut first, second) = (members.next().unwrap(), members.next().unwrap());
    drop(second);
    let error = first.prepare(&models()[2].2).unwrap_err().to_string();
    let expected = "ShardLost: member 1: its thread has ended; the group comes back once it does";
    assert_eq!(error, expected);
}

#[test]
fn members_need_less_by_what_the_others_have() {
    let shapes = models()[3].2;
    for checkpoint in [wide(), wide_hybrid()] {
        let config = whole(checkpoint);
        let need = |share| share_need_bytes(checkpoint, &config, share, &shapes).unwrap();
        let all = need(Share::default());
        let halves = [0, 1].map(|index| need(Share { index, count: 2, split: Split::Shards }));
        assert_eq!(halves[0].kv_bytes + halves[1].kv_bytes, all.kv_bytes);
        assert_eq!(halves[0].state_bytes + halves[1].state_bytes, all.state_bytes);
        let weights = halves.map(|half| half.weights_bytes).iter().sum::<u64>();
        assert!(halves[0].weights_bytes < all.weights_bytes * 6 / 10);
        assert!(weights >= all.weights_bytes && weights < all.weights_bytes * 12 / 10);
    }
}

/// Exchanges and values of one row through all layers, and of its logits, over all members.
pub fn costs(model: &Config, split: Split, count: usize) -> [Traffic; 2] {
    let config = config(0..model.layers());
    let mut all = [Traffic::default(); 2];
    for index in 0..count {
        for choice in choices(model, &config, Share { index, count, split }).unwrap() {
            let to = &mut all[usize::from(choice.projection == "output")];
            *to = (0..choice.layers).fold(*to, |sum, _| sum + choice.traffic);
        }
    }
    all
}

#[test]
fn what_members_send_is_what_the_choices_say() {
    for (name, checkpoint, shapes) in &models()[1..4] {
        for (split, count) in GROUPS.into_iter().filter(|(_, count)| *count < 8) {
            let group = Together::new(checkpoint, &whole(checkpoint), split, count);
            let meter = group.meter.clone();
            let counted = || {
                let [exchanges, sent] = [&meter.exchanges, &meter.sent];
                [exchanges, sent].map(|count| count.swap(0, Ordering::Relaxed))
            };
            let mut chain = Chain::sized(vec![Box::new(group) as Box<dyn Engine>], shapes);
            let [layers, head] = costs(checkpoint.config(), split, count);
            for rows in [1, 5] {
                counted();
                let out = chain.round(&[say(rows, 0, &tokens(4, rows as usize))]).unwrap();
                let rows = rows as usize;
                let case = format!("{name} at {split}{count}, {rows} rows");
                assert_eq!(counted(), [layers.exchanges, rows * layers.sent], "{case}");
                chain.logits(&out);
                assert_eq!(counted(), [head.exchanges, rows * head.sent], "{case}: logits");
            }
            assert_eq!((layers.sent, head.sent), (layers.taken, head.taken), "{name}");
            // Of a greedy draw a member but the first gives one id and one value.
            let out = chain.round(&[say(6, 0, &tokens(4, 3))]).unwrap();
            counted();
            chain.best(&out, 1);
            assert_eq!(counted(), [head.exchanges, 3 * 2 * (count - 1)], "{name}: candidates");
        }
    }
}

/// The shapes of Qwen3.8-27B.
fn config_27b(order: HeadOrder) -> Config {
    let mixer = |layer: u32| match (layer + 1).is_multiple_of(4) {
        true => Mixer::Attention,
        false => Mixer::Recurrent,
    };
    Config::Qwen35(Qwen35 {
        mixers: (0..64).map(mixer).collect(),
        hidden: 5_120,
        intermediate: 17_408,
        vocab: 248_320,
        heads: Heads { query: 24, kv: 4, dim: 256 },
        gdn: Gdn { keys: 16, values: 48, key_dim: 128, value_dim: 128, taps: 4, order },
        eps: 1e-6,
        theta: 1e7,
        rope_dims: 64,
        context_max: 262_144,
        tied: false,
        mtp: true,
    })
}

/// A ring sends a row of hidden values a hop, and a group in it the exchanges of its own layers.
#[test]
fn a_ring_of_the_27b_sends_a_row_a_hop() {
    let model = config_27b(HeadOrder::Grouped);
    let row = [0.0; 5_120];
    assert_eq!((model.hidden(), wire::rows::encode(&row).len()), (row.len(), 20_480));
    let sums = |range: std::ops::Range<u32>, share: Share| {
        let ends = range.start == 0;
        let part = StageConfig { ends, ..config(range) };
        let all = choices(&model, &part, share).unwrap();
        let layers = all.iter().filter(|choice| choice.projection != "output");
        layers.fold([0; 2], |[exchanges, bytes], choice| {
            let Traffic { exchanges: each, sent, .. } = choice.traffic;
            [exchanges + choice.layers * each, bytes + 4 * choice.layers * sent]
        })
    };
    let half = Share { index: 0, count: 2, split: Split::Shards };
    assert_eq!(sums(0..32, half), [64, 32 * 2 * 20_480]);
    for range in [0..32, 32..64, 0..64] {
        assert_eq!(sums(range, Share::default()), [0, 0], "a machine of its own sends rows alone");
    }
}

#[test]
fn the_27b_sends_what_the_formula_says() {
    for (order, split, count, nodes) in [
        (HeadOrder::Grouped, Split::Shards, 2, [16, 48, 64]),
        (HeadOrder::Tiled, Split::Shards, 2, [16, 0, 64]),
        (HeadOrder::Grouped, Split::Shards, 4, [16, 48, 64]),
        (HeadOrder::Tiled, Split::Shards, 4, [16, 0, 64]),
        (HeadOrder::Grouped, Split::Shards, 8, [16, 48, 64]),
        (HeadOrder::Grouped, Split::Rows, 2, [0, 0, 0]),
        (HeadOrder::Grouped, Split::Rows, 3, [0, 0, 0]),
        (HeadOrder::Tiled, Split::Rows, 4, [0, 0, 0]),
    ] {
        let [layers, head] = costs(&config_27b(order), split, count);
        // A node a member and output; else input and outputs once to each other member.
        let other = count - 1;
        let gathered = [6_144, 6_144, 17_408].map(|input| other * (input + 5_120));
        let each = [16, 48, 64].into_iter().zip(nodes).zip(gathered);
        let sent: usize = each
            .clone()
            .map(|((all, nodes), gathered)| {
                nodes * count * other * 5_120 + (all - nodes) * gathered
            })
            .sum();
        let exchanges: usize = each.map(|((all, nodes), _)| 2 * all - nodes).sum();
        println!(
            "27B {order:?} {split}{count}: {exchanges} exchanges, {} bytes a row and member, head {}",
            4 * layers.sent / count,
            4 * head.sent
        );
        assert_eq!([layers.exchanges, layers.sent], [count * exchanges, sent], "{split}{count}");
        let first = 248_320 / 16 / count * 16;
        assert_eq!([head.exchanges, head.sent], [count, 248_320 - first], "{split}{count}");
    }
}
