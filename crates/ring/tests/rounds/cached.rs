//! Prompts that share their beginnings, on rings that keep states: the bytes are those of a run
//! alone and cold, whichever stage is short of memory and whatever is cancelled on the way.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use arith::sample::Sampling;
use sched::{Caching, Drafter, Drafting, Drafts, Opening, Outlook, Proposal, Request};
use stage::Shapes;

use crate::traffic::{Build, Met, Net, Rng, Told};

/// Beginnings that prompts share.
struct Themes(Vec<Vec<u32>>);

impl Themes {
    fn new(rng: &mut Rng) -> Self {
        let tokens = |rng: &mut Rng| {
            let length = rng.within(20, 220);
            (0..length).map(|_| rng.below(64)).collect()
        };
        Self((0..rng.within(1, 5)).map(|_| tokens(rng)).collect())
    }

    /// A prompt of one theme, or of a part of it, and then something of its own; now and then it
    /// becomes a theme.
    fn prompt(&mut self, rng: &mut Rng) -> Vec<u32> {
        let at = rng.below(self.0.len() as u32) as usize;
        let theme = &self.0[at];
        let part =
            if rng.chance(70) { theme.len() } else { 1 + rng.below(theme.len() as u32) as usize };
        let mut prompt = theme[..part].to_vec();
        let own = if rng.chance(25) { 0 } else { rng.within(1, 60) };
        prompt.extend((0..own).map(|_| rng.below(64)));
        prompt.truncate(280);
        if rng.chance(20) {
            self.0[at] = prompt.clone();
        }
        prompt
    }
}

fn request(rng: &mut Rng, themes: &mut Themes) -> Request {
    let prompt = themes.prompt(rng);
    let starts = (1..prompt.len() as u32).filter(|at| at % 37 == 5).collect();
    Request {
        max_tokens: [1, 4, 30, 110][rng.below(4) as usize],
        sampling: Sampling {
            temperature: f64::from(rng.below(2)),
            top_k: 20,
            top_p: 0.95,
            min_p: 0.0,
            seed: rng.below(3).into(),
        },
        hash_logits: true,
        marks: starts,
        cached: rng.chance(95),
        prompt,
        ..Request::default()
    }
}

fn build(rng: &mut Rng) -> Build {
    let world = rng.within(1, 4);
    let shapes = Shapes {
        chunk_rows_max: [5, 32, 128][rng.below(3) as usize],
        round_rows_max: rng.within(20, 140),
        streams_max: rng.within(1, 6),
        context_max: 400,
        pages: rng.within(7, 30),
    };
    let caching = Caching {
        keeps_max: [2, 9, 200][rng.below(3) as usize],
        prefix_min: rng.within(1, 30),
        spacing: rng.within(1, 60),
        grid: rng.within(8, 90),
    };
    // Pressure on one stage alone.
    let mut rooms = vec![usize::MAX; world as usize];
    if rng.chance(60) {
        rooms[rng.below(world) as usize] = rng.below(8) as usize;
    }
    Build { world, depth: rng.within(1, 4), shapes, caching, rooms, deaf: false }
}

/// The build that nothing can go wrong with.
fn alone() -> Build {
    let shapes = Shapes {
        chunk_rows_max: 400,
        round_rows_max: 400,
        streams_max: 1,
        context_max: 400,
        pages: 7,
    };
    Build { world: 1, depth: 1, shapes, caching: Caching::OFF, rooms: vec![0], deaf: false }
}

/// What a request gives alone and cold.
fn cold(request: &Request) -> Told {
    let mut net = Net::new(&alone());
    net.submit(1, request.clone()).unwrap();
    net.finish(&mut Rng(1)).unwrap();
    net.ended.remove(&1).unwrap()
}

/// Guesses what it has seen in full, all but now and then one token: windows stay whole, in part
/// or not at all.
#[derive(Clone, Debug, Default)]
struct Oracle(Arc<Mutex<Vec<Vec<u32>>>>);

impl Drafting for Oracle {
    fn open(&self, _: &Opening<'_>) -> Vec<Box<dyn Drafter>> {
        vec![Box::new(self.clone())]
    }
}

impl Drafter for Oracle {
    fn propose(&mut self, outlook: &Outlook<'_>) -> Proposal {
        let (seen, known) = (self.0.lock().unwrap(), outlook.tokens);
        let Some(whole) = seen.iter().find(|whole| whole.starts_with(known)) else {
            return Proposal::Nothing;
        };
        let mut tokens: Vec<u32> = whole[known.len()..].to_vec();
        tokens.truncate(outlook.most.min(1 + known.len() as u32 % 5) as usize);
        if known.len().is_multiple_of(3)
            && let Some(last) = tokens.last_mut()
        {
            *last = (*last + 1) % 64;
        }
        let Some(last) = tokens.last().copied() else { return Proposal::Nothing };
        let (shared, room) = (tokens.len() - 1, outlook.most as usize > tokens.len());
        // The lie's right token, or a lie beside the right one.
        let other = whole.get(known.len() + shared).filter(|right| **right != last);
        let other = other.copied().unwrap_or((last + 1) % 64);
        let second = if room && !known.len().is_multiple_of(4) { &[other][..] } else { &[] };
        Proposal::Drafts(Drafts::fork(tokens, shared, second))
    }

    fn hear(&mut self, _: u32, _: u32) {}
}

#[derive(Debug, Default)]
struct Sum {
    met: Met,
    requests: u64,
    cached: u64,
    prompts: u64,
    preemptions: u64,
    cancelled: u64,
    accepted: u64,
}

/// Random traffic through a random ring; what is wrong with it.
fn run(seed: u64, requests: u64, deaf: bool, sum: &mut Sum) -> Result<(), String> {
    let mut rng = Rng(seed);
    let build = Build { deaf, ..build(&mut rng) };
    let mut themes = Themes::new(&mut rng);
    let mut net = Net::new(&build);
    let oracle = Oracle::default();
    if rng.chance(50) {
        net.draft(Box::new(oracle.clone()));
    }
    let mut asked: BTreeMap<u64, (usize, Told)> = BTreeMap::new();
    let cancels = if rng.chance(50) { 6 } else { 0 };
    let (mut next, pace) = (0, [3, 20, 200][rng.below(3) as usize]);
    while next < requests || !net.is_idle() {
        if next < requests && (rng.below(1000) < pace || net.is_idle()) {
            let request = request(&mut rng, &mut themes);
            net.submit(next, request.clone()).map_err(|refusal| refusal.to_string())?;
            let cold = cold(&request);
            oracle.0.lock().unwrap().push([request.prompt.clone(), cold.tokens.clone()].concat());
            asked.insert(next, (request.prompt.len(), cold));
            next += 1;
        }
        if rng.below(1000) < cancels && !net.running.is_empty() {
            let nth = rng.below(net.running.len() as u32) as usize;
            let id = *net.running.keys().nth(nth).unwrap();
            asked.remove(&id);
            net.cancel(id)?;
            sum.cancelled += 1;
        }
        net.step(&mut rng)?;
    }
    net.finish(&mut rng)?;
    net.check_quiet()?;
    for (id, (prompt, cold)) in &asked {
        let told = &net.ended[id];
        if (&told.tokens, told.sha) != (&cold.tokens, cold.sha) {
            return Err(format!("request {id}: {told:?}, cold {cold:?}"));
        }
        sum.cached += u64::from(told.cached);
        sum.accepted += u64::from(told.accepted);
        sum.prompts += *prompt as u64;
    }
    sum.requests += requests;
    sum.preemptions += net.preemptions();
    let met = &net.met;
    sum.met.rounds += met.rounds;
    sum.met.rows += met.rows;
    sum.met.saves += met.saves;
    sum.met.refused += met.refused;
    sum.met.drops += met.drops;
    sum.met.resumes += met.resumes;
    sum.met.kept_most = sum.met.kept_most.max(met.kept_most);
    Ok(())
}

fn traffic(seeds: std::ops::Range<u64>, requests: u64) -> Sum {
    let mut sum = Sum::default();
    for seed in seeds {
        run(seed, requests, false, &mut sum).unwrap_or_else(|why| panic!("seed {seed}: {why}"));
    }
    println!("{sum:?}");
    sum
}

#[test]
fn shared_beginnings_are_computed_once_and_no_byte_changes() {
    let sum = traffic(0..25, 24);
    assert!(sum.cached * 8 > sum.prompts, "{sum:?}");
    let enough = [
        sum.met.resumes > 100,
        sum.met.refused > 20,
        sum.met.drops > 100,
        sum.preemptions > 2,
        sum.cancelled > 10,
        sum.accepted > 100,
    ];
    assert_eq!(enough, [true; 6], "{sum:?}");
}

#[test]
#[ignore = "ten thousand requests take minutes; after a change of the prompt cache"]
fn ten_thousand_requests_share_their_beginnings() {
    traffic(1000..1200, 50);
}

#[test]
fn a_state_that_one_stage_does_not_have_is_named_when_it_is_used() {
    let mut sum = Sum::default();
    let named = (0..40).filter_map(|seed| run(seed, 12, true, &mut sum).err());
    let named: Vec<String> = named.collect();
    assert!(named.len() > 5, "a deaf rank 0 was not noticed: {named:?}");
    assert!(named.iter().all(|why| why.contains("NoSuchKeep")), "{named:?}");
}
