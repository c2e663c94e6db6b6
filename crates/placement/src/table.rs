//! A placement for people.

use std::fmt::Write as _;

use arith::base::TILE_KEYS;

use crate::problem::Problem;
use crate::{Bound, Choice, Placement, Prediction, predict};

/// What is printed of a choice: ranks with their memory, the speeds of the best, of the runner-up
/// and of one machine alone, and what bounds the best.
pub fn table(problem: &Problem<'_>, choice: &Choice) -> String {
    let mut text = String::new();
    let Some(best) = predict(problem, &choice.best) else { return text };
    ranks(&mut text, problem, &choice.best, &best);
    pairs(&mut text, problem, &choice.best);
    text.push('\n');
    let prompts = best.first_token_s.iter().map(|(tokens, _)| *tokens);
    let prompts: Vec<String> = prompts.map(|tokens| format!("{}k", tokens / 1_024)).collect();
    let streams = problem.ask.streams;
    let _ = writeln!(
        text,
        "| placement | 1 stream | {streams} streams | first token after {} |",
        prompts.join(", ")
    );
    text.push_str("|---|---|---|---|\n");
    let mut line = |what: &str, placement: &Placement| {
        if let Some(prediction) = predict(problem, placement) {
            speeds(&mut text, &format!("{what}: {}", names(problem, placement)), &prediction);
        }
    };
    line("best", &choice.best);
    if let Some((placement, _)) = &choice.runner_up {
        line("runner-up", placement);
    }
    if let Some((placement, _)) = choice.one.as_ref().filter(|(one, _)| *one != choice.best) {
        line("one machine", placement);
    }
    text.push('\n');
    if best.groups < streams.min(choice.best.world() as u32) {
        let _ = writeln!(text, "best with --depth {}, all streams in fewer rounds", best.groups);
    }
    let bound = bound(problem, &choice.best, best.bound);
    let _ = writeln!(text, "bound by {bound}");
    if choice.best.world() == 1 && problem.nodes.len() > 1 {
        let name = names(problem, &choice.best);
        let _ = writeln!(text, "use one machine: {name} alone is the fastest for this");
    }
    text
}

fn ranks(text: &mut String, problem: &Problem<'_>, placement: &Placement, told: &Prediction) {
    text.push_str("| rank | node | layers | weights | KV and state | in all | of |\n");
    text.push_str("|---|---|---|---|---|---|---|\n");
    for (rank, (stage, memory)) in placement.stages.iter().zip(&told.memory).enumerate() {
        let node = members(problem, &stage.nodes);
        let weights = gib(memory.weight_bytes + memory.ends_bytes);
        let past = gib(memory.kv_bytes + memory.state_bytes);
        let (all, of) =
            (gib(memory.total_bytes()), gib(problem.nodes[stage.nodes[0]].memory_bytes));
        let std::ops::Range { start, end } = stage.layers;
        let _ = writeln!(
            text,
            "| {rank} | {node} | {start}:{end} | {weights} | {past} | {all} | {of} GiB |"
        );
    }
}

/// What prompts in pairs take of the members of groups.
fn pairs(text: &mut String, problem: &Problem<'_>, placement: &Placement) {
    let (model, twin) = (problem.model, problem.model.twin_bytes);
    let groups = placement.stages.iter().enumerate().filter(|(_, stage)| stage.nodes.len() > 1);
    for (rank, stage) in groups.filter(|_| twin > 0) {
        let [attention, _] = model.count(stage.layers.clone());
        let token = (attention * model.kv_bytes).div_ceil(stage.nodes.len() as u64).max(1);
        let _ = writeln!(
            text,
            "rank {rank}: prompts in pairs take {:.1} MiB of each member, {} KV pages less",
            twin as f64 / f64::from(1 << 20),
            twin.div_ceil(token * TILE_KEYS as u64)
        );
    }
}

fn speeds(text: &mut String, name: &str, told: &Prediction) {
    let firsts = told.first_token_s.iter().map(|(_, time_s)| format!("{time_s:.1} s"));
    let firsts = firsts.collect::<Vec<_>>().join(", ");
    let _ = writeln!(
        text,
        "| {name} | {:.1} tokens/s | {:.1} tokens/s | {firsts} |",
        told.decode_per_s, told.throughput_per_s
    );
}

fn bound(problem: &Problem<'_>, placement: &Placement, bound: Bound) -> String {
    let name = |rank: usize| members(problem, &placement.stages[rank].nodes);
    match bound {
        Bound::Stage(rank) => format!("rank {rank}, {}", name(rank)),
        Bound::Hop(rank) => {
            let to = (rank + 1) % placement.world();
            format!("the link from {} to {}", name(rank), name(to))
        }
    }
}

fn names(problem: &Problem<'_>, placement: &Placement) -> String {
    let stages = placement.stages.iter().map(|stage| members(problem, &stage.nodes));
    format!("{} ({})", stages.collect::<Vec<_>>().join(" > "), placement.layout())
}

fn members(problem: &Problem<'_>, nodes: &[usize]) -> String {
    nodes.iter().map(|node| &*problem.nodes[*node].name).collect::<Vec<_>>().join("+")
}

fn gib(bytes: u64) -> String {
    format!("{:.2}", bytes as f64 / f64::from(1 << 30))
}
