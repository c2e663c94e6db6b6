//! A rank's end of a communicator, and what its streams have it carry.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI32, Ordering};
use std::time::Duration;

use super::meeting::{Meeting, NAME_BYTES};
use super::{Code, IN_PROGRESS, INVALID_ARGUMENT, INVALID_USAGE, failed};
use crate::driver::Job;

/// Looks that nobody sleeps between.
const LOOKS: u32 = 1_000;
const PAUSE: Duration = Duration::from_micros(50);

/// A rank's end.
pub struct Communicator {
    meeting: Meeting,
    rank: usize,
    ranks: usize,
    state: AtomicI32,
    is_aborted: AtomicBool,
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    Send,
    Receive,
}

/// Bytes that go to another rank, or come from it.
#[derive(Clone, Copy, Debug)]
pub struct Transfer {
    pub way: Way,
    pub at: usize,
    pub bytes: usize,
    pub peer: usize,
}

/// All that a stream carries at once.
pub struct Exchange {
    pub communicator: Arc<Communicator>,
    pub transfers: Vec<Transfer>,
}

/// Sleeps between looks, after the first ones.
fn pause(look: u32) {
    if look < LOOKS { std::thread::yield_now() } else { std::thread::sleep(PAUSE) }
}

impl Communicator {
    /// Comes to where the ranks meet, and waits for the others on a thread of its own.
    ///
    /// # Errors
    /// The system's.
    pub fn begin(
        id: &[u8; NAME_BYTES],
        ranks: usize,
        rank: usize,
        card: usize,
    ) -> std::io::Result<Arc<Self>> {
        let made = Arc::new(Self {
            meeting: Meeting::open(id, ranks)?,
            rank,
            ranks,
            state: AtomicI32::new(IN_PROGRESS),
            is_aborted: AtomicBool::new(false),
        });
        made.meeting.come(rank, card);
        let own = made.clone();
        std::thread::Builder::new().name("NCCL meets".to_owned()).spawn(move || own.meet())?;
        Ok(made)
    }

    fn meet(&self) {
        for look in 0_u32.. {
            if self.is_aborted() {
                return;
            }
            if self.meeting.is_full() {
                break;
            }
            pause(look);
        }
        let state = match self.meeting.is_apart() {
            true => 0,
            false => failed(INVALID_USAGE, 1),
        };
        self.state.store(state, Ordering::Release);
    }

    pub fn ranks(&self) -> usize {
        self.ranks
    }

    pub fn state(&self) -> Code {
        self.state.load(Ordering::Acquire)
    }

    /// The state once all have come.
    pub fn settled(&self) -> Code {
        let mut looks = 0..;
        while self.state() == IN_PROGRESS && !self.is_aborted() {
            pause(looks.next().unwrap_or(u32::MAX));
        }
        self.state()
    }

    fn is_aborted(&self) -> bool {
        self.is_aborted.load(Ordering::Acquire)
    }

    /// Ends what waits. The others are told nothing, as with NCCL.
    pub fn abort(&self) {
        self.is_aborted.store(true, Ordering::Release);
        self.meeting.forget();
    }
}

/// Bytes of how many follow.
const LENGTH_BYTES: usize = 8;

/// How far a transfer is.
struct Progress {
    transfer: Transfer,
    /// How many bytes are sent, or were by the other one.
    length: [u8; LENGTH_BYTES],
    length_done: usize,
    done: usize,
}

impl Progress {
    fn new(transfer: &Transfer) -> Self {
        let length = match transfer.way {
            Way::Send => (transfer.bytes as u64).to_le_bytes(),
            Way::Receive => [0; LENGTH_BYTES],
        };
        Self { transfer: *transfer, length, length_done: 0, done: 0 }
    }

    fn is_done(&self) -> bool {
        self.length_done == LENGTH_BYTES && self.done == self.transfer.bytes
    }

    /// Goes on as far as it can; whether it came further.
    ///
    /// # Errors
    /// Another length than the other rank's.
    fn go_on(&mut self, of: &Communicator) -> Result<bool, Code> {
        let Transfer { way, at, bytes, peer } = self.transfer;
        let carry = |data: usize, bytes: usize| {
            // SAFETY: bytes of this progress' length or of a buffer that was looked up when the
            // transfer was asked for; one exchange of a communicator runs at a time.
            unsafe {
                match way {
                    Way::Send => of.meeting.write((of.rank, peer), data, bytes),
                    Way::Receive => of.meeting.read((peer, of.rank), data, bytes),
                }
            }
        };
        let before = self.length_done + self.done;
        if self.length_done < LENGTH_BYTES {
            let rest = &mut self.length[self.length_done..];
            self.length_done += carry(rest.as_mut_ptr() as usize, rest.len());
            if self.length_done == LENGTH_BYTES && self.length != (bytes as u64).to_le_bytes() {
                return Err(failed(INVALID_ARGUMENT, 4));
            }
        }
        if self.length_done == LENGTH_BYTES && self.done < bytes {
            self.done += carry(at + self.done, bytes - self.done);
        }
        Ok(self.length_done + self.done > before)
    }
}

impl Job for Exchange {
    fn run(&self, over: &dyn Fn() -> bool) {
        let of = &*self.communicator;
        let mut left: Vec<Progress> = self.transfers.iter().map(Progress::new).collect();
        let mut look = 0_u32;
        while !left.is_empty() && !of.is_aborted() && !over() {
            let (mut seen, mut moved) = (Vec::new(), false);
            for progress in &mut left {
                // What goes the same way between the same ranks keeps its order.
                let way = (progress.transfer.way, progress.transfer.peer);
                if seen.contains(&way) {
                    continue;
                }
                seen.push(way);
                match progress.go_on(of) {
                    Ok(further) => moved |= further,
                    Err(code) => return of.state.store(code, Ordering::Release),
                }
            }
            left.retain(|progress| !progress.is_done());
            look = if moved { 0 } else { look.saturating_add(1) };
            if !moved {
                pause(look);
            }
        }
    }
}
