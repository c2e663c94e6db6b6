//! What the members of a group give each other by NCCL, on a stream beside the card's own.
//!
//! Few values come again and again, a row's in each layer, and asking the library anew takes longer
//! than they do. So their exchange is recorded the second time that as many go from the same place,
//! and launched as a graph from then on. NCCL wants all ends of an exchange to record it, or none:
//! so that depends on nothing but the exchanges before, which all members have alike, and values
//! are given from a place of the exchange's own.

use std::collections::HashMap;
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::CudaError;
use crate::communicator::{Communicator, Move, failed, look};
use crate::device::{Buffer, Device, Exec, Side};
use crate::meet::{FEW_VALUES, PLACES, many_values};

/// Most exchanges that are remembered; later ones are asked for anew.
const EXCHANGES_MAX: usize = 128;

/// How long a card may take to end what it waits for once the communicator is aborted; one that
/// takes longer has failed.
const END_MS_MAX: u64 = 10_000;

/// Why exchanges can't be recorded, once that turned out.
pub(crate) type Unrecorded = Arc<OnceLock<String>>;

/// One member's end.
pub(crate) struct Carried {
    communicator: Arc<Communicator>,
    side: Arc<Side>,
    index: usize,
    /// Where values come, of each other member.
    places: Vec<Buffer>,
    /// Where few are given from.
    own: Buffer,
    exchanges: Exchanges<Exec>,
    unrecorded: Unrecorded,
    /// Until the end.
    aborts: Option<Aborts>,
}

/// A thread that aborts the communicator once it is told to, since an abort returns no sooner than
/// what was recorded is forgotten. It is there from the beginning: an end may not lack it.
struct Aborts {
    /// Dropped to tell it.
    untold: Sender<()>,
    thread: JoinHandle<()>,
}

impl Aborts {
    fn start(abort: impl FnOnce() + Send + 'static) -> std::io::Result<Self> {
        let (untold, told) = channel::<()>();
        let thread = std::thread::Builder::new().name("baton-abort".into());
        let thread = thread.spawn(move || {
            let _ = told.recv();
            abort();
        })?;
        Ok(Self { untold, thread })
    }

    /// Has it abort, then waits up to `ms_max` until the card `is_done`.
    fn tell(
        self,
        is_done: impl Fn() -> Result<bool, CudaError>,
        ms_max: u64,
    ) -> Result<JoinHandle<()>, CudaError> {
        drop(self.untold);
        let start = Instant::now();
        let late = || start.elapsed() > Duration::from_millis(ms_max);
        match look(&late, is_done)? {
            true => Ok(self.thread),
            false => {
                let words = format!("the card still waits for others after {ms_max} ms");
                Err(failed("ncclCommAbort", words))
            }
        }
    }
}

/// Which exchanges came before: how many values of each member, and from which place.
struct Exchanges<G>(HashMap<(Vec<usize>, usize), Option<G>>);

/// How an exchange is asked for.
enum Ask<'a, G> {
    Anew,
    Record(&'a mut Option<G>),
    Replay(&'a G),
}

impl<G> Exchanges<G> {
    fn ask(&mut self, values: &[usize], place: usize) -> Ask<'_, G> {
        let key = (values.to_vec(), place);
        if !self.0.contains_key(&key) {
            if self.0.len() < EXCHANGES_MAX {
                self.0.insert(key, None);
            }
            return Ask::Anew;
        }
        match self.0.get_mut(&key) {
            Some(Some(graph)) => Ask::Replay(graph),
            Some(none) => Ask::Record(none),
            None => Ask::Anew,
        }
    }
}

impl Carried {
    /// Member `index` of `members`, of which the others are found.
    pub(crate) fn new(
        device: &Arc<Device>,
        (communicator, side): (Arc<Communicator>, Arc<Side>),
        (index, members): (usize, usize),
        unrecorded: Unrecorded,
    ) -> Result<Self, CudaError> {
        let memory = |error: backend::BackendError| CudaError::Memory { words: error.to_string() };
        let place = |member| {
            let values = if member == index { 0 } else { PLACES * many_values(members) };
            Buffer::new(device, "what other members give", 4 * values as u128).map_err(memory)
        };
        let bytes = 4 * PLACES * FEW_VALUES;
        let aborted = communicator.clone();
        let aborts = Aborts::start(move || aborted.abort());
        let aborts = aborts.map_err(|error| CudaError::Memory { words: error.to_string() })?;
        Ok(Self {
            communicator,
            side,
            index,
            places: (0..members).map(place).collect::<Result<_, _>>()?,
            own: Buffer::new(device, "what is given", bytes as u128).map_err(memory)?,
            exchanges: Exchanges(HashMap::new()),
            unrecorded,
            aborts: Some(aborts),
        })
    }

    /// Where the values of a member come in exchange `number`.
    pub(crate) fn place(&self, member: usize, number: u32) -> u64 {
        let place = number as usize % PLACES;
        self.places[member].at() + 4 * (place * many_values(self.places.len())) as u64
    }

    /// Gives the values at `own` to all others, and has theirs come; `values` are those of each
    /// member.
    pub(crate) fn give(
        &mut self,
        own: u64,
        number: u32,
        values: &[usize],
    ) -> Result<(), CudaError> {
        if values.iter().any(|values| *values > FEW_VALUES) {
            return self.communicator.pass(&self.moves(own, number, values), &|| false);
        }
        let place = number as usize % PLACES;
        let at = self.own.at() + 4 * (place * FEW_VALUES) as u64;
        self.side.give(at, own, 4 * values[self.index])?;
        let moves = self.moves(at, number, values);
        let pass = || self.communicator.pass(&moves, &|| false);
        match self.exchanges.ask(values, place) {
            Ask::Anew => pass(),
            Ask::Record(graph) => {
                let made = self.side.recorded(pass).inspect_err(|error| {
                    // One that was given up on says nothing of the library.
                    if !self.communicator.is_over() {
                        let _ = self.unrecorded.set(error.to_string());
                    }
                })?;
                self.side.replay(graph.insert(made))
            }
            Ask::Replay(graph) => self.side.replay(graph),
        }
    }

    fn moves(&self, own: u64, number: u32, values: &[usize]) -> Vec<Move> {
        let others = (0..values.len()).filter(|peer| *peer != self.index);
        let pair = |peer| {
            let given = Move { peer, comes: false, at: own, values: values[self.index] };
            let at = self.place(peer, number);
            [given, Move { peer, comes: true, at, values: values[peer] }]
        };
        others.flat_map(pair).collect()
    }

    /// Ends what others are waited for, and forgets what was recorded: while that lives the library
    /// does not let go of the communicator. A card that does not come to an end has failed, and
    /// what it runs stays.
    pub(crate) fn end(&mut self) {
        let Some(aborts) = self.aborts.take() else { return };
        let ended = self.side.event().and_then(|last| {
            self.side.pass(&last);
            aborts.tell(|| last.is_done(), END_MS_MAX)
        });
        match ended {
            Ok(aborting) => {
                for graph in std::mem::take(&mut self.exchanges.0).into_values().flatten() {
                    self.side.forget(graph);
                }
                let _ = aborting.join();
            }
            Err(error) => self.side.fail(&error),
        }
    }
}

impl Drop for Carried {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn word(exchanges: &mut Exchanges<u32>, values: &[usize], place: usize) -> &'static str {
        match exchanges.ask(values, place) {
            Ask::Anew => "anew",
            Ask::Record(graph) => {
                *graph = Some(7);
                "record"
            }
            Ask::Replay(_) => "replay",
        }
    }

    #[test]
    fn a_card_that_an_abort_does_not_end_is_waited_for_up_to_a_limit() {
        let (aborted, is_aborted) = channel();
        let start = |aborted: Sender<()>| Aborts::start(move || aborted.send(()).unwrap()).unwrap();
        let aborting = start(aborted.clone()).tell(|| Ok(is_aborted.try_recv().is_ok()), 10_000);
        aborting.unwrap().join().unwrap();
        let since = Instant::now();
        let error = start(aborted).tell(|| Ok(false), 30).unwrap_err().to_string();
        assert!(since.elapsed() >= Duration::from_millis(30));
        assert_eq!(error, "NCCL: ncclCommAbort: the card still waits for others after 30 ms");
        is_aborted.recv_timeout(Duration::from_secs(10)).unwrap();
    }

    #[test]
    fn what_is_recorded_depends_on_the_exchanges_before_alone() {
        let mut exchanges = Exchanges(HashMap::new());
        let mut words = |values: &[usize], place| word(&mut exchanges, values, place);
        assert_eq!([(); 4].map(|()| words(&[5, 5], 0)), ["anew", "record", "replay", "replay"]);
        assert_eq!(
            [words(&[5, 5], 1), words(&[5, 4], 0), words(&[5, 5], 0)],
            ["anew", "anew", "replay"]
        );
        assert_eq!([words(&[5, 5], 1), words(&[5, 4], 0)], ["record"; 2]);
        // Those past the limit are asked for anew, again and again.
        (0..EXCHANGES_MAX).for_each(|at| assert_eq!(words(&[at + 9], 0), "anew"));
        assert_eq!([(); 2].map(|()| words(&[EXCHANGES_MAX + 8], 0)), ["anew"; 2]);
        assert_eq!([(); 2].map(|()| words(&[9], 0)), ["record", "replay"]);
    }
}
