//! Error codes of the fake libraries, with the values of the CUDA runtime and driver.

use std::cell::RefCell;
use std::ffi::{CString, c_char, c_int};
use std::fmt::Display;

/// `cudaErrorInvalidValue`.
pub const INVALID_VALUE: c_int = 1;
/// `cudaErrorMemoryAllocation`.
pub const OUT_OF_MEMORY: c_int = 2;
/// `cudaErrorInvalidDevice`.
pub const INVALID_DEVICE: c_int = 101;
/// `cudaErrorInvalidResourceHandle`.
pub const INVALID_HANDLE: c_int = 400;
/// `cudaErrorSymbolNotFound`.
pub const NOT_FOUND: c_int = 500;
/// `cudaErrorIllegalAddress`.
pub const ILLEGAL_ADDRESS: c_int = 700;
/// `cudaErrorLaunchFailure`.
pub const LAUNCH_FAILURE: c_int = 719;
/// `cudaErrorUnknown`: a misuse that a GPU might not detect; its text says which.
pub const MISUSE: c_int = 999;

thread_local! {
    static LAST_MISUSE: RefCell<CString> = RefCell::default();
}

/// The code of a misuse, whose text is kept for this thread.
pub fn misuse(text: impl Display) -> c_int {
    let text = CString::new(text.to_string().replace('\0', " ")).unwrap_or_default();
    LAST_MISUSE.set(text);
    MISUSE
}

/// The text of a code, valid until this thread's next misuse.
pub unsafe extern "C" fn get_error_string(code: c_int) -> *const c_char {
    let text = match code {
        INVALID_VALUE => c"invalid argument",
        OUT_OF_MEMORY => c"out of memory",
        INVALID_DEVICE => c"invalid device ordinal",
        INVALID_HANDLE => c"invalid resource handle",
        NOT_FOUND => c"named symbol not found",
        ILLEGAL_ADDRESS => c"an illegal memory access was encountered",
        LAUNCH_FAILURE => c"unspecified launch failure",
        MISUSE => return LAST_MISUSE.with_borrow(|text| text.as_ptr()),
        _ => c"unknown error",
    };
    text.as_ptr()
}
