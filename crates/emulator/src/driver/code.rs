//! The driver's results, by number and in words.

use std::ffi::{CStr, c_int};

/// What a call of the driver gives: 0, or what went wrong.
pub type Code = c_int;

pub const INVALID_VALUE: Code = 1;
pub const OUT_OF_MEMORY: Code = 2;
pub const INVALID_DEVICE: Code = 101;
pub const INVALID_IMAGE: Code = 200;
pub const INVALID_CONTEXT: Code = 201;
pub const MAP_FAILED: Code = 205;
pub const NO_BINARY_FOR_GPU: Code = 209;
pub const INVALID_PTX: Code = 218;
pub const INVALID_HANDLE: Code = 400;
pub const NOT_FOUND: Code = 500;
pub const NOT_READY: Code = 600;
pub const ILLEGAL_ADDRESS: Code = 700;
pub const REACHED_ALREADY: Code = 704;
pub const LAUNCH_FAILED: Code = 719;
pub const NOT_SUPPORTED: Code = 801;
pub const CAPTURE_UNSUPPORTED: Code = 900;
pub const CAPTURE_UNJOINED: Code = 904;
pub const CAPTURE_ISOLATION: Code = 905;
pub const CAPTURED_EVENT: Code = 907;

/// What the driver says of each result that can come of this one.
const WORDS: [(Code, &CStr); 20] = [
    (0, c"no error"),
    (INVALID_VALUE, c"invalid argument"),
    (OUT_OF_MEMORY, c"out of memory"),
    (INVALID_DEVICE, c"invalid device ordinal"),
    (INVALID_IMAGE, c"device kernel image is invalid"),
    (INVALID_CONTEXT, c"invalid device context"),
    (MAP_FAILED, c"mapping of buffer object failed"),
    (NO_BINARY_FOR_GPU, c"no kernel image is available for execution on the device"),
    (INVALID_PTX, c"a PTX JIT compilation failed"),
    (INVALID_HANDLE, c"invalid resource handle"),
    (NOT_FOUND, c"named symbol not found"),
    (NOT_READY, c"device not ready"),
    (ILLEGAL_ADDRESS, c"an illegal memory access was encountered"),
    (REACHED_ALREADY, c"peer access is already enabled"),
    (LAUNCH_FAILED, c"unspecified launch failure"),
    (NOT_SUPPORTED, c"operation not supported"),
    (CAPTURE_UNSUPPORTED, c"operation not permitted when stream is capturing"),
    (CAPTURE_UNJOINED, c"capturing stream has unjoined work"),
    (CAPTURE_ISOLATION, c"dependency created on uncaptured work in another stream"),
    (CAPTURED_EVENT, c"operation not permitted on an event last recorded in a capturing stream"),
];

/// The driver's words for a result, none for one that is not this driver's.
pub fn words(code: Code) -> Option<&'static CStr> {
    WORDS.iter().find(|(own, _)| *own == code).map(|(_, words)| *words)
}

/// What a call gives, as C has it.
pub fn given(result: Result<(), Code>) -> Code {
    result.err().unwrap_or(0)
}
