//! Memory that several see: of a card by name or address, of the host by a card.

use std::collections::hash_map::RandomState;
use std::ffi::c_int;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Arc, OnceLock};

use super::{Buffer, Device};
use crate::library::{Handle, MemoryName};
use crate::{CudaError, pinned};

/// `cudaIpcMemLazyEnablePeerAccess`.
const LAZY: u32 = 1;
const REACHED_ALREADY: c_int = 704;

/// What tells this process from others, on whichever machine.
fn process() -> u64 {
    static PROCESS: OnceLock<u64> = OnceLock::new();
    *PROCESS
        .get_or_init(|| RandomState::new().build_hasher().finish() ^ u64::from(std::process::id()))
}

/// By what others find memory of a card: its name, the card's, the process', the address there and
/// the card's number there.
pub(crate) const FOUND_BY_BYTES: usize = 100;
/// Of which the card's is here.
pub(crate) const CARD: std::ops::Range<usize> = 64..80;

/// Memory of another card, as this one sees it.
pub(crate) struct Seen {
    device: Arc<Device>,
    at: u64,
    /// Whether it was opened by name.
    named: bool,
}

impl Seen {
    /// Memory by what [`Device::found_by`] says of it, of this process or of another one of this
    /// machine.
    pub(crate) fn find(device: &Arc<Device>, by: &[u8; FOUND_BY_BYTES]) -> Result<Self, CudaError> {
        let word = |at: usize| u64::from_le_bytes(std::array::from_fn(|i| by[at + i]));
        if word(80) == process() {
            let ordinal = u32::from_le_bytes(std::array::from_fn(|i| by[96 + i]));
            return Self::here(device, ordinal, word(88));
        }
        Self::named(device, std::array::from_fn(|i| by[i]))
    }

    /// Memory of this process, of card `ordinal`.
    fn here(device: &Arc<Device>, ordinal: u32, at: u64) -> Result<Self, CudaError> {
        device.enter();
        let (driver, mut own, mut other, mut may) = (&device.driver, 0, 0, 0);
        let mut context: Handle = std::ptr::null_mut();
        // SAFETY: places for ids, a number and a context; the context is never released.
        let code = unsafe {
            device.call("cuCtxGetDevice", (driver.context_device)(&mut own))?;
            device.call("cuDeviceGet", (driver.device_get)(&mut other, ordinal as c_int))?;
            if own == other {
                return Ok(Self { device: device.clone(), at, named: false });
            }
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
    fn named(device: &Arc<Device>, name: [u8; 64]) -> Result<Self, CudaError> {
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
    /// By what others find a buffer of this card, which is number `ordinal` here.
    pub(crate) fn found_by(
        &self,
        buffer: &Buffer,
        ordinal: u32,
    ) -> Result<[u8; FOUND_BY_BYTES], CudaError> {
        let (name, uuid) = (self.memory_name(buffer)?, self.uuid()?);
        let (process, at) = (process().to_le_bytes(), buffer.at().to_le_bytes());
        let ordinal = ordinal.to_le_bytes();
        let fields: [&[u8]; 5] = [&name, &uuid, &process, &at, &ordinal];
        let mut by = [0; FOUND_BY_BYTES];
        by.iter_mut().zip(fields.concat()).for_each(|(place, byte)| *place = byte);
        Ok(by)
    }

    /// By which other processes find a buffer.
    fn memory_name(&self, buffer: &Buffer) -> Result<[u8; 64], CudaError> {
        let mut name = MemoryName([0; 64]);
        self.enter();
        // SAFETY: a place for a name, and memory of this card.
        let code = unsafe { (self.driver.memory_name)(&mut name, buffer.at()) };
        self.call("cuIpcGetMemHandle", code).map(|()| name.0)
    }

    /// What tells this card from all others.
    fn uuid(&self) -> Result<[u8; 16], CudaError> {
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
