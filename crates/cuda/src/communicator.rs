//! An end of a communicator of NCCL's, which moves words on a stream beside the card's own.
//!
//! Its calls do not block: what they launch runs on that stream, and whoever gives up aborts the
//! communicator, which ends that too.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::CudaError;
use crate::device::Side;
use crate::end::{OFFER_BYTES, Offer};
use crate::library::{Calls, Handle, Nccl as Library, UniqueId};

/// A word of four bytes.
const WORD: c_int = 3;
const IN_PROGRESS: c_int = 7;
const MAGIC: u32 = 0xcafe_beef;
/// 2.14, whose `ncclConfig_t` every later version takes.
const CONFIG_VERSION: u32 = 21_400;
/// Looks in a row, and the pauses between those that follow, each twice as long as the one before.
const LOOKS: u32 = 20_000;
const PAUSE: Duration = Duration::from_micros(50);
const PAUSE_MAX: Duration = Duration::from_millis(2);

/// An end, until it is aborted.
pub(crate) struct Communicator {
    library: Arc<Library>,
    side: Arc<Side>,
    at: Mutex<Option<Handle>>,
    /// Whether whoever waits gives up.
    over: AtomicBool,
}

// SAFETY: a communicator may be used by any thread, by one at a time, as its lock has it.
unsafe impl Send for Communicator {}
// SAFETY: as above.
unsafe impl Sync for Communicator {}

/// Values at an address of the card, on their way between this end and another.
#[derive(Clone, Copy)]
pub(crate) struct Move {
    /// The other end.
    pub(crate) peer: usize,
    /// Whether they come from there.
    pub(crate) comes: bool,
    pub(crate) at: u64,
    pub(crate) values: usize,
}

impl Communicator {
    /// Begins to find the other ends, of which this is `index` of `count`, by what one of them
    /// drew; [`Communicator::settle`] says whether they are found.
    pub(crate) fn begin(
        library: &Arc<Library>,
        side: &Arc<Side>,
        id: &Offer,
        (index, count): (usize, usize),
    ) -> (Arc<Self>, Result<(), CudaError>) {
        let config = Calls {
            size: size_of::<Calls>(),
            magic: MAGIC,
            version: CONFIG_VERSION,
            blocking: 0,
            rest: c_int::MIN,
        };
        side.handle();
        let mut at = std::ptr::null_mut();
        // SAFETY: a place for a communicator, an id, and a config that says how long it is.
        let code = unsafe {
            let connect = library.calls.connect;
            connect(&mut at, count as c_int, UniqueId(*id), index as c_int, &config)
        };
        let made = Self {
            library: library.clone(),
            side: side.clone(),
            at: Mutex::new(Some(at).filter(|at| !at.is_null())),
            over: AtomicBool::new(false),
        };
        (Arc::new(made), check(library, "ncclCommInitRankConfig", code))
    }

    fn at(&self) -> MutexGuard<'_, Option<Handle>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it was aborted.
    pub(crate) fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Ends what it runs on the card, and whoever waits for it; again and again. Where exchanges
    /// are recorded it returns once those are forgotten.
    pub(crate) fn abort(&self) {
        self.over.store(true, Ordering::Release);
        // Not locked meanwhile: who forgets them may have to hear first that it is over.
        let taken = self.at().take();
        if let Some(communicator) = taken {
            self.side.handle();
            // SAFETY: a communicator that is not used again.
            unsafe { (self.library.calls.abort)(communicator) };
        }
    }

    /// Asks for all of `moves` at once, on the side stream; they are under way when it returns.
    pub(crate) fn pass(&self, moves: &[Move], over: &dyn Fn() -> bool) -> Result<(), CudaError> {
        let at = self.at();
        let Some(communicator) = *at else {
            return Err(failed("ncclSend", "the communicator was aborted".into()));
        };
        let (library, stream) = (&self.library, self.side.handle());
        let calls = &library.calls;
        let start = || {
            // SAFETY: no arguments.
            check(library, "ncclGroupStart", unsafe { (calls.group_start)() })
        };
        let ask = |&Move { peer, comes, at, values }: &Move| {
            let (peer, at) = (peer as c_int, at as *mut c_void);
            // SAFETY: as many words of the card's memory, which stay until the stream is past them.
            let (call, code) = unsafe {
                match comes {
                    true => {
                        let code = (calls.receive)(at, values, WORD, peer, communicator, stream);
                        ("ncclRecv", code)
                    }
                    false => {
                        let code = (calls.send)(at, values, WORD, peer, communicator, stream);
                        ("ncclSend", code)
                    }
                }
            };
            check(library, call, code)
        };
        let end = || {
            // SAFETY: the group that was started.
            check(library, "ncclGroupEnd", unsafe { (calls.group_end)() })
        };
        grouped(start, || moves.iter().try_for_each(ask), end)?;
        drop(at);
        self.settle("ncclGroupEnd", over)
    }

    /// Waits until what was called is under way, by the library's own word.
    pub(crate) fn settle(
        &self,
        call: &'static str,
        over: &dyn Fn() -> bool,
    ) -> Result<(), CudaError> {
        let over = || self.is_over() || over();
        let settled = look(&over, || self.is_settled(call))?;
        if settled { Ok(()) } else { Err(failed(call, "given up".into())) }
    }

    /// Whether what was called is under way.
    ///
    /// # Errors
    /// As [`Communicator::state`].
    pub(crate) fn is_settled(&self, call: &'static str) -> Result<bool, CudaError> {
        Ok(self.state(call)? != IN_PROGRESS)
    }

    /// What the library says of the last `call`.
    ///
    /// # Errors
    /// That it failed, or what it ran did; an aborted communicator.
    pub(crate) fn state(&self, call: &'static str) -> Result<c_int, CudaError> {
        let mut state = 0;
        let code = match *self.at() {
            None => return Err(failed(call, "there is no communicator".into())),
            // SAFETY: a communicator and a place for an int.
            Some(at) => unsafe { (self.library.calls.state)(at, &mut state) },
        };
        check(&self.library, "ncclCommGetAsyncError", code)?;
        check(&self.library, call, state)?;
        Ok(state)
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.abort();
    }
}

/// Looks until `is_done`, soon at first and then with pauses; `false` where `over` says so before.
pub(crate) fn look(
    over: &dyn Fn() -> bool,
    is_done: impl Fn() -> Result<bool, CudaError>,
) -> Result<bool, CudaError> {
    let mut pause = PAUSE;
    for look in 0_u32.. {
        if is_done()? {
            return Ok(true);
        }
        if look < LOOKS && look % 64 != 0 {
            std::hint::spin_loop();
            continue;
        }
        if over() {
            break;
        }
        if look >= LOOKS {
            std::thread::sleep(pause);
            pause = (2 * pause).min(PAUSE_MAX);
        }
    }
    Ok(false)
}

/// Asks within a group of the library's, which ends whatever was answered: one that stays open
/// takes in all that this thread asks for later, and launches none of it.
fn grouped<E>(
    start: impl FnOnce() -> Result<(), E>,
    ask: impl FnOnce() -> Result<(), E>,
    end: impl FnOnce() -> Result<(), E>,
) -> Result<(), E> {
    start()?;
    let asked = ask();
    let ended = end();
    asked.and(ended)
}

pub(crate) fn failed(call: &'static str, words: String) -> CudaError {
    CudaError::Nccl { call, words }
}

fn check(library: &Library, call: &'static str, code: c_int) -> Result<(), CudaError> {
    match code {
        0 | IN_PROGRESS => Ok(()),
        code => Err(failed(call, library.words(code))),
    }
}

/// The library's version: `2.29.3`.
pub(crate) fn version(library: &Library) -> String {
    let mut version = 0;
    // SAFETY: a place for an int.
    unsafe { (library.calls.version)(&mut version) };
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

/// By which the ends of one communicator find each other.
pub(crate) fn draw(library: &Library) -> Result<Offer, CudaError> {
    let mut id = UniqueId([0; OFFER_BYTES]);
    // SAFETY: a place for an id.
    check(library, "ncclGetUniqueId", unsafe { (library.calls.unique_id)(&mut id) })?;
    Ok(id.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use std::cell::Cell;

    use super::*;

    #[test]
    fn looks_end_with_what_they_are_for_or_when_nobody_waits() {
        let looks = Cell::new(0);
        let done = look(&|| false, || {
            looks.set(looks.get() + 1);
            Ok(looks.get() == LOOKS + 3)
        });
        assert!(done.unwrap() && looks.get() == LOOKS + 3);
        looks.set(0);
        let over = || looks.get() > 100;
        assert!(!look(&over, || Ok(looks.replace(looks.get() + 1) > LOOKS)).unwrap());
        assert!(look(&|| false, || Err(failed("ncclRecv", "no".into()))).is_err());
    }

    #[test]
    fn a_group_ends_also_where_a_part_of_it_is_refused() {
        for (asked, ended, expected) in [
            (Ok(()), Ok(()), Ok(())),
            (Err("asked"), Ok(()), Err("asked")),
            (Ok(()), Err("ended"), Err("ended")),
            (Err("asked"), Err("ended"), Err("asked")),
        ] {
            let open = Cell::new(0);
            let start = || {
                open.set(open.get() + 1);
                Ok(())
            };
            let end = || {
                open.set(open.get() - 1);
                ended
            };
            assert_eq!((grouped(start, || asked, end), open.get()), (expected, 0));
        }
        let never = || -> Result<(), &str> { unreachable!("no group was started") };
        assert_eq!(grouped(|| Err("start"), never, never), Err("start"));
    }

    #[test]
    fn the_library_draws_other_ids_each_time_without_a_card() {
        let library = match Library::open(None) {
            Ok(library) => library,
            Err(error) => {
                let line = format!("skipped: NCCL's ids: {error}\n");
                let _ = std::io::Write::write_all(&mut std::io::stderr(), line.as_bytes());
                return;
            }
        };
        assert_ne!(draw(&library).unwrap(), draw(&library).unwrap());
        assert!(version(&library).starts_with("2."), "{}", version(&library));
    }
}
