//! What a stage exchanges through.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use stage::{Exchange, ExchangeError, Member};
use wire::group::Kind;
use wire::rows;

use crate::Group;
use crate::epoch::Epoch;
use crate::link::Item;
use crate::memory::Take;

/// A member's place in the exchanges of its group, over all its epochs.
pub struct Seat {
    group: Group,
    /// The epoch of the last exchange, and that one's number.
    at: Option<(Arc<Epoch>, u64)>,
    /// Bytes of the last exchange's values: a large buffer that is new each time costs as much as
    /// what is in it.
    payload: Arc<Vec<u8>>,
}

impl Seat {
    pub(crate) fn new(group: Group) -> Self {
        Self { group, at: None, payload: Arc::default() }
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
    /// The bytes of `own`, in the last exchange's buffer unless that is still being sent.
    fn encode(&mut self, own: &[f32]) {
        if let Some(bytes) = Arc::get_mut(&mut self.payload) {
            return rows::encode_into(own, bytes);
        }
        self.payload = Arc::new(rows::encode(own));
    }

    /// Gives this member's values to those others that `gives` says, and has every member's, in
    /// member order, where it `takes` them: through memory what can, through links the rest.
    fn meet(
        &mut self,
        own: &[f32],
        sizes: &[usize],
        (gives, takes): (fn(usize) -> bool, bool),
        all: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        let Member { index, count } = self.group.member();
        assert!(sizes.len() == count && sizes[index] == own.len(), "a size a member");
        let (epoch, number) = self.next()?;
        let memory = epoch.memory();
        let is_near = |peer| memory.is_some_and(|memory| memory.has(peer));
        let (near, far): (Vec<usize>, Vec<usize>) =
            epoch.peers().filter(|&peer| gives(peer)).partition(|&peer| is_near(peer));
        if !far.is_empty() {
            self.encode(own);
            for &peer in &far {
                epoch.link(peer)?.send(&epoch, Kind::Part, number, &self.payload)?;
            }
        }
        // What was there is written over, all of it.
        all.resize(if takes { sizes.iter().sum() } else { 0 }, 0.0);
        let (mut here, mut there) = (Vec::new(), Vec::new());
        if takes {
            let mut rest = &mut all[..];
            for (from, &size) in sizes.iter().enumerate() {
                let (place, after) = rest.split_at_mut(size);
                rest = after;
                match from {
                    from if from == index => place.copy_from_slice(own),
                    from if is_near(from) => here.push(Take { from, place, done: 0 }),
                    from => there.push((from, place)),
                }
            }
        }
        if let Some(memory) = memory {
            memory.exchange(&epoch, number, (own, &near), &mut here)?;
        }
        let met = !near.is_empty() || !here.is_empty();
        for (from, place) in there {
            take(&epoch, from, number, place)?;
        }
        let counters = &self.group.0.counters;
        let bytes = |values: usize| 4 * values as u64;
        counters.exchanges.fetch_add(1, Ordering::Relaxed);
        counters.in_memory.fetch_add(u64::from(met), Ordering::Relaxed);
        let given = own.len() * (near.len() + far.len());
        counters.given_bytes.fetch_add(bytes(given), Ordering::Relaxed);
        let taken = all.len() - if takes { own.len() } else { 0 };
        counters.taken_bytes.fetch_add(bytes(taken), Ordering::Relaxed);
        Ok(())
    }
}

/// One member's values of an exchange, into their place.
fn take(epoch: &Epoch, member: usize, number: u64, place: &mut [f32]) -> Result<(), ExchangeError> {
    let link = epoch.link(member)?;
    let mut at = 0;
    loop {
        let item = link.next(epoch, Some(epoch.stalled()))?;
        let Item::Piece { kind, more, number: found, payload } = item else {
            return Err(epoch.fail(member, "its link has ended".into()));
        };
        if (kind, found) != (Kind::Part, number) {
            let reason = format!("OutOfTurn: expected part {number} of it, found {kind:?} {found}");
            return Err(epoch.fail(member, reason));
        }
        let (values, rest) = payload.as_chunks::<4>();
        let end = at + values.len();
        let is_whole = end == place.len();
        if !rest.is_empty() || end > place.len() || more == is_whole {
            let (expected, found) = (place.len(), end);
            let reason = format!(
                "OtherRows: exchange {number}: expected {expected} values of it, found {found}"
            );
            return Err(epoch.fail(member, reason));
        }
        for (place, &value) in place[at..end].iter_mut().zip(values) {
            *place = f32::from_le_bytes(value);
        }
        if is_whole {
            return Ok(());
        }
        at = end;
    }
}
