//! At process exit, libfabric's destructors run even if threads still use the library. This guard
//! delays the exit until they have left and keeps others from entering.

use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::time::{Duration, Instant};

static EXITING: AtomicBool = AtomicBool::new(false);
static USERS: AtomicUsize = AtomicUsize::new(0);

/// The longest delay of the exit.
const EXIT_TIMEOUT: Duration = Duration::from_millis(1500);

/// Permission to use the library.
pub struct LibraryGuard(());

/// Enters the library, unless the process is exiting.
pub fn enter() -> Option<LibraryGuard> {
    USERS.fetch_add(1, SeqCst);
    let guard = LibraryGuard(());
    (!EXITING.load(SeqCst)).then_some(guard)
}

impl Drop for LibraryGuard {
    fn drop(&mut self) {
        USERS.fetch_sub(1, SeqCst);
    }
}

/// Installs the exit handler. Must be called after the library is loaded, because handlers run in
/// reverse order of registration.
pub fn install() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only uses atomics, sleeps and removes files. Registration fails only without memory,
        // in which case the exit is not delayed.
        unsafe { libc::atexit(wait_for_users) };
    });
}

extern "C" fn wait_for_users() {
    EXITING.store(true, SeqCst);
    let until = Instant::now() + EXIT_TIMEOUT;
    while USERS.load(SeqCst) > 0 && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    crate::shm_cleanup::remove_own_segments();
}
