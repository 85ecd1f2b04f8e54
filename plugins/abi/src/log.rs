//! NCCL's logger.

use std::ffi::{CString, c_char, c_int, c_ulong};

/// NCCL's logger; NULL if there is none.
pub type Logger = Option<
    unsafe extern "C" fn(c_int, c_ulong, file: *const c_char, c_int, format: *const c_char, ...),
>;

/// Level of a message, by NCCL's numbers.
#[derive(Debug, Clone, Copy)]
pub enum Level {
    /// Shown with `NCCL_DEBUG=WARN`.
    Warn = 2,
    /// Shown with `NCCL_DEBUG=INFO`.
    Info = 3,
}

/// NCCL's subsystem of the initialisation.
const INIT: c_ulong = 1;

/// Logs a message.
pub fn log(logger: Logger, level: Level, message: &str) {
    let (Some(logger), Ok(message)) = (logger, CString::new(message)) else { return };
    // SAFETY: the logger formats like printf, and all texts end with a zero byte.
    unsafe {
        logger(level as c_int, INIT, c"regatta".as_ptr(), 0, c"%s".as_ptr(), message.as_ptr())
    }
}
