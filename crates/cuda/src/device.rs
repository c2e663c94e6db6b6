//! A card: its context, stream, memory and kernels.

mod buffer;
mod reach;
mod side;

use std::collections::HashMap;
use std::ffi::{CString, c_int, c_void};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use crate::CudaError;
use crate::fuse::Op;
use crate::library::{Attribute, Config, Driver, Handle};
use crate::pinned::Pinned;
use crate::replay::{Replays, Shape};
use crate::units::UNITS;

pub(crate) use buffer::Buffer;
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
/// Programmatic stream serialisation.
const EARLY: u32 = 6;
const NON_BLOCKING: u32 = 1;

/// What may be a kernel's one parameter.
///
/// # Safety
/// `repr(C)`, as the kernel's source declares it; its pointers are of the device.
pub(crate) unsafe trait Params: Copy + PartialEq + 'static {}

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
    replays: Mutex<Replays>,
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
            let _ = self.failed.set(format!("{call}: {}", self.words(code)));
        }
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

    /// Counts of copies and waits: a kernel that was launched at another count is done, and so is
    /// all it wrote, before one that is launched now begins.
    pub(crate) fn barriers(&self) -> u64 {
        self.barriers.load(Ordering::Relaxed)
    }

    /// Launches what waits and what is held back.
    fn settle(&self) {
        self.flush();
        self.enter();
        self.replays().settle(self);
    }

    /// Launches what waits and what is held back, before another stream comes in.
    fn part(&self) {
        self.flush();
        self.enter();
        self.replays().part(self);
    }

    /// Launches all that was asked for, before a copy or a wait.
    fn barrier(&self) {
        self.settle();
        self.barriers.fetch_add(1, Ordering::Relaxed);
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

    fn waiting(&self) -> MutexGuard<'_, Vec<Op>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets an op wait, after those that wait already if it may follow them.
    pub(crate) fn defer(&self, op: Op) {
        if !op.follows(&self.waiting()) {
            self.flush();
        }
        self.waiting().push(op);
    }

    /// Takes the ops that wait, if `wanted` says so: they are the caller's to run.
    pub(crate) fn take(&self, wanted: impl FnOnce(&[Op]) -> bool) -> Vec<Op> {
        let mut waiting = self.waiting();
        if wanted(&waiting) { std::mem::take(&mut waiting) } else { Vec::new() }
    }

    /// Launches the ops that wait: whatever comes next may read what they give.
    pub(crate) fn flush(&self) {
        let waiting = std::mem::take(&mut *self.waiting());
        waiting.iter().for_each(|op| op.launch(self));
    }

    /// Launches a kernel after all that was asked for before.
    pub(crate) fn launch<P: Params>(&self, name: &str, grid: [u32; 3], block: u32, params: &P) {
        self.flush();
        self.launch_now(name, grid, block, params);
    }

    /// Launches a kernel that takes the place of what waited.
    pub(crate) fn launch_now<P: Params>(&self, name: &str, grid: [u32; 3], block: u32, params: &P) {
        self.launch_with(name, grid, block, u32::MAX, params);
    }

    /// As [`Device::launch_now`], with no more than so much shared memory.
    pub(crate) fn launch_with<P: Params>(
        &self,
        name: &str,
        grid: [u32; 3],
        block: u32,
        shared: u32,
        params: &P,
    ) {
        if grid.contains(&0) || self.is_lost() {
            return;
        }
        let Some((&name, &(function, most))) = self.kernels.get_key_value(name) else {
            panic!("no kernel {name}")
        };
        self.enter();
        let shape = Shape { function, name, grid, block, shared: shared.min(most) };
        match self.direct.load(Ordering::Relaxed) {
            true => self.submit(&shape, std::ptr::from_ref(params).cast_mut().cast()),
            false => self.replays().launch(self, shape, params),
        }
    }

    /// Gives a launch to the driver, whose operands lie at `params`.
    pub(crate) fn submit(&self, shape: &Shape, params: *mut c_void) {
        let &Shape { function, name, grid, block, shared } = shape;
        let mut arguments = [params];
        // The kernel may come while the one before it still runs: it waits by itself.
        let early = Attribute { id: EARLY, padding: [0; 4], value: 1, rest: [0; 60] };
        let config = Config {
            grid,
            block: [block, 1, 1],
            shared_bytes: shared,
            stream: self.stream,
            attributes: &early,
            attributes_count: u32::from(self.early),
        };
        let none = std::ptr::null_mut();
        // SAFETY: a function of a loaded module and its one parameter, which the driver copies.
        let code = unsafe { (self.driver.launch)(&config, function, arguments.as_mut_ptr(), none) };
        if code != 0 {
            self.must(&format!("kernel {name} of {grid:?} x {block}"), code);
        }
    }

    fn replays(&self) -> MutexGuard<'_, Replays> {
        self.replays.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether launches that come again run as graphs; they do unless told otherwise.
    pub(crate) fn set_replays(&self, on: bool) {
        self.settle();
        self.direct.store(!on, Ordering::Relaxed);
    }

    /// Plants a fault: replays that don't look at operands.
    pub(crate) fn plant_blind_replays(&self) {
        self.settle();
        // Graphs of buffers that are gone must not run.
        *self.replays() = Replays::blind();
    }

    /// Graphs launched for launches that came again.
    pub(crate) fn replayed(&self) -> u64 {
        self.replayed.load(Ordering::Relaxed)
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

    /// Waits for the stream.
    fn finish(&self) {
        // SAFETY: the device's stream.
        self.must("cuStreamSynchronize", unsafe { (self.driver.stream_wait)(self.stream) });
    }

    /// Launches a recorded stretch.
    pub(crate) fn replay(&self, exec: &Exec) {
        self.replayed.fetch_add(1, Ordering::Relaxed);
        // SAFETY: an executable graph of this device, whose operands were asked for just now or are
        // the caller's.
        let code = unsafe { (self.driver.graph_launch)(exec.0, self.stream) };
        self.must("cuGraphLaunch", code);
    }

    /// Records what `work` submits; none where the driver won't.
    pub(crate) fn recorded(&self, work: impl FnOnce()) -> Option<Exec> {
        let [mut graph, mut exec] = [std::ptr::null_mut(); 2];
        let driver = &self.driver;
        // SAFETY: the stream is captured by this thread alone; the graph is destroyed once it has
        // been made executable.
        unsafe {
            self.must("cuStreamBeginCapture", (driver.capture_begin)(self.stream, 2));
            work();
            self.must("cuStreamEndCapture", (driver.capture_end)(self.stream, &mut graph));
            let made = (driver.graph_instantiate)(&mut exec, graph, 0) == 0;
            (driver.graph_destroy)(graph);
            made.then_some(Exec(exec))
        }
    }

    /// Destroys a recorded stretch.
    pub(crate) fn forget(&self, exec: Exec) {
        // It may still run.
        self.finish();
        // SAFETY: a graph that is not used again.
        unsafe { (self.driver.graph_exec_destroy)(exec.0) };
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
        // Held meanwhile, so that none of them is destroyed.
        for &side in self.sides().iter() {
            // SAFETY: a stream of this device that is not destroyed.
            self.must("cuStreamSynchronize", unsafe { (self.driver.stream_wait)(side) });
        }
    }

    fn sides(&self) -> MutexGuard<'_, Vec<Handle>> {
        self.sides.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Seconds on the card between the start and the end of what `work` launches.
    pub(crate) fn timed(&self, work: impl FnOnce()) -> f64 {
        let [mut start, mut end] = [std::ptr::null_mut(); 2];
        self.settle();
        let (mut ms, driver) = (0.0_f32, &self.driver);
        // SAFETY: places for two events, which are recorded, waited for and destroyed here.
        unsafe {
            self.must("cuEventCreate", (driver.event_create)(&mut start, 0));
            self.must("cuEventCreate", (driver.event_create)(&mut end, 0));
            self.must("cuEventRecord", (driver.event_record)(start, self.stream));
            work();
            self.settle();
            self.must("cuEventRecord", (driver.event_record)(end, self.stream));
            self.must("cuEventSynchronize", (driver.event_wait)(end));
            self.must("cuEventElapsedTime", (driver.event_elapsed)(&mut ms, start, end));
            (driver.event_destroy)(start);
            (driver.event_destroy)(end);
        }
        f64::from(ms) / 1e3
    }

    /// Records what `work` launches, so that it can be launched again as one.
    pub(crate) fn record(self: &Arc<Self>, work: impl FnOnce()) -> Graph {
        self.settle();
        let direct = self.direct.swap(true, Ordering::Relaxed);
        let exec = self.recorded(|| {
            work();
            self.flush();
        });
        self.direct.store(direct, Ordering::Relaxed);
        Graph { device: self.clone(), exec }
    }
}

/// An executable graph.
pub(crate) struct Exec(Handle);

/// Launches that are launched as one.
pub struct Graph {
    device: Arc<Device>,
    exec: Option<Exec>,
}

impl Graph {
    /// Launches them after all that was launched before.
    pub fn launch(&self) {
        self.device.settle();
        // Its memory is the caller's to keep.
        self.exec.iter().for_each(|exec| self.device.replay(exec));
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        self.device.settle();
        self.exec.take().into_iter().for_each(|exec| self.device.forget(exec));
    }
}
