//! Prompts in pairs over two processes: the leader here, the other member in a process of its own,
//! which is this test binary once more.

use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;

use arith::attention::KvDtype;
use arith::base::Arith;
use shard::{Follower, Group, Leader};
use stage::{Engine, Fault, Input, Shapes, Split, Stage, StageConfig};
use weights::{Checkpoint, synthetic};
use wire::plan::Op;

use crate::calls::{plan, window};
use crate::double::{addresses, config};

/// Where a member's process finds its model, addresses and defect.
const TOLD: [&str; 3] = ["BATON_TEST_MODEL", "BATON_TEST_GROUP", "BATON_TEST_DEFECT"];
/// Rows of the prompt, and the fewest of a second half.
const ROWS: u32 = 100;
const LEAST: usize = 32;
const SHAPES: Shapes = Shapes {
    chunk_rows_max: 128,
    round_rows_max: 128,
    streams_max: 2,
    context_max: 512,
    pages: 16,
};

/// A model of which all shares align, so that members exchange sums.
fn model() -> PathBuf {
    let name = format!("shard-pairs-{}.gguf", std::process::id());
    let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(name);
    synthetic::llama(&path, &synthetic::Llama::shard_tiny()).unwrap();
    path
}

fn share(model: &Path, group: &Group, fault: Option<Fault>) -> Stage<cpu::Cpu> {
    let checkpoint = Checkpoint::open(model).unwrap();
    let backend = Arc::new(cpu::Cpu::new(1, cpu::Isa::Auto, Arith::One).unwrap());
    let range = 0..checkpoint.config().layers();
    let config = StageConfig { range, ends: true, kv: KvDtype::F16, loop_mode: false };
    let seat = Box::new(group.seat());
    let mut stage = match fault {
        None => Stage::open_share(backend, &checkpoint, config, Split::Shards, seat),
        Some(fault) => {
            Stage::open_faulty_share(backend, &checkpoint, config, Split::Shards, seat, fault)
        }
    }
    .unwrap();
    stage.set_prompt_pair(Some(LEAST));
    stage
}

/// A member's process; it ends with this.
struct Member(Child);

impl Drop for Member {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The rows after a prompt and after a token more, and the exchanges of each.
fn prompt(model: &Path, pairs: bool, defect: &str) -> Result<(Vec<f32>, [u64; 2]), String> {
    let addresses = addresses(2);
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "--ignored", "pairs::a_member_in_a_process_of_its_own"]);
    let told = [model.to_str().unwrap(), &addresses.join(","), defect];
    command.envs(TOLD.into_iter().zip(told)).stdout(Stdio::null()).stderr(Stdio::null());
    let _member = Member(command.spawn().unwrap());
    let group = Group::start(config(0, &addresses)).unwrap();
    let mut own = share(model, &group, None);
    own.set_prompt_pair(pairs.then_some(LEAST));
    let mut leader = Leader::new(group.clone(), Box::new(own)).comparing();
    leader.prepare(&SHAPES).map_err(|error| error.to_string())?;
    let (mut rows, mut all, mut counts) = (Vec::new(), Vec::new(), [0; 2]);
    let tokens: Vec<u32> = (0..ROWS).map(|i| i * 7 % 251).collect();
    let steps = [
        (window(1, Op::Open, 0, ROWS, 0, 0), &tokens[..]),
        (window(1, Op::Continue, ROWS, 1, ROWS, 1), &[9]),
    ];
    for (count, (entry, tokens)) in counts.iter_mut().zip(steps) {
        let before = group.traffic().exchanges;
        let stepped = leader.step(&plan(vec![entry]), Input::Tokens(tokens), &mut rows);
        stepped.map_err(|error| error.to_string())?;
        *count = group.traffic().exchanges - before;
        all.extend_from_slice(&rows);
    }
    group.shutdown();
    Ok((all, counts))
}

#[test]
#[ignore = "the other member of the test below, in its process"]
fn a_member_in_a_process_of_its_own() {
    let told = TOLD.map(|name| std::env::var(name).unwrap_or_default());
    let [model, group, defect] = told.each_ref().map(String::as_str);
    if model.is_empty() {
        return;
    }
    let addresses: Vec<String> = group.split(',').map(String::from).collect();
    let group = Group::start(config(1, &addresses)).unwrap();
    let mut stage =
        share(Path::new(model), &group, (defect == "stale").then_some(Fault::StaleTwin));
    if defect == "alone" {
        stage.set_prompt_pair(None);
    }
    Follower::new(group).run(&mut stage);
}

#[test]
fn pairs_over_processes_have_the_bytes_of_prompts_alone_and_their_faults_show() {
    let model = model();
    let (alone, counts) = prompt(&model, false, "alone").unwrap();
    let (paired, pair_counts) = prompt(&model, true, "").unwrap();
    assert_eq!(pair_counts, [2 * counts[0], counts[1]]);
    assert!(paired == alone, "pairs change bytes");
    let (stale, _) = prompt(&model, true, "stale").unwrap();
    assert!(stale != alone, "a stale twin in the other process moves no byte");
    let error = prompt(&model, true, "alone").unwrap_err();
    // The member that finds it out first leaves; where that is the other one, its link says so.
    let halved = format!("expected {} values of it, found", ROWS as usize * 256 / 2);
    let reason = error.strip_prefix("ShardLost: member 1: ").unwrap_or_else(|| panic!("{error}"));
    let is_named = reason.starts_with("OtherRows: exchange ") && reason.contains(&halved);
    assert!(is_named || reason.starts_with("LinkClosed: "), "{error}");
    std::fs::remove_file(&model).unwrap();
}
