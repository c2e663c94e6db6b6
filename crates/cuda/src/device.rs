//! A card: its context, stream, memory and kernels.

mod buffer;
mod graph;
mod launch;
mod reach;
mod side;

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use crate::CudaError;
use crate::fuse::Op;
use crate::library::{Driver, Handle};
use crate::pinned::Pinned;
use crate::replay::Replays;
use crate::units::UNITS;

pub(crate) use buffer::Buffer;
pub(crate) use graph::Exec;
pub use graph::Graph;
pub(crate) use launch::Params;
pub(crate) use reach::{CARD, FOUND_BY_BYTES, Seen, Word};
pub(crate) use side::{Event, Side};

/// Memory of the card that is left to others, and to the driver.
const MEMORY_FLOOR_BYTES: u64 = 256 << 20;
const COMPUTE_MAJOR: c_int = 75;
const COMPUTE_MINOR: c_int = 76;
const MULTIPROCESSORS: c_int = 16;
/// Whether its memory is the host's.
const INTEGRATED: c_int = 18;
const DYNAMIC_SHARED: c_int = 8;
/// Most shared memory of a block, and how much of it kernels may take besides what they ask for.
const BLOCK_SHARED: c_int = 97;
const STATIC_SHARED_BYTES: u32 = 4096;
const NON_BLOCKING: u32 = 1;

/// A card in use.
pub(crate) struct Device {
    driver: Driver,
    context: Handle,
    stream: Handle,
    /// Streams beside its own.
    sides: Mutex<Vec<Handle>>,
    /// Functions and their shared memory; those that the card has too little for are left out.
    kernels: HashMap<&'static str, (Handle, u32)>,
    name: String,
    multiprocessors: u32,
    /// Most bytes of shared memory that a block may ask for.
    shared_max: u32,
    /// Whether kernels know how to wait for those before them.
    early: bool,
    /// Whether it has the products of compute capability 9.0, which no later one has.
    hopper: bool,
    /// Ops that wait for the one that takes what they give.
    waiting: Mutex<Vec<Op>>,
    /// Launches that come again.
    replays: Mutex<Replays<Self>>,
    /// Whether launches are made as they come.
    direct: AtomicBool,
    /// Graphs launched for them.
    replayed: AtomicU64,
    /// What copies pass through.
    pinned: Mutex<Pinned>,
    /// Whether rows lie in the host's memory, since that is the card's too.
    unified: AtomicBool,
    /// Copies and waits so far: what was launched before one is done when what follows it begins.
    barriers: AtomicU64,
    /// The first call that failed.
    failed: OnceLock<String>,
}

// SAFETY: handles of the driver, which any thread may use once the context is its current one.
unsafe impl Send for Device {}
// SAFETY: as above; the driver's calls may come from several threads.
unsafe impl Sync for Device {}

/// `call`'s code, by name.
fn named(driver: &Driver, call: &'static str, code: c_int) -> Result<(), CudaError> {
    match code {
        0 => Ok(()),
        _ => Err(CudaError::Call { call, words: driver.words(code) }),
    }
}

/// The text before the first 0.
fn words(letters: &[u8]) -> String {
    let end = letters.iter().position(|&c| c == 0).unwrap_or(0);
    String::from_utf8_lossy(&letters[..end]).into_owned()
}

impl Device {
    /// Opens a card with the kernels that `cubins` gives for its architecture, or, if `plain`,
    /// without what that one has alone.
    pub(crate) fn open(
        ordinal: u32,
        plain: bool,
        cubins: impl FnOnce(&str) -> Result<Vec<Vec<u8>>, CudaError>,
    ) -> Result<Self, CudaError> {
        let driver = Driver::open()?;
        let call = |call: &'static str, code| named(&driver, call, code);
        let (mut count, mut id, [mut context, mut stream]) = (0, 0, [std::ptr::null_mut(); 2]);
        // SAFETY: the driver's first call.
        call("cuInit", unsafe { (driver.init)(0) })?;
        // SAFETY: a place for an int.
        call("cuDeviceGetCount", unsafe { (driver.device_count)(&mut count) })?;
        if i64::from(ordinal) >= i64::from(count) {
            return Err(CudaError::NoDevice { ordinal, found: count });
        }
        // SAFETY: a place for an id; the ordinal was checked.
        call("cuDeviceGet", unsafe { (driver.device_get)(&mut id, ordinal as c_int) })?;
        let attribute = |which| {
            let mut value = 0;
            // SAFETY: a place for an int and a device.
            call("cuDeviceGetAttribute", unsafe {
                (driver.device_attribute)(&mut value, which, id)
            })?;
            Ok(value)
        };
        let (major, minor) = (attribute(COMPUTE_MAJOR)?, attribute(COMPUTE_MINOR)?);
        let mut letters = [0_u8; 128];
        // SAFETY: room for as many letters as said; the last stays 0.
        call("cuDeviceGetName", unsafe {
            (driver.device_name)(letters.as_mut_ptr().cast(), 127, id)
        })?;
        let name = words(&letters);
        if major < 8 {
            let found = format!("{major}.{minor}");
            return Err(CudaError::OldDevice { ordinal, name, found });
        }
        // SAFETY: a place for a context of a device that exists.
        call("cuDevicePrimaryCtxRetain", unsafe { (driver.context_retain)(&mut context, id) })?;
        // SAFETY: the context that was retained.
        call("cuCtxSetCurrent", unsafe { (driver.context_set)(context) })?;
        // SAFETY: a place for a stream.
        call("cuStreamCreate", unsafe { (driver.stream_create)(&mut stream, NON_BLOCKING) })?;
        let multiprocessors = attribute(MULTIPROCESSORS)? as u32;
        let shared_max = (attribute(BLOCK_SHARED)? as u32).saturating_sub(STATIC_SHARED_BYTES);
        let unified = attribute(INTEGRATED)? != 0;
        let hopper = (major, minor) == (9, 0) && !plain;
        let mut device = Self {
            driver,
            context,
            stream,
            sides: Mutex::default(),
            kernels: HashMap::new(),
            name,
            multiprocessors,
            shared_max,
            early: major >= 9,
            hopper,
            waiting: Mutex::default(),
            replays: Mutex::default(),
            direct: AtomicBool::new(false),
            replayed: AtomicU64::new(0),
            pinned: Mutex::default(),
            unified: AtomicBool::new(unified),
            barriers: AtomicU64::new(0),
            failed: OnceLock::new(),
        };
        let own = if hopper { "a" } else { "" };
        device.load(&cubins(&format!("sm_{major}{minor}{own}"))?)?;
        Ok(device)
    }

    /// Loads every kernel.
    fn load(&mut self, cubins: &[Vec<u8>]) -> Result<(), CudaError> {
        for (unit, cubin) in UNITS.iter().zip(cubins) {
            let mut module = std::ptr::null_mut();
            // SAFETY: a whole cubin, whose length is in its own header.
            self.call("cuModuleLoadData", unsafe {
                (self.driver.module_load)(&mut module, cubin.as_ptr().cast())
            })?;
            for (i, &name) in unit.kernels.iter().enumerate() {
                let symbol = CString::new(name).unwrap_or_default();
                let mut function = std::ptr::null_mut();
                // SAFETY: a loaded module and a terminated name.
                self.call("cuModuleGetFunction", unsafe {
                    (self.driver.function)(&mut function, module, symbol.as_ptr())
                })?;
                let shared = unit.shared.get(i).copied().unwrap_or(0);
                let less = if unit.yields { [shared.min(self.shared_max), 0] } else { [shared; 2] };
                let given = [shared, less[0], less[1]];
                if let Some(shared) = given.into_iter().find(|&most| self.allows(function, most)) {
                    self.kernels.insert(name, (function, shared));
                }
            }
        }
        Ok(())
    }

    /// Lets a function take so much shared memory; whether the card has it.
    fn allows(&self, function: Handle, shared: u32) -> bool {
        // SAFETY: a loaded function; the driver refuses what the card lacks.
        shared == 0
            || unsafe {
                (self.driver.function_attribute)(function, DYNAMIC_SHARED, shared as c_int)
            } == 0
    }

    /// Multiprocessors of the card.
    pub(crate) fn multiprocessors(&self) -> u32 {
        self.multiprocessors
    }

    /// Bytes of shared memory that a kernel can be launched with.
    pub(crate) fn most_shared(&self, name: &str) -> u32 {
        self.kernels.get(name).map_or(0, |&(_, shared)| shared)
    }

    /// Whether the card has the products of compute capability 9.0, which no later one has.
    pub(crate) fn hopper(&self) -> bool {
        self.hopper
    }

    /// Whether the card can run a kernel.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.kernels.contains_key(name)
    }

    fn call(&self, call: &'static str, code: c_int) -> Result<(), CudaError> {
        named(&self.driver, call, code)
    }

    /// A call that fails only when the card or its driver does. Nothing on the card can be used
    /// after that: the first failure is kept for who asks, and nothing more is launched.
    fn must(&self, call: &str, code: c_int) {
        if code != 0 {
            self.fail(format!("{call}: {}", self.words(code)));
        }
    }

    fn fail(&self, words: String) {
        let _ = self.failed.set(words);
    }

    /// Whether a call has failed.
    fn is_lost(&self) -> bool {
        self.failed.get().is_some()
    }

    /// What failed first.
    pub(crate) fn failure(&self) -> Option<&str> {
        self.failed.get().map(String::as_str)
    }

    /// The card's name.
    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    /// Makes the context this thread's.
    fn enter(&self) {
        // SAFETY: a context that is never released.
        self.must("cuCtxSetCurrent", unsafe { (self.driver.context_set)(self.context) });
    }

    /// Free bytes of the card, less what is left to others.
    pub(crate) fn free_bytes(&self) -> u64 {
        self.enter();
        let (mut free, mut total) = (0, 0);
        // SAFETY: places for two sizes.
        self.must("cuMemGetInfo", unsafe { (self.driver.memory_info)(&mut free, &mut total) });
        (free as u64).saturating_sub(MEMORY_FLOOR_BYTES)
    }

    /// As on a machine whose memory is the card's too, to test that.
    pub(crate) fn set_unified(&self) {
        self.unified.store(true, Ordering::Relaxed);
    }

    fn pinned(&self) -> MutexGuard<'_, Pinned> {
        self.pinned.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Where a copy of `bytes` bytes passes through, if it does.
    fn passage(&self, bytes: usize) -> Option<*mut c_void> {
        self.pinned().room(&self.driver, bytes, || self.finish())
    }

    /// Waits for the stream, unless the card has failed: it may be what never ends.
    fn finish(&self) {
        if self.is_lost() {
            return;
        }
        // SAFETY: the device's stream.
        self.must("cuStreamSynchronize", unsafe { (self.driver.stream_wait)(self.stream) });
    }

    fn words(&self, code: c_int) -> String {
        self.driver.words(code)
    }

    /// Waits until all that was launched is done.
    pub(crate) fn wait(&self) {
        self.barrier();
        self.finish();
        self.pinned().done();
    }

    /// Waits until all of this device's streams are done. A wait for the whole context would end
    /// what other devices of this process record meanwhile.
    fn rest(&self) {
        self.wait();
        if self.is_lost() {
            return;
        }
        // Held meanwhile, so that none of them is destroyed.
        for &side in self.sides().iter() {
            // SAFETY: a stream of this device that is not destroyed.
            self.must("cuStreamSynchronize", unsafe { (self.driver.stream_wait)(side) });
        }
    }

    fn sides(&self) -> MutexGuard<'_, Vec<Handle>> {
        self.sides.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
