//! Modules, functions and their launches.

use std::collections::HashMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use super::put;
use crate::driver::card::{self, Card};
use crate::driver::code::{
    Code, INVALID_IMAGE, INVALID_PTX, INVALID_VALUE, NO_BINARY_FOR_GPU, NOT_FOUND, NOT_SUPPORTED,
    given,
};
use crate::driver::handle::{Handle, Handles};
use crate::driver::say;
use crate::driver::stream::{self};
use crate::driver::work::{Launch, Work};
use crate::{Kernel, Module};

/// A kernel, and how much shared memory it may be launched with.
struct Function {
    name: String,
    kernel: Kernel,
    dynamic_max: AtomicU32,
}

static MODULES: Handles<Module> = Handles::new();
static FUNCTIONS: Handles<Function> = Handles::new();

/// Shared memory of a block without being asked for.
const SHARED_USUAL: u32 = 48 << 10;
const THREADS_MAX: u32 = 1_024;
const GRID_MAX: [u32; 3] = [i32::MAX as u32, 65_535, 65_535];
const BLOCK_MAX: [u32; 3] = [1_024, 1_024, 64];
/// Most dynamic shared memory, of `cuFuncSetAttribute`.
const DYNAMIC_SHARED: c_int = 8;
/// What may be asked of a launch and changes nothing here: none, the window of the cache, how the
/// launch before is waited for (programmatic serialisation), a priority.
const HARMLESS: [c_uint; 4] = [0, 1, 6, 8];

/// Where compiled kernels are kept.
fn cache() -> PathBuf {
    match std::env::var_os("EMULATOR_CACHE") {
        Some(folder) => folder.into(),
        // SAFETY: it asks for a number alone.
        None => std::env::temp_dir().join(format!("baton-emulator-{}", unsafe { libc::getuid() })),
    }
}

/// The module of a text; several users of the same text have the same one.
fn module(text: &str) -> Result<Arc<Module>, Code> {
    static MADE: Mutex<Option<HashMap<String, Arc<Module>>>> = Mutex::new(None);
    let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
    let made = made.get_or_insert_default();
    if let Some(module) = made.get(text) {
        return Ok(module.clone());
    }
    let module = Module::load(text, &cache()).map_err(|words| {
        say(&format!("a module: {words}"));
        INVALID_PTX
    })?;
    made.insert(text.to_owned(), module.clone());
    Ok(module)
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleLoadData(at: *mut Handle, image: *const c_void) -> Code {
    given(card::sound().and_then(|_| {
        if image.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: an image begins with a whole word or is a terminated text.
        let text = unsafe { CStr::from_ptr(image.cast()) };
        if text.to_bytes().starts_with(b"\x7fELF") {
            say("this module is machine code of a real card's; expected the PTX text that the \
                 emulator's own NVRTC gives: name it in BATON_NVRTC and empty the kernels' cache");
            return Err(NO_BINARY_FOR_GPU);
        }
        let text = text.to_str().map_err(|_| INVALID_IMAGE)?;
        let name = MODULES.add(module(text)?);
        // SAFETY: the caller's place.
        unsafe { put(at, name) }
    }))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuModuleGetFunction(
    at: *mut Handle,
    module: Handle,
    name: *const c_char,
) -> Code {
    given(MODULES.get(module).and_then(|module| {
        if name.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: a terminated name.
        let name = unsafe { CStr::from_ptr(name) }.to_string_lossy().into_owned();
        let kernel = module.kernel(&name).ok_or(NOT_FOUND)?;
        let dynamic_max = SHARED_USUAL.saturating_sub(kernel.static_shared_bytes).into();
        let function = Function { name, kernel, dynamic_max };
        // SAFETY: the caller's place.
        unsafe { put(at, FUNCTIONS.add(Arc::new(function))) }
    }))
}

#[unsafe(no_mangle)]
extern "C" fn cuFuncSetAttribute(function: Handle, which: c_int, value: c_int) -> Code {
    given(FUNCTIONS.get(function).and_then(|function| {
        let card = card::sound()?;
        let bytes = u32::try_from(value).map_err(|_| INVALID_VALUE)?;
        let all = function.kernel.static_shared_bytes.checked_add(bytes);
        if which != DYNAMIC_SHARED || all.is_none_or(|all| all > card.kind.shared_max()) {
            return Err(INVALID_VALUE);
        }
        function.dynamic_max.store(bytes, Ordering::Release);
        Ok(())
    }))
}

/// `CUlaunchConfig`.
#[repr(C)]
struct Config {
    grid: [c_uint; 3],
    block: [c_uint; 3],
    shared_bytes: c_uint,
    stream: Handle,
    attributes: *const Attribute,
    attributes_count: c_uint,
}

/// `CUlaunchAttribute`.
#[repr(C)]
struct Attribute {
    id: c_uint,
    padding: [u8; 4],
    value: [u64; 8],
}

/// Whether a card launches so many threads with so much shared memory.
fn fits(card: &Card, function: &Function, config: &Config) -> bool {
    let within = |of: [u32; 3], most: [u32; 3]| {
        of.iter().zip(most).all(|(&count, most)| (1..=most).contains(&count))
    };
    let threads: u64 = config.block.iter().map(|&count| u64::from(count)).product();
    let shared = u64::from(function.kernel.static_shared_bytes) + u64::from(config.shared_bytes);
    within(config.grid, GRID_MAX)
        && within(config.block, BLOCK_MAX)
        && threads <= u64::from(THREADS_MAX)
        && config.shared_bytes <= function.dynamic_max.load(Ordering::Acquire)
        && shared <= u64::from(card.kind.shared_max())
}

#[unsafe(no_mangle)]
unsafe extern "C" fn cuLaunchKernelEx(
    config: *const Config,
    function: Handle,
    arguments: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Code {
    given(FUNCTIONS.get(function).and_then(|function| {
        if config.is_null() || !extra.is_null() {
            return Err(INVALID_VALUE);
        }
        // SAFETY: the caller's configuration and as many attributes as it says.
        let (config, attributes) = unsafe {
            let config = &*config;
            let count = config.attributes_count as usize;
            let attributes = match config.attributes.is_null() || count == 0 {
                true => &[],
                false => std::slice::from_raw_parts(config.attributes, count),
            };
            (config, attributes)
        };
        let stream = stream::current(config.stream)?;
        if attributes.iter().any(|attribute| !HARMLESS.contains(&attribute.id)) {
            return Err(NOT_SUPPORTED);
        }
        if !fits(stream.card, &function, config) {
            let Config { grid, block, shared_bytes, .. } = config;
            let name = &function.name;
            say(&format!("kernel {name}: {grid:?} x {block:?}, {shared_bytes} bytes: too much"));
            return Err(INVALID_VALUE);
        }
        // SAFETY: as many arguments as the kernel has, each as large as declared.
        let params = unsafe { taken(&function.kernel, arguments)? };
        stream.ask(Work::Kernel(Arc::new(Launch {
            name: function.name.clone(),
            kernel: function.kernel.clone(),
            grid: config.grid,
            block: config.block,
            shared_bytes: config.shared_bytes,
            params,
        })))
    }))
}

/// All parameters, where the kernel looks for them.
///
/// # Safety
/// As many pointers as the kernel has parameters, each to one.
unsafe fn taken(kernel: &Kernel, arguments: *mut *mut c_void) -> Result<Vec<u8>, Code> {
    let end = kernel.params.iter().map(|(at, bytes)| at + bytes).max().unwrap_or(0);
    let mut params = vec![0; end];
    if arguments.is_null() && end > 0 {
        return Err(INVALID_VALUE);
    }
    for (i, &(at, bytes)) in kernel.params.iter().enumerate() {
        // SAFETY: the caller's word, and room for it by the line above.
        unsafe {
            let from = arguments.add(i).read().cast::<u8>();
            params[at..at + bytes].as_mut_ptr().copy_from_nonoverlapping(from, bytes);
        }
    }
    Ok(params)
}
