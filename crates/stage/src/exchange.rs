//! What the members of a group give each other inside a layer: bytes, never sums.
//!
//! A **group** is a number of members that each hold a share of every layer of one stage. All of
//! them are called alike, plan by plan, and meet in [`Exchange::gather`] at the same places in the
//! same order; the sizes follow from the model and the rows, so that nothing says them on the way.

use std::fmt;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::time::Duration;

/// Most members of a group.
pub const MEMBERS_MAX: usize = 8;
/// How long a member of [`local`] waits for the next one's values.
const SILENCE_MS_MAX: u64 = 60_000;
/// Pieces of one member that another has not taken yet, at most: it can only be one gather ahead.
const AHEAD_MAX: usize = 2;

/// Which member of how many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Member {
    /// 0 is the group's leader.
    pub index: usize,
    /// Members of the group.
    pub count: usize,
}

impl fmt::Display for Member {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "member {} of {}", self.index, self.count)
    }
}

/// A member that is gone, silent or out of step.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("member {member}: {reason}")]
pub struct ExchangeError {
    /// Which one.
    pub member: usize,
    /// What happened to it.
    pub reason: String,
}

/// What the members of a group give each other inside a layer. Moves bytes; never reduces.
pub trait Exchange: Send {
    /// Which member this is.
    fn member(&self) -> Member;
    /// Every member's values, joined in member order: `sizes[i]` values come from member `i`, and
    /// `own` are ours. Blocks until all are there.
    ///
    /// # Errors
    /// A member that is gone, that says nothing for too long, or whose values are of another size.
    fn gather(
        &mut self,
        own: &[f32],
        sizes: &[usize],
        all: &mut Vec<f32>,
    ) -> Result<(), ExchangeError>;
    /// The same on member 0 alone: the others give their values and have none.
    ///
    /// # Errors
    /// As [`Exchange::gather`].
    fn collect(
        &mut self,
        own: &[f32],
        sizes: &[usize],
        all: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        self.gather(own, sizes, all)?;
        if self.member().index > 0 {
            all.clear();
        }
        Ok(())
    }
    /// Whether the members' devices have met, and give each other rows by themselves
    /// ([`backend::Backend::give`]); all members have the same answer.
    ///
    /// # Errors
    /// As [`Exchange::gather`].
    fn is_direct(&mut self) -> Result<bool, ExchangeError> {
        Ok(false)
    }
    /// Devices were asked to give `given` values to the other members and to take `taken` of
    /// theirs.
    ///
    /// # Errors
    /// A member that is gone.
    fn passed(&mut self, given: usize, taken: usize) -> Result<(), ExchangeError> {
        let _ = (given, taken);
        Ok(())
    }
    /// What was computed of all that devices gave each other has come to the host: whether it is
    /// to be believed.
    ///
    /// # Errors
    /// A member that was lost, or that gave nothing for too long.
    fn settled(&mut self) -> Result<(), ExchangeError> {
        Ok(())
    }
}

/// A group of one: whoever holds whole layers.
#[derive(Clone, Copy, Debug, Default)]
pub struct Alone;

impl Exchange for Alone {
    fn member(&self) -> Member {
        Member { index: 0, count: 1 }
    }

    fn gather(
        &mut self,
        own: &[f32],
        sizes: &[usize],
        all: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        assert_eq!([own.len()], sizes, "a group of one has its own values");
        all.clear();
        all.extend_from_slice(own);
        Ok(())
    }
}

/// A member among threads of one process.
#[derive(Debug)]
pub struct Local {
    member: Member,
    /// To and from each member; none of this one's own.
    peers: Vec<Option<Peer>>,
}

#[derive(Debug)]
struct Peer {
    to: SyncSender<Vec<f32>>,
    from: Receiver<Vec<f32>>,
}

/// The members of a group of threads, 1 to [`MEMBERS_MAX`]. One that is dropped is lost to the
/// others at once.
pub fn local(count: usize) -> Vec<Local> {
    assert!((1..=MEMBERS_MAX).contains(&count), "a group of {count}");
    let member = |index| Member { index, count };
    let none = |index| Local { member: member(index), peers: (0..count).map(|_| None).collect() };
    let mut members: Vec<Local> = (0..count).map(none).collect();
    for first in 0..count {
        for second in first + 1..count {
            let (to_second, from_first) = sync_channel(AHEAD_MAX);
            let (to_first, from_second) = sync_channel(AHEAD_MAX);
            members[first].peers[second] = Some(Peer { to: to_second, from: from_second });
            members[second].peers[first] = Some(Peer { to: to_first, from: from_first });
        }
    }
    members
}

impl Local {
    fn take_all(
        &mut self,
        own: &[f32],
        sizes: &[usize],
        all: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        all.clear();
        for (member, peer) in self.peers.iter().enumerate() {
            let Some(peer) = peer else {
                all.extend_from_slice(own);
                continue;
            };
            let wait = Duration::from_millis(SILENCE_MS_MAX);
            let values = peer.from.recv_timeout(wait).map_err(|error| match error {
                RecvTimeoutError::Disconnected => ended(member),
                RecvTimeoutError::Timeout => {
                    lost(member, format!("no values for {SILENCE_MS_MAX} ms"))
                }
            })?;
            if values.len() != sizes[member] {
                let (expected, found) = (sizes[member], values.len());
                return Err(lost(member, format!("expected {expected} values, found {found}")));
            }
            all.extend_from_slice(&values);
        }
        Ok(())
    }
}

fn lost(member: usize, reason: String) -> ExchangeError {
    ExchangeError { member, reason }
}

fn ended(member: usize) -> ExchangeError {
    lost(member, "its thread has ended".into())
}

impl Exchange for Local {
    fn member(&self) -> Member {
        self.member
    }

    fn gather(
        &mut self,
        own: &[f32],
        sizes: &[usize],
        all: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        let Member { index, count } = self.member;
        assert!(sizes.len() == count && sizes[index] == own.len(), "a size a member");
        for (member, peer) in self.peers.iter().enumerate() {
            let Some(peer) = peer else { continue };
            peer.to.try_send(own.to_vec()).map_err(|error| match error {
                TrySendError::Disconnected(_) => ended(member),
                TrySendError::Full(_) => lost(member, "it takes no values".into()),
            })?;
        }
        self.take_all(own, sizes, all)
    }

    fn collect(
        &mut self,
        own: &[f32],
        sizes: &[usize],
        all: &mut Vec<f32>,
    ) -> Result<(), ExchangeError> {
        let Member { index, count } = self.member;
        assert!(sizes.len() == count && sizes[index] == own.len(), "a size a member");
        if index == 0 {
            return self.take_all(own, sizes, all);
        }
        all.clear();
        let Some(first) = &self.peers[0] else { return Ok(()) };
        // Waits where the first is behind; it ends with its thread.
        first.to.send(own.to_vec()).map_err(|_| ended(0))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn every_member_has_all_values_in_member_order() {
        let (sizes, expected) = ([1, 0, 3], [0.0, 2.0, 2.0, 2.0]);
        let each = |mut member: Local| {
            move || {
                let index = member.member().index;
                let own = vec![index as f32; sizes[index]];
                (0..50).for_each(|_| {
                    let mut all = vec![9.0; 7];
                    member.gather(&own, &sizes, &mut all).unwrap();
                    assert_eq!(all, expected);
                });
            }
        };
        let threads = local(3).into_iter().map(|member| std::thread::spawn(each(member)));
        threads.collect::<Vec<_>>().into_iter().for_each(|thread| thread.join().unwrap());
        let mut all = Vec::new();
        Alone.gather(&[4.0], &[1], &mut all).unwrap();
        assert_eq!(all, [4.0]);
    }

    #[test]
    fn a_member_that_is_gone_or_out_of_step_is_named() {
        let mut members = local(3);
        drop(members.pop());
        let error = members[0].gather(&[1.0], &[1, 1, 1], &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "member 2: its thread has ended");
        let mut members = local(2);
        let mut second = members.pop().unwrap();
        let mut first = members.pop().unwrap();
        let thread = std::thread::spawn(move || {
            second.gather(&[1.0, 2.0], &[1, 2], &mut Vec::new()).map(|()| second)
        });
        let error = first.gather(&[1.0], &[1, 1], &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "member 1: expected 1 values, found 2");
        let mut second = thread.join().unwrap().unwrap();
        // A member that takes nothing is not let fall behind for ever.
        let to_first = &second.peers[0].as_ref().unwrap().to;
        (0..AHEAD_MAX).for_each(|_| to_first.try_send(Vec::new()).unwrap());
        let error = second.gather(&[], &[0, 0], &mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "member 0: it takes no values");
    }
}
