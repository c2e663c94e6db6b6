//! Time of a replayed step in which the card runs no kernel, by the vendor's tracer (libcupti),
//! which is loaded when it is wanted.

use std::ffi::{CString, c_int, c_void};
use std::sync::{Mutex, PoisonError};

/// When each kernel began and ended, in nanoseconds.
static SEEN: Mutex<Vec<[u64; 2]>> = Mutex::new(Vec::new());
const LIBRARIES: [&str; 2] = ["libcupti.so.13", "libcupti.so"];
const BUFFER_BYTES: usize = 8 << 20;
/// `CUPTI_ACTIVITY_KIND_KERNEL`, and of those that run beside each other.
const KERNEL: u32 = 3;
const CONCURRENT_KERNEL: u32 = 10;
/// Where a kernel's record has its start, and then its end.
const START: usize = 16;

type Request = unsafe extern "C" fn(*mut *mut u8, *mut usize, *mut usize);
type Complete = unsafe extern "C" fn(*mut c_void, u32, *mut u8, usize, usize);

type Register = unsafe extern "C" fn(Request, Complete) -> c_int;
type Number = unsafe extern "C" fn(u32) -> c_int;
type Next = unsafe extern "C" fn(*mut u8, usize, *mut *mut u8) -> c_int;

/// Looks for the next record of a buffer.
static NEXT: Mutex<Option<Next>> = Mutex::new(None);

unsafe extern "C" fn give(buffer: *mut *mut u8, bytes: *mut usize, records: *mut usize) {
    // SAFETY: places for three values; the buffer is aligned as records are, and freed below.
    unsafe {
        *buffer = libc::aligned_alloc(8, BUFFER_BYTES).cast();
        *bytes = BUFFER_BYTES;
        *records = 0;
    }
}

unsafe extern "C" fn take(_: *mut c_void, _: u32, buffer: *mut u8, _: usize, valid: usize) {
    let next = *NEXT.lock().unwrap_or_else(PoisonError::into_inner);
    let mut seen = SEEN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut record = std::ptr::null_mut();
    // SAFETY: a buffer of the tracer's, each record of which begins with its kind; those of kernels
    // have their start and end where said, unaligned.
    unsafe {
        while next.is_some_and(|next| next(buffer, valid, &mut record) == 0) {
            if [KERNEL, CONCURRENT_KERNEL].contains(&record.cast::<u32>().read_unaligned()) {
                seen.push(record.add(START).cast::<[u64; 2]>().read_unaligned());
            }
        }
        libc::free(buffer.cast());
    }
}

/// The tracer, at work.
pub struct Tracer {
    flush: Number,
}

impl Tracer {
    /// Starts it; an error says what is missing.
    pub fn start() -> Result<Self, String> {
        let library = LIBRARIES.iter().find_map(|name| {
            let name = CString::new(*name).ok()?;
            // SAFETY: a terminated name; the library's own start-up code is the vendor's.
            let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
            (!library.is_null()).then_some(library)
        });
        let library = library.ok_or("no libcupti.so.13: name its folder in LD_LIBRARY_PATH")?;
        let find = |symbol: &str| {
            let name = CString::new(symbol).unwrap_or_default();
            // SAFETY: an open library and a terminated name.
            let found = unsafe { libc::dlsym(library, name.as_ptr()) };
            if found.is_null() { Err(format!("libcupti has no {symbol}")) } else { Ok(found) }
        };
        let [register, enable, next, flush] = [
            find("cuptiActivityRegisterCallbacks")?,
            find("cuptiActivityEnable")?,
            find("cuptiActivityGetNextRecord")?,
            find("cuptiActivityFlushAll")?,
        ];
        // SAFETY: the vendor's headers declare the symbols with these signatures.
        let (register, enable, next, flush) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Register>(register),
                std::mem::transmute::<*mut c_void, Number>(enable),
                std::mem::transmute::<*mut c_void, Next>(next),
                std::mem::transmute::<*mut c_void, Number>(flush),
            )
        };
        *NEXT.lock().unwrap_or_else(PoisonError::into_inner) = Some(next);
        // SAFETY: functions that live as long as the program.
        let codes = unsafe { [register(give, take), enable(CONCURRENT_KERNEL)] };
        match codes {
            [0, 0] => Ok(Self { flush }),
            _ => Err(format!("libcupti gave {codes:?}")),
        }
    }

    /// Kernels seen while `work` ran and all that it launched was done.
    pub fn seen(&self, work: impl FnOnce()) -> Vec<[u64; 2]> {
        let taken = || {
            // SAFETY: the tracer is at work.
            unsafe { (self.flush)(1) };
            std::mem::take(&mut *SEEN.lock().unwrap_or_else(PoisonError::into_inner))
        };
        taken();
        work();
        taken()
    }
}

/// Nanoseconds from the first start to the last end, and how many of them nothing ran.
pub fn idle(mut kernels: Vec<[u64; 2]>) -> [u64; 2] {
    kernels.sort_unstable();
    let first = kernels.first().map_or(0, |kernel| kernel[0]);
    let (mut end, mut idle) = (first, 0);
    for [start, own] in kernels {
        idle += start.saturating_sub(end);
        end = end.max(own);
    }
    [end - first, idle]
}
