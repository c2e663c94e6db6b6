//! Units on their way into a store, from any number of links at once.

mod feed;

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use weights::{Catalog, Digest, unit};

use crate::part::{self, Growing};
use crate::store::locked;
use crate::{Hold, Progress, Store, StoreError};

/// How often a unit may come and be wrong.
pub const UNIT_TRIES_MAX: u32 = 3;
/// How long a fetch waits while no link feeds it.
pub const PATIENCE: Duration = Duration::from_secs(10);
/// Most reasons that an error lists.
const REASONS_MAX: usize = 8;
/// How often those that wait look whether they are to stop.
const TICK: Duration = Duration::from_millis(100);

/// What a fetch came to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// Bytes of all units that were wanted.
    pub all: u64,
    /// Of those that were not there.
    pub missing: u64,
    /// That came over links: less than what was missing where an earlier attempt had got some.
    pub moved: u64,
}

/// A number of units that are to come.
pub struct Fetch {
    store: Arc<Store>,
    catalog: Arc<Catalog>,
    progress: Arc<Progress>,
    state: Mutex<State>,
    changed: Condvar,
    missing: u64,
    all: u64,
    /// The thread that checks.
    checker: Mutex<Option<JoinHandle<()>>>,
    _hold: Hold,
}

/// A unit on its way.
struct Coming {
    /// Number in the catalog.
    unit: usize,
    digest: Digest,
    bytes: u64,
    /// Locked before the state, where both are.
    growing: Arc<Mutex<Growing>>,
    /// Which chunks have come.
    there: Vec<bool>,
    /// Whether it is in the store.
    done: bool,
    /// Which feeds gave something since the last check.
    from: Vec<u32>,
    tries: u32,
}

/// A chunk of a unit that is coming.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Chunk {
    coming: usize,
    at: usize,
}

#[derive(Default)]
struct State {
    coming: Vec<Coming>,
    /// Chunks that nobody has asked for.
    queue: VecDeque<Chunk>,
    /// Chunks that were asked for, and by how many.
    flying: HashMap<Chunk, u32>,
    /// Units that are whole and not checked.
    whole: VecDeque<usize>,
    /// Whether one of them is being checked.
    checking: bool,
    /// Units that are not in the store.
    left: usize,
    /// Links that feed.
    feeds: usize,
    /// Since when there is none.
    idle_since: Option<Instant>,
    /// Names of all feeds so far.
    names: Vec<String>,
    /// What became of those that ended.
    reasons: Vec<String>,
    over: Option<Result<(), Arc<StoreError>>>,
}

impl State {
    /// Whether units are left and nothing is on its way to any of them.
    fn is_lost(&self) -> bool {
        let waits = !self.queue.is_empty() || !self.flying.is_empty();
        self.left > 0 && self.over.is_none() && !waits && self.whole.is_empty() && !self.checking
    }
}

impl Fetch {
    /// Of the units `wanted` of `catalog` into `store`: sees which are missing, makes room for
    /// them and takes up what earlier attempts left.
    ///
    /// # Errors
    /// [`StoreError::Full`]; [`StoreError::Io`].
    pub fn new(
        store: Arc<Store>,
        catalog: Arc<Catalog>,
        wanted: &[usize],
        progress: Arc<Progress>,
    ) -> Result<Arc<Self>, StoreError> {
        let hold = store.hold(&catalog, wanted);
        let missing = store.missing(&catalog, wanted)?;
        store.make_room(&catalog, &missing)?;
        let mut state = State { idle_since: Some(Instant::now()), ..State::default() };
        for &unit in &missing {
            let listed = &catalog.units()[unit];
            let growing = store.grow(listed)?;
            let coming = state.coming.len();
            let chunks = (0..growing.chunks()).filter(|&at| !growing.has(at));
            state.queue.extend(chunks.map(|at| Chunk { coming, at }));
            if growing.left() == 0 {
                state.whole.push_back(coming);
            }
            state.coming.push(Coming {
                unit,
                digest: listed.digest(),
                bytes: listed.bytes(),
                there: (0..growing.chunks()).map(|at| growing.has(at)).collect(),
                growing: Arc::new(Mutex::new(growing)),
                done: false,
                from: Vec::new(),
                tries: 0,
            });
        }
        state.left = missing.len();
        if missing.is_empty() {
            state.over = Some(Ok(()));
        }
        let (all, missing) = (catalog.bytes_of(wanted), catalog.bytes_of(&missing));
        progress.set_total(all, missing);
        let fetch = Arc::new(Self {
            store,
            catalog,
            progress,
            state: Mutex::new(state),
            changed: Condvar::new(),
            missing,
            all,
            checker: Mutex::default(),
            _hold: hold,
        });
        let checker = fetch.clone();
        let spawned =
            std::thread::Builder::new().name("baton-check".into()).spawn(move || checker.check());
        let spawned = spawned.map_err(StoreError::io("a thread that checks units".as_ref()))?;
        *locked(&fetch.checker) = Some(spawned);
        Ok(fetch)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        locked(&self.state)
    }

    /// Waits a moment for something to change.
    fn wait<'a>(&self, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
        let waited = self.changed.wait_timeout(state, TICK);
        waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// What is wanted.
    pub fn catalog(&self) -> &Arc<Catalog> {
        &self.catalog
    }

    /// Its counts.
    pub fn progress(&self) -> &Arc<Progress> {
        &self.progress
    }

    /// Bytes of all that is wanted, and of what was missing at the start.
    pub fn total(&self) -> (u64, u64) {
        (self.all, self.missing)
    }

    /// Ends it: what came stays.
    pub fn stop(&self) {
        self.end(Err(StoreError::Stopped));
    }

    fn end(&self, how: Result<(), StoreError>) {
        let mut state = self.state();
        if state.over.is_none() {
            state.over = Some(how.map_err(Arc::new));
        }
        self.changed.notify_all();
    }

    /// Whether it has ended, well or not.
    pub fn is_over(&self) -> bool {
        self.state().over.is_some()
    }

    /// Waits for its end: all units are in the store, it was stopped, or no link has fed it for
    /// [`PATIENCE`].
    ///
    /// # Errors
    /// [`StoreError::NoSource`], [`StoreError::Wrong`], [`StoreError::Stopped`] and what the disk
    /// says; the same to everyone who waits.
    pub fn join(&self) -> Result<Fetched, Arc<StoreError>> {
        let mut state = self.state();
        loop {
            if let Some(over) = state.over.clone() {
                drop(state);
                // Whoever comes first sees it out: it is no other thread of ours that waits here.
                if let Some(checker) = locked(&self.checker).take() {
                    let _ = checker.join();
                }
                let (all, missing, moved) = (self.all, self.missing, self.progress.seen().moved);
                return over.map(|()| Fetched { all, missing, moved });
            }
            self.lose_patience(&mut state);
            if state.over.is_none() {
                state = self.wait(state);
            }
        }
    }

    /// Ends it where something is left and nobody will feed it any more.
    pub(crate) fn give_up(&self) {
        let mut state = self.state();
        if state.over.is_none() && (!state.queue.is_empty() || !state.flying.is_empty()) {
            state.over = Some(Err(Arc::new(self.no_source(&state))));
        }
        self.changed.notify_all();
    }

    /// Ends it where nobody has fed it for too long, or there is nothing to be fed or checked.
    fn lose_patience(&self, state: &mut State) {
        if state.is_lost() {
            let first = state.coming.iter().find(|coming| !coming.done);
            let part = first.map(|coming| self.catalog.units()[coming.unit].part.to_string());
            let error = StoreError::Lost { part: part.unwrap_or_default() };
            state.over = Some(Err(Arc::new(error)));
            self.changed.notify_all();
        }
        let is_checking = state.queue.is_empty() && state.flying.is_empty();
        let idle = state.idle_since.filter(|_| !is_checking);
        if idle.is_some_and(|since| since.elapsed() > PATIENCE) {
            let error = self.no_source(state);
            state.over = Some(Err(Arc::new(error)));
            self.changed.notify_all();
        }
    }

    fn no_source(&self, state: &State) -> StoreError {
        let missing = |coming: &Coming| {
            let chunks = coming.there.iter().enumerate().filter(|(_, there)| !**there);
            chunks.map(|(at, _)| part::place(coming.bytes, at).1).sum::<u64>()
        };
        let left = state.coming.iter().map(missing).sum();
        let first = state.queue.front().map(|chunk| state.coming[chunk.coming].unit);
        let first = first.map(|unit| self.catalog.units()[unit].part.to_string());
        let reasons = match state.reasons.is_empty() {
            true => "no machine was reached".to_owned(),
            false => state.reasons.join("; "),
        };
        StoreError::NoSource { left, first: first.unwrap_or_default(), reasons }
    }

    /// Says what became of a source, for the error of a fetch that nobody feeds.
    pub(crate) fn note(&self, reason: String) {
        let mut state = self.state();
        state.reasons.retain(|known| *known != reason);
        if state.reasons.len() == REASONS_MAX {
            state.reasons.remove(0);
        }
        state.reasons.push(reason);
    }

    /// Checks units that are whole and takes them into the store, until it is over.
    fn check(&self) {
        loop {
            let mut state = self.state();
            let coming = loop {
                if state.over.is_some() {
                    return;
                }
                self.lose_patience(&mut state);
                match state.whole.pop_front() {
                    Some(coming) => {
                        state.checking = true;
                        break coming;
                    }
                    None => state = self.wait(state),
                }
            };
            drop(state);
            if let Err(error) = self.check_one(coming) {
                self.end(Err(error));
            }
        }
    }

    fn check_one(&self, coming: usize) -> Result<(), StoreError> {
        let (number, growing) = {
            let state = self.state();
            (state.coming[coming].unit, state.coming[coming].growing.clone())
        };
        let listed = &self.catalog.units()[number];
        // Whoever has a chunk twice waits for this, and then finds it there.
        let mut growing = locked(&growing);
        let wrong = unit::wrong(growing.path(), &listed.sums());
        let wrong = wrong.map_err(StoreError::io(growing.path()))?;
        if wrong.is_empty() {
            self.store.take_in(listed, growing.path())?;
            let mut state = self.state();
            state.coming[coming].done = true;
            state.checking = false;
            state.left -= 1;
            if state.left == 0 && state.over.is_none() {
                state.over = Some(Ok(()));
            }
            self.changed.notify_all();
            return Ok(());
        }
        let (mut at, mut again) = (0, Vec::new());
        for (piece, (bytes, _)) in listed.sums().into_iter().enumerate() {
            if wrong.contains(&piece) {
                again.extend(growing.clear(at, at + bytes)?);
                self.progress.add_wrong(bytes);
            }
            at += bytes;
        }
        let mut state = self.state();
        let peers: Vec<String> =
            state.coming[coming].from.iter().map(|&n| state.names[n as usize].clone()).collect();
        let (part, piece) = (listed.part.to_string(), listed.pieces[wrong[0]].name.clone());
        let peers = if peers.is_empty() { "what lay here".to_owned() } else { peers.join(", ") };
        tracing::warn!("{part}: {piece} of {peers} is not what its SHA-256 says: again");
        state.coming[coming].from.clear();
        state.coming[coming].tries += 1;
        let times = state.coming[coming].tries;
        if times == UNIT_TRIES_MAX {
            return Err(StoreError::Wrong { part, piece, times, peers });
        }
        for at in again {
            state.coming[coming].there[at] = false;
            state.queue.push_front(Chunk { coming, at });
        }
        state.checking = false;
        self.changed.notify_all();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_lost_where_nothing_is_on_its_way_to_it() {
        let (left, chunk) = (1, Chunk { coming: 0, at: 0 });
        let lost = || State { left, ..State::default() };
        assert!(lost().is_lost());
        let live = [
            State { left: 0, ..lost() },
            State { queue: [chunk].into(), ..lost() },
            State { flying: [(chunk, 1)].into(), ..lost() },
            State { whole: [0].into(), ..lost() },
            State { checking: true, ..lost() },
            State { over: Some(Ok(())), ..lost() },
        ];
        assert!(live.iter().all(|state| !state.is_lost()));
    }
}
