//! A stream beside a card's own, before it in turn: what runs there waits for no kernel.

use std::ffi::c_int;
use std::sync::Arc;

use super::{Buffer, Device, Exec, NON_BLOCKING};
use crate::CudaError;
use crate::library::Handle;

/// An event that has no time.
const NO_TIMING: u32 = 2;
const NOT_READY: c_int = 600;
/// To wait for a word that is no less, as differences of integers have it.
const NO_LESS: u32 = 0;

/// A stream of the highest priority.
pub(crate) struct Side {
    device: Arc<Device>,
    stream: Handle,
}

// SAFETY: a handle of the driver, which any thread may use once its context is the current one.
unsafe impl Send for Side {}
// SAFETY: as above; the driver's calls may come from several threads.
unsafe impl Sync for Side {}

impl Side {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        device.enter();
        let (driver, mut stream) = (&device.driver, std::ptr::null_mut());
        let (mut least, mut most) = (0, 0);
        // SAFETY: places for two ints.
        device.call("cuCtxGetStreamPriorityRange", unsafe {
            (driver.stream_priorities)(&mut least, &mut most)
        })?;
        // SAFETY: a place for a stream, and a priority that the driver named.
        device.call("cuStreamCreateWithPriority", unsafe {
            (driver.stream_create_first)(&mut stream, NON_BLOCKING, most)
        })?;
        device.sides().push(stream);
        Ok(Self { device: device.clone(), stream })
    }

    /// A place in it to wait for.
    pub(crate) fn event(&self) -> Result<Event, CudaError> {
        Event::new(&self.device)
    }

    /// For a library that launches on it.
    pub(crate) fn handle(&self) -> Handle {
        self.device.enter();
        self.stream
    }

    /// What comes next here waits for all that the card's own stream was asked for so far.
    pub(crate) fn follow(&self, event: &Event) {
        self.device.part();
        event.record(self.device.stream);
        event.hold(self.stream);
    }

    /// What comes next on the card's own stream waits for all that this one was asked for before
    /// `event` was last passed.
    pub(crate) fn lead(&self, event: &Event) {
        self.device.part();
        event.hold(self.device.stream);
    }

    /// Marks this place of the stream.
    pub(crate) fn pass(&self, event: &Event) {
        self.device.enter();
        event.record(self.stream);
    }

    /// Copies `bytes` bytes of a buffer of this card to where another's are seen.
    pub(crate) fn give(&self, to: u64, from: u64, bytes: usize) -> Result<(), CudaError> {
        // SAFETY: memory of a buffer, and of another card's that is mapped here, both as large.
        self.device.call("cuMemcpyDtoDAsync", unsafe {
            (self.device.driver.copy)(to, from, bytes, self.stream)
        })
    }

    /// Writes a word where another card's are seen, after all that was given before it.
    pub(crate) fn tell(&self, to: u64, word: u32) -> Result<(), CudaError> {
        // SAFETY: a word of another card's memory that is mapped here.
        self.device.call("cuStreamWriteValue32", unsafe {
            (self.device.driver.write_word)(self.stream, to, word, 0)
        })
    }

    /// What comes next here waits until a word of this card's is `word` or past it.
    pub(crate) fn hear(&self, at: u64, word: u32) -> Result<(), CudaError> {
        // SAFETY: a word of this card's memory.
        self.device.call("cuStreamWaitValue32", unsafe {
            (self.device.driver.wait_word)(self.stream, at, word, NO_LESS)
        })
    }

    /// Sets `count` words of a buffer, whatever waits elsewhere.
    pub(crate) fn set(&self, buffer: &Buffer, at: usize, count: usize, word: u32) {
        let bytes = buffer.bytes();
        assert!(at + 4 * count <= bytes, "{at} + {count} words of {bytes} bytes");
        self.device.enter();
        // SAFETY: words of the buffer.
        let code = unsafe {
            (self.device.driver.fill_words)(buffer.at() + at as u64, word, count, self.stream)
        };
        self.device.must("cuMemsetD32Async", code);
    }

    /// Records what `work` asks of this stream, so that it can be asked for again as one.
    ///
    /// # Errors
    /// `work`'s, or the driver's where it does not record that.
    pub(crate) fn recorded(
        &self,
        work: impl FnOnce() -> Result<(), CudaError>,
    ) -> Result<Exec, CudaError> {
        self.device.enter();
        Exec::of(&self.device, self.stream, work)
    }

    /// Asks for what was recorded.
    pub(crate) fn replay(&self, exec: &Exec) -> Result<(), CudaError> {
        self.device.enter();
        self.device.call("cuGraphLaunch", exec.launch(&self.device, self.stream))
    }

    /// Forgets what was recorded, which does not run any more.
    pub(crate) fn forget(&self, exec: Exec) {
        self.device.enter();
        exec.destroy(&self.device);
    }

    /// The card has failed; nothing more is launched on it, or waited for.
    pub(crate) fn fail(&self, error: &CudaError) {
        self.device.fail(error.to_string());
    }

    /// Waits until all that was asked for here is done.
    pub(crate) fn finish(&self) {
        self.device.enter();
        // SAFETY: this stream.
        let code = unsafe { (self.device.driver.stream_wait)(self.stream) };
        self.device.must("cuStreamSynchronize", code);
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.device.enter();
        self.device.sides().retain(|&side| side != self.stream);
        // SAFETY: the stream is not used again; the driver lets what runs on it end.
        unsafe { (self.device.driver.stream_destroy)(self.stream) };
    }
}

/// A place in a stream that others can wait for.
pub(crate) struct Event {
    device: Arc<Device>,
    event: Handle,
}

// SAFETY: a handle of the driver, which any thread may use once its context is the current one.
unsafe impl Send for Event {}

impl Event {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        device.enter();
        let mut event = std::ptr::null_mut();
        // SAFETY: a place for an event.
        let code = unsafe { (device.driver.event_create)(&mut event, NO_TIMING) };
        device.call("cuEventCreate", code)?;
        Ok(Self { device: device.clone(), event })
    }

    /// Whether the card is past the place where this was last passed, if it ever was.
    ///
    /// # Errors
    /// A card that has failed.
    pub(crate) fn is_done(&self) -> Result<bool, CudaError> {
        self.device.enter();
        // SAFETY: an event of this card.
        match unsafe { (self.device.driver.event_query)(self.event) } {
            NOT_READY => Ok(false),
            code => self.device.call("cuEventQuery", code).map(|()| true),
        }
    }

    fn record(&self, stream: Handle) {
        // SAFETY: an event and a stream of this card.
        let code: c_int = unsafe { (self.device.driver.event_record)(self.event, stream) };
        self.device.must("cuEventRecord", code);
    }

    fn hold(&self, stream: Handle) {
        // SAFETY: an event and a stream of this card.
        let code: c_int = unsafe { (self.device.driver.stream_after)(stream, self.event, 0) };
        self.device.must("cuStreamWaitEvent", code);
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        self.device.enter();
        // SAFETY: the event is not used again; the driver lets what waits for it end.
        unsafe { (self.device.driver.event_destroy)(self.event) };
    }
}
