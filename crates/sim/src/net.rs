//! Links that are made up: `wire`'s bytes, one frame after another, with times and faults.
//!
//! An [`End`] is what a rank's I/O side has of an epoch, as `ring::tcp` has it: an inbox, the link
//! from the rank before and the link to the rank after. A [`Conn`] is a connection between the ends
//! of two ranks. Stops and cancels overtake what waits to be sent, and are passed on by
//! [`ring::link::relay`].

use std::collections::VecDeque;

use arith::base::{Epoch, Rank};
use ring::link::relay::{Place, Relay};
use ring::link::{INBOUND_FRAMES_MAX, Inbound, LinkError};
use wire::frame::{Frame, Reader, Writer};

use crate::plant::Plant;
use crate::setting::{MS, S, US};
use crate::world::{Broken, Happening, World};

/// A rank's links of one epoch.
pub struct End {
    pub rank: usize,
    pub epoch: Epoch,
    pub inbox: VecDeque<Inbound>,
    pub from: Option<usize>,
    pub to: Option<usize>,
    pub phase: Phase,
    pub failure: Option<LinkError>,
    /// The compute side has it.
    pub taken: bool,
}

/// How far an end is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Phase {
    Open,
    /// What is queued is still sent.
    Closing,
    Over,
}

/// A connection to a rank's end from that of the rank before.
pub struct Conn {
    pub sender: usize,
    pub receiver: usize,
    /// The rank that it leads to.
    pub rank: usize,
    queue: VecDeque<Frame>,
    is_sending: bool,
    /// Nothing arrives before this.
    pub free_at: u64,
    reader: Reader,
    /// What is sent does not arrive.
    pub loses: bool,
    /// Nobody is told that it closes.
    pub is_mute: bool,
    /// What is on its way comes no earlier.
    pub late_until: u64,
}

impl World {
    /// Starts a rank's epoch; the one before is over.
    pub fn begin(&mut self, rank: usize, epoch: Epoch, over: LinkError) {
        if let Some(old) = self.nodes[rank].active {
            self.fail(old, over);
        }
        self.nodes[rank].last = epoch;
        self.ends.push(End {
            rank,
            epoch,
            inbox: VecDeque::new(),
            from: None,
            to: None,
            phase: Phase::Open,
            failure: None,
            taken: false,
        });
        let end = self.ends.len() - 1;
        self.nodes[rank].active = Some(end);
        if self.nodes.len() == 1 {
            return self.connect(end, end, rank);
        }
        let away = 2 * self.flight((rank + 1) % self.nodes.len());
        self.after(away, Happening::Reach(end));
    }

    fn connect(&mut self, sender: usize, receiver: usize, rank: usize) {
        let mut reader = Reader::new();
        reader.set_rows_bytes_max(0);
        self.conns.push(Conn {
            sender,
            receiver,
            rank,
            queue: VecDeque::new(),
            is_sending: false,
            free_at: self.now,
            reader,
            loses: false,
            is_mute: false,
            late_until: 0,
        });
        let conn = self.conns.len() - 1;
        self.ends[sender].to = Some(conn);
        self.ends[receiver].from = Some(conn);
    }

    /// An end looks for the rank after.
    pub fn reach(&mut self, end: usize) {
        let (from, epoch) = (self.ends[end].rank, self.ends[end].epoch);
        if self.ends[end].phase != Phase::Open || self.nodes[from].active != Some(end) {
            return;
        }
        let rank = (from + 1) % self.nodes.len();
        if !self.nodes[rank].is_alive || self.blocked[rank] > self.now {
            let pause = self.rng.within(20 * MS, 500 * MS);
            return self.after(pause, Happening::Reach(end));
        }
        let previous = Rank(from as u32);
        if rank > 0 && self.nodes[rank].last != epoch {
            self.begin(rank, epoch, LinkError::Replaced { rank: previous, epoch });
        }
        let active = self.nodes[rank].active;
        let fits = |e: &usize| {
            let e = &self.ends[*e];
            e.epoch == epoch && e.from.is_none() && e.phase == Phase::Open
        };
        let Some(receiver) = active.filter(fits) else {
            let reason = "refused".into();
            return self.fail(end, LinkError::LinkClosed { rank: Rank(rank as u32), reason });
        };
        self.connect(end, receiver, rank);
        if rank > 0 {
            let node = &self.nodes[rank];
            self.after(10 * S, Happening::GiveUp(rank, node.life, receiver));
        }
        self.hand_over(rank);
        self.hand_over(from);
    }

    /// Nobody has taken an end for too long.
    pub fn give_up(&mut self, rank: usize, end: usize) {
        if self.ends[end].taken || self.ends[end].phase != Phase::Open || !self.is_joining(rank) {
            return;
        }
        let rank = Rank(((rank + 1) % self.nodes.len()) as u32);
        self.fail(end, LinkError::NoNeighbour { rank, waited_ms: 10_000 });
    }

    /// Hands an end's links over once both stand and somebody waits.
    pub fn hand_over(&mut self, rank: usize) {
        let Some(end) = self.nodes[rank].active else { return };
        let links = &mut self.ends[end];
        if links.taken || links.phase != Phase::Open || links.from.is_none() || links.to.is_none() {
            return;
        }
        if self.is_joining(rank) {
            self.ends[end].taken = true;
            self.nodes[rank].held = Some(end);
            self.joined(rank);
        }
    }

    /// What the link to a rank takes now.
    pub fn flight(&mut self, rank: usize) -> u64 {
        let hop = self.setting.hops[rank];
        hop.delay + self.rng.below(hop.jitter + 1)
    }

    /// Queues a frame for the rank after.
    pub fn send(&mut self, end: usize, frame: Frame) -> Result<(), LinkError> {
        let links = &self.ends[end];
        if links.phase != Phase::Open {
            return Err(links.failure.clone().unwrap_or(LinkError::Closed));
        }
        if let Some(conn) = links.to {
            Writer::new(frame.clone())?;
            self.queue(conn, frame);
        }
        Ok(())
    }

    fn queue(&mut self, conn: usize, frame: Frame) {
        let queue = &mut self.conns[conn].queue;
        let behind = |waits: &Frame| !waits.kind.overtakes();
        match queue.iter().position(behind).filter(|_| frame.kind.overtakes()) {
            Some(at) => queue.insert(at, frame),
            None => queue.push_back(frame),
        }
        self.write(conn);
    }

    /// Sends what is next.
    pub fn write(&mut self, conn: usize) {
        let link = &mut self.conns[conn];
        if link.is_sending {
            return;
        }
        let Some(frame) = link.queue.pop_front() else {
            let sender = link.sender;
            if self.ends[sender].phase == Phase::Closing {
                self.end(sender);
            }
            return;
        };
        link.is_sending = true;
        let rank = link.rank;
        let bytes = Writer::new(frame).expect("checked when it was queued").into_bytes();
        let takes = bytes.len() as u64 * self.setting.hops[rank].byte;
        self.after(takes, Happening::Written(conn));
        let away = takes + self.flight(rank);
        let at = (self.now + away).max(self.conns[conn].free_at + 1);
        self.conns[conn].free_at = at;
        self.at(at, Happening::Arrive(conn, bytes));
    }

    /// A frame has left its sender.
    pub fn written(&mut self, conn: usize) {
        self.conns[conn].is_sending = false;
        self.write(conn);
    }

    /// Bytes have come.
    pub fn arrive(&mut self, conn: usize, bytes: Vec<u8>) -> Result<(), Broken> {
        let link = &mut self.conns[conn];
        if link.loses {
            return Ok(());
        }
        if link.late_until > self.now {
            link.free_at = link.free_at.max(link.late_until) + 1;
            let at = link.free_at;
            self.at(at, Happening::Arrive(conn, bytes));
            return Ok(());
        }
        let mut end = self.conns[conn].receiver;
        if self.ends[end].phase != Phase::Open {
            let rank = self.ends[end].rank;
            let newer = self.nodes[rank].active.filter(|e| self.ends[*e].epoch != Epoch(0));
            let Some(newer) = newer.filter(|_| self.has_plant(Plant::LateFrame, rank)) else {
                self.late += 1;
                return Ok(());
            };
            end = newer;
        }
        let mut frames = Vec::new();
        let rank = self.ends[end].rank;
        let rows = self.nodes[rank].rows_bytes_max;
        self.conns[conn].reader.set_rows_bytes_max(rows);
        let read = self.conns[conn].reader.push(&bytes, &mut frames);
        for frame in frames {
            self.received(end, frame)?;
        }
        if let Err(error) = read {
            self.fail(end, error.into());
        }
        Ok(())
    }

    fn received(&mut self, end: usize, frame: Frame) -> Result<(), Broken> {
        let (rank, world) = (Rank(self.ends[end].rank as u32), self.nodes.len() as u32);
        let place = Place { rank, world, epoch: self.ends[end].epoch };
        match place.relay(&frame) {
            Ok(Relay::Deliver { onward }) => {
                if onward && let Some(conn) = self.ends[end].to {
                    self.queue(conn, frame.clone());
                }
                self.trace.note(self.now, 7 + frame.kind as u64, || {
                    format!("rank {rank} gets {:?} of round {}", frame.kind, frame.round)
                });
                self.deliver(end, Inbound::Frame(frame))
            }
            Ok(Relay::Beat(_) | Relay::Tally { .. } | Relay::Drop) => Ok(()),
            Err(error) => {
                self.fail(end, error.into());
                Ok(())
            }
        }
    }

    /// Puts an item into an inbox and wakes whoever sleeps over it.
    pub fn deliver(&mut self, end: usize, item: Inbound) -> Result<(), Broken> {
        let inbox = &mut self.ends[end].inbox;
        if inbox.len() >= INBOUND_FRAMES_MAX {
            return Err(Broken(format!("rank {}: the inbox is full", self.ends[end].rank)));
        }
        inbox.push_back(item);
        self.wake(end);
        Ok(())
    }

    fn tell(&mut self, end: usize) {
        let failure = self.ends[end].failure.clone().unwrap_or(LinkError::Closed);
        self.ends[end].inbox.push_back(Inbound::Broken(failure));
        self.wake(end);
    }

    /// Ends an epoch's links for the reason given.
    pub fn fail(&mut self, end: usize, error: LinkError) {
        let was = self.ends[end].phase;
        if was == Phase::Over {
            return;
        }
        let rank = self.ends[end].rank;
        self.trace.note(self.now, 3, || format!("rank {rank}: its links end: {error}"));
        self.ends[end].failure.get_or_insert(error);
        self.end(end);
        if was == Phase::Open {
            self.tell(end);
        }
    }

    /// Closes an end's links once what is queued is sent.
    pub fn close(&mut self, end: usize) {
        if self.ends[end].phase != Phase::Open {
            return;
        }
        self.ends[end].failure.get_or_insert(LinkError::Closed);
        self.ends[end].phase = Phase::Closing;
        self.tell(end);
        match self.ends[end].to {
            Some(conn) => self.write(conn),
            None => self.end(end),
        }
    }

    fn end(&mut self, end: usize) {
        self.ends[end].phase = Phase::Over;
        let (rank, from, to) = (self.ends[end].rank, self.ends[end].from, self.ends[end].to);
        if self.nodes[rank].active == Some(end) {
            self.nodes[rank].active = None;
            if rank == 0 && !self.ends[end].taken {
                self.after(US, Happening::NotJoined(end));
            }
        }
        if let Some(conn) = to {
            self.conns[conn].queue.clear();
            let at = (self.now + self.flight(self.conns[conn].rank)).max(self.conns[conn].free_at);
            self.at(at + 1, Happening::Closed(conn, self.conns[conn].receiver));
        }
        if let Some(conn) = from {
            let away = self.flight(rank);
            self.after(away, Happening::Closed(conn, self.conns[conn].sender));
        }
    }

    /// The other side of a connection has closed it.
    pub fn closed(&mut self, conn: usize, end: usize) {
        if self.conns[conn].is_mute {
            return;
        }
        let link = &self.conns[conn];
        let other = if link.receiver == end { link.sender } else { link.receiver };
        let rank = Rank(self.ends[other].rank as u32);
        self.fail(end, LinkError::LinkClosed { rank, reason: "closed the link".into() });
    }

    /// The newest connection to a rank.
    pub fn conn_to(&self, rank: usize) -> Option<usize> {
        self.ends[self.nodes[rank].active?].from
    }
}
