//! Random workloads: requests come and go, rounds are issued and come back, in any order.

use std::collections::BTreeMap;

use sched::Wanted;
use sched::{Event, Failure, Finish, Limits, Line, Pace, Refusal, RequestId, Round, Scheduler};

use crate::asks::{Ask, Ending, NAMES, Rng, VOCAB};
use crate::guesses::{Answers, Oracles, guesses};
use crate::model::{Model, Watched};

/// What a run met, so that tests can demand that they met enough.
#[derive(Debug, Default)]
pub struct Met {
    pub rounds: u64,
    pub preemptions: u64,
    pub cancelled_in_flight: u32,
    pub queue_full: u32,
    pub too_long: u32,
    pub spoilt: u32,
    pub done: u32,
    pub failed_all: u32,
    pub carried: u32,
    pub settles_alone: u32,
    pub drafted: u64,
    pub accepted: u64,
    pub chains: u32,
    pub trees: u32,
    pub longest: u32,
    pub deepest: usize,
}

/// Changes a round before the stages see it; true once it could.
pub type Corrupt<'a> = &'a mut dyn FnMut(&mut Round) -> bool;

pub struct World {
    pub rng: Rng,
    pub sched: Scheduler,
    pub model: Model,
    limits: Limits,
    /// Names of requests that have not ended.
    running: Vec<u32>,
    prompt_logits: BTreeMap<u32, Vec<f32>>,
    asked: u32,
    oracles: Option<Oracles>,
    answers: Answers,
    pub met: Met,
}

fn limits(rng: &mut Rng) -> Limits {
    let context_max = [40, 200, 300][rng.below(3) as usize];
    Limits {
        streams_max: rng.within(1, 6),
        queue_max: [0, 3, 30][rng.below(3) as usize],
        chunk_rows_max: [1, 5, 32, 128][rng.below(4) as usize],
        round_rows_max: rng.within(1, 40),
        context_max,
        pages: rng.within(1, 7),
        depth: rng.within(1, 4),
    }
}

/// Half of the worlds know what their rows cost.
fn pace(rng: &mut Rng) -> Option<Pace> {
    let mut line = |times| Line {
        round_ns: u64::from(rng.below(2_000_000)) * times,
        row_ns: u64::from(1 + rng.below(20_000_000)) * times,
    };
    let (stage, trip) = (line(1), line(3));
    let chunk_ns = u64::from(rng.below(200_000_000));
    rng.chance(50).then(|| Pace { stages: rng.within(1, 4), stage, trip, chunk_ns })
}

impl World {
    pub fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let limits = limits(&mut rng);
        let (mut sched, mut model) = (Scheduler::new(limits), Model::new(limits));
        if let Some(pace) = pace(&mut rng) {
            sched.set_pace(pace);
            model.is_paced = true;
        }
        let (answers, chains) = (Answers::default(), rng.chance(50));
        let oracles = rng.chance(70).then(|| Oracles { answers: answers.clone(), chains });
        if let Some(oracles) = &oracles {
            sched.set_drafting(Box::new(oracles.clone()));
        }
        Self {
            rng,
            sched,
            model,
            limits,
            running: Vec::new(),
            prompt_logits: BTreeMap::new(),
            asked: 0,
            oracles,
            answers,
            met: Met::default(),
        }
    }

    /// Runs `requests` requests to their ends.
    pub fn run(mut self, requests: u32, mut corrupt: Option<Corrupt<'_>>) -> Result<Met, String> {
        let cancels = self.rng.below(6).saturating_sub(3);
        let pace = self.rng.within(1, 12);
        let breaks = self.rng.chance(15);
        for _ in 0..400_000 {
            let most = self.asked >= requests;
            if most && self.sched.idle() {
                return self.finish();
            }
            match self.rng.below(100) {
                n if n < cancels => self.cancel(),
                n if n < cancels + pace && !most => self.submit()?,
                99 if breaks && self.rng.chance(5) => self.fail_all()?,
                98 if breaks && self.rng.chance(20) => self.carry(),
                n if n < 70 => self.issue(&mut corrupt)?,
                _ => self.complete()?,
            }
        }
        Err("Livelock: the requests do not end".into())
    }

    fn submit(&mut self) -> Result<(), String> {
        self.asked += 1;
        let name = NAMES + self.asked;
        let context_max = self.limits.context_max.min(self.limits.pages * 64);
        let ask = Ask::random(&mut self.rng, name, context_max + 2, context_max);
        let verdict = self.sched.submit(RequestId(name.into()), ask.request.clone());
        let held = self.sched.running() + self.sched.waiting();
        match verdict {
            Ok(()) => {
                self.running.push(name);
                self.answers.lock().unwrap().insert(name, ask.tokens.clone());
                let absorbs = self.oracles.as_ref().is_some_and(|oracles| oracles.chains);
                let absorbs = absorbs && ask.request.draft;
                let watched = Watched { known: ask.prompt(), shown: 0, absorbs, over: false, ask };
                self.model.watched.insert(name, watched);
            }
            Err(Refusal::TooLong { .. }) if ask.prompt() >= context_max => self.met.too_long += 1,
            Err(Refusal::QueueFull { .. }) if held >= self.limits.queue_max => {
                self.met.queue_full += 1;
            }
            Err(other) => return Err(format!("Refused: {other}")),
        }
        Ok(())
    }

    fn cancel(&mut self) {
        if self.running.is_empty() {
            return;
        }
        let at = self.rng.below(self.running.len() as u32) as usize;
        let name = self.running.swap_remove(at);
        let watched = self.model.watched.get_mut(&name).unwrap();
        watched.over = true;
        let reply = watched.known - watched.ask.prompt();
        let id = RequestId(name.into());
        match self.sched.cancel(id).unwrap() {
            Event::Done { finish: Finish::Cancelled, reply_tokens, .. } => {
                assert_eq!(reply_tokens, reply)
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(self.sched.cancel(id), None);
        self.met.cancelled_in_flight += self.sched.cancelled().len() as u32;
    }

    fn fail_all(&mut self) -> Result<(), String> {
        let failure = Failure::Ring("rank 1: silent".into());
        let events = self.sched.fail_all(&failure);
        let mut names: Vec<u32> = events.iter().map(|(id, _)| id.0 as u32).collect();
        assert!(events.iter().all(|(_, e)| *e == Event::Failed(failure.clone())));
        names.sort_unstable();
        self.running.sort_unstable();
        if names != self.running {
            return Err(format!("EndsOnce: {names:?} failed of {:?}", self.running));
        }
        for name in self.running.drain(..) {
            self.model.watched.get_mut(&name).unwrap().over = true;
        }
        self.model.reset();
        self.met.failed_all += 1;
        Ok(())
    }

    /// The ring breaks, and everything goes on in another epoch.
    fn carry(&mut self) {
        let carried = self.sched.carry();
        assert_eq!(carried.len(), self.running.len());
        assert!(self.sched.idle() && self.sched.table().is_empty());
        let preemptions = self.sched.preemptions();
        self.met.preemptions += preemptions;
        self.sched = Scheduler::new(self.limits);
        self.model.reset();
        if let Some(oracles) = &self.oracles {
            self.sched.set_drafting(Box::new(oracles.clone()));
        }
        assert_eq!(self.sched.adopt(carried), []);
        self.met.carried += 1;
    }

    fn issue(&mut self, corrupt: &mut Option<Corrupt<'_>>) -> Result<(), String> {
        let Some(mut round) = self.sched.next_round() else {
            let stuck = self.model.flights.is_empty() && !self.sched.idle();
            return if stuck { Err(format!("Deadlock: {:?}", self.sched)) } else { Ok(()) };
        };
        let changed = corrupt.as_mut().is_some_and(|corrupt| corrupt(&mut round));
        if changed {
            *corrupt = None;
        }
        self.model.execute(&round)?;
        let (ours, stages) = (self.sched.table(), self.model.table());
        if ours != stages {
            return Err(format!("Table: {ours:?}, the stages have {stages:?}"));
        }
        self.met.rounds += 1;
        let alone = round.plan.entries.iter();
        self.met.settles_alone +=
            alone.clone().filter(|e| e.rows == 0 && e.accepted > 0).count() as u32;
        self.met.trees += alone.clone().filter(|e| e.parents.is_some()).count() as u32;
        let longest = alone.clone().filter(|e| e.rows > 0 && e.first > 200).map(|e| e.rows).max();
        self.met.longest = self.met.longest.max(longest.unwrap_or(0));
        self.met.deepest = self.met.deepest.max(self.model.flights.len());
        Ok(())
    }

    fn complete(&mut self) -> Result<(), String> {
        if self.model.flights.is_empty() {
            return Ok(());
        }
        let returned = self.model.complete();
        let number = arith::base::Round(returned.number);
        for (id, event) in self.sched.complete(number, &returned.logits, VOCAB) {
            self.hear(id.0 as u32, event)?;
        }
        self.draft(&returned.wanted)
    }

    /// The draft head's part of a round that came back.
    fn draft(&mut self, back: &[Wanted]) -> Result<(), String> {
        for job in self.sched.draft_jobs() {
            self.model.check_job(&job, back)?;
            if job.chain > 0 {
                let name = self.model.name(job.id);
                let length = (job.first as usize + job.tokens.len()) + 1;
                let known = self.answers.lock().unwrap()[&name][..length].to_vec();
                let tokens = guesses(&self.answers, &mut self.rng, &known, job.chain);
                self.sched.drafted(job.id, tokens);
                self.met.chains += 1;
            }
        }
        Ok(())
    }

    fn hear(&mut self, name: u32, event: Event) -> Result<(), String> {
        let watched = self.model.watched.get_mut(&name).unwrap();
        if watched.over {
            return Err(format!("EndsOnce: {name} hears {event:?} after its end"));
        }
        let ask = &watched.ask;
        let ending = match event {
            Event::Token { id, .. } => {
                let expected = ask.tokens.get(watched.known as usize);
                watched.known += 1;
                return if expected == Some(&id) {
                    Ok(())
                } else {
                    Err(format!("OtherReply: {name}: {id} for {expected:?}"))
                };
            }
            Event::PromptLogits { first, logits } => {
                assert_eq!(first, watched.shown);
                watched.shown += (logits.len() / VOCAB) as u32;
                self.prompt_logits.entry(name).or_default().extend(logits);
                return Ok(());
            }
            Event::Done {
                finish,
                prompt_tokens,
                reply_tokens,
                logits_sha256,
                drafted,
                accepted,
                ..
            } => {
                assert!(accepted <= drafted && (drafted == 0 || ask.request.draft));
                self.met.drafted += u64::from(drafted);
                self.met.accepted += u64::from(accepted);
                assert_eq!(prompt_tokens, ask.prompt());
                assert_eq!(prompt_tokens + reply_tokens, watched.known);
                assert_eq!(logits_sha256, ask.sha);
                self.met.done += 1;
                Ending::Done(finish)
            }
            Event::Failed(Failure::NonfiniteLogits { position }) => {
                self.met.spoilt += 1;
                Ending::Spoilt(position)
            }
            other => return Err(format!("OtherReply: {name}: {other:?}")),
        };
        let whole = watched.known as usize == ask.tokens.len();
        if ending != ask.ending || !whole {
            return Err(format!("OtherReply: {name}: {ending:?} for {:?}", ask.ending));
        }
        if let (true, Ending::Done(_)) = (ask.request.prompt_logits, ending) {
            assert_eq!(watched.shown, ask.prompt());
            assert_eq!(self.prompt_logits[&name], prompt_rows(ask));
        }
        watched.over = true;
        self.running.retain(|other| *other != name);
        Ok(())
    }

    fn finish(mut self) -> Result<Met, String> {
        let left = self.sched.running() + self.sched.waiting() + self.sched.pages_used();
        if left > 0 || !self.sched.table().is_empty() || !self.running.is_empty() {
            return Err(format!("Leak: {:?}", self.sched));
        }
        self.met.preemptions += self.sched.preemptions();
        Ok(self.met)
    }
}

/// Logits of every prompt row.
fn prompt_rows(ask: &Ask) -> Vec<f32> {
    let (mut state, mut rows) = (0, Vec::new());
    for token in &ask.request.prompt {
        state = crate::asks::absorb(state, *token);
        rows.extend(crate::asks::logits(state, ask.fragile));
    }
    rows
}

#[test]
fn every_random_workload_ends_as_its_requests_alone_would() {
    let mut all = Met::default();
    for seed in 0..600 {
        let met = World::new(seed).run(20, None);
        let met = met.unwrap_or_else(|broken| panic!("seed {seed}: {broken}"));
        all.rounds += met.rounds;
        all.preemptions += met.preemptions;
        all.cancelled_in_flight += met.cancelled_in_flight;
        all.queue_full += met.queue_full;
        all.too_long += met.too_long;
        all.spoilt += met.spoilt;
        all.done += met.done;
        all.failed_all += met.failed_all;
        all.carried += met.carried;
        all.settles_alone += met.settles_alone;
        all.drafted += met.drafted;
        all.accepted += met.accepted;
        all.chains += met.chains;
        all.trees += met.trees;
        all.longest = all.longest.max(met.longest);
        all.deepest = all.deepest.max(met.deepest);
    }
    println!("{all:?}");
    let enough = [
        all.preemptions > 100,
        all.cancelled_in_flight > 100,
        all.queue_full > 1000,
        all.too_long > 10,
        all.spoilt > 50,
        all.done > 2000,
        all.failed_all > 10,
        all.carried > 50,
        all.settles_alone > 1000,
        all.deepest == 4,
        all.drafted > 20_000 && all.accepted > all.drafted / 3,
        all.drafted - all.accepted > 5000,
        all.chains > 5000,
        all.trees > 1000,
    ];
    assert_eq!(enough, [true; 14], "{all:?}");
}
