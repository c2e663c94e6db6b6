//! From connected links to an agreed, warm ring: describe, agree, ready, each once round the ring.
//!
//! Every rank forwards what came before its own, so rank 0 hears all ranks in order and its own
//! message last of all hops; what comes back proves that the ring is closed.

use std::time::Duration;

use arith::base::Rank;
use stage::Engine;
use wire::control::{Agree, Describe, Fields, Message, Ready, Shapes};
use wire::frame::Frame;
use wire::ring_check::{self, Expected};

use crate::error::RingError;
use crate::inbox;
use crate::link::Neighbours;

/// Bounds of a boot.
#[derive(Clone, Copy, Debug)]
pub struct BootTimes {
    /// For all ranks to describe themselves.
    pub describe: Duration,
    /// For a rank to allocate and warm up, one after another.
    pub ready: Duration,
}

impl Default for BootTimes {
    fn default() -> Self {
        Self { describe: Duration::from_secs(30), ready: Duration::from_secs(300) }
    }
}

/// What rank 0 expects of the others and asks of them.
pub struct Terms<'a> {
    /// What the ranks' descriptions are held against.
    pub expected: Expected<'a>,
    /// Rank 0's wishes; the ring agrees on the minimum over ranks.
    pub shapes: Shapes,
    /// Rounds in flight.
    pub depth: u32,
    /// Deadlines.
    pub times: BootTimes,
}

/// A rank's own message round the ring.
fn send(links: &Neighbours, message: &Message) -> Result<(), RingError> {
    let payload = message.encode()?;
    send_payload(links, payload)
}

fn send_payload(links: &Neighbours, payload: Vec<u8>) -> Result<(), RingError> {
    Ok(links.outbound.send(Frame::control(payload))?)
}

fn decode(from: Rank, payload: &[u8]) -> Result<Message, RingError> {
    Message::decode(payload).map_err(|error| RingError::Wire { from, error })
}

fn out_of_turn(what: &str, rank: Rank, found: &Message) -> RingError {
    RingError::OutOfTurn { expected: format!("{what} of rank {rank}"), found: found.name().into() }
}

/// Rank 0's boot: hears every rank, checks them against each other and against the terms, agrees
/// on shapes, prepares its own stage and waits until all are ready.
///
/// # Errors
/// The first refusal, by name and rank; a rank that keeps silent is `BootTimeout`.
pub fn lead(
    links: &Neighbours,
    own: &Describe,
    terms: &Terms<'_>,
    engine: &mut dyn Engine,
) -> Result<Agree, RingError> {
    let world = own.world;
    send(links, &Message::Describe(own.clone()))?;
    let mut ranks = Vec::with_capacity(world as usize);
    for rank in (0..world).map(Rank) {
        let payload = inbox::control(&links.inbound, rank, "description", terms.times.describe)?;
        match decode(rank, &payload)? {
            Message::Describe(d) => ranks.push(d),
            other => return Err(out_of_turn("description", rank, &other)),
        }
    }
    ring_check::check_ring(&ranks, &terms.expected)?;
    let agree = Agree::of(&ranks, terms.shapes, terms.depth, Fields::new())?;
    send(links, &Message::Agree(agree.clone()))?;
    prepare(links, engine, Rank(0), &agree)?;
    let payload = inbox::control(&links.inbound, Rank(world - 1), "agreement", terms.times.ready)?;
    match decode(Rank(world - 1), &payload)? {
        Message::Agree(echo) if echo == agree => {}
        other => return Err(out_of_turn("agreement", Rank(0), &other)),
    }
    send(links, &Message::Ready(Ready { rank: Rank(0) }))?;
    for rank in (0..world).map(Rank) {
        let payload = inbox::control(&links.inbound, rank, "readiness", terms.times.ready)?;
        match decode(rank, &payload)? {
            Message::Ready(ready) if ready.rank == rank => {}
            other => return Err(out_of_turn("readiness", rank, &other)),
        }
    }
    Ok(agree)
}

/// Every other rank's boot.
///
/// # Errors
/// As [`lead`]'s, seen from here.
pub fn follow(
    links: &Neighbours,
    own: &Describe,
    times: &BootTimes,
    engine: &mut dyn Engine,
) -> Result<Agree, RingError> {
    let rank = own.rank;
    for before in (0..rank.0).map(Rank) {
        let payload = inbox::control(&links.inbound, before, "description", times.describe)?;
        match decode(before, &payload)? {
            Message::Describe(_) => send_payload(links, payload)?,
            other => return Err(out_of_turn("description", before, &other)),
        }
    }
    send(links, &Message::Describe(own.clone()))?;
    let payload = inbox::control(&links.inbound, Rank(0), "agreement", times.describe)?;
    let agree = match decode(Rank(0), &payload)? {
        Message::Agree(agree) => agree,
        other => return Err(out_of_turn("agreement", Rank(0), &other)),
    };
    send_payload(links, payload)?;
    prepare(links, engine, rank, &agree)?;
    for before in (0..rank.0).map(Rank) {
        let payload = inbox::control(&links.inbound, before, "readiness", times.ready)?;
        match decode(before, &payload)? {
            Message::Ready(_) => send_payload(links, payload)?,
            other => return Err(out_of_turn("readiness", before, &other)),
        }
    }
    send(links, &Message::Ready(Ready { rank }))?;
    Ok(agree)
}

/// Allocates for the agreed shapes, and lets the link take rows of that size: both before this
/// rank says that it is ready.
fn prepare(
    links: &Neighbours,
    engine: &mut dyn Engine,
    rank: Rank,
    agree: &Agree,
) -> Result<(), RingError> {
    links.set_rows_bytes_max(agree.shapes.round_rows_max as usize * engine.hidden() * 4);
    engine.reset();
    engine.prepare(&agree.shapes).map_err(|error| RingError::Stage { rank, error })
}
