//! A model of the stages' bookkeeping, written from the protocol's rules alone. It executes
//! every round, refuses what breaks a rule by the rule's name, and computes the logits from the
//! states that it keeps, so that a wrong plan also gives wrong tokens.

use std::collections::{BTreeMap, VecDeque};

use arith::candidates;
use sched::sample::{Penalties, deciding};
use sched::{DraftJob, Limits, Request, Round, SlotState, Wanted};
use wire::limit::WINDOW_ROWS_MAX;
use wire::plan::{Entry, Mode, Op, Plan, Want};

use crate::asks::{Ask, absorb, logits};

/// Rounds that may pass over a prompt, apart from one for each other stream.
const PASSED_OVER_MAX: u32 = 8;

/// A request as an onlooker knows it.
pub struct Watched {
    pub ask: Ask,
    /// Tokens known: the prompt and what was announced.
    pub known: u32,
    /// Prompt rows whose logits came out.
    pub shown: u32,
    /// Its rows go to the draft head, until that is let go.
    pub absorbs: bool,
    /// It has ended, or was cancelled.
    pub over: bool,
}

/// A stream on a stage.
struct Held {
    name: u32,
    generation: u32,
    first: u32,
    rows: u32,
    /// Rows of the last window that stay: its drafts are those that the reply alone has.
    kept: u32,
    /// What settles to them, and which of the window's rows they are.
    accepted: u32,
    path: Vec<usize>,
    /// Positions of the window's paths, by their leaves.
    lengths: Vec<u32>,
    /// The state after each position, as a KV cache holds it.
    states: Vec<u64>,
    /// A row was computed that a token is drawn from: what follows is decoding.
    drawn: bool,
    /// The last window is a decode window, computed in round `round`.
    decode: bool,
    round: u64,
    /// Rounds that left it out although it had rows to compute.
    left_out: u32,
}

/// What a round gives back: its number and the wanted rows.
pub struct Returned {
    pub number: u64,
    pub logits: Vec<f32>,
    pub wanted: Vec<Wanted>,
    ended: Vec<u32>,
}

pub struct Model {
    limits: Limits,
    held: BTreeMap<u32, Held>,
    /// Streams whose end was issued and has not come back.
    echoing: Vec<u32>,
    pub flights: VecDeque<Returned>,
    issued: u64,
    completed: u64,
    pub watched: BTreeMap<u32, Watched>,
    /// Prompts may wait for what they owe to replies.
    pub is_paced: bool,
}

/// The rows of a window that stay: the `known` first ones, and on from the last of them those that
/// are the `truth`.
fn right_path(entry: &Entry, known: usize, tokens: &[u32], truth: &[u32]) -> Vec<usize> {
    let mut path: Vec<usize> = (0..known).collect();
    while let Some(last) = path.last().copied() {
        let truth = truth.get(path.len());
        let right = |row: &usize| parent(entry, *row) == Some(last) && truth == Some(&tokens[*row]);
        let Some(next) = (last + 1..tokens.len()).find(right) else { break };
        path.push(next);
    }
    path
}

/// The state after each row of a window.
fn window_states(entry: &Entry, before: u64, tokens: &[u32]) -> Vec<u64> {
    let mut states: Vec<u64> = Vec::new();
    for (row, token) in tokens.iter().enumerate() {
        let above = parent(entry, row).map_or(before, |parent| states[parent]);
        states.push(absorb(above, *token));
    }
    states
}

impl Held {
    /// Of the first path, and of each other one those from the window's first position on.
    fn pages(&self) -> u32 {
        let path = |length: &u32| pages(self.first + length) - self.first / 64;
        let first = pages(self.first + self.lengths.first().copied().unwrap_or(0));
        first + self.lengths.iter().skip(1).map(path).sum::<u32>()
    }

    /// Whether an entry settles the last window as it should and starts where that ends.
    fn goes_on(&self, entry: &Entry, completed: u64) -> Verdict {
        rule(entry.generation.0 == self.generation, "Generation", entry)?;
        rule(entry.resume == 0 && (entry.parents.is_none() || self.drawn), "Chain", entry)?;
        let known = !self.decode || self.round <= completed;
        rule(self.rows == 0 || known, "OutcomeUnknown", entry)?;
        rule(entry.accepted == self.accepted, "Accepted", entry)?;
        rule(entry.rows > 0 || self.rows > 0, "Nothing", entry)?;
        rule(entry.first == self.first + self.kept, "Position", entry)
    }

    /// Computes a window of which `path` will stay; the state after each row.
    fn take(&mut self, entry: &Entry, path: Vec<usize>, tokens: &[u32]) -> Vec<u64> {
        self.kept = path.len() as u32;
        self.accepted = path.last().map_or(0, |last| *last as u32 + 1);
        self.generation += 1;
        (self.first, self.rows) = (entry.first, entry.rows);
        self.states.truncate(entry.first as usize);
        let window = window_states(entry, self.states.last().copied().unwrap_or(0), tokens);
        self.states.extend(path.iter().map(|row| window[*row]));
        self.path = path;
        window
    }
}

type Verdict = Result<(), String>;

fn rule(holds: bool, name: &str, detail: impl std::fmt::Debug) -> Verdict {
    if holds { Ok(()) } else { Err(format!("{name}: {detail:?}")) }
}

/// What must come back of `rows`, and how many of them go through the head.
fn want(rows: u32, heads: bool, absorbs: bool, draws: bool) -> (Want, u32) {
    match (heads, absorbs && rows > 0, draws) {
        (true, ..) => (Want::All, rows),
        (_, true, _) if rows > 1 => (Want::All, u32::from(draws)),
        (_, true, _) | (_, _, true) => (Want::Last, u32::from(draws)),
        _ => (Want::None, 0),
    }
}

fn pages(positions: u32) -> u32 {
    positions.div_ceil(64)
}

/// The row that a window's row hangs on.
fn parent(entry: &Entry, row: usize) -> Option<usize> {
    match &entry.parents {
        Some(parents) => Some(usize::from(parents[row])).filter(|parent| *parent < row),
        None => row.checked_sub(1),
    }
}

/// Positions of an entry's paths, by their leaves.
fn lengths(entry: &Entry) -> Vec<u32> {
    let rows = 0..entry.rows as usize;
    let is_leaf = |leaf: &usize| rows.clone().all(|row| parent(entry, row) != Some(*leaf));
    let length = |leaf| std::iter::successors(Some(leaf), |row| parent(entry, *row)).count() as u32;
    rows.clone().filter(is_leaf).map(length).collect()
}

impl Model {
    pub fn new(limits: Limits) -> Self {
        Self {
            limits,
            held: BTreeMap::new(),
            echoing: Vec::new(),
            flights: VecDeque::new(),
            issued: 0,
            completed: 0,
            watched: BTreeMap::new(),
            is_paced: false,
        }
    }

    /// A new epoch.
    pub fn reset(&mut self) {
        self.held.clear();
        self.echoing.clear();
        self.flights.clear();
        (self.issued, self.completed) = (0, 0);
    }

    /// The oldest round comes back.
    pub fn complete(&mut self) -> Returned {
        let returned = self.flights.pop_front().unwrap();
        self.completed = returned.number;
        self.echoing.retain(|id| !returned.ended.contains(id));
        returned
    }

    /// The table, as a stage reports it.
    pub fn table(&self) -> Vec<SlotState> {
        let state = |(id, held): (&u32, &Held)| SlotState {
            id: arith::base::StreamId(*id),
            generation: arith::base::Generation(held.generation),
            first: held.first,
            rows: held.rows,
            pages: held.pages(),
        };
        self.held.iter().map(state).collect()
    }

    /// Whose stream it is.
    pub fn name(&self, id: arith::base::StreamId) -> u32 {
        self.held[&id.0].name
    }

    /// Checks a round and executes it.
    pub fn execute(&mut self, round: &Round) -> Verdict {
        let plan = &round.plan;
        rule(round.number.0 == self.issued + 1, "Number", round.number)?;
        let depth = self.limits.depth as usize;
        rule(self.flights.len() < depth, "Depth", self.flights.len())?;
        let ids: Vec<u32> = plan.entries.iter().map(|e| e.id.0).collect();
        rule(ids.is_sorted_by(|a, b| a < b), "Ascending", &ids)?;
        rule(plan.cuts.is_empty() && plan.keeps.is_empty(), "Extras", plan)?;
        let rows = plan.rows() as u32;
        rule(rows <= self.limits.round_rows_max, "RoundRows", rows)?;
        rule(round.tokens.len() as u32 == rows, "Tokens", rows)?;
        let ends = |e: &Entry| matches!(e.op, Op::Close | Op::Cancel);
        rule(rows > 0 || plan.entries.iter().any(ends), "Useless", plan)?;
        self.check_absent(&ids)?;
        self.issued += 1;
        let mut returned = Returned {
            number: self.issued,
            logits: Vec::new(),
            wanted: Vec::new(),
            ended: Vec::new(),
        };
        let (mut at, mut prompt) = (0, false);
        for entry in &plan.entries {
            let tokens = &round.tokens[at..at + entry.rows as usize];
            at += tokens.len();
            match entry.op {
                Op::Close | Op::Cancel => self.end(entry, &mut returned)?,
                Op::Open | Op::Continue => {
                    prompt |= self.advance(entry, tokens, &mut returned)?;
                }
                Op::Resume => return Err("Resume: nothing was kept".into()),
            }
        }
        // Ends give back before anybody takes.
        let used: u32 = self.table().iter().map(|state| state.pages).sum();
        rule(used <= self.limits.pages, "Pages", used)?;
        rule((plan.mode == Mode::Prompt) == prompt, "Mode", plan.mode)?;
        rule(round.wanted == returned.wanted, "Wanted", (&round.wanted, &returned.wanted))?;
        self.check_fair(plan.entries.as_slice())?;
        let payload = plan.encode().map_err(|fault| format!("Wire: {fault}"))?;
        rule(Plan::decode(&payload).as_ref() == Ok(plan), "Wire", plan)?;
        self.flights.push_back(returned);
        Ok(())
    }

    /// Who must not be left out: ended streams, and windows with a known outcome.
    fn check_absent(&self, ids: &[u32]) -> Verdict {
        for (id, held) in self.held.iter().filter(|(id, _)| !ids.contains(id)) {
            rule(!self.watched[&held.name].over, "EndNotIssued", id)?;
            let known = !held.decode || held.round <= self.completed;
            rule(held.rows == 0 || !known, "Unsettled", id)?;
        }
        Ok(())
    }

    fn end(&mut self, entry: &Entry, returned: &mut Returned) -> Verdict {
        let id = entry.id.0;
        let held = self.held.remove(&id);
        let held = held.ok_or_else(|| format!("OtherStream: {id} is not open"))?;
        rule(entry.generation.0 == held.generation, "Generation", entry)?;
        let bare = entry.rows == 0 && entry.accepted == 0 && entry.want == Want::None;
        rule(bare, "BareEnd", entry)?;
        let watched = &self.watched[&held.name];
        // A stream that ends before its request does was preempted, never the oldest.
        let oldest = self.held.values().all(|other| other.name > held.name);
        rule(watched.over || !oldest, "EndedEarly", entry)?;
        let flies = held.decode && held.round > self.completed;
        rule(entry.op == Op::Cancel || !flies, "CloseInFlight", entry)?;
        returned.ended.push(id);
        self.echoing.push(id);
        Ok(())
    }

    /// Open and continue. True when it carries prompt rows.
    fn advance(
        &mut self,
        entry: &Entry,
        tokens: &[u32],
        returned: &mut Returned,
    ) -> Result<bool, String> {
        let id = entry.id.0;
        if entry.op == Op::Open {
            self.open(entry, tokens)?;
        }
        let held = self.held.get_mut(&id);
        let held = held.ok_or_else(|| format!("OtherStream: {id} is not open"))?;
        held.goes_on(entry, self.completed)?;
        let position = entry.first;
        rule(entry.rows <= self.limits.chunk_rows_max, "ChunkRows", entry)?;
        let lengths = lengths(entry);
        let end = position + lengths.iter().max().copied().unwrap_or(0);
        let paths: u32 = lengths.iter().sum();
        rule(lengths.len() < 2 || paths <= WINDOW_ROWS_MAX, "WindowPaths", entry)?;
        rule(end <= self.limits.context_max, "Context", entry)?;
        let watched = self.watched.get_mut(&held.name).unwrap();
        rule(!watched.over, "RowsAfterEnd", entry)?;
        let is_tree = lengths.len() > 1;
        let drafts = match held.drawn {
            true if is_tree => entry.rows - 1,
            true => end.saturating_sub(watched.known),
            false => 0,
        };
        let known = position + entry.rows - drafts;
        rule(known <= watched.known, "FutureToken", entry)?;
        rule(drafts == 0 || watched.ask.request.draft, "Uncalled", entry)?;
        let own = &watched.ask.tokens[position as usize..known as usize];
        rule(own == &tokens[..own.len()], "OtherTokens", (own, tokens))?;
        let path = right_path(entry, own.len(), tokens, &watched.ask.tokens[position as usize..]);
        held.lengths = lengths;
        let window = held.take(entry, path, tokens);
        let prompt = entry.rows > 0 && !held.drawn;
        held.decode = held.drawn;
        rule(!held.decode || entry.rows - drafts <= 1, "WindowRows", entry)?;
        rule(!held.decode || entry.rows <= WINDOW_ROWS_MAX, "WindowRows", entry)?;
        if entry.rows > 0 {
            held.round = self.issued;
        }
        let draws = entry.rows > 0 && end >= watched.known;
        held.drawn |= draws;
        let unseen = position.max(watched.shown) < end.min(watched.ask.prompt());
        let shows = watched.ask.request.prompt_logits && unseen;
        let (want, heads) = want(entry.rows, shows || drafts > 0, watched.absorbs && prompt, draws);
        rule(entry.want == want, "Want", (entry, want))?;
        let rows = match want {
            Want::None => 0,
            Want::Last => 1,
            Want::All => entry.rows,
        };
        if rows > 0 {
            returned.wanted.push(Wanted {
                id: entry.id,
                first: position + entry.rows - rows,
                rows,
                heads,
                best: best(&watched.ask.request),
            });
        }
        for state in &window[(entry.rows - heads) as usize..] {
            let row = logits(*state, watched.ask.fragile);
            candidates::pack(&row, 0, best(&watched.ask.request), &mut returned.logits);
        }
        Ok(prompt)
    }

    fn open(&mut self, entry: &Entry, tokens: &[u32]) -> Verdict {
        let id = entry.id.0;
        rule(!self.held.contains_key(&id), "OpenAlready", entry)?;
        rule(!self.echoing.contains(&id), "NotEchoed", entry)?;
        rule(id < self.limits.streams_max, "StreamsMax", entry)?;
        rule(entry.accepted == 0 && entry.first == 0, "BadOpen", entry)?;
        rule(!tokens.is_empty(), "OpenWithoutRows", entry)?;
        let name = tokens[0];
        rule(self.watched.contains_key(&name), "OtherTokens", tokens)?;
        let twice = self.held.values().any(|held| held.name == name);
        rule(!twice, "OpenTwice", entry)?;
        let held = Held {
            name,
            generation: 0,
            first: 0,
            rows: 0,
            kept: 0,
            accepted: 0,
            path: Vec::new(),
            lengths: Vec::new(),
            states: Vec::new(),
            drawn: false,
            decode: false,
            round: 0,
            left_out: 0,
        };
        self.held.insert(id, held);
        Ok(())
    }

    /// Rows for the draft head: those that stay, of rows that came back, with the tokens after.
    pub fn check_job(&self, job: &DraftJob, back: &[Wanted]) -> Verdict {
        let held = self.held.get(&job.id.0).ok_or("OtherStream: a job")?;
        let watched = &self.watched[&held.name];
        let mut at = 0;
        let mut place = None;
        for wanted in back {
            if wanted.id == job.id {
                place = Some((wanted, at));
            }
            at += wanted.rows as usize;
        }
        let (wanted, at) = place.ok_or("OtherRows: a job of none")?;
        rule(watched.absorbs && job.first == wanted.first, "OtherRows", job)?;
        let rows = job.rows.len() as u32;
        let all: Vec<usize> = (at..at + wanted.rows as usize).collect();
        let path: Vec<usize> = held.path.iter().map(|row| at + row).collect();
        let is_last = held.first == wanted.first;
        let stays = !is_last || job.rows == path && job.accepted == held.accepted;
        rule(stays && (is_last || job.rows == all), "OtherRows", job)?;
        let after = (job.first + 1) as usize..(job.first + rows + 1) as usize;
        rule(watched.ask.tokens.get(after) == Some(&job.tokens), "OtherTokens", job)
    }

    /// Nobody who has rows to compute is left out for long.
    fn check_fair(&mut self, entries: &[Entry]) -> Verdict {
        let streams = self.held.len() as u32;
        for (id, held) in &mut self.held {
            let rows = entries.iter().any(|e| e.id.0 == *id && e.rows > 0);
            let ready = held.first + held.kept < self.watched[&held.name].known;
            if rows || !ready {
                held.left_out = 0;
                continue;
            }
            held.left_out += 1;
            let most = if held.drawn { self.limits.depth - 1 } else { PASSED_OVER_MAX + streams };
            let waits = self.is_paced && !held.drawn;
            rule(waits || held.left_out <= most, "Starved", (id, held.left_out))?;
        }
        Ok(())
    }
}

/// How many of a row's best logits a request needs; 0 for all.
fn best(request: &Request) -> u32 {
    let guide = &request.guide;
    let plain = guide.penalties == Penalties::NONE && guide.bias.is_empty();
    let whole = request.prompt_logits || request.hash_logits || guide.grammar.is_some();
    match plain && !whole && guide.logprobs.is_none() && guide.prompt_logprobs.is_none() {
        true => deciding(&request.sampling),
        false => 0,
    }
}
