//! The life of rank 0: boots the ring, proves it, has it serve, and starts over with a new epoch
//! whenever one breaks.

use std::time::Duration;

use arith::base::{Epoch, Rank, Round};
use sched::{Caching, Carried, Drafters, Event as Heard, Failure, Refusal};
use wire::control::{Agree, Describe};

use super::turns::Turns;
use super::{Action, Asked, Computed, Lead, Now, Ring, Stepped, Want};
use crate::backoff::Backoff;
use crate::boot::{Boot, BootTimes, Terms};
use crate::canary::{CANARY, Known, Next, Proof};
use crate::error::RingError;
use crate::head::RingState;
use crate::link::Inbound;

/// What rank 0 starts from.
#[derive(Clone, Debug)]
pub struct Facts {
    /// What it says of itself.
    pub own: Describe,
    /// What it asks of the others.
    pub terms: Terms,
    /// Deadlines of a boot.
    pub times: BootTimes,
    /// Most requests waiting.
    pub queue_max: u32,
    /// What is kept of prompts for later ones.
    pub caching: Caching,
    /// Who guesses tokens ahead; the draft head only where the stage has one.
    pub drafters: Drafters,
    /// Whether requests wait for a ring that broke.
    pub waits: bool,
    /// Values of a boundary row.
    pub hidden: usize,
    /// Logits of a row.
    pub vocab: usize,
    /// Rows whose time a chunk takes rank 0's device beside that of its own rows.
    pub chunk_cost_rows: u32,
    /// A few tokens that prove the ring before it serves.
    pub canary: Vec<u32>,
    /// What their reply must hash to.
    pub known: Option<Known>,
}

/// Rank 0 over all its epochs.
#[derive(Debug)]
pub struct Leading {
    facts: Facts,
    phase: Phase,
    backoff: Backoff,
    state: RingState,
    /// A drain was asked for.
    drains: bool,
    /// What the last epoch left.
    carried: Carried,
}

#[derive(Debug)]
enum Phase {
    Joining,
    Boot(Epoch, Box<Boot>),
    Rounds(Box<Epochal>),
    /// Without links.
    Paused(Pause),
    Ended,
}

#[derive(Debug)]
enum Pause {
    For(Duration),
    Until(Now),
}

/// An epoch after its boot.
#[derive(Debug)]
struct Epochal {
    turns: Turns,
    stage: Stage,
    pages: u32,
    ranks: Vec<Describe>,
    /// Some reply got a token.
    progressed: bool,
}

#[derive(Debug)]
enum Stage {
    Proving(Box<Proof>),
    /// Proven; what waits is to go on.
    Resuming,
    Serving,
}

impl Leading {
    /// Before its first epoch.
    pub fn new(facts: Facts) -> Self {
        Self {
            facts,
            phase: Phase::Joining,
            backoff: Backoff::default(),
            state: RingState::Booting("starting".into()),
            drains: false,
            carried: Carried::default(),
        }
    }

    /// A drain was asked for, though its command may not have come yet.
    pub fn drains(&mut self) {
        self.drains = true;
    }

    /// What rank 0 waits for.
    pub fn want(&mut self, now: Now) -> Want {
        match &mut self.phase {
            Phase::Joining => Want::Join,
            Phase::Boot(_, boot) => boot.want(now),
            Phase::Rounds(rounds) => match rounds.stage {
                Stage::Resuming => Want::Carried,
                _ => rounds.turns.want(),
            },
            Phase::Paused(pause) => {
                let until = match *pause {
                    _ if self.drains => now,
                    Pause::For(time) => now + time,
                    Pause::Until(until) => until,
                };
                *pause = Pause::Until(until);
                Want::Pause(until)
            }
            Phase::Ended => Want::End,
        }
    }

    /// The rounds, after the boot.
    pub fn lead(&self) -> Option<&Lead> {
        match &self.phase {
            Phase::Rounds(rounds) => Some(&rounds.turns.lead),
            _ => None,
        }
    }

    /// The agreed KV pages, after the boot.
    pub fn pages(&self) -> Option<u32> {
        match &self.phase {
            Phase::Rounds(rounds) => Some(rounds.pages),
            _ => None,
        }
    }

    /// What the ranks said of themselves, after the boot.
    pub fn ranks(&self) -> &[Describe] {
        match &self.phase {
            Phase::Rounds(rounds) => &rounds.ranks,
            _ => &[],
        }
    }

    /// The round on the device (0 when idle) and the rounds done.
    pub fn progress(&self) -> (Round, u64) {
        self.lead().map_or((Round(0), 0), Lead::progress)
    }

    /// What the last epoch left, for an [`Action::Hold`].
    pub fn carried(&mut self) -> Carried {
        std::mem::take(&mut self.carried)
    }

    /// Rank 0 looks for its neighbours.
    pub fn joining(&mut self) -> Vec<Action> {
        let next = Rank(1 % self.facts.own.world);
        vec![self.booting(&format!("connecting to rank {next}"))]
    }

    /// Links stand.
    ///
    /// # Errors
    /// What ends the epoch, as everywhere here.
    pub fn joined(&mut self, epoch: Epoch) -> Stepped {
        let terms = Some(self.facts.terms.clone());
        let (boot, sent) = Boot::new(self.facts.own.clone(), terms, self.facts.times)?;
        self.phase = Phase::Boot(epoch, Box::new(boot));
        let mut actions = vec![self.booting("the ranks describe themselves and load")];
        actions.extend(sent);
        Ok(actions)
    }

    /// A command; `None` when there was none, or none in time.
    ///
    /// # Errors
    /// What ends the epoch.
    pub fn command(&mut self, asked: Option<Asked>) -> Stepped {
        match (&mut self.phase, asked) {
            (Phase::Rounds(rounds), None) => {
                rounds.turns.no_command();
                Ok(Vec::new())
            }
            (Phase::Rounds(rounds), Some(Asked::Submit(id, request))) => {
                let verdict = rounds.turns.lead.submit(id, *request);
                Ok(vec![Action::Answer(id, verdict)])
            }
            (Phase::Rounds(rounds), Some(Asked::Cancel(id))) => {
                // An owner that still listens hears what its request took.
                let mut actions = rounds.turns.lead.cancel(id);
                actions.push(Action::Forget(id));
                Ok(actions)
            }
            (Phase::Rounds(rounds), Some(Asked::Drain)) => {
                rounds.turns.no_command();
                let refused = rounds.turns.lead.sched.drain();
                self.drains = true;
                let mut actions = vec![self.becomes(RingState::Draining)];
                actions.extend(tell(refused));
                Ok(actions)
            }
            (_, None) => {
                if self.drains {
                    return Ok(self.end());
                }
                self.phase = Phase::Joining;
                Ok(Vec::new())
            }
            (_, Some(Asked::Submit(id, _))) => {
                let refusal = Refusal::NotReady(self.state.to_string());
                Ok(vec![Action::Answer(id, Err(refusal))])
            }
            (_, Some(Asked::Cancel(id))) => Ok(vec![Action::Forget(id)]),
            (_, Some(Asked::Drain)) => {
                self.drains = true;
                Ok(self.end())
            }
        }
    }

    /// What the inbox held; `None` when it was empty, or when nothing came in time.
    ///
    /// # Errors
    /// What ends the epoch; `Shutdown` when a drain is over.
    pub fn inbox(&mut self, now: Now, item: Option<Inbound>) -> Stepped {
        match &mut self.phase {
            Phase::Boot(epoch, boot) => {
                let frame = match item.map(crate::inbox::woken).transpose()? {
                    Some(crate::inbox::Wake::Frame(frame)) => frame,
                    Some(crate::inbox::Wake::Poke) => return Ok(Vec::new()),
                    None => return Err(boot.late()),
                };
                let mut actions = boot.frame(frame)?;
                if let Some(agree) = boot.agreed().cloned() {
                    let (epoch, ranks) = (*epoch, boot.ranks().to_vec());
                    actions.extend(self.booted(epoch, &agree, ranks)?);
                }
                Ok(actions)
            }
            Phase::Rounds(rounds) => {
                let stepped = rounds.turns.inbox(now, item)?;
                let mut actions = rounds.heard(stepped)?;
                actions.extend(self.proven()?);
                match &self.phase {
                    Phase::Rounds(rounds) if self.drains && rounds.is_over() => {
                        Err(RingError::Shutdown)
                    }
                    _ => Ok(actions),
                }
            }
            _ => Ok(Vec::new()),
        }
    }

    /// Stage and link have room for what was agreed.
    pub fn prepared(&mut self) {
        if let Phase::Boot(_, boot) = &mut self.phase {
            boot.prepared(None);
        }
    }

    /// The device is done.
    pub fn computed(&mut self, now: Now, computed: Computed) {
        if let Phase::Rounds(rounds) = &mut self.phase {
            rounds.turns.computed(now, computed);
        }
    }

    /// The draft head is done: the guesses of each job.
    pub fn drafted(&mut self, now: Now, guesses: Vec<Vec<u32>>) {
        if let Phase::Rounds(rounds) = &mut self.phase {
            rounds.turns.drafted(now, guesses);
        }
    }

    /// The ring serves; the requests of the epoch before go on.
    pub fn resume(&mut self, carried: Carried) -> Vec<Action> {
        let mut actions = Vec::new();
        if let Phase::Rounds(rounds) = &mut self.phase {
            rounds.stage = Stage::Serving;
            rounds.turns.hears = true;
            rounds.turns.look();
            actions.extend(tell(rounds.turns.lead.sched.adopt(carried)));
        }
        actions.push(self.becomes(RingState::Ready));
        actions.push(Action::Over);
        actions
    }

    /// The epoch is over, or could not begin.
    pub fn broke(&mut self, error: &RingError) -> Vec<Action> {
        let phase = std::mem::replace(&mut self.phase, Phase::Ended);
        let is_drained = matches!(error, RingError::Shutdown);
        let had_links = matches!(phase, Phase::Boot(..) | Phase::Rounds(_));
        let mut actions = Vec::new();
        if let Phase::Rounds(mut rounds) = phase
            && matches!(rounds.stage, Stage::Serving)
        {
            let progressed = rounds.progressed;
            let replies = rounds.turns.lead.sched.carry();
            if is_drained {
                actions.extend(tell(replies.fail(&Failure::Draining)));
            } else {
                actions.extend(self.left(replies, error.to_string(), progressed));
            }
        }
        if had_links {
            actions.push(error.tell(Rank(0)));
        }
        if is_drained || (!had_links && self.drains) {
            actions.extend(self.end());
            return actions;
        }
        let reason = error.to_string();
        actions.push(Action::Because(reason.clone()));
        actions.push(self.becomes(RingState::Waiting(reason)));
        actions.push(Action::Reset);
        self.phase = Phase::Paused(Pause::For(self.backoff.next_pause()));
        actions
    }

    /// The requests of an epoch that broke wait for the next one, or fail.
    fn left(&mut self, replies: Carried, reason: String, progressed: bool) -> Vec<Action> {
        let state = self.becomes(RingState::Waiting(reason.clone()));
        if self.facts.waits && !self.drains {
            // No request is refused in between.
            self.carried = replies;
            return vec![Action::Hold { reason, progressed }, state];
        }
        // The state changes first, so that whoever hears of the failure finds /ready at 503.
        let mut actions = vec![state];
        actions.extend(tell(replies.fail(&Failure::Ring(reason))));
        actions
    }

    fn booted(&mut self, epoch: Epoch, agree: &Agree, ranks: Vec<Describe>) -> Stepped {
        let Facts { hidden, vocab, chunk_cost_rows, queue_max, drafters, caching, .. } = self.facts;
        let ring = Ring { world: self.facts.own.world, epoch, hidden, vocab, chunk_cost_rows };
        let mut lead = Lead::new(ring, agree, queue_max);
        lead.sched.set_drafting(Box::new(drafters));
        lead.sched.set_cache(caching);
        let mut turns = Turns::new(lead);
        let context_max = turns.lead.sched.context_max();
        let (canary, known) = (self.facts.canary.clone(), self.facts.known.clone());
        let (proof, first) = Proof::new(canary, known, context_max);
        turns.fly(first)?;
        let stage = Stage::Proving(Box::new(proof));
        let pages = agree.shapes.pages;
        let rounds = Epochal { turns, stage, pages, ranks, progressed: false };
        self.phase = Phase::Rounds(Box::new(rounds));
        Ok(vec![self.booting("the canary is on its way")])
    }

    /// Goes on with the proof once all its rounds are back.
    fn proven(&mut self) -> Stepped {
        let Phase::Rounds(rounds) = &mut self.phase else { return Ok(Vec::new()) };
        let Stage::Proving(proof) = &mut rounds.stage else { return Ok(Vec::new()) };
        if !rounds.turns.lead.is_idle() {
            return Ok(Vec::new());
        }
        match proof.landed()? {
            Next::Fly(request) => {
                rounds.turns.fly(request)?;
                Ok(Vec::new())
            }
            Next::Proven(hash) => {
                rounds.stage = Stage::Resuming;
                self.backoff.reset();
                self.facts.known = Some(Known { hash, from: "an earlier boot".into() });
                Ok(vec![Action::Proven(hash)])
            }
        }
    }

    fn booting(&mut self, what: &str) -> Action {
        self.becomes(RingState::Booting(what.into()))
    }

    fn becomes(&mut self, state: RingState) -> Action {
        self.state = if self.drains { RingState::Draining } else { state };
        Action::State(self.state.clone())
    }

    fn end(&mut self) -> Vec<Action> {
        self.phase = Phase::Ended;
        vec![Action::State(RingState::Draining), Action::Fail(Failure::Draining)]
    }
}

impl Epochal {
    /// Keeps what the canary's owner hears.
    fn heard(&mut self, actions: Vec<Action>) -> Stepped {
        let mut others = Vec::with_capacity(actions.len());
        for action in actions {
            match (&mut self.stage, action) {
                (Stage::Proving(proof), Action::Tell(CANARY, event)) => proof.hear(&event)?,
                (_, action) => {
                    self.progressed |= matches!(action, Action::Tell(_, Heard::Token { .. }));
                    others.push(action);
                }
            }
        }
        Ok(others)
    }

    /// Whether nothing is left to do, once all that was there has been looked at.
    fn is_over(&self) -> bool {
        matches!(self.stage, Stage::Serving) && self.turns.has_looked() && self.turns.lead.is_idle()
    }
}

fn tell(events: Vec<(sched::RequestId, Heard)>) -> impl Iterator<Item = Action> {
    events.into_iter().map(|(id, event)| Action::Tell(id, event))
}
