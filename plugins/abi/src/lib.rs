//! What the plug-ins of NCCL and RCCL share: results, NCCL's logger, and the guard that every exported
//! function runs in.

pub mod log;
pub mod net;

use std::ffi::c_int;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// NCCL's result of a call.
pub type NcclResult = c_int;
/// Success. Plug-ins that only observe or advise return nothing else: they must not fail the job.
pub const SUCCESS: NcclResult = 0;
/// A call to the system, or to a library, failed (`ncclSystemError`).
pub const SYSTEM_ERROR: NcclResult = 2;

/// Runs the body of a function of the boundary, and returns success. A panic ends there: unwinding through
/// NCCL's frames is undefined behaviour.
#[inline]
pub fn guard(work: impl FnOnce()) -> NcclResult {
    if let Err(payload) = catch_unwind(AssertUnwindSafe(work)) {
        // The payload's destructor might panic, too.
        std::mem::forget(payload);
    }
    SUCCESS
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A payload that panics when it is dropped.
    struct PanicOnDrop;

    impl Drop for PanicOnDrop {
        fn drop(&mut self) {
            panic!("in the destructor of a payload");
        }
    }

    #[test]
    fn panics_end_at_the_guard() {
        let mut called = false;
        assert_eq!(guard(|| called = true), SUCCESS);
        assert!(called);
        assert_eq!(guard(|| panic!("inside")), SUCCESS);
        assert_eq!(guard(|| std::panic::panic_any(PanicOnDrop)), SUCCESS);
    }
}
