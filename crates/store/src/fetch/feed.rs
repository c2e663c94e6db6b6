//! One link's part in a fetch: it asks for chunks and takes in what comes.

use std::collections::VecDeque;
use std::time::Instant;

use weights::Digest;

use super::{Chunk, Fetch, State};
use crate::message::{Ask, Kind, QUERY_UNITS_MAX};
use crate::store::locked;
use crate::{Link, StoreError, part};

/// Most chunks that a link has asked for and not got.
const FLIGHT_MAX: usize = 8;

/// What a feed does next.
enum Next {
    Ask(Chunk, Ask),
    /// Nothing is left for it now.
    Wait,
    Over,
}

impl Fetch {
    /// Feeds it from `link`, whose other end gives, until nothing is left that this end could
    /// give, or the link breaks. Its chunks in flight then go to others.
    ///
    /// # Errors
    /// [`StoreError::Link`], [`StoreError::Message`]; of this machine also [`StoreError::Io`],
    /// which ends the fetch.
    pub fn feed(&self, link: &mut Link) -> Result<(), StoreError> {
        let number = {
            let mut state = self.state();
            state.feeds += 1;
            state.idle_since = None;
            state.names.push(link.peer().to_owned());
            state.names.len() as u32 - 1
        };
        let mut flight = VecDeque::new();
        let fed = self.pull(link, number, &mut flight);
        let mut state = self.state();
        state.feeds -= 1;
        if state.feeds == 0 {
            state.idle_since = Some(Instant::now());
        }
        for (chunk, _) in flight.into_iter().rev() {
            give_back(&mut state, chunk);
        }
        self.changed.notify_all();
        drop(state);
        match fed {
            Err(error) if error.is_own() => {
                let told = error.to_string();
                self.end(Err(error));
                Err(link.broken(told))
            }
            Err(error) => {
                self.note(error.to_string());
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    /// Which of the units that are coming the other end holds.
    fn query(&self, link: &mut Link) -> Result<Vec<bool>, StoreError> {
        let digests: Vec<Digest> = self.state().coming.iter().map(|c| c.digest).collect();
        let (mut holds, mut payload) = (Vec::with_capacity(digests.len()), Vec::new());
        for some in digests.chunks(QUERY_UNITS_MAX) {
            link.send(Kind::Query, some.as_flattened())?;
            let kind = link.receive(&mut payload)?;
            if kind != Kind::Holds || payload.len() != some.len() {
                let found = format!("{kind:?} of {}", payload.len());
                return Err(link.odd("holds", format!("one of {}", some.len()), found));
            }
            holds.extend(payload.iter().map(|&held| held == 1));
        }
        Ok(holds)
    }

    fn pull(
        &self,
        link: &mut Link,
        number: u32,
        flight: &mut VecDeque<(Chunk, u32)>,
    ) -> Result<(), StoreError> {
        let mut holds = self.query(link)?;
        let mut payload = Vec::new();
        loop {
            while flight.len() < FLIGHT_MAX {
                match self.next(&holds, flight) {
                    Next::Ask(chunk, ask) => {
                        flight.push_back((chunk, ask.bytes));
                        link.send(Kind::Ask, &ask.encode())?;
                    }
                    Next::Wait if flight.is_empty() => {
                        if !self.can_give(&holds) {
                            return Ok(());
                        }
                        drop(self.wait(self.state()));
                    }
                    // What is under way comes first: the other end hears nothing until it is out.
                    Next::Wait | Next::Over => break,
                }
            }
            let Some(&(chunk, bytes)) = flight.front() else { return Ok(()) };
            match link.receive(&mut payload)? {
                Kind::Chunk if payload.len() == bytes as usize => {
                    self.add(chunk, number, &payload)?;
                }
                Kind::Lacks => {
                    holds[chunk.coming] = false;
                    give_back(&mut self.state(), chunk);
                }
                kind => {
                    let found = format!("{kind:?} of {}", payload.len());
                    return Err(link.odd("chunk", format!("{bytes} bytes"), found));
                }
            }
            flight.pop_front();
        }
    }

    /// Whether the other end of a feed could still be of use.
    fn can_give(&self, holds: &[bool]) -> bool {
        let state = self.state();
        let mut rest = state.coming.iter().zip(holds);
        state.over.is_none() && rest.any(|(coming, holds)| *holds && !coming.done)
    }

    /// The next chunk for a feed: one that nobody has asked for, else one that another feed asked
    /// for and has not got.
    fn next(&self, holds: &[bool], flight: &VecDeque<(Chunk, u32)>) -> Next {
        let mut state = self.state();
        if state.over.is_some() {
            return Next::Over;
        }
        let held = |chunk: &Chunk| holds[chunk.coming];
        let at = state.queue.iter().position(held);
        let chunk = match at.and_then(|at| state.queue.remove(at)) {
            Some(chunk) => chunk,
            None => {
                // What has come by one link is still flying for the other.
                let lacks = |chunk: &Chunk| !state.coming[chunk.coming].there[chunk.at];
                let ours = |chunk: &Chunk| flight.iter().any(|(own, _)| own == chunk);
                let slow = state
                    .flying
                    .iter()
                    .find(|(chunk, n)| **n == 1 && held(chunk) && lacks(chunk) && !ours(chunk));
                match slow {
                    Some((chunk, _)) => *chunk,
                    None => return Next::Wait,
                }
            }
        };
        *state.flying.entry(chunk).or_default() += 1;
        let coming = &state.coming[chunk.coming];
        let (at, bytes) = part::place(coming.bytes, chunk.at);
        Next::Ask(chunk, Ask { unit: coming.digest, at, bytes: bytes as u32 })
    }

    /// Takes in a chunk that came.
    fn add(&self, chunk: Chunk, number: u32, bytes: &[u8]) -> Result<(), StoreError> {
        let growing = self.state().coming[chunk.coming].growing.clone();
        let mut growing = locked(&growing);
        let is_new = growing.add(chunk.at, bytes)?;
        let is_whole = is_new && growing.left() == 0;
        self.progress.add_moved(bytes.len() as u64);
        // Still with the unit's lock: it can't be whole twice.
        let mut state = self.state();
        land(&mut state, chunk);
        let coming = &mut state.coming[chunk.coming];
        coming.there[chunk.at] = true;
        if is_new && !coming.from.contains(&number) {
            coming.from.push(number);
        }
        if is_whole {
            state.whole.push_back(chunk.coming);
            self.changed.notify_all();
        }
        Ok(())
    }
}

/// Counts a chunk as no longer asked for by one feed.
fn land(state: &mut State, chunk: Chunk) -> bool {
    let Some(count) = state.flying.get_mut(&chunk) else { return false };
    *count -= 1;
    let is_last = *count == 0;
    if is_last {
        state.flying.remove(&chunk);
    }
    is_last
}

/// Puts a chunk that did not come back, unless another feed has asked for it too or it came.
fn give_back(state: &mut State, chunk: Chunk) {
    if land(state, chunk) && !state.coming[chunk.coming].there[chunk.at] {
        state.queue.push_front(chunk);
    }
}
