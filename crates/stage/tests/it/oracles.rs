//! The qwen3_5 family against other implementations: `golden/tiny-qwen3_5` and
//! `golden/baton-tiny`. Every comparison prints `oracle: NAME: FOUND of ALLOWED`.

use std::path::{Path, PathBuf};

use arith::attention::KvDtype;
use arith::base::StreamId;
use arith::head::argmax;
use baton_stage::{Engine, Fault, Stage, StageConfig};
use cpu::Cpu;
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;
use weights::Checkpoint;
use wire::plan::Op;

use crate::chain::{Chain, cpu, say};

/// Most absolute error of a logit where weights are floats.
const LOGITS_MAX: f64 = 2e-4;
/// Most error of hidden rows and of states there, as a part of the largest value.
const PART_MAX: f64 = 1e-5;
/// Rows of one prompt in a round: no divisor of any prompt.
const CHUNK: usize = 33;
const LAYERS: u32 = 8;
const PROMPTS: [&str; 5] = ["one", "three", "twenty", "seventy", "long130"];

type Stages = Chain<Stage<Cpu>>;

fn golden(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden").join(file)
}

/// Says what a comparison found, and holds it to what it may be.
fn hold(name: &str, found: f64, allowed: f64) {
    println!("oracle: {name}: {found:.3e} of {allowed:.0e}");
    assert!(found <= allowed, "{name}: {found:e} above {allowed:e}");
}

/// Answers of another implementation.
struct Answers(Vec<u8>);

impl Answers {
    fn read(file: &str) -> Self {
        Self(std::fs::read(golden(file)).unwrap())
    }

    fn bytes(&self, name: &str, dtype: Dtype) -> Option<Vec<[u8; 4]>> {
        let file = SafeTensors::deserialize(&self.0).unwrap();
        let tensor = file.tensor(name).ok()?;
        assert_eq!(tensor.dtype(), dtype, "{name}");
        Some(tensor.data().chunks_exact(4).map(|b| b.try_into().unwrap()).collect())
    }

    fn floats(&self, name: &str) -> Option<Vec<f32>> {
        let values = self.bytes(name, Dtype::F32)?;
        Some(values.into_iter().map(f32::from_le_bytes).collect())
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        let values = self.bytes(name, Dtype::I32).unwrap();
        values.into_iter().map(u32::from_le_bytes).collect()
    }
}

/// A chain of one stage a layer, so that every hidden row crosses a boundary.
fn layers(checkpoint: &Checkpoint, kv: KvDtype, fault: Option<Fault>) -> Stages {
    let stage = |layer: u32| {
        let range = layer..layer + 1;
        let config = StageConfig { range, ends: layer == 0, kv, loop_mode: false };
        Box::new(match fault {
            Some(fault) => Stage::open_faulty(cpu().clone(), checkpoint, config, fault).unwrap(),
            None => Stage::open(cpu().clone(), checkpoint, config).unwrap(),
        })
    };
    Chain::new((0..LAYERS).map(stage).collect())
}

/// What a prompt gave.
struct Found {
    logits: Vec<f32>,
    /// Rows after each layer.
    hidden: Vec<Vec<f32>>,
    /// S and tail a layer.
    states: Vec<Option<(Vec<f32>, Vec<f32>)>>,
    /// Greedy tokens, and the lead of each over the next best.
    greedy: Vec<(u32, f32)>,
}

fn run(chain: &mut Stages, ids: &[u32], greedy: usize) -> Found {
    let (mut rows, mut hidden, mut last) = (Vec::new(), vec![Vec::new(); 8], 0);
    for chunk in ids.chunks(CHUNK) {
        rows.extend(chain.round(&[say(1, last, chunk)]).unwrap());
        for (all, boundary) in hidden.iter_mut().zip(&chain.boundaries) {
            all.extend_from_slice(boundary);
        }
        last = chunk.len() as u32;
    }
    hidden[7].clone_from(&rows);
    let states = (0..LAYERS).map(|at| chain.stages[at as usize].state(StreamId(1), at)).collect();
    let logits = chain.logits(&rows);
    let row = logits[logits.len() - chain.stages[0].vocab()..].to_vec();
    let greedy = decode(chain, last, row, greedy);
    chain.close(1, Op::Close).unwrap();
    Found { logits, hidden, states, greedy }
}

/// Greedy tokens from a prompt's last logits on.
fn decode<E: Engine + ?Sized>(
    chain: &mut Chain<E>,
    mut last: u32,
    mut logits: Vec<f32>,
    count: usize,
) -> Vec<(u32, f32)> {
    let mut tokens = Vec::new();
    while tokens.len() < count {
        let token = argmax(&logits);
        let best = logits[token as usize];
        let others = logits.iter().enumerate().filter(|(at, _)| *at != token as usize);
        tokens.push((token, best - others.map(|(_, x)| *x).fold(f32::MIN, f32::max)));
        let row = chain.round(&[say(1, last, &[token])]).unwrap();
        logits = chain.logits(&row);
        last = 1;
    }
    tokens
}

fn errors<'a>(found: &'a [f32], expected: &'a [f32]) -> impl Iterator<Item = f64> + 'a {
    assert_eq!(found.len(), expected.len());
    found.iter().zip(expected).map(|(a, b)| f64::from(a - b).abs())
}

/// The largest error; NaN is one.
fn largest(found: &[f32], expected: &[f32]) -> f64 {
    errors(found, expected).fold(0.0, |most, e| if e <= most { most } else { e })
}

/// The largest error as a part of the largest expected value.
fn part(found: &[f32], expected: &[f32]) -> f64 {
    largest(found, expected) / f64::from(expected.iter().fold(0.0f32, |most, x| most.max(x.abs())))
}

/// Tokens that differ before the first that another one leads by less than `gap`.
fn missed(found: &[(u32, f32)], expected: &[u32], gap: f32) -> f64 {
    let sure = found.iter().position(|(_, lead)| *lead < gap).unwrap_or(found.len());
    let differs = |((token, _), id): &(&(u32, f32), &u32)| token != *id;
    let first = found.iter().zip(expected).position(|pair| differs(&pair));
    first.map_or(0.0, |first| sure.saturating_sub(first) as f64)
}

/// A state of value heads in their own order, from the tiled order of a GGUF.
fn untiled(values: &[f32], dim: usize) -> Vec<f32> {
    let (keys, each) = (2, values.len() / dim / 2);
    let place = |head: usize| head % each * keys + head / each;
    (0..keys * each).flat_map(|head| &values[place(head) * dim..][..dim]).copied().collect()
}

/// S and the tail as the oracle has them: `[channels, taps]` of which the last three count.
fn state(found: &(Vec<f32>, Vec<f32>), tiled: bool) -> (Vec<f32>, Vec<f32>) {
    let channels = found.1.len() / 3;
    let in_order = |row: &[f32]| match tiled {
        true => [&row[..128], &untiled(&row[128..], 32)[..]].concat(),
        false => row.to_vec(),
    };
    let rows: Vec<Vec<f32>> = found.1.chunks(channels).map(in_order).collect();
    let tail = (0..channels).flat_map(|c| rows.iter().map(move |row| row[c])).collect();
    let s = if tiled { untiled(&found.0, 32 * 32) } else { found.0.clone() };
    (s, tail)
}

/// The bf16 model in one of its containers, with f32 keys and values.
fn compare(checkpoint: &Checkpoint, name: &str, tiled: bool) {
    let answers = Answers::read("tiny-qwen3_5/oracles/tiny-qwen3_5.safetensors");
    let mut chain = layers(checkpoint, KvDtype::F32, None);
    let [mut logits, mut hidden, mut s, mut tails, mut greedy] = [0f64; 5];
    for prompt in PROMPTS {
        let float = |what: &str| answers.floats(&format!("{prompt}.{what}"));
        let found = run(&mut chain, &answers.ids(&format!("{prompt}.ids")), 32);
        logits = logits.max(largest(&found.logits, &float("logits_fp32").unwrap()));
        if let Some(all) = float("hidden_fp32") {
            let rows = all.len() / 10;
            for (at, found) in found.hidden.iter().enumerate() {
                let expected = &all[(at + 1) * rows..(at + 2) * rows];
                hidden = hidden.max(part(&found[found.len() - rows..], expected));
            }
        }
        for (layer, found) in found.states.iter().enumerate() {
            let Some(expected) = float(&format!("layer{layer}.S_fp32")) else { continue };
            let found = state(found.as_ref().unwrap(), tiled);
            s = s.max(part(&found.0, &expected));
            let conv = float(&format!("layer{layer}.conv_fp32")).unwrap();
            let conv: Vec<f32> = conv.chunks(4).flat_map(|taps| &taps[1..]).copied().collect();
            tails = tails.max(part(&found.1, &conv));
        }
        greedy += missed(&found.greedy, &answers.ids(&format!("{prompt}.greedy_fp32")), 0.0);
    }
    hold(&format!("{name}, logits"), logits, LOGITS_MAX);
    hold(&format!("{name}, hidden rows"), hidden, PART_MAX);
    hold(&format!("{name}, states S"), s, PART_MAX);
    hold(&format!("{name}, convolution tails"), tails, PART_MAX);
    hold(&format!("{name}, greedy tokens missed"), greedy, 0.0);
}

fn tiny(file: &str) -> Checkpoint {
    Checkpoint::open(&golden("tiny-qwen3_5").join(file)).unwrap()
}

#[test]
fn the_bf16_gguf_agrees_with_transformers() {
    compare(&tiny("tiny-qwen3_5-bf16.gguf"), "tiny qwen3_5, bf16 GGUF", true);
}

#[test]
fn the_bf16_checkpoint_agrees_with_transformers() {
    compare(&tiny("tiny-qwen3_5"), "tiny qwen3_5, bf16 safetensors", false);
}

#[test]
fn f16_keys_and_values_stay_near() {
    let answers = Answers::read("tiny-qwen3_5/oracles/tiny-qwen3_5.safetensors");
    let mut chain = layers(&tiny("tiny-qwen3_5-bf16.gguf"), KvDtype::F16, None);
    let errors = PROMPTS.map(|prompt| {
        let found = run(&mut chain, &answers.ids(&format!("{prompt}.ids")), 0);
        largest(&found.logits, &answers.floats(&format!("{prompt}.logits_fp32")).unwrap())
    });
    let most = errors.into_iter().fold(0.0, f64::max);
    hold("tiny qwen3_5, bf16 GGUF, f16 cache, logits", most, 2e-2);
}

#[test]
fn the_mlx_checkpoint_agrees_with_mlx() {
    let answers = Answers::read("tiny-qwen3_5/oracles/tiny-qwen3_5-mlx4.safetensors");
    let folder = golden("tiny-qwen3_5/tiny-qwen3_5-mlx4");
    let codes = Checkpoint::open(&folder).unwrap();
    let wide = Checkpoint::open_widened(&folder).unwrap();
    let mut codes = layers(&codes, KvDtype::F32, None);
    let mut wide = layers(&wide, KvDtype::F32, None);
    let [mut most, mut sum, mut count, mut states, mut greedy] = [0f64; 5];
    let [mut wide_most, mut wide_greedy] = [0f64; 2];
    for prompt in ["three", "twenty", "seventy"] {
        let ids = answers.ids(&format!("{prompt}.ids"));
        let expected = answers.floats(&format!("{prompt}.logits_fp32")).unwrap();
        let tokens = answers.ids(&format!("{prompt}.greedy_fp32"));
        let (found, floats) = (run(&mut codes, &ids, 32), run(&mut wide, &ids, 32));
        most = most.max(largest(&found.logits, &expected));
        sum += errors(&found.logits, &expected).sum::<f64>();
        count += expected.len() as f64;
        for (found, floats) in found.states.iter().zip(&floats.states) {
            let (Some(found), Some(floats)) = (found, floats) else { continue };
            states = states.max(part(&found.0, &floats.0)).max(part(&found.1, &floats.1));
        }
        greedy += missed(&found.greedy, &tokens, 0.01);
        wide_most = wide_most.max(largest(&floats.logits, &expected));
        wide_greedy += missed(&floats.greedy, &tokens, 0.0);
    }
    hold("tiny qwen3_5, MLX 4-bit, logits", most, 5e-3);
    hold("tiny qwen3_5, MLX 4-bit, logits, mean", sum / count, 5e-4);
    hold("tiny qwen3_5, MLX 4-bit, states beside f32 weights", states, 5e-4);
    hold("tiny qwen3_5, MLX 4-bit, greedy tokens missed", greedy, 0.0);
    hold("tiny qwen3_5, MLX 4-bit as f32, logits", wide_most, LOGITS_MAX);
    hold("tiny qwen3_5, MLX 4-bit as f32, greedy tokens missed", wide_greedy, 0.0);
}

#[test]
fn baton_tiny_replies_as_in_transformers() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models/baton-tiny");
    let checkpoint = Checkpoint::open(&folder).unwrap();
    let json = std::fs::read(golden("baton-tiny/baton-tiny.json")).unwrap();
    let json: Value = serde_json::from_slice(&json).unwrap();
    let answers = Answers::read("baton-tiny/baton-tiny.safetensors");
    let range = 0..checkpoint.config().layers();
    let config = StageConfig { range, ends: true, kv: KvDtype::F32, loop_mode: false };
    let stage = Stage::open(cpu().clone(), &checkpoint, config).unwrap();
    let mut chain = Chain::new(vec![Box::new(stage)]);
    let (mut logits, mut greedy) = (0f64, 0.0);
    for (name, prompt) in json["prompts"].as_object().unwrap() {
        let list = |key: &str| prompt[key].as_array().unwrap().iter();
        let ids = |key: &str| list(key).map(|x| x.as_u64().unwrap() as u32).collect::<Vec<_>>();
        let (text, reply) = (ids("ids"), ids("reply"));
        let rows = chain.feed(1, &text, text.len());
        let last = chain.logits(&rows[rows.len() - chain.hidden()..]);
        let expected = answers.floats(&format!("{name}.last_logits")).unwrap();
        logits = logits.max(largest(&last, &expected));
        let found = decode(&mut chain, text.len() as u32, last, reply.len());
        // The gaps are the other implementation's here.
        let gaps = list("gaps").map(|gap| gap.as_f64().unwrap() as f32);
        let found: Vec<_> = found.into_iter().zip(gaps).map(|((id, _), gap)| (id, gap)).collect();
        greedy += missed(&found, &reply, 0.005);
        chain.close(1, Op::Close).unwrap();
    }
    hold("baton-tiny, last logits", logits, LOGITS_MAX);
    hold("baton-tiny, greedy tokens missed", greedy, 0.0);
}

#[test]
fn what_is_loaded_wrong_is_far_from_the_oracle() {
    let answers = Answers::read("tiny-qwen3_5/oracles/tiny-qwen3_5.safetensors");
    let (ids, expected) =
        (answers.ids("twenty.ids"), answers.floats("twenty.logits_fp32").unwrap());
    for file in ["tiny-qwen3_5-bf16.gguf", "tiny-qwen3_5"] {
        let checkpoint = tiny(file);
        for fault in [
            Fault::OtherHeads,
            Fault::TwiceShifted,
            Fault::HalvedGate,
            Fault::StaleTail,
            Fault::SkipLayer(5),
        ] {
            let mut chain = layers(&checkpoint, KvDtype::F32, Some(fault));
            // In two chunks: a tail counts from the second on.
            let rows = chain.feed(1, &ids, 10);
            let far = largest(&chain.logits(&rows), &expected);
            println!("{file} with {fault:?}: logits differ by {far:.3}");
            assert!(far > 1000.0 * LOGITS_MAX, "{file} with {fault:?}: {far}");
        }
    }
}
