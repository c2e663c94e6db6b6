//! Memory that several see: of a card by name or address, of the host by a card.

use std::ffi::c_int;
use std::sync::Arc;

use super::{Buffer, Device};
use crate::library::{Handle, MemoryName};
use crate::{CudaError, pinned};

/// `cudaIpcMemLazyEnablePeerAccess`.
const LAZY: u32 = 1;
const REACHED_ALREADY: c_int = 704;

/// Memory of another card, as this one sees it.
pub(crate) struct Seen {
    device: Arc<Device>,
    at: u64,
    /// Whether it was opened by name.
    named: bool,
}

impl Seen {
    /// Memory of this process, of card `ordinal`.
    pub(crate) fn here(device: &Arc<Device>, ordinal: u32, at: u64) -> Result<Self, CudaError> {
        device.enter();
        let (driver, mut own, mut other, mut may) = (&device.driver, 0, 0, 0);
        let mut context: Handle = std::ptr::null_mut();
        // SAFETY: places for ids, a number and a context; the context is never released.
        let code = unsafe {
            device.call("cuCtxGetDevice", (driver.context_device)(&mut own))?;
            device.call("cuDeviceGet", (driver.device_get)(&mut other, ordinal as c_int))?;
            device.call("cuDeviceCanAccessPeer", (driver.may_reach)(&mut may, own, other))?;
            if may == 0 {
                let words = format!("cuda:{ordinal}'s memory is not seen from here");
                return Err(CudaError::Call { call: "cuDeviceCanAccessPeer", words });
            }
            let retained = (driver.context_retain)(&mut context, other);
            device.call("cuDevicePrimaryCtxRetain", retained)?;
            (driver.reach)(context, 0)
        };
        if code != REACHED_ALREADY {
            device.call("cuCtxEnablePeerAccess", code)?;
        }
        Ok(Self { device: device.clone(), at, named: false })
    }

    /// Memory of another process.
    pub(crate) fn named(device: &Arc<Device>, name: [u8; 64]) -> Result<Self, CudaError> {
        device.enter();
        let (mut at, name) = (0, MemoryName(name));
        // SAFETY: a place for an address; what the name is of is the driver's to check.
        let code = unsafe { (device.driver.memory_open)(&mut at, name, LAZY) };
        device.call("cuIpcOpenMemHandle", code)?;
        Ok(Self { device: device.clone(), at, named: true })
    }

    /// Its address on this card.
    pub(crate) fn at(&self) -> u64 {
        self.at
    }
}

impl Drop for Seen {
    fn drop(&mut self) {
        if self.named {
            self.device.enter();
            // SAFETY: memory that was opened here and is not used again.
            unsafe { (self.device.driver.memory_close)(self.at) };
        }
    }
}

/// A word of the host's memory that a card reads.
pub(crate) struct Word {
    device: Arc<Device>,
    at: *mut u32,
}

// SAFETY: memory of the host that stays until this is dropped.
unsafe impl Send for Word {}
// SAFETY: it is written in whole, one at a time.
unsafe impl Sync for Word {}

impl Word {
    pub(crate) fn new(device: &Arc<Device>) -> Result<Self, CudaError> {
        device.enter();
        let words = "no memory of the host that the card reads".to_owned();
        let at = pinned::allocate(&device.driver, size_of::<u32>());
        let at = at.ok_or(CudaError::Memory { words })?.cast();
        Ok(Self { device: device.clone(), at })
    }

    pub(crate) fn set(&self, value: u32) {
        // SAFETY: a word of memory that is this one's.
        unsafe { self.at.write_volatile(value) };
    }

    /// Its address, on the card too.
    pub(crate) fn at(&self) -> u64 {
        self.at as u64
    }
}

impl Drop for Word {
    fn drop(&mut self) {
        self.device.enter();
        // SAFETY: memory that was taken here; nothing on the card reads it any more.
        unsafe { (self.device.driver.host_free)(self.at.cast()) };
    }
}

impl Device {
    /// By which other processes find a buffer.
    pub(crate) fn memory_name(&self, buffer: &Buffer) -> Result<[u8; 64], CudaError> {
        let mut name = MemoryName([0; 64]);
        self.enter();
        // SAFETY: a place for a name, and memory of this card.
        let code = unsafe { (self.driver.memory_name)(&mut name, buffer.at()) };
        self.call("cuIpcGetMemHandle", code).map(|()| name.0)
    }

    /// What tells this card from all others.
    pub(crate) fn uuid(&self) -> Result<[u8; 16], CudaError> {
        let (mut own, mut uuid) = (0, [0; 16]);
        self.enter();
        // SAFETY: places for an id and 16 bytes.
        unsafe {
            self.call("cuCtxGetDevice", (self.driver.context_device)(&mut own))?;
            self.call("cuDeviceGetUuid", (self.driver.device_uuid)(&mut uuid, own))?;
        }
        Ok(uuid)
    }
}
