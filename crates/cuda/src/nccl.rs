//! NCCL, the vendor's library between cards, loaded at run time. Here it moves words and adds
//! nothing: sums stay in the tree's order, which is the members' own.
//!
//! Its calls do not block: whoever waits asks again and again whether to go on, and gives up by
//! aborting the communicator, which ends what it has launched on the card.

use std::ffi::{c_int, c_void};
use std::sync::Arc;
use std::time::Duration;

use crate::device::{Buffer, Device, Side};
use crate::library::{Calls, Handle, Nccl as Library, UniqueId};
use crate::{Cuda, CudaError};

/// Bytes of an id.
pub const ID_BYTES: usize = 128;
/// By which the ends of a communicator find each other.
pub type Id = [u8; ID_BYTES];

/// A word of four bytes.
const WORD: c_int = 3;
const IN_PROGRESS: c_int = 7;
const MAGIC: u32 = 0xcafe_beef;
/// 2.14, whose `ncclConfig_t` every later version takes.
const CONFIG_VERSION: u32 = 21_400;
/// Looks in a row, and the pause between those that follow.
const LOOKS: u32 = 2_000;
const PAUSE: Duration = Duration::from_micros(50);

/// The library, and one member's end of a communicator on a card.
pub struct Nccl {
    library: Library,
    side: Side,
    communicator: Option<Handle>,
    given: Buffer,
    taken: Buffer,
}

// SAFETY: a communicator may be used by any thread, by one at a time.
unsafe impl Send for Nccl {}

impl Nccl {
    /// Loads the library from `path`, else from `BATON_NCCL` or where the system has it.
    ///
    /// # Errors
    /// `NoNccl` or `OldLibrary`; a card without room for a stream and two small buffers.
    pub fn open(cuda: &Cuda, path: Option<&str>) -> Result<Self, CudaError> {
        Self::on(&cuda.device, Library::open(path)?)
    }

    fn on(device: &Arc<Device>, library: Library) -> Result<Self, CudaError> {
        let side = Side::new(device)?;
        let [given, taken] = ["values to be given", "values that are taken"]
            .map(|what| side.buffer(what, 1 << 16).map_err(memory));
        Ok(Self { given: given?, taken: taken?, library, side, communicator: None })
    }

    /// Its version: `2.29.3`.
    pub fn version(&self) -> String {
        version(&self.library)
    }

    /// Draws what the ends of a new communicator find each other by.
    ///
    /// # Errors
    /// The library's words.
    pub fn draw(&self) -> Result<Id, CudaError> {
        draw(&self.library)
    }

    /// Finds the other ends of `id`, of which this is `index` of `count`. Gives up soon after
    /// `over` says so.
    ///
    /// # Errors
    /// The library's words, or that it was given up on; the communicator is aborted then.
    pub fn connect(
        &mut self,
        id: &Id,
        (index, count): (usize, usize),
        over: &dyn Fn() -> bool,
    ) -> Result<(), CudaError> {
        self.abort();
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
            let (count, index) = (count as c_int, index as c_int);
            (self.library.calls.connect)(&mut communicator, count, UniqueId(*id), index, &config)
        };
        self.communicator = Some(communicator).filter(|at| !at.is_null());
        let done = self.check("ncclCommInitRankConfig", code);
        self.settled(done.and_then(|()| self.settle("ncclCommInitRankConfig", over)))
    }

    /// Gives `own` to each of `to` and takes what each of `takes` gives, of the size of its place.
    /// Gives up soon after `over` says so.
    ///
    /// # Errors
    /// The library's words, or that it was given up on; the communicator is aborted then.
    pub fn exchange(
        &mut self,
        own: &[f32],
        to: &[usize],
        takes: &mut [(usize, &mut [f32])],
        over: &dyn Fn() -> bool,
    ) -> Result<(), CudaError> {
        let done = self.carry(own, to, takes, over);
        self.settled(done)
    }

    fn carry(
        &mut self,
        own: &[f32],
        to: &[usize],
        takes: &mut [(usize, &mut [f32])],
        over: &dyn Fn() -> bool,
    ) -> Result<(), CudaError> {
        let Some(communicator) = self.communicator else {
            return Err(failed("ncclSend", "no communicator".into()));
        };
        let all: usize = takes.iter().map(|(_, place)| size_of_val(&**place)).sum();
        for (buffer, what, bytes) in [
            (&mut self.given, "values to be given", size_of_val(own)),
            (&mut self.taken, "values that are taken", all),
        ] {
            if buffer.bytes() < bytes {
                *buffer = self.side.buffer(what, bytes.next_power_of_two()).map_err(memory)?;
            }
        }
        if !to.is_empty() {
            self.side.upload(&self.given, own)?;
        }
        let (calls, stream) = (&self.library.calls, self.side.handle());
        // SAFETY: no arguments.
        self.check("ncclGroupStart", unsafe { (calls.group_start)() })?;
        for &peer in to {
            let given = self.given.at() as *const c_void;
            // SAFETY: as many words of the card's memory, which stay until the stream is done.
            let code = unsafe {
                (calls.send)(given, own.len(), WORD, peer as c_int, communicator, stream)
            };
            self.check("ncclSend", code)?;
        }
        let mut at = self.taken.at();
        for (peer, place) in &*takes {
            // SAFETY: as above; the buffer holds all places.
            let code = unsafe {
                let to = at as *mut c_void;
                (calls.receive)(to, place.len(), WORD, *peer as c_int, communicator, stream)
            };
            self.check("ncclRecv", code)?;
            at += size_of_val(&**place) as u64;
        }
        // SAFETY: the group that was started.
        self.check("ncclGroupEnd", unsafe { (calls.group_end)() })?;
        self.settle("ncclGroupEnd", over)?;
        self.wait("cuStreamQuery", over, || self.side.is_done())?;
        let mut at = 0;
        for (_, place) in takes {
            self.side.download(&self.taken, at, place)?;
            at += size_of_val(&**place);
        }
        Ok(())
    }

    /// Aborts the communicator, if there is one: what it runs on the card ends.
    pub fn abort(&mut self) {
        if let Some(communicator) = self.communicator.take() {
            self.side.handle();
            // SAFETY: a communicator that is not used again.
            unsafe { (self.library.calls.abort)(communicator) };
        }
    }

    /// Aborts after what has failed.
    fn settled(&mut self, done: Result<(), CudaError>) -> Result<(), CudaError> {
        if done.is_err() {
            self.abort();
        }
        done
    }

    /// Waits until what was called is under way, by the library's own word.
    fn settle(&self, call: &'static str, over: &dyn Fn() -> bool) -> Result<(), CudaError> {
        let Some(communicator) = self.communicator else {
            return Err(failed(call, "it gave no communicator".into()));
        };
        self.wait(call, over, || {
            let mut state = 0;
            // SAFETY: a communicator and a place for an int.
            let code = unsafe { (self.library.calls.state)(communicator, &mut state) };
            self.check("ncclCommGetAsyncError", code)?;
            self.check(call, state).map(|()| state != IN_PROGRESS)
        })
    }

    fn wait(
        &self,
        call: &'static str,
        over: &dyn Fn() -> bool,
        done: impl Fn() -> Result<bool, CudaError>,
    ) -> Result<(), CudaError> {
        for look in 0_u32.. {
            if done()? {
                return Ok(());
            }
            if look % 64 == 0 && over() {
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

    fn check(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        check(&self.library, call, code)
    }
}

impl Drop for Nccl {
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

fn draw(library: &Library) -> Result<Id, CudaError> {
    let mut id = UniqueId([0; ID_BYTES]);
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
