//! The scheduler's state, and what moves it from outside: requests, cancels, results, failure.

use std::collections::VecDeque;

use arith::base::{Round as RoundNumber, StreamId, TILE_KEYS};
use arith::candidates;
use wire::limit::WINDOW_ROWS_MAX;
use wire::plan::{Keep, Op};

use crate::SlotState;
use crate::cache::{Cache, Caching};
use crate::draft::Guesses;
use crate::ledger::Ledger;
use crate::pace::{Debt, Pace};
use crate::reply::Reply;
use crate::stream::{Slot, Stream};
use crate::{
    DraftJob, Drafting, Event, Failure, Finish, Limits, Opening, Outlook, Prices, Refusal, Request,
};
use crate::{RequestId, Wanted};

/// Requests in, rounds out, results in, tokens out.
///
/// KV pages: a stream is admitted when its tokens and one more page fit, and its reservation
/// then grows page by page, one window ahead of need. When it can't grow, the newest stream is
/// preempted: its request goes back to the head of the queue and is computed again later from
/// its tokens, prompt and reply, which gives the same bytes. The oldest stream is never
/// preempted and any single request fits, so every request ends. A preempted request needs the
/// pages that it gave, one of which has been taken, so it comes back when a stream has ended.
#[derive(Debug)]
pub struct Scheduler {
    pub(crate) limits: Limits,
    /// Requests without a stream, oldest first.
    pub(crate) queue: VecDeque<Reply>,
    /// By stream id.
    pub(crate) slots: Vec<Slot>,
    pub(crate) flights: VecDeque<Flight>,
    /// Of the last issued round.
    pub(crate) number: u64,
    pub(crate) preemptions: u64,
    pub(crate) pace: Pace,
    pub(crate) debt: Debt,
    pub(crate) ledger: Ledger,
    pub(crate) cache: Cache,
    drafting: Option<Box<dyn Drafting>>,
    prices: Prices,
    /// For the draft head, of the last round that came back.
    jobs: Vec<DraftJob>,
    submitted: u64,
    cancelled: Vec<StreamId>,
    draining: bool,
}

/// Requests between two epochs, in order of age.
#[derive(Debug, Default)]
pub struct Carried(Vec<Reply>);

impl Carried {
    /// Requests.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Takes one back; whether it was there.
    pub fn cancel(&mut self, id: RequestId) -> bool {
        let before = self.0.len();
        self.0.retain(|reply| reply.id != id);
        self.0.len() < before
    }

    /// Their last events.
    pub fn fail(self, failure: &Failure) -> Vec<(RequestId, Event)> {
        let failed = |reply: Reply| (reply.id, Event::Failed(failure.clone()));
        self.0.into_iter().map(failed).collect()
    }
}

/// A round in the ring.
#[derive(Debug)]
pub(crate) struct Flight {
    pub number: RoundNumber,
    /// Its decode rows.
    pub windows: u32,
    /// As [`crate::Round::wanted`].
    pub wanted: Vec<Wanted>,
    /// Streams whose close or cancel it carries.
    pub ended: Vec<StreamId>,
}

impl Scheduler {
    /// An empty scheduler. Every limit but `queue_max` is at least 1. No more streams run at once
    /// than a round has rows, so that every running reply can ride in every round.
    pub fn new(limits: Limits) -> Self {
        let Limits {
            streams_max,
            queue_max: _,
            chunk_rows_max,
            round_rows_max,
            context_max,
            pages,
            depth,
        } = limits;
        let least = [streams_max, chunk_rows_max, round_rows_max, context_max, pages, depth];
        assert!(!least.contains(&0), "a limit is 0: {limits:?}");
        let streams = streams_max.min(round_rows_max);
        Self {
            limits,
            queue: VecDeque::new(),
            slots: (0..streams).map(|_| Slot::Free).collect(),
            flights: VecDeque::new(),
            number: 0,
            preemptions: 0,
            pace: Pace::default(),
            debt: Debt::default(),
            ledger: Ledger::new(pages),
            cache: Cache::new(Caching::OFF),
            drafting: None,
            prices: Prices::default(),
            jobs: Vec::new(),
            submitted: 0,
            cancelled: Vec::new(),
            draining: false,
        }
    }

    /// What rows cost from now on. It moves rows between rounds, never bytes.
    pub fn set_pace(&mut self, pace: Pace) {
        self.pace = pace;
    }

    /// What may be kept for other requests, before the first of them; nothing unless said. It
    /// moves no byte of a reply.
    pub fn set_cache(&mut self, caching: Caching) {
        assert!(self.number == 0 && self.cache.len() == 0, "stages hold kept states");
        self.cache = Cache::new(caching);
    }

    /// From now on new streams have drafters; without a call none has. No drafter that asks for a
    /// chain may be among them where nobody answers [`Scheduler::draft_jobs`].
    pub fn set_drafting(&mut self, drafting: Box<dyn Drafting>) {
        self.drafting = Some(drafting);
    }

    /// What rounds and guesses were measured to cost, for whoever measures.
    pub fn prices(&mut self) -> &mut Prices {
        &mut self.prices
    }

    /// What the draft head has to do before the next round, with the rows that the last completed
    /// round brought back. [`Scheduler::drafted`] takes the answer.
    pub fn draft_jobs(&mut self) -> Vec<DraftJob> {
        std::mem::take(&mut self.jobs)
    }

    /// The draft head's guesses for a job's stream.
    pub fn drafted(&mut self, id: StreamId, tokens: Vec<u32>) {
        if let Slot::Live(stream) = &mut self.slots[id.0 as usize]
            && stream.guesses.awaited
        {
            stream.guesses.answer(tokens);
        }
    }

    pub(crate) fn guesses(&self, reply: &Reply) -> Guesses {
        let drafting = self.drafting.as_ref().filter(|_| reply.drafts());
        let opening = Opening { prices: &self.prices, nth: reply.age };
        drafting.map_or_else(Guesses::default, |drafting| Guesses::new(drafting.open(&opening)))
    }

    /// Most tokens of prompt and reply: the context, or what all the pages hold.
    pub fn context_max(&self) -> u32 {
        let positions = self.limits.pages.saturating_mul(TILE_KEYS as u32);
        self.limits.context_max.min(positions)
    }

    /// Takes a request in, or refuses it. At most `streams_max + queue_max` requests are held.
    pub fn submit(&mut self, id: RequestId, request: Request) -> Result<(), Refusal> {
        if self.draining {
            return Err(Refusal::NotReady(Failure::Draining.to_string()));
        }
        if request.prompt.is_empty() {
            return Err(Refusal::Empty);
        }
        let context_max = self.context_max();
        let prompt = u32::try_from(request.prompt.len()).unwrap_or(u32::MAX);
        if prompt >= context_max {
            return Err(Refusal::TooLong { prompt, context_max });
        }
        let held = self.waiting() as usize + self.running() as usize;
        if held >= self.slots.len() + self.limits.queue_max as usize {
            return Err(Refusal::QueueFull { waiting: self.waiting() });
        }
        let held = |s: &Stream| s.reply.id == id;
        assert!(!self.live().any(held), "{id:?} is running");
        self.submitted += 1;
        let reply = Reply::new(id, self.submitted, request, context_max);
        self.queue.push_back(reply);
        Ok(())
    }

    /// Ends a request, wherever it is; its last event, or `None` if it has ended already. No rows
    /// are issued for it any more, and its cancel rides in the next round.
    pub fn cancel(&mut self, id: RequestId) -> Option<Event> {
        if let Some(at) = self.queue.iter().position(|reply| reply.id == id) {
            let mut reply = self.queue.remove(at)?;
            return Some(reply.done(Finish::Cancelled));
        }
        let at = self.live().find(|s| s.reply.id == id)?.state.id;
        if self.in_flight(at) {
            self.cancelled.push(at);
        }
        let mut reply = self.end(at, Op::Cancel);
        Some(reply.done(Finish::Cancelled))
    }

    /// Streams cancelled since the last call whose rows are still in the ring, for the cancel
    /// frames that overtake them. Send these before the next round.
    pub fn cancelled(&mut self) -> Vec<StreamId> {
        std::mem::take(&mut self.cancelled)
    }

    /// What the stages said of the oldest round's keeps, before it completes: a state is used only
    /// once every stage held it.
    pub fn echo(&mut self, keeps: &[Keep]) {
        let slots = &self.slots;
        let is_over = |id: StreamId| !matches!(slots[id.0 as usize], Slot::Live(_));
        self.cache.echo(keeps, &mut self.ledger, is_over);
    }

    /// The oldest round in flight has come back with its `wanted` rows, of `vocab` logits each, of
    /// which as many are there as [`Wanted::best`] says ([`candidates::given`]). What the owners
    /// hear. Another round or another number of rows is a bug of the caller.
    pub fn complete(
        &mut self,
        number: RoundNumber,
        logits: &[f32],
        vocab: usize,
    ) -> Vec<(RequestId, Event)> {
        let flight = self.flights.pop_front().expect("no round is in flight");
        assert_eq!(flight.number, number, "rounds come back in order");
        let given = |wanted: &Wanted| wanted.heads as usize * candidates::given(vocab, wanted.best);
        assert_eq!(
            logits.len(),
            flight.wanted.iter().map(given).sum::<usize>(),
            "values of {number}"
        );
        for id in flight.ended {
            self.slots[id.0 as usize] = Slot::Free;
        }
        let (mut events, mut rest, mut at) = (Vec::new(), logits, 0);
        self.jobs.clear();
        for wanted in flight.wanted {
            let (own, after) = rest.split_at(given(&wanted));
            (rest, at) = (after, at + wanted.rows as usize);
            let id = wanted.id;
            let Slot::Live(stream) = &mut self.slots[id.0 as usize] else {
                continue; // cancelled or preempted meanwhile
            };
            if !stream.hear(&wanted, own, vocab, &mut events) {
                let op = if self.in_flight(id) { Op::Cancel } else { Op::Close };
                self.end(id, op);
                continue;
            }
            self.guess(&wanted, at - wanted.rows as usize);
        }
        events
    }

    /// Has a stream's drafters fill its next window, and its draft head take its rows in, which
    /// came back from place `at` on.
    fn guess(&mut self, wanted: &Wanted, at: usize) {
        let beside = self.beside(wanted.id);
        let window_rows_max = self.limits.chunk_rows_max.min(WINDOW_ROWS_MAX);
        let Slot::Live(stream) = &mut self.slots[wanted.id.0 as usize] else { return };
        let absorbs = stream.guesses.absorbs();
        let mut chain = 0;
        if stream.left() == 1 && !stream.in_prompt() {
            let room = stream.reply.rows_max() - stream.next();
            let most = room.min(window_rows_max) - 1;
            let (tokens, prices) = (&stream.reply.tokens, &self.prices);
            if most > 0 {
                chain = stream.guesses.ask(&Outlook { tokens, most, beside, prices });
            }
        }
        assert!(absorbs || chain == 0, "a chain wants its rows taken in");
        if absorbs {
            self.jobs.push(stream.job(wanted, at, chain));
        }
    }

    /// Rows that ride beside a stream's window, about: a share of the other decoding streams.
    fn beside(&self, id: StreamId) -> u32 {
        let others = self.live().filter(|s| s.state.id != id && !s.in_prompt());
        let rows: u32 = others.map(|s| s.state.rows.clamp(1, WINDOW_ROWS_MAX)).sum();
        rows / self.pace.groups(self.limits.depth)
    }

    /// The ring broke: every request fails, the stages forget every stream, and rounds count from
    /// 1 again. Rounds that were in flight never complete.
    pub fn fail_all(&mut self, failure: &Failure) -> Vec<(RequestId, Event)> {
        let failed = self.carry().fail(failure);
        self.number = 0;
        failed
    }

    /// Takes every request away with what it has heard, for a scheduler of another epoch.
    pub fn carry(&mut self) -> Carried {
        let mut replies: Vec<Reply> = self.queue.drain(..).collect();
        for slot in &mut self.slots {
            if let Slot::Live(stream) = std::mem::replace(slot, Slot::Free) {
                replies.push(stream.reply);
            }
        }
        self.flights.clear();
        self.cancelled.clear();
        self.ledger = Ledger::new(self.limits.pages);
        self.cache = Cache::new(self.cache.caching());
        self.jobs.clear();
        replies.sort_by_key(|reply| reply.age);
        Carried(replies)
    }

    /// Takes carried requests in, ahead of all others and as old as they were. Each is computed
    /// again from its tokens, prompt and reply, which gives the same bytes, and goes on. The last
    /// events of those that fit no more.
    pub fn adopt(&mut self, carried: Carried) -> Vec<(RequestId, Event)> {
        let context_max = self.context_max();
        let mut ended = Vec::new();
        for mut reply in carried.0 {
            reply.age = self.submitted + 1;
            if reply.length() < context_max {
                self.submitted = reply.age;
                reply.length_max = reply.length_max.min(context_max);
                self.queue.push_back(reply);
            } else {
                ended.push((reply.id, reply.done(Finish::Length)));
            }
        }
        ended
    }

    /// From now on nothing is taken in; what runs goes on to its end. The events of the requests
    /// that had not started.
    #[must_use]
    pub fn drain(&mut self) -> Vec<(RequestId, Event)> {
        self.draining = true;
        let (started, others) = self.queue.drain(..).partition(|reply| reply.started);
        self.queue = started;
        let failed = |reply: Reply| (reply.id, Event::Failed(Failure::Draining));
        VecDeque::into_iter(others).map(failed).collect()
    }

    /// Whether nothing waits, runs or is in the ring.
    pub fn idle(&self) -> bool {
        let free = |slot: &Slot| matches!(slot, Slot::Free);
        self.queue.is_empty() && self.flights.is_empty() && self.slots.iter().all(free)
    }

    /// Streams that run.
    pub fn running(&self) -> u32 {
        self.live().count() as u32
    }

    /// Requests that wait for a stream.
    pub fn waiting(&self) -> u32 {
        self.queue.len() as u32
    }

    /// Whose a running stream is.
    pub fn request(&self, id: StreamId) -> Option<RequestId> {
        match self.slots.get(id.0 as usize)? {
            Slot::Live(stream) => Some(stream.reply.id),
            _ => None,
        }
    }

    /// KV pages that running streams hold.
    pub fn pages_used(&self) -> u32 {
        self.ledger.used() - self.ledger.idle()
    }

    /// KV pages that kept states alone hold; they give way to streams.
    pub fn pages_kept(&self) -> u32 {
        self.ledger.idle()
    }

    /// Kept states of the prompt cache.
    pub fn keeps(&self) -> u32 {
        self.cache.len() as u32
    }

    /// Streams that gave their pages up to older ones, since the start.
    pub fn preemptions(&self) -> u64 {
        self.preemptions
    }

    /// Rounds in the ring.
    pub fn rounds_in_flight(&self) -> u32 {
        self.flights.len() as u32
    }

    /// The stages' tables once they have done the last issued round, by ascending id.
    pub fn table(&self) -> Vec<SlotState> {
        let state = |slot: &Slot| match slot {
            Slot::Live(stream) if stream.opened => Some(stream.state),
            Slot::Leaving { state, .. } => Some(*state),
            _ => None,
        };
        self.slots.iter().filter_map(state).collect()
    }

    pub(crate) fn live(&self) -> impl Iterator<Item = &Stream> {
        self.slots.iter().filter_map(|slot| match slot {
            Slot::Live(stream) => Some(&**stream),
            _ => None,
        })
    }

    pub(crate) fn stream(&mut self, id: StreamId) -> &mut Stream {
        match &mut self.slots[id.0 as usize] {
            Slot::Live(stream) => stream,
            other => panic!("stream {id} is not running: {other:?}"),
        }
    }

    /// Takes a running stream's reply away; the stages hear of it in the next round.
    pub(crate) fn end(&mut self, id: StreamId, op: Op) -> Reply {
        let slot = &mut self.slots[id.0 as usize];
        let Slot::Live(mut stream) = std::mem::replace(slot, Slot::Free) else {
            panic!("stream {id} is not running");
        };
        // Stages take a plan's ends first, so what is given back can be taken in the same round.
        self.ledger.resize(&mut stream.pages, 0);
        self.ledger.resize(&mut stream.side, 0);
        if stream.opened {
            *slot = Slot::Leaving { op, state: stream.state };
        } else if let Some(resume) = stream.resume {
            self.cache.unpin(resume.key);
        }
        stream.reply
    }

    /// Whether rows of a running stream are in the ring.
    fn in_flight(&self, id: StreamId) -> bool {
        let Slot::Live(stream) = &self.slots[id.0 as usize] else {
            return false;
        };
        let oldest = self.flights.front().map(|flight| flight.number.0);
        oldest.is_some_and(|oldest| stream.last_round >= oldest)
    }
}
