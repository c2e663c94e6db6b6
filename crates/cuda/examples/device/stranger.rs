//! An end of NCCL's that comes and then says nothing, by the library itself.

use std::ffi::{CString, c_int, c_void};

use backend::Offer;

#[repr(C)]
struct Id(Offer);

type Join = unsafe extern "C" fn(*mut *mut c_void, c_int, Id, c_int, *const c_void) -> c_int;
type Abort = unsafe extern "C" fn(*mut c_void) -> c_int;

/// The second of two ends.
pub struct Stranger {
    communicator: *mut c_void,
    abort: Abort,
}

impl Stranger {
    /// Comes, with the card that is this thread's, to the end that made an offer.
    pub fn join(offer: &Offer) -> Result<Self, String> {
        let name = std::env::var("BATON_NCCL").unwrap_or_else(|_| "libnccl.so.2".to_owned());
        let name = CString::new(name).map_err(|error| error.to_string())?;
        // SAFETY: a terminated name; the library's own start-up code is the vendor's.
        let library = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW) };
        // SAFETY: terminated names; of a library that is not open there are none.
        let [join, abort] = [c"ncclCommInitRankConfig", c"ncclCommAbort"]
            .map(|symbol| unsafe { libc::dlsym(library, symbol.as_ptr()) });
        if [library, join, abort].iter().any(|found| found.is_null()) {
            return Err(format!("{name:?} is no NCCL"));
        }
        // SAFETY: the vendor's header declares the symbols with these signatures.
        let (join, abort) = unsafe {
            (
                std::mem::transmute::<*mut c_void, Join>(join),
                std::mem::transmute::<*mut c_void, Abort>(abort),
            )
        };
        let mut communicator = std::ptr::null_mut();
        // SAFETY: a place for a communicator, and no configuration: it returns once both are there.
        match unsafe { join(&mut communicator, 2, Id(*offer), 1, std::ptr::null()) } {
            0 => Ok(Self { communicator, abort }),
            code => Err(format!("ncclCommInitRankConfig gave {code}")),
        }
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        // SAFETY: a communicator that is not used again.
        unsafe { (self.abort)(self.communicator) };
    }
}
