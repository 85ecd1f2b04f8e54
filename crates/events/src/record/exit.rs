//! The end of a recorder that lives as long as its process.

use std::sync::atomic::{AtomicPtr, Ordering};
use std::time::Duration;

use super::Recorder;

/// How long the exit of the process waits for the last events.
const EXIT_TIMEOUT: Duration = Duration::from_secs(1);

static RECORDER: AtomicPtr<Recorder> = AtomicPtr::new(std::ptr::null_mut());

/// Ends the file of this recorder when the process exits normally. Only the first recorder of a process
/// is ended in this way.
pub fn stop_at_exit(recorder: &'static Recorder) {
    let pointer = std::ptr::from_ref(recorder).cast_mut();
    let first = RECORDER.compare_exchange(
        std::ptr::null_mut(),
        pointer,
        Ordering::AcqRel,
        Ordering::Acquire,
    );
    if first.is_ok() {
        // SAFETY: the handler is a function of this library, which is never unloaded. If there is no
        // room for it, the file only lacks its last block.
        unsafe { libc::atexit(stop) };
    }
}

extern "C" fn stop() {
    // SAFETY: only set to a recorder that is never dropped.
    let recorder = unsafe { RECORDER.load(Ordering::Acquire).as_ref() };
    if let Some(recorder) = recorder {
        // A fork of the process has no thread to wait for: `stop` returns at once.
        recorder.stop(EXIT_TIMEOUT);
    }
}
