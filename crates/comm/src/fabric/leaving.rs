//! When the process ends, libfabric's library tidies up after itself, whoever still uses it. So the
//! end waits for those who do, and lets nobody in any more.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

static ENDING: AtomicBool = AtomicBool::new(false);
static INSIDE: AtomicUsize = AtomicUsize::new(0);

/// How long the end of the process may wait.
const PATIENCE: Duration = Duration::from_millis(1500);

/// Lets its holder use the library.
pub struct Inside(());

/// Enters the library, unless the process ends.
pub fn inside() -> Option<Inside> {
    INSIDE.fetch_add(1, SeqCst);
    let inside = Inside(());
    (!ENDING.load(SeqCst)).then_some(inside)
}

impl Drop for Inside {
    fn drop(&mut self) {
        INSIDE.fetch_sub(1, SeqCst);
    }
}

/// Sees to it that the end waits. To be called when the library is open: what is asked for later is
/// done earlier.
pub fn watch_the_end() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the function does nothing that may not be done then. If it cannot be remembered,
        // there is no memory, and other worries.
        unsafe { libc::atexit(at_the_end) };
    });
}

extern "C" fn at_the_end() {
    ENDING.store(true, SeqCst);
    let until = Instant::now() + PATIENCE;
    while INSIDE.load(SeqCst) > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
}
