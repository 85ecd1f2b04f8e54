//! The logger that a plug-in gets, in place of NCCL's: keeps the last warnings for error messages.

use std::collections::VecDeque;
use std::ffi::{CStr, c_char, c_int, c_ulong};
use std::sync::{Mutex, PoisonError};

use regatta_plugin_abi::log::{Level, Logger};

/// Longer messages are truncated.
const MAX_MESSAGE_CHARS: usize = 400;

/// Warnings that are kept. The cause comes before its consequences, such as a function that failed.
const MAX_WARNINGS: usize = 6;

/// The last warnings of plug-ins. A logger gets no context, so they are those of the process.
static WARNINGS: Mutex<VecDeque<String>> = Mutex::new(VecDeque::new());

/// The logger to pass to `init`.
pub fn logger() -> Logger {
    // SAFETY: on x86-64 and AArch64 Linux, a variadic function gets the fixed and the first variadic
    // integer and pointer arguments in the same registers as one that is not variadic. `record` uses
    // the variadic one only if the format says that it is a string.
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    unsafe {
        std::mem::transmute::<*const (), Logger>(record as *const ())
    }
    #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
    None
}

/// Takes the last warnings, the earliest first.
pub fn take_warnings() -> Vec<String> {
    WARNINGS.lock().unwrap_or_else(PoisonError::into_inner).drain(..).collect()
}

/// Stable Rust cannot define a variadic function, so further arguments are not accessible.
unsafe extern "C" fn record(
    level: c_int,
    _flags: c_ulong,
    _file: *const c_char,
    _line: c_int,
    format: *const c_char,
    first: *const c_char,
) {
    if level != Level::Warn as c_int || format.is_null() {
        return;
    }
    // SAFETY: a logger gets a C string as its format, and a C string for a `%s`.
    let message = unsafe {
        let format = CStr::from_ptr(format).to_string_lossy();
        substitute(&format, || (!first.is_null()).then(|| CStr::from_ptr(first).to_string_lossy()))
    };
    let message: String = message.trim().chars().take(MAX_MESSAGE_CHARS).collect();
    let mut warnings = WARNINGS.lock().unwrap_or_else(PoisonError::into_inner);
    // Some plug-ins warn with every call that is tried again.
    warnings.retain(|warning| *warning != message);
    if warnings.len() == MAX_WARNINGS {
        warnings.pop_front();
    }
    warnings.push_back(message);
}

/// The format with its first conversion replaced, if that is `%s`. Others stay as they are.
fn substitute<'a>(
    format: &str,
    first: impl FnOnce() -> Option<std::borrow::Cow<'a, str>>,
) -> String {
    let mut from = 0;
    while let Some(at) = format[from..].find('%').map(|at| from + at) {
        match format.as_bytes().get(at + 1) {
            Some(b'%') => from = at + 2,
            Some(b's') => {
                let text = first().unwrap_or_default();
                return format!("{}{text}{}", &format[..at], &format[at + 2..]);
            }
            _ => break,
        }
    }
    format.to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_first_string_is_substituted() {
        let shown = |format: &str| substitute(format, || Some("text".into()));
        assert_eq!(shown("%s"), "text");
        assert_eq!(shown("100 %% of NET/X: %s, %d left"), "100 %% of NET/X: text, %d left");
        assert_eq!(shown("error %d: %s"), "error %d: %s");
        assert_eq!(shown("%"), "%");
        assert_eq!(shown("%ü %s"), "%ü %s");
    }

    #[test]
    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    fn warnings_are_kept_and_other_levels_are_not() {
        let Some(logger) = logger() else { panic!("no logger") };
        let log = |level: Level, format: &CStr, text: &CStr| {
            // SAFETY: the format has one string.
            unsafe { logger(level as c_int, 1, c"x".as_ptr(), 1, format.as_ptr(), text.as_ptr()) }
        };
        log(Level::Warn, c"NET/X : %s", c"no route to host");
        log(Level::Info, c"%s", c"using eth0");
        assert_eq!(take_warnings(), ["NET/X : no route to host"]);
        for text in [c"1", c"2", c"3", c"2", c"4", c"5", c"6", c"7"] {
            log(Level::Warn, c"%s", text);
        }
        assert_eq!(take_warnings(), ["3", "2", "4", "5", "6", "7"]);
        assert_eq!(take_warnings(), [""; 0]);
    }
}
