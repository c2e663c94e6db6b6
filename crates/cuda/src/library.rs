//! The driver and the run-time compiler, loaded when they are first wanted: a machine without them
//! builds and runs everything else.

use std::ffi::{CStr, CString, c_char, c_int, c_uint, c_void};

use crate::CudaError;

/// A context, stream, module, function, event or graph, as the driver hands it out.
pub(crate) type Handle = *mut c_void;

/// `CUlaunchConfig`.
#[repr(C)]
pub(crate) struct Config {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) stream: Handle,
    pub(crate) attributes: *const Attribute,
    pub(crate) attributes_count: c_uint,
}

/// `CUlaunchAttribute` of an int.
#[repr(C)]
pub(crate) struct Attribute {
    pub(crate) id: c_uint,
    pub(crate) padding: [u8; 4],
    pub(crate) value: c_int,
    pub(crate) rest: [u8; 60],
}

/// Declares a table of functions that all give an int, and its loading by name.
macro_rules! library {
    (
        $(#[$doc:meta])*
        $name:ident { $($field:ident = $symbol:literal: ($($arg:ty),*)),* $(,)? }
    ) => {
        $(#[$doc])*
        pub(crate) struct $name {
            $(pub(crate) $field: unsafe extern "C" fn($($arg),*) -> c_int,)*
        }

        impl $name {
            /// Finds every function in an open library, or names the first that it lacks.
            fn load(library: *mut c_void) -> Result<Self, &'static str> {
                $(let $field = find(library, $symbol)?;)*
                Ok(Self {
                    // SAFETY: the vendor's headers declare the symbol with this signature.
                    $($field: unsafe {
                        std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($arg),*) -> c_int,
                        >($field)
                    },)*
                })
            }
        }
    };
}

/// `CUipcMemHandle`: by which another process finds memory of a card.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MemoryName(pub(crate) [u8; 64]);

library! {
    /// What is used of the driver.
    Driver {
        init = "cuInit": (c_uint),
        error_string = "cuGetErrorString": (c_int, *mut *const c_char),
        device_count = "cuDeviceGetCount": (*mut c_int),
        device_get = "cuDeviceGet": (*mut c_int, c_int),
        device_name = "cuDeviceGetName": (*mut c_char, c_int, c_int),
        device_attribute = "cuDeviceGetAttribute": (*mut c_int, c_int, c_int),
        context_retain = "cuDevicePrimaryCtxRetain": (*mut Handle, c_int),
        context_set = "cuCtxSetCurrent": (Handle),
        memory_info = "cuMemGetInfo_v2": (*mut usize, *mut usize),
        allocate = "cuMemAlloc_v2": (*mut u64, usize),
        free = "cuMemFree_v2": (u64),
        host_allocate = "cuMemHostAlloc": (*mut *mut c_void, usize, c_uint),
        host_free = "cuMemFreeHost": (*mut c_void),
        upload = "cuMemcpyHtoDAsync_v2": (u64, *const c_void, usize, Handle),
        download = "cuMemcpyDtoHAsync_v2": (*mut c_void, u64, usize, Handle),
        copy = "cuMemcpyDtoDAsync_v2": (u64, u64, usize, Handle),
        fill_words = "cuMemsetD32Async": (u64, c_uint, usize, Handle),
        context_device = "cuCtxGetDevice": (*mut c_int),
        device_uuid = "cuDeviceGetUuid": (*mut [u8; 16], c_int),
        may_reach = "cuDeviceCanAccessPeer": (*mut c_int, c_int, c_int),
        reach = "cuCtxEnablePeerAccess": (Handle, c_uint),
        memory_name = "cuIpcGetMemHandle": (*mut MemoryName, u64),
        memory_open = "cuIpcOpenMemHandle_v2": (*mut u64, MemoryName, c_uint),
        memory_close = "cuIpcCloseMemHandle": (u64),
        write_word = "cuStreamWriteValue32_v2": (Handle, u64, c_uint, c_uint),
        wait_word = "cuStreamWaitValue32_v2": (Handle, u64, c_uint, c_uint),
        stream_after = "cuStreamWaitEvent": (Handle, Handle, c_uint),
        fill = "cuMemsetD8Async": (u64, u8, usize, Handle),
        stream_create = "cuStreamCreate": (*mut Handle, c_uint),
        stream_wait = "cuStreamSynchronize": (Handle),
        stream_create_first = "cuStreamCreateWithPriority": (*mut Handle, c_uint, c_int),
        stream_destroy = "cuStreamDestroy_v2": (Handle),
        stream_priorities = "cuCtxGetStreamPriorityRange": (*mut c_int, *mut c_int),
        module_load = "cuModuleLoadData": (*mut Handle, *const c_void),
        function = "cuModuleGetFunction": (*mut Handle, Handle, *const c_char),
        function_attribute = "cuFuncSetAttribute": (Handle, c_int, c_int),
        launch = "cuLaunchKernelEx": (
            *const Config, Handle, *mut *mut c_void, *mut *mut c_void
        ),
        event_create = "cuEventCreate": (*mut Handle, c_uint),
        event_record = "cuEventRecord": (Handle, Handle),
        event_wait = "cuEventSynchronize": (Handle),
        event_query = "cuEventQuery": (Handle),
        event_elapsed = "cuEventElapsedTime": (*mut f32, Handle, Handle),
        event_destroy = "cuEventDestroy_v2": (Handle),
        capture_begin = "cuStreamBeginCapture_v2": (Handle, c_uint),
        capture_end = "cuStreamEndCapture": (Handle, *mut Handle),
        graph_instantiate = "cuGraphInstantiateWithFlags": (*mut Handle, Handle, u64),
        graph_launch = "cuGraphLaunch": (Handle, Handle),
        graph_exec_destroy = "cuGraphExecDestroy": (Handle),
        graph_destroy = "cuGraphDestroy": (Handle),
    }
}

library! {
    /// What is used of the run-time compiler.
    Compiler {
        version = "nvrtcVersion": (*mut c_int, *mut c_int),
        create = "nvrtcCreateProgram": (
            *mut Handle, *const c_char, *const c_char, c_int, *const *const c_char,
            *const *const c_char
        ),
        compile = "nvrtcCompileProgram": (Handle, c_int, *const *const c_char),
        log_size = "nvrtcGetProgramLogSize": (Handle, *mut usize),
        log = "nvrtcGetProgramLog": (Handle, *mut c_char),
        cubin_size = "nvrtcGetCUBINSize": (Handle, *mut usize),
        cubin = "nvrtcGetCUBIN": (Handle, *mut c_char),
        destroy = "nvrtcDestroyProgram": (*mut Handle),
    }
}

/// By which the ends of a communicator find each other.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct UniqueId(pub(crate) [u8; 128]);

/// `ncclConfig_t` as 2.14 has it, which every later one takes.
#[repr(C)]
pub(crate) struct Calls {
    pub(crate) size: usize,
    pub(crate) magic: c_uint,
    pub(crate) version: c_uint,
    pub(crate) blocking: c_int,
    pub(crate) rest: c_int,
}

library! {
    /// What is used of NCCL.
    Collectives {
        version = "ncclGetVersion": (*mut c_int),
        unique_id = "ncclGetUniqueId": (*mut UniqueId),
        connect = "ncclCommInitRankConfig": (*mut Handle, c_int, UniqueId, c_int, *const Calls),
        state = "ncclCommGetAsyncError": (Handle, *mut c_int),
        abort = "ncclCommAbort": (Handle),
        group_start = "ncclGroupStart": (),
        group_end = "ncclGroupEnd": (),
        send = "ncclSend": (*const c_void, usize, c_int, c_int, Handle, Handle),
        receive = "ncclRecv": (*mut c_void, usize, c_int, c_int, Handle, Handle),
    }
}

// SAFETY: tables of functions that may be called from any thread.
unsafe impl Send for Driver {}
// SAFETY: as above.
unsafe impl Sync for Driver {}

impl Driver {
    /// Loads the driver that came with the card.
    pub(crate) fn open() -> Result<Self, CudaError> {
        let library = open_first(&["libcuda.so.1".into()])
            .map_err(|reason| CudaError::NoDriver { reason })?;
        Self::load(library).map_err(|symbol| CudaError::OldLibrary { what: "driver", symbol })
    }

    /// The driver's words for a result.
    pub(crate) fn words(&self, code: c_int) -> String {
        let mut text: *const c_char = std::ptr::null();
        // SAFETY: the driver gives a static string or leaves the pointer null.
        let known = unsafe { (self.error_string)(code, &mut text) } == 0 && !text.is_null();
        match known {
            // SAFETY: checked to be a string of the driver's.
            true => unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned(),
            false => format!("error {code}"),
        }
    }
}

impl Compiler {
    /// Loads the compiler from `path`, else from where the system and CUDA's own installer put it.
    pub(crate) fn open(path: Option<&str>) -> Result<Self, CudaError> {
        let usual = ["libnvrtc.so.13", "libnvrtc.so.12", "/usr/local/cuda/lib64/libnvrtc.so"];
        let names: Vec<String> = match path {
            Some(path) => vec![path.to_owned()],
            None => usual.map(str::to_owned).to_vec(),
        };
        path.into_iter().for_each(open_builtins);
        let library = open_first(&names).map_err(|reason| CudaError::NoCompiler { reason })?;
        Self::load(library).map_err(|symbol| CudaError::OldLibrary { what: "compiler", symbol })
    }
}

/// Functions of NCCL that give text.
type Words = unsafe extern "C" fn(c_int) -> *const c_char;
type LastWords = unsafe extern "C" fn(Handle) -> *const c_char;

/// NCCL and its words.
pub(crate) struct Nccl {
    pub(crate) calls: Collectives,
    words: Words,
    last_words: LastWords,
}

impl Nccl {
    /// Loads it from `path`, else from `BATON_NCCL` or where the system has it.
    pub(crate) fn open(path: Option<&str>) -> Result<Self, CudaError> {
        let named = std::env::var("BATON_NCCL").ok();
        let name = path.or(named.as_deref()).unwrap_or("libnccl.so.2");
        let library =
            open_first(&[name.to_owned()]).map_err(|reason| CudaError::NoNccl { reason })?;
        let old = |symbol| CudaError::OldLibrary { what: "NCCL", symbol };
        let [words, last_words] =
            ["ncclGetErrorString", "ncclGetLastError"].map(|symbol| find(library, symbol));
        let (words, last_words) = (words.map_err(old)?, last_words.map_err(old)?);
        // SAFETY: the vendor's header declares them so.
        let (words, last_words) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Words>(words),
                std::mem::transmute::<*mut c_void, LastWords>(last_words),
            )
        };
        Ok(Self { calls: Collectives::load(library).map_err(old)?, words, last_words })
    }

    /// Its words for a result, and for what went wrong last.
    pub(crate) fn words(&self, code: c_int) -> String {
        // SAFETY: static strings of the library's, or null.
        let [words, last] = unsafe {
            [(self.words)(code), (self.last_words)(std::ptr::null_mut())]
        }
        .map(|text| match text.is_null() {
            true => String::new(),
            // SAFETY: not null, and terminated.
            false => unsafe { CStr::from_ptr(text) }.to_string_lossy().trim().replace('\n', " "),
        });
        if last.is_empty() { words } else { format!("{words}; {last}") }
    }
}

/// Opens the part of the compiler that it looks for by name alone, where it lies beside a library
/// that was named. What it lacks then, it says itself.
fn open_builtins(path: &str) {
    let folder = std::path::Path::new(path).parent();
    let entries = folder.and_then(|folder| std::fs::read_dir(folder).ok());
    for entry in entries.into_iter().flatten().flatten() {
        let name = entry.file_name();
        if name.to_string_lossy().starts_with("libnvrtc-builtins.so.") {
            let _ = open_first(&[entry.path().to_string_lossy().into_owned()]);
        }
    }
}

/// Opens the first library that is there; it stays open.
fn open_first(names: &[String]) -> Result<*mut c_void, String> {
    let mut reasons = Vec::new();
    for name in names {
        let Ok(c_name) = CString::new(name.as_str()) else { continue };
        // SAFETY: a terminated name; the library's own start-up code is the vendor's.
        let library = unsafe { libc::dlopen(c_name.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
        if !library.is_null() {
            return Ok(library);
        }
        // SAFETY: the error of the call above, a terminated string or null.
        let error = unsafe { libc::dlerror() };
        reasons.push(match error.is_null() {
            true => name.clone(),
            // SAFETY: not null, and terminated.
            false => unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned(),
        });
    }
    Err(reasons.join("; "))
}

fn find(library: *mut c_void, symbol: &'static str) -> Result<*mut c_void, &'static str> {
    let Ok(name) = CString::new(symbol) else { return Err(symbol) };
    // SAFETY: an open library and a terminated name.
    let found = unsafe { libc::dlsym(library, name.as_ptr()) };
    if found.is_null() { Err(symbol) } else { Ok(found) }
}
