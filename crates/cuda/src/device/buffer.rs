//! Memory of a card.

use std::ffi::c_void;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use backend::BackendError;

use super::Device;
use crate::pinned;

/// Memory of the card; zeroed when it is taken.
pub(crate) struct Buffer {
    device: Arc<Device>,
    at: u64,
    bytes: usize,
    /// Where the host finds it, if it lies in the host's memory.
    host: Option<*mut u8>,
}

// SAFETY: memory of the driver's, which any thread may use.
unsafe impl Send for Buffer {}
// SAFETY: it is read and written through copies in the stream's order, or after a wait for it.
unsafe impl Sync for Buffer {}

impl Buffer {
    /// Takes `bytes` bytes for `what`, or says how many are free.
    pub(crate) fn new(device: &Arc<Device>, what: &str, bytes: u128) -> Result<Self, BackendError> {
        Self::lying(device, what, bytes, false)
    }

    /// As [`Buffer::new`], for what the host reads and writes: it lies in the host's memory where
    /// that is the card's too.
    pub(crate) fn shared(
        device: &Arc<Device>,
        what: &str,
        bytes: u128,
    ) -> Result<Self, BackendError> {
        Self::lying(device, what, bytes, device.unified.load(Ordering::Relaxed))
    }

    fn lying(
        device: &Arc<Device>,
        what: &str,
        bytes: u128,
        shared: bool,
    ) -> Result<Self, BackendError> {
        let free_bytes = device.free_bytes();
        let refused = || BackendError::OutOfMemory {
            device: device.name.clone(),
            what: what.to_owned(),
            need_bytes: u64::try_from(bytes).unwrap_or(u64::MAX),
            free_bytes,
        };
        if bytes > u128::from(free_bytes) {
            return Err(refused());
        }
        let bytes = bytes as usize;
        let mut at = 0;
        let host = if shared { pinned::allocate(&device.driver, bytes) } else { None };
        match host {
            Some(host) => at = host as u64,
            // A length of 0 is refused by the driver.
            // SAFETY: a place for an address.
            None => match unsafe { (device.driver.allocate)(&mut at, bytes.max(16)) } {
                0 => {}
                _ => return Err(refused()),
            },
        }
        let buffer = Self { device: device.clone(), at, bytes, host };
        buffer.fill(0);
        Ok(buffer)
    }

    /// Sets every byte.
    pub(crate) fn fill(&self, byte: u8) {
        self.device.barrier();
        let Self { device, at, bytes, .. } = self;
        // SAFETY: memory of this buffer.
        let code = unsafe { (device.driver.fill)(*at, byte, *bytes, device.stream) };
        device.must("cuMemsetD8Async", code);
    }

    /// The card that it is of.
    pub(crate) fn device(&self) -> &Arc<Device> {
        &self.device
    }

    /// Its address on the device.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }

    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    /// Host to device from byte `at` on. The data may be changed at once.
    pub(crate) fn upload<T: Plain>(&self, at: usize, data: &[T]) {
        let bytes = size_of_val(data);
        assert!(at + bytes <= self.bytes, "{at} + {bytes} of {} bytes", self.bytes);
        if let Some(host) = self.host {
            self.device.wait();
            // SAFETY: memory of this buffer, which nothing on the card uses after the wait.
            unsafe { host.add(at).copy_from_nonoverlapping(data.as_ptr().cast(), bytes) };
            return;
        }
        self.device.barrier();
        let mut from: *const c_void = data.as_ptr().cast();
        if let Some(passage) = self.device.passage(bytes) {
            // SAFETY: room for as many bytes, which no copy uses.
            unsafe { passage.cast::<u8>().copy_from_nonoverlapping(from.cast(), bytes) };
            from = passage;
        }
        // SAFETY: memory of this buffer, plain data; what does not pass through pinned memory is
        // copied before the call returns.
        self.device.must("cuMemcpyHtoDAsync", unsafe {
            (self.device.driver.upload)(self.at + at as u64, from, bytes, self.device.stream)
        });
    }

    /// Device to host from byte `at` on, after all that was launched.
    pub(crate) fn download<T: Plain>(&self, at: usize, data: &mut [T]) {
        let bytes = size_of_val(data);
        assert!(at + bytes <= self.bytes, "{at} + {bytes} of {} bytes", self.bytes);
        if let Some(host) = self.host {
            self.device.wait();
            // SAFETY: memory of this buffer, to which nothing on the card writes after the wait.
            unsafe { host.add(at).copy_to_nonoverlapping(data.as_mut_ptr().cast(), bytes) };
            return;
        }
        self.device.barrier();
        let passage = self.device.passage(bytes);
        let to = passage.unwrap_or(data.as_mut_ptr().cast());
        // SAFETY: memory of this buffer, room for as much; the wait below is before any use of it.
        self.device.must("cuMemcpyDtoHAsync", unsafe {
            (self.device.driver.download)(to, self.at + at as u64, bytes, self.device.stream)
        });
        self.device.wait();
        if passage.is_some() {
            // SAFETY: what was copied to just now.
            unsafe { to.cast::<u8>().copy_to_nonoverlapping(data.as_mut_ptr().cast(), bytes) };
        }
    }

    /// Device to device: `bytes` bytes of `from` from `first` on to here at `at`.
    pub(crate) fn copy_from(&self, from: &Self, first: usize, at: usize, bytes: usize) {
        assert!(first + bytes <= from.bytes && at + bytes <= self.bytes, "a copy within buffers");
        // SAFETY: memory of both buffers.
        unsafe { self.device.copy(self.at + at as u64, from.at + first as u64, bytes) };
    }
}

impl Device {
    /// Copies bytes that this card sees, after all that was asked for.
    ///
    /// # Safety
    /// Memory of this card or mapped to it, of as many bytes, at both addresses.
    pub(crate) unsafe fn copy(&self, to: u64, from: u64, bytes: usize) {
        if bytes == 0 {
            return;
        }
        self.barrier();
        // SAFETY: the caller's word.
        let code = unsafe { (self.driver.copy)(to, from, bytes, self.stream) };
        self.must("cuMemcpyDtoDAsync", code);
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        // The driver waits for the card before it frees, and until then lets no other card of this
        // process copy to it: not the member that this one waits for. So the wait comes first.
        self.device.rest();
        if self.device.is_lost() {
            // A card that may wait for ever would be waited for. Its memory goes with the process.
            return;
        }
        // SAFETY: the buffer's own memory, which nothing uses any more.
        unsafe {
            match self.host {
                Some(host) => (self.device.driver.host_free)(host.cast()),
                None => (self.device.driver.free)(self.at),
            }
        };
    }
}

/// Data whose bytes are all of it.
///
/// # Safety
/// No padding, every pattern of bits a value.
pub(crate) unsafe trait Plain: Copy {}

// SAFETY: numbers.
unsafe impl Plain for u8 {}
// SAFETY: a number.
unsafe impl Plain for i32 {}
// SAFETY: a number.
unsafe impl Plain for u32 {}
// SAFETY: a number.
unsafe impl Plain for f32 {}
