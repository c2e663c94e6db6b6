//! What a stage exchanges through.

use std::panic::resume_unwind;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use stage::{Exchange, ExchangeError, Member};
use wire::group::{Kind, PIECE_BYTES_MAX};

use crate::Group;
use crate::epoch::Epoch;
use crate::link::{Item, Link};
use crate::memory::{Place, Take};

/// A member's place in the exchanges of its group, over all its epochs.
pub struct Seat {
    group: Group,
    /// The epoch of the last exchange, and that one's number.
    at: Option<(Arc<Epoch>, u64)>,
}

/// Most values that a member gives before it takes, on its own thread: the other end reads as much
/// ahead, whatever it does.
const BEFORE_VALUES_MAX: usize = 4 * PIECE_BYTES_MAX / 4;

impl Seat {
    pub(crate) fn new(group: Group) -> Self {
        Self { group, at: None }
    }

    /// Whose place it is.
    pub(crate) fn group(&self) -> &Group {
        &self.group
    }

    /// The epoch and the number of its next exchange.
    fn next(&mut self) -> Result<(Arc<Epoch>, u64), ExchangeError> {
        let live = self.group.live()?;
        let done = match &self.at {
            Some((epoch, done)) if Arc::ptr_eq(epoch, &live) => *done,
            _ => 0,
        };
        let number = done + 1;
        self.at = Some((live.clone(), number));
        Ok((live, number))
    }
}

impl std::fmt::Debug for Seat {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Seat").field("group", &self.group).finish_non_exhaustive()
    }
}

impl Exchange for Seat {
    fn member(&self) -> Member {
        self.group.member()
    }

    fn gather(
        &mut self,
        own: &[f32],
        sizes: &[usize],
        all: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        self.meet(own, sizes, (|_| true, true), all)
    }

    fn collect(
        &mut self,
        own: &[f32],
        sizes: &[usize],
        all: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        let is_first = self.member().index == 0;
        self.meet(own, sizes, (|peer| peer == 0, is_first), all)
    }
}

impl Seat {
    /// Gives this member's values to those others that `gives` says, and has every member's, in
    /// member order, where it `takes` them: through memory what can, through links the rest.
    fn meet(
        &mut self,
        own: &[f32],
        sizes: &[usize],
        (gives, takes): (fn(usize) -> bool, bool),
        all: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        let (epoch, number) = self.next()?;
        let memory = epoch.memory();
        let is_near = |peer| memory.is_some_and(|memory| memory.has(peer));
        let (near, far): (Vec<usize>, Vec<usize>) =
            epoch.peers().filter(|&peer| gives(peer)).partition(|&peer| is_near(peer));
        let links = far.iter().map(|&peer| epoch.link(peer)).collect::<Result<Vec<_>, _>>()?;
        let places = places(self.group.member(), own, (sizes, takes), all);
        let taken = places.iter().map(|(_, place)| place.len()).sum();
        let (here, there): (Vec<_>, Vec<_>) =
            places.into_iter().partition(|(from, _)| is_near(*from));
        let met = !near.is_empty() || !here.is_empty();
        let take = || {
            if let Some(memory) = memory {
                let take = |(from, place)| Take { from, place: Place::Values(place), done: 0 };
                let mut takes: Vec<_> = here.into_iter().map(take).collect();
                memory.exchange(&epoch, number, (own, &near), &mut takes)?;
            }
            there.into_iter().try_for_each(|(from, place)| take(&epoch, from, number, place))
        };
        if own.len() <= BEFORE_VALUES_MAX {
            links.iter().try_for_each(|link| link.give(&epoch, number, own))?;
            take()?;
        } else {
            give_beside(&epoch, number, (own, &links), take)?;
        }
        let counters = &self.group.0.counters;
        counters.count(own.len() * (near.len() + far.len()), taken);
        counters.in_memory.fetch_add(u64::from(met), Ordering::Relaxed);
        Ok(())
    }
}

/// Where the others' values of an exchange go in `all`, with whose they are; this member's are put
/// in their place. None where nothing is taken.
pub(crate) fn places<'a>(
    member: Member,
    own: &[f32],
    (sizes, takes): (&[usize], bool),
    all: &'a mut Vec<f32>,
) -> Vec<(usize, &'a mut [f32])> {
    let Member { index, count } = member;
    assert!(sizes.len() == count && sizes[index] == own.len(), "a size a member");
    // What was there is written over, all of it.
    all.resize(if takes { sizes.iter().sum() } else { 0 }, 0.0);
    let (mut rest, mut places) = (&mut all[..], Vec::new());
    for (from, &size) in sizes.iter().enumerate().filter(|_| takes) {
        let (place, after) = rest.split_at_mut(size);
        rest = after;
        match from == index {
            true => place.copy_from_slice(own),
            false => places.push((from, place)),
        }
    }
    places
}

/// Gives `own` on threads of their own, one a link, while `take` takes: both are long, and whoever
/// gave all of it first would have the others wait for room.
fn give_beside(
    epoch: &Epoch,
    number: u64,
    (own, links): (&[f32], &[Arc<Link>]),
    take: impl FnOnce() -> Result<(), ExchangeError>,
) -> Result<(), ExchangeError> {
    std::thread::scope(|scope| {
        let mut gives = Vec::with_capacity(links.len());
        for link in links {
            let thread = std::thread::Builder::new().name(format!("baton-long-{}", link.peer));
            let give = move || link.give(epoch, number, own);
            let give = thread.spawn_scoped(scope, give);
            gives
                .push(give.map_err(|e| epoch.fail(epoch.member.index, format!("no thread: {e}")))?);
        }
        let taken = take();
        let joined = gives.into_iter().map(|give| give.join());
        let given = joined.map(|give| give.unwrap_or_else(|panic| resume_unwind(panic)));
        // Where both failed it was for one reason.
        taken.and(given.collect())
    })
}

/// One member's values of an exchange, into their place.
fn take(epoch: &Epoch, member: usize, number: u64, place: &mut [f32]) -> Result<(), ExchangeError> {
    let link = epoch.link(member)?;
    let mut at = 0;
    loop {
        let item = link.next(epoch, Some(epoch.stalled()))?;
        let Item::Piece(came) = item else {
            return Err(epoch.fail(member, "its link has ended".into()));
        };
        let (kind, found) = (came.kind, came.number);
        if (kind, found) != (Kind::Part, number) {
            let reason = format!("OutOfTurn: expected part {number} of it, found {kind:?} {found}");
            return Err(epoch.fail(member, reason));
        }
        let (values, rest) = came.payload().as_chunks::<4>();
        let end = at + values.len();
        let is_whole = end == place.len();
        if !rest.is_empty() || end > place.len() || came.more == is_whole {
            let (expected, found) = (place.len(), end);
            let reason = format!(
                "OtherRows: exchange {number}: expected {expected} values of it, found {found}"
            );
            return Err(epoch.fail(member, reason));
        }
        for (place, &value) in place[at..end].iter_mut().zip(values) {
            *place = f32::from_le_bytes(value);
        }
        link.put_back(came);
        if is_whole {
            return Ok(());
        }
        at = end;
    }
}
