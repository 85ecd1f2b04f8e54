//! The end of a recorder that lives as long as its process.

use std::panic::catch_unwind;
use std::ptr::null_mut;
use std::sync::Once;
use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use super::Recorder;

/// How long the exit of the process waits for the last events.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

static RECORDER: AtomicPtr<Recorder> = AtomicPtr::new(null_mut());
static REGISTER: Once = Once::new();

/// Ends the file of this recorder when the process exits normally, in place of an earlier one: a fork has
/// to have its own.
pub fn stop_at_exit(recorder: &'static Recorder) {
    RECORDER.store(std::ptr::from_ref(recorder).cast_mut(), Ordering::Release);
    REGISTER.call_once(|| {
        // SAFETY: the handler is a function of this library, which is never unloaded. If there is no
        // room for it, the file only lacks its last block.
        unsafe { libc::atexit(stop) };
    });
}

extern "C" fn stop() {
    // SAFETY: only set to a recorder that is never dropped.
    let recorder = unsafe { RECORDER.load(Ordering::Acquire).as_ref() };
    // A fork that has no recorder of its own has no thread to wait for: `stop` returns at once.
    if let Some(recorder) = recorder
        && let Err(payload) = catch_unwind(|| recorder.stop(EXIT_TIMEOUT))
    {
        // The payload's destructor might panic, too.
        std::mem::forget(payload);
    }
}
