//! The functions of `libnvrtc.so.13`, passed to the real one; but what it gives as machine code is
//! the PTX text, for a virtual architecture. `EMULATOR_NVRTC` names the real one.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::Path;
use std::sync::OnceLock;

use crate::driver::say;

/// `NVRTC_ERROR_INVALID_INPUT`, `NVRTC_ERROR_INTERNAL_ERROR`.
const INVALID_INPUT: c_int = 3;
const INTERNAL_ERROR: c_int = 11;
/// Where CUDA's own installer puts it. Another name would be this library's own.
const USUAL: &str = "/usr/local/cuda/lib64/libnvrtc.so";
const ARCHITECTURE: &str = "--gpu-architecture=";

type Program = *mut c_void;

/// Declares what is used of a library, and its loading by name.
macro_rules! real {
    ($($field:ident = $symbol:literal: ($($argument:ty),*)),* $(,)?) => {
        /// What is used of the real library.
        struct Real {
            $($field: unsafe extern "C" fn($($argument),*) -> c_int,)*
        }

        impl Real {
            fn find(find: impl Fn(&CStr) -> Result<*mut c_void, String>) -> Result<Self, String> {
                $(let $field = find($symbol)?;)*
                Ok(Self {
                    // SAFETY: the vendor's header declares it so.
                    $($field: unsafe {
                        std::mem::transmute::<
                            *mut c_void,
                            unsafe extern "C" fn($($argument),*) -> c_int,
                        >($field)
                    },)*
                })
            }
        }
    };
}

real! {
    version = c"nvrtcVersion": (*mut c_int, *mut c_int),
    create = c"nvrtcCreateProgram": (
        *mut Program, *const c_char, *const c_char, c_int, *const *const c_char,
        *const *const c_char
    ),
    compile = c"nvrtcCompileProgram": (Program, c_int, *const *const c_char),
    log_size = c"nvrtcGetProgramLogSize": (Program, *mut usize),
    log = c"nvrtcGetProgramLog": (Program, *mut c_char),
    text_size = c"nvrtcGetPTXSize": (Program, *mut usize),
    text = c"nvrtcGetPTX": (Program, *mut c_char),
    destroy = c"nvrtcDestroyProgram": (*mut Program),
}

/// Opens a library for its own symbols alone: this one's have the same names.
fn open(path: &str) -> Result<*mut c_void, String> {
    let name = CString::new(path).map_err(|error| error.to_string())?;
    // SAFETY: a terminated name; what the library does when it is opened is the vendor's.
    unsafe {
        let how = libc::RTLD_NOW | libc::RTLD_LOCAL | libc::RTLD_DEEPBIND;
        let library = libc::dlopen(name.as_ptr(), how);
        if !library.is_null() {
            return Ok(library);
        }
        let error = libc::dlerror();
        Err(match error.is_null() {
            true => path.to_owned(),
            false => CStr::from_ptr(error).to_string_lossy().into_owned(),
        })
    }
}

/// Opens the part that the compiler looks for by name alone.
fn open_builtins(path: &str) {
    let folder = Path::new(path).parent().and_then(|folder| std::fs::read_dir(folder).ok());
    for entry in folder.into_iter().flatten().flatten() {
        if entry.file_name().to_string_lossy().starts_with("libnvrtc-builtins.so.") {
            let _ = open(&entry.path().to_string_lossy());
        }
    }
}

impl Real {
    fn load() -> Result<Self, String> {
        let path = std::env::var("EMULATOR_NVRTC").unwrap_or_else(|_| USUAL.to_owned());
        open_builtins(&path);
        let library = open(&path)?;
        Self::find(|name| {
            // SAFETY: an open library and a terminated name.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            let lacks = || format!("{path} lacks {}", name.to_string_lossy());
            (!found.is_null()).then_some(found).ok_or_else(lacks)
        })
    }
}

fn real() -> Result<&'static Real, c_int> {
    static REAL: OnceLock<Option<Real>> = OnceLock::new();
    let load = || {
        let failed = |words: String| {
            say(&format!("no real NVRTC ({words}): name its libnvrtc in EMULATOR_NVRTC"));
        };
        Real::load().map_err(failed).ok()
    };
    REAL.get_or_init(load).as_ref().ok_or(INTERNAL_ERROR)
}

/// Calls a function of the real library.
macro_rules! pass {
    ($function:ident($($argument:expr),*)) => {
        match real() {
            // SAFETY: the caller's own arguments, as the vendor's header has them.
            Ok(real) => unsafe { (real.$function)($($argument),*) },
            Err(code) => code,
        }
    };
}

/// The options for PTX of a virtual architecture in place of machine code of a real one.
fn options(given: &[&CStr]) -> Vec<CString> {
    let text = |option: &&CStr| {
        let text = option.to_string_lossy();
        if text.starts_with("--ptxas-options") {
            return None;
        }
        let real = text.strip_prefix(ARCHITECTURE).and_then(|arch| arch.strip_prefix("sm_"));
        match real {
            // There is no such architecture: see `Kind::capability`.
            Some("81") => Some(c"--gpu-architecture=compute_80".to_owned()),
            Some(number) => CString::new(format!("{ARCHITECTURE}compute_{number}")).ok(),
            None => Some((*option).to_owned()),
        }
    };
    given.iter().filter_map(text).collect()
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcVersion(major: *mut c_int, minor: *mut c_int) -> c_int {
    pass!(version(major, minor))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcCreateProgram(
    program: *mut Program,
    source: *const c_char,
    name: *const c_char,
    count: c_int,
    headers: *const *const c_char,
    names: *const *const c_char,
) -> c_int {
    pass!(create(program, source, name, count, headers, names))
}

#[unsafe(no_mangle)]
unsafe extern "C" fn nvrtcCompileProgram(
    program: Program,
    count: c_int,
    given: *const *const c_char,
) -> c_int {
    let Ok(length) = usize::try_from(count) else { return INVALID_INPUT };
    // SAFETY: as many terminated strings as said.
    let given: Vec<&CStr> = unsafe { (0..length).map(|i| CStr::from_ptr(*given.add(i))).collect() };
    let options = options(&given);
    let pointers: Vec<*const c_char> = options.iter().map(|option| option.as_ptr()).collect();
    pass!(compile(program, pointers.len() as c_int, pointers.as_ptr()))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetProgramLogSize(program: Program, size: *mut usize) -> c_int {
    pass!(log_size(program, size))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetProgramLog(program: Program, log: *mut c_char) -> c_int {
    pass!(log(program, log))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetCUBINSize(program: Program, size: *mut usize) -> c_int {
    pass!(text_size(program, size))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcGetCUBIN(program: Program, text: *mut c_char) -> c_int {
    pass!(text(program, text))
}

#[unsafe(no_mangle)]
extern "C" fn nvrtcDestroyProgram(program: *mut Program) -> c_int {
    pass!(destroy(program))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_real_architecture_becomes_a_virtual_one_and_the_assembler_is_told_nothing() {
        let given =
            [c"-fmad=false", c"--gpu-architecture=sm_90a", c"--ptxas-options=-v", c"-std=c++17"];
        let expected = [c"-fmad=false", c"--gpu-architecture=compute_90a", c"-std=c++17"];
        assert_eq!(options(&given), expected.map(CStr::to_owned));
        let own = options(&[c"--gpu-architecture=sm_81"]);
        assert_eq!(own, [c"--gpu-architecture=compute_80".to_owned()]);
    }
}
