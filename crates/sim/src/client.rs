//! The requests of a run: what each is asked, must hear and has heard.

use ring::head::RingState;
use ring::step::Asked;
use sched::{Carried, DraftJob, Event, Failure, Finish, Refusal, Request, RequestId};

use crate::node::State;
use crate::oracle::{Answer, answer};
use crate::setting::{MS, US, VOCAB, request};
use crate::world::{Broken, Happening, World};

/// A client of a request.
pub struct Client {
    pub request: Request,
    pub answer: Option<Answer>,
    pub stage: Stage,
    heard: usize,
    shown: usize,
    /// It must be served in the end.
    is_probe: bool,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It is to come.
    Due,
    /// It waits for a ring that serves.
    Waiting,
    /// It was submitted.
    Asked,
    Running,
    Over,
}

impl World {
    /// Makes a client; its answer is known beforehand.
    pub fn client(&mut self, request: Request, is_probe: bool) -> usize {
        let context_max = self.context_max();
        let fits = !request.prompt.is_empty()
            && (request.prompt.len() as u32) < context_max
            && request.prompt.iter().all(|id| *id < VOCAB);
        let answer = fits.then(|| answer(&request, context_max));
        let (heard, shown) = (0, 0);
        self.clients.push(Client { request, answer, stage: Stage::Due, heard, shown, is_probe });
        self.clients.len() - 1
    }

    /// A last request, to see that the ring serves.
    pub fn probe(&mut self) {
        let context_max = self.context_max().min(40);
        let mut request = request(&mut self.rng, context_max);
        request.prompt = vec![1; 1 + request.prompt.len() % 8];
        let at = self.client(request, true);
        self.after(US, Happening::Client(at));
    }

    /// Most positions of a stream.
    pub fn context_max(&self) -> u32 {
        let shapes = self.setting.shapes;
        shapes.context_max.min(shapes.pages * 64)
    }

    /// A client tries, where it has not yet.
    pub fn ask(&mut self, at: usize) {
        if !matches!(self.clients[at].stage, Stage::Due | Stage::Waiting) {
            return;
        }
        if !self.is_ready() && self.holding {
            self.clients[at].stage = Stage::Waiting;
            return;
        }
        if !self.is_ready() {
            if self.clients[at].is_probe {
                return self.after(500 * MS, Happening::Client(at));
            }
            self.trace.note(self.now, 11, || format!("request {at} is refused: not ready"));
            self.clients[at].stage = Stage::Over;
            return;
        }
        self.clients[at].stage = Stage::Asked;
        // Each attempt has an id of its own.
        self.names.push(at);
        let id = RequestId(self.names.len() as u64);
        let request = Box::new(self.clients[at].request.clone());
        self.command(Asked::Submit(id, request));
    }

    fn client_of(&self, id: RequestId) -> usize {
        self.names[id.0 as usize - 1]
    }

    /// Gives rank 0 a command, and wakes it a little later.
    pub fn command(&mut self, asked: Asked) {
        self.trace.note(self.now, 12, || format!("a command: {}", named(&asked)));
        self.commands.push_back((self.now, asked));
        if matches!(self.nodes[0].state, State::Paused) {
            return self.rouse(0);
        }
        let soon = self.rng.below(5 * US);
        self.after(soon, Happening::Poke);
    }

    /// A client goes away.
    pub fn cancel(&mut self, at: usize) {
        let was = self.clients[at].stage;
        self.trace.note(self.now, 13, || format!("the client of request {at} leaves: {was:?}"));
        self.clients[at].stage = Stage::Over;
        if matches!(was, Stage::Asked | Stage::Running) {
            let name = self.names.iter().rposition(|name| *name == at).expect("it was asked");
            self.command(Asked::Cancel(RequestId(name as u64 + 1)));
            self.cancels += 1;
        }
    }

    /// The verdict of a request.
    pub fn answered(&mut self, id: RequestId, verdict: Result<(), Refusal>) -> Result<(), Broken> {
        let at = self.client_of(id);
        let shapes = self.setting.shapes;
        let streams = shapes.streams_max.min(shapes.round_rows_max) as usize;
        let is_full = self.owners.len() >= streams + self.setting.queue_max as usize;
        let client = &mut self.clients[at];
        let Err(refusal) = verdict else {
            self.owners.insert(id);
            if client.answer.is_none() {
                return Err(Broken(format!("request {at} was taken in and can't be")));
            }
            if client.stage == Stage::Asked {
                client.stage = Stage::Running;
            }
            return Ok(());
        };
        if client.stage != Stage::Asked {
            return Ok(());
        }
        client.stage = Stage::Over;
        let prompt = &client.request.prompt;
        let is_right = match &refusal {
            Refusal::Empty => prompt.is_empty(),
            Refusal::TooLong { .. } => prompt.len() as u32 >= self.context_max(),
            Refusal::OtherToken { id, .. } => *id >= VOCAB,
            Refusal::QueueFull { .. } => is_full,
            Refusal::NotReady(_) if self.drains => true,
            Refusal::NotReady(_) => {
                // It broke meanwhile.
                self.clients[at].stage = Stage::Waiting;
                self.after(US, Happening::Client(at));
                true
            }
            _ => false,
        };
        if is_right {
            return Ok(());
        }
        Err(Broken(format!("request {at} is refused wrongly: {refusal}")))
    }

    /// What the owner of a request hears: its one reply, and one end.
    pub fn hears(&mut self, id: RequestId, event: Event) -> Result<(), Broken> {
        let at = self.client_of(id);
        let is_cancelled = matches!(event, Event::Done { finish: Finish::Cancelled, .. });
        if !self.owners.contains(&id) || self.gone.contains(&id) != is_cancelled {
            return Err(Broken(format!("request {at} hears {event:?} out of turn")));
        }
        let is_last = matches!(event, Event::Done { .. } | Event::Failed(_));
        if is_last {
            self.owners.remove(&id);
        }
        if self.clients[at].stage == Stage::Over {
            return Ok(());
        }
        if is_last {
            self.clients[at].stage = Stage::Over;
        }
        self.trace.note(self.now, 14, || match &event {
            Event::PromptLogits { first, .. } => format!("request {at} hears logits of {first}.."),
            event => format!("request {at} hears {event:?}"),
        });
        let wrong = |why: String| Err(Broken(format!("request {at}: {why}")));
        let client = &mut self.clients[at];
        let Some(answer) = &client.answer else { return wrong("it can't be served".into()) };
        match event {
            Event::Token { id, .. } => {
                let expected = answer.tokens.get(client.heard);
                client.heard += 1;
                if expected != Some(&id) {
                    return wrong(format!("wrong token {}: {id}, not {expected:?}", client.heard));
                }
            }
            Event::PromptLogits { first, logits } => {
                let from = first as usize * VOCAB as usize;
                let rows = answer.prompt_logits.get(from..from + logits.len());
                if from != client.shown || rows != Some(&logits) {
                    return wrong(format!("wrong logits from {first}"));
                }
                client.shown += logits.len();
            }
            Event::Done { finish, logits_sha256, cached, drafted, accepted, .. } => {
                let whole = client.heard == answer.tokens.len() && finish == answer.finish;
                let hashed = logits_sha256.is_none_or(|sha| sha == answer.sha);
                let shown =
                    !client.request.prompt_logits || client.shown == answer.prompt_logits.len();
                if !whole || !hashed || !shown {
                    let heard = client.heard;
                    return wrong(format!("ends wrongly: {finish:?}, {heard} tokens, {answer:?}"));
                }
                self.served += 1;
                self.cached += u64::from(cached);
                self.drafted += u64::from(drafted);
                self.accepted += u64::from(accepted);
            }
            Event::Failed(failure) => return self.check_failure(at, &failure),
            other => return wrong(format!("{other:?}")),
        }
        Ok(())
    }

    fn check_failure(&mut self, at: usize, failure: &Failure) -> Result<(), Broken> {
        let waited = self.now.saturating_sub(self.broke_at);
        let is_right = match failure {
            Failure::Draining => self.drains,
            Failure::Ring(_) if self.drains || self.setting.patience == 0 => self.breaks > 0,
            // On time, or with a break that came too late to wait for.
            Failure::Ring(_) => {
                waited >= self.setting.patience
                    && (waited < self.setting.patience + MS || self.now == self.held_at)
            }
            _ => false,
        };
        if is_right {
            return Ok(());
        }
        let waited_ms = waited / MS;
        Err(Broken(format!("request {at} fails wrongly after {waited_ms} ms: {failure}")))
    }

    /// What a draft head makes of a job: often what the reply goes on with.
    pub fn guess(&mut self, job: &DraftJob) -> Vec<u32> {
        let (from, to) = (job.first as usize + 1, job.first as usize + 1 + job.tokens.len());
        let goes_on = |client: &Client| {
            let prompt = client.request.prompt.iter();
            let all: Vec<u32> = prompt.chain(&client.answer.as_ref()?.tokens).copied().collect();
            (all.get(from..to)? == job.tokens).then(|| all[to..].to_vec())
        };
        let right = self.clients.iter().find_map(goes_on).unwrap_or_default();
        let mut guesses: Vec<u32> = right.into_iter().take(job.chain as usize).collect();
        guesses.resize(job.chain as usize, 0);
        for guess in &mut guesses {
            if self.rng.chance(30) {
                *guess = self.rng.below(VOCAB.into()) as u32;
            }
        }
        guesses
    }

    /// The owner of a request is gone.
    pub fn forgotten(&mut self, id: RequestId) {
        self.owners.remove(&id);
    }

    /// The requests of an epoch that broke wait.
    pub fn hold(&mut self, carried: Carried, reason: &str, progressed: bool) {
        if progressed || self.broke_at == 0 {
            self.broke_at = self.now;
        }
        let now = std::time::Duration::from_nanos(self.now);
        self.held_at = self.now;
        self.patience.hold(now, carried, reason, progressed);
        if let Some(until) = self.patience.deadline() {
            self.at((until.as_nanos() as u64).max(self.now), Happening::Expire);
        }
        self.holds(true);
    }

    /// Requests that wait may have waited long enough.
    pub fn expire(&mut self) -> Result<(), Broken> {
        let now = std::time::Duration::from_nanos(self.now);
        if self.patience.deadline().is_none_or(|until| until > now) {
            return Ok(());
        }
        self.holds(false);
        for (id, event) in self.patience.expire() {
            self.hears(id, event)?;
        }
        Ok(())
    }

    /// What the server sees of the ring.
    pub fn publishes(&mut self, state: RingState) {
        let state = if self.drains { RingState::Draining } else { state };
        self.trace.note(self.now, 15, || format!("the ring: {state}"));
        if state == RingState::Ready {
            self.ready_since = self.now;
            if !self.has_served {
                self.has_served = true;
                self.arrivals();
            }
        }
        self.published = state;
        self.stir();
    }

    /// Whether new requests wait.
    pub fn holds(&mut self, holds: bool) {
        self.holding = holds;
        self.stir();
    }

    fn stir(&mut self) {
        for at in 0..self.clients.len() {
            if self.clients[at].stage == Stage::Waiting {
                self.after(US, Happening::Client(at));
            }
        }
    }

    fn arrivals(&mut self) {
        let mut at = self.now;
        let gaps: Vec<u64> = self.setting.requests.iter().map(|(gap, _)| *gap).collect();
        for (client, gap) in gaps.into_iter().enumerate() {
            at += gap;
            self.at(at, Happening::Client(client));
        }
    }

    /// Whether the ring serves.
    pub fn is_ready(&self) -> bool {
        self.published == RingState::Ready
    }
}

fn named(asked: &Asked) -> String {
    match asked {
        Asked::Submit(id, request) => format!(
            "submit {}: {} tokens, {} at most",
            id.0,
            request.prompt.len(),
            request.max_tokens
        ),
        Asked::Cancel(id) => format!("cancel {}", id.0),
        Asked::Drain => "drain".into(),
    }
}
