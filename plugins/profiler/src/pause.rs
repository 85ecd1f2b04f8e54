//! Pauses the recording, from the program: two functions that the library exports.
//!
//! NCCL reads the event mask of the process for every operation, so a mask of 0 costs as little as no
//! plug-in. All ranks have to pause and resume between the same collectives, because these are matched by
//! their numbers.

use std::ffi::c_int;
use std::ptr::null_mut;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, Ordering};

use crate::abi::guard;

/// NCCL's event mask.
static MASK: AtomicPtr<AtomicI32> = AtomicPtr::new(null_mut());
/// The mask while events are recorded.
static RECORDED: AtomicI32 = AtomicI32::new(0);
static PAUSED: AtomicBool = AtomicBool::new(false);

/// Sets NCCL's event mask, or remembers it for the end of the pause.
///
/// # Safety
/// `mask` is an aligned integer that lives as long as the process.
pub(crate) unsafe fn set_mask(mask: *mut c_int, events: c_int) {
    RECORDED.store(events, Ordering::Release);
    MASK.store(mask.cast(), Ordering::Release);
    store(events);
    // A pause may have begun meanwhile.
    if PAUSED.load(Ordering::SeqCst) {
        store(0);
    }
}

/// Stops the recording of further operations, until [`regatta_profiler_resume`]. Those that have been
/// enqueued are recorded to their end.
#[unsafe(no_mangle)]
pub extern "C" fn regatta_profiler_pause() {
    PAUSED.store(true, Ordering::SeqCst);
    store(0);
}

/// Records further operations again.
#[unsafe(no_mangle)]
pub extern "C" fn regatta_profiler_resume() {
    PAUSED.store(false, Ordering::SeqCst);
    store(RECORDED.load(Ordering::Acquire));
}

fn store(events: c_int) {
    guard(|| {
        // SAFETY: NULL, or a global variable of NCCL, which is never unloaded; NCCL, too, accesses it
        // atomically.
        if let Some(mask) = unsafe { MASK.load(Ordering::Acquire).as_ref() } {
            mask.store(events, Ordering::SeqCst);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_clears_the_mask_also_of_later_communicators() {
        let mask = Box::leak(Box::new(AtomicI32::new(0)));
        let pointer = mask.as_ptr();
        // SAFETY: it is never freed.
        let set = |events| unsafe { set_mask(pointer, events) };
        set(7);
        assert_eq!(mask.load(Ordering::Relaxed), 7);
        regatta_profiler_pause();
        assert_eq!(mask.load(Ordering::Relaxed), 0);
        set(15);
        assert_eq!(mask.load(Ordering::Relaxed), 0);
        regatta_profiler_resume();
        assert_eq!(mask.load(Ordering::Relaxed), 15);
    }
}
