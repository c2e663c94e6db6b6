//! NCCL, the vendor's library between cards, loaded at run time. Here it moves words and adds
//! nothing: sums stay in the tree's order, which is the members' own.
//!
//! Its calls do not block: what they launch runs on a side stream, and whoever gives up aborts the
//! communicator, which ends that too.

use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::device::{Buffer, Side};
use crate::end::{End, OFFER_BYTES, Offer, Stopper};
use crate::library::{Calls, Handle, Nccl as Library, UniqueId};
use crate::meet::{Meeting, PLACES, Way, many_values};
use crate::{Cuda, CudaError};

/// A word of four bytes.
const WORD: c_int = 3;
const IN_PROGRESS: c_int = 7;
const MAGIC: u32 = 0xcafe_beef;
/// 2.14, whose `ncclConfig_t` every later version takes.
const CONFIG_VERSION: u32 = 21_400;
/// Looks in a row, and the pause between those that follow.
const LOOKS: u32 = 20_000;
const PAUSE: Duration = Duration::from_micros(50);

/// The library, and one member's end of a communicator on a card.
pub struct Nccl {
    cuda: Arc<Cuda>,
    library: Arc<Library>,
    side: Arc<Side>,
    communicator: Option<Arc<Communicator>>,
}

/// An end of a communicator, until it is aborted.
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

impl Nccl {
    /// Loads the library from `path`, else from `BATON_NCCL` or where the system has it.
    ///
    /// # Errors
    /// `NoNccl` or `OldLibrary`; a card without room for a stream.
    pub fn open(cuda: &Arc<Cuda>, path: Option<&str>) -> Result<Self, CudaError> {
        let library = Arc::new(Library::open(path)?);
        let side = Arc::new(Side::new(&cuda.device)?);
        Ok(Self { cuda: cuda.clone(), library, side, communicator: None })
    }

    /// Its version: `2.29.3`.
    pub fn version(&self) -> String {
        version(&self.library)
    }
}

impl End for Nccl {
    /// The first member's counts.
    ///
    /// # Errors
    /// The library's words.
    fn offer(&mut self, _: usize) -> Result<Offer, CudaError> {
        self.leave();
        draw(&self.library)
    }

    fn connect(
        &mut self,
        offers: &[Offer],
        index: usize,
        over: &dyn Fn() -> bool,
    ) -> Result<(), CudaError> {
        self.leave();
        let config = Calls {
            size: size_of::<Calls>(),
            magic: MAGIC,
            version: CONFIG_VERSION,
            blocking: 0,
            rest: c_int::MIN,
        };
        self.side.handle();
        let mut communicator = std::ptr::null_mut();
        // SAFETY: a place for a communicator, an id, and a config that says how long it is.
        let code = unsafe {
            let (count, id) = (offers.len() as c_int, UniqueId(offers[0]));
            let connect = self.library.calls.connect;
            connect(&mut communicator, count, id, index as c_int, &config)
        };
        let made = Arc::new(Communicator {
            library: self.library.clone(),
            side: self.side.clone(),
            at: Mutex::new(Some(communicator).filter(|at| !at.is_null())),
            over: AtomicBool::new(false),
        });
        self.communicator = Some(made.clone());
        let done = check(&self.library, "ncclCommInitRankConfig", code);
        let done = done.and_then(|()| made.settle("ncclCommInitRankConfig", over));
        let meeting = done.and_then(|()| {
            let bytes = (PLACES * 4 * many_values(offers.len())) as u128;
            let place = |member| {
                let bytes = if member == index { 0 } else { bytes };
                Buffer::new(&self.cuda.device, "what other members give", bytes).map_err(memory)
            };
            let places = (0..offers.len()).map(place).collect::<Result<_, _>>()?;
            self.cuda.wait();
            Meeting::new(&self.cuda, &self.side, Way::Nccl(made, places), index)
        });
        match meeting {
            Ok(meeting) => self.cuda.set_meeting(Some(meeting)),
            Err(error) => {
                self.leave();
                return Err(error);
            }
        }
        Ok(())
    }

    fn stopper(&self) -> Stopper {
        let communicator = self.communicator.clone();
        Box::new(move || communicator.iter().for_each(|communicator| communicator.abort()))
    }

    fn trouble(&self) -> Option<String> {
        self.cuda.meeting_trouble()
    }

    /// Aborts the communicator, if there is one: what it runs on the card ends.
    fn leave(&mut self) {
        if let Some(communicator) = self.communicator.take() {
            communicator.abort();
            self.cuda.wait();
            self.cuda.set_meeting(None);
        }
    }
}

impl Drop for Nccl {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Communicator {
    fn at(&self) -> MutexGuard<'_, Option<Handle>> {
        self.at.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn abort(&self) {
        self.over.store(true, Ordering::Release);
        if let Some(communicator) = self.at().take() {
            self.side.handle();
            // SAFETY: a communicator that is not used again.
            unsafe { (self.library.calls.abort)(communicator) };
        }
    }

    /// Gives `sizes(index)` values at `own` to each of `members`, and has theirs where `came` says.
    pub(crate) fn carry(
        &self,
        side: &Side,
        own: u64,
        (index, members): (usize, usize),
        sizes: &dyn Fn(usize) -> usize,
        came: &dyn Fn(usize) -> u64,
    ) -> Result<(), CudaError> {
        let at = self.at();
        let Some(communicator) = *at else {
            return Err(failed("ncclSend", "the communicator was aborted".into()));
        };
        let (library, stream) = (&self.library, side.handle());
        let calls = &library.calls;
        // SAFETY: no arguments.
        check(library, "ncclGroupStart", unsafe { (calls.group_start)() })?;
        for member in (0..members).filter(|&member| member != index) {
            let (given, peer) = (own as *const c_void, member as c_int);
            // SAFETY: as many words of the card's memory, which stay until the stream is past them.
            unsafe {
                let code = (calls.send)(given, sizes(index), WORD, peer, communicator, stream);
                check(library, "ncclSend", code)?;
                let (to, size) = (came(member) as *mut c_void, sizes(member));
                let code = (calls.receive)(to, size, WORD, peer, communicator, stream);
                check(library, "ncclRecv", code)?;
            }
        }
        // SAFETY: the group that was started.
        check(library, "ncclGroupEnd", unsafe { (calls.group_end)() })?;
        drop(at);
        self.settle("ncclGroupEnd", &|| false)
    }

    /// Waits until what was called is under way, by the library's own word.
    fn settle(&self, call: &'static str, over: &dyn Fn() -> bool) -> Result<(), CudaError> {
        for look in 0_u32.. {
            let mut state = 0;
            let code = match *self.at() {
                None => return Err(failed(call, "it gave no communicator".into())),
                // SAFETY: a communicator and a place for an int.
                Some(at) => unsafe { (self.library.calls.state)(at, &mut state) },
            };
            check(&self.library, "ncclCommGetAsyncError", code)?;
            check(&self.library, call, state)?;
            if state != IN_PROGRESS {
                return Ok(());
            }
            if self.over.load(Ordering::Acquire) || look % 64 == 0 && over() {
                break;
            }
            if look < LOOKS {
                std::hint::spin_loop();
            } else {
                std::thread::sleep(PAUSE);
            }
        }
        Err(failed(call, "given up".into()))
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.abort();
    }
}

fn failed(call: &'static str, words: String) -> CudaError {
    CudaError::Nccl { call, words }
}

fn memory(error: backend::BackendError) -> CudaError {
    CudaError::Memory { words: error.to_string() }
}

fn check(library: &Library, call: &'static str, code: c_int) -> Result<(), CudaError> {
    match code {
        0 | IN_PROGRESS => Ok(()),
        code => Err(failed(call, library.words(code))),
    }
}

fn version(library: &Library) -> String {
    let mut version = 0;
    // SAFETY: a place for an int.
    unsafe { (library.calls.version)(&mut version) };
    format!("{}.{}.{}", version / 10_000, version / 100 % 100, version % 100)
}

fn draw(library: &Library) -> Result<Offer, CudaError> {
    let mut id = UniqueId([0; OFFER_BYTES]);
    // SAFETY: a place for an id.
    check(library, "ncclGetUniqueId", unsafe { (library.calls.unique_id)(&mut id) })?;
    Ok(id.0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn a_library_that_is_not_there_or_is_another_is_named() {
        let error = Library::open(Some("/nowhere/libnccl.so.2")).err().unwrap().to_string();
        assert!(error.starts_with("no NCCL here (/nowhere/libnccl.so.2: "), "{error}");
        assert!(error.contains("BATON_NCCL") && !error.contains('\n'), "{error}");
        let error = Library::open(Some("libc.so.6")).err().unwrap().to_string();
        assert!(error.starts_with("the CUDA NCCL here lacks nccl"), "{error}");
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
