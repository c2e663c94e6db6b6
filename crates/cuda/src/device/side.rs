//! A stream beside a card's own, before it in turn: what runs there waits for no kernel.

use std::ffi::c_int;
use std::sync::Arc;

use backend::BackendError;

use super::{Buffer, Device, NON_BLOCKING, Plain};
use crate::CudaError;
use crate::library::Handle;

/// Not yet done.
const NOT_READY: c_int = 600;

/// A stream of the highest priority.
pub(crate) struct Side {
    device: Arc<Device>,
    stream: Handle,
}

// SAFETY: a handle of the driver, which any thread may use once its context is the current one.
unsafe impl Send for Side {}

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
        Ok(Self { device: device.clone(), stream })
    }

    /// For a library that launches on it.
    pub(crate) fn handle(&self) -> Handle {
        self.device.enter();
        self.stream
    }

    /// A buffer that is ready for this stream, since its zeros are written on the card's own.
    pub(crate) fn buffer(&self, what: &str, bytes: usize) -> Result<Buffer, BackendError> {
        let buffer = Buffer::new(&self.device, what, bytes as u128)?;
        self.device.wait();
        Ok(buffer)
    }

    /// Host to device; the data may be changed at once.
    pub(crate) fn upload<T: Plain>(&self, to: &Buffer, data: &[T]) -> Result<(), CudaError> {
        let bytes = size_of_val(data);
        assert!(bytes <= to.bytes, "{bytes} of {} bytes", to.bytes);
        self.device.enter();
        // SAFETY: memory of the buffer, plain data; pageable memory is copied before the call
        // returns.
        self.device.call("cuMemcpyHtoDAsync", unsafe {
            (self.device.driver.upload)(to.at, data.as_ptr().cast(), bytes, self.stream)
        })
    }

    /// Device to host from byte `at` on, which must have come.
    pub(crate) fn download<T: Plain>(
        &self,
        from: &Buffer,
        at: usize,
        data: &mut [T],
    ) -> Result<(), CudaError> {
        let bytes = size_of_val(data);
        assert!(at + bytes <= from.bytes, "{at} + {bytes} of {} bytes", from.bytes);
        self.device.enter();
        // SAFETY: memory of the buffer, plain data; the wait below is before any use of it.
        self.device.call("cuMemcpyDtoHAsync", unsafe {
            let (to, from) = (data.as_mut_ptr().cast(), from.at + at as u64);
            (self.device.driver.download)(to, from, bytes, self.stream)
        })?;
        // SAFETY: this stream.
        self.device
            .call("cuStreamSynchronize", unsafe { (self.device.driver.stream_wait)(self.stream) })
    }

    /// Whether all that was launched on it is done.
    pub(crate) fn is_done(&self) -> Result<bool, CudaError> {
        self.device.enter();
        // SAFETY: this stream.
        match unsafe { (self.device.driver.stream_query)(self.stream) } {
            NOT_READY => Ok(false),
            code => self.device.call("cuStreamQuery", code).map(|()| true),
        }
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        self.device.enter();
        // SAFETY: the stream is not used again; the driver lets what runs on it end.
        unsafe { (self.device.driver.stream_destroy)(self.stream) };
    }
}
