//! The giving end of a link.

use weights::Digest;

use crate::message::{self, Ask, Kind};
use crate::shelf::Found;
use crate::{Link, Progress, Shelf, StoreError};

/// How a link ended in order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// The taker has what it wanted; to a giver that offered it says so.
    Well(String),
    /// It gave up.
    Badly(String),
}

/// Answers the other end of `link` from `shelf` until it leaves.
///
/// # Errors
/// [`StoreError::Link`] when it left without a word, which is as good for one that pulls;
/// [`StoreError::Message`].
pub fn serve(link: &mut Link, shelf: &Shelf, progress: &Progress) -> Result<(), StoreError> {
    let mut payload = Vec::new();
    let kind = link.receive(&mut payload)?;
    give(link, shelf, progress, (kind, payload)).map(drop)
}

/// The same, from a message that was received already.
pub(crate) fn give(
    link: &mut Link,
    shelf: &Shelf,
    progress: &Progress,
    first: (Kind, Vec<u8>),
) -> Result<Ended, StoreError> {
    let (mut kind, mut payload) = first;
    // The unit of the chunk before, which is mostly that of the next.
    let mut at_hand: Option<(Digest, Found)> = None;
    let mut chunk = Vec::new();
    loop {
        match kind {
            Kind::AskCatalog => {
                let id = payload.as_slice().try_into().unwrap_or_default();
                let text = shelf.catalog(&id).map(|catalog| catalog.to_json());
                link.send(Kind::Catalog, text.unwrap_or_default().as_bytes())?;
            }
            Kind::Query => {
                let units = payload.as_chunks::<32>().0.iter();
                let holds: Vec<u8> = units.map(|unit| u8::from(shelf.has(unit))).collect();
                link.send(Kind::Holds, &holds)?;
            }
            Kind::Ask => {
                let ask = Ask::decode(&payload)
                    .ok_or_else(|| link.odd("ask", "1 byte to 1 MiB", "another"))?;
                if at_hand.as_ref().is_none_or(|(unit, _)| *unit != ask.unit) {
                    at_hand = shelf.find(&ask.unit).map(|found| (ask.unit, found));
                }
                chunk.resize(ask.bytes as usize, 0);
                let read = at_hand.as_ref().map(|(_, found)| found.read(ask.at, &mut chunk));
                match read {
                    Some(Ok(())) => {
                        link.send(Kind::Chunk, &chunk)?;
                        progress.add_moved(u64::from(ask.bytes));
                    }
                    Some(Err(error)) => {
                        tracing::warn!("can't give a unit to {}: {error}", link.peer());
                        at_hand = None;
                        link.send(Kind::Lacks, &[])?;
                    }
                    None => link.send(Kind::Lacks, &[])?,
                }
            }
            Kind::Total => {
                let (all, missing) = message::decode_total(&payload).unwrap_or_default();
                progress.set_total(all, missing);
            }
            Kind::Done => {
                let went = message::decode_done(&payload)
                    .ok_or_else(|| link.odd("done", "0 or 1, then UTF-8", "another"))?;
                return Ok(match went {
                    Ok(text) => Ended::Well(text),
                    Err(text) => Ended::Badly(text),
                });
            }
            Kind::Offer | Kind::Catalog | Kind::Holds | Kind::Chunk | Kind::Lacks => {
                return Err(link.odd("message", "one of a taker", format!("{kind:?}")));
            }
        }
        kind = link.receive(&mut payload)?;
    }
}
