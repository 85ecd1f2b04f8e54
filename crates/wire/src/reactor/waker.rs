//! Wakes the reactor from another thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Wakes the current or the next [`super::Reactor::poll`].
#[derive(Debug, Clone)]
pub struct Waker(Arc<WakerInner>);

#[derive(Debug)]
struct WakerInner {
    waker: mio::Waker,
    /// Requested and not yet consumed; further requests are then free.
    pending: AtomicBool,
}

impl Waker {
    pub(super) fn new(registry: &mio::Registry, token: mio::Token) -> io::Result<Self> {
        let waker = mio::Waker::new(registry, token)?;
        Ok(Self(Arc::new(WakerInner { waker, pending: AtomicBool::new(false) })))
    }

    /// Ends a poll. Writes before this call are visible after it.
    pub fn wake(&self) {
        if !self.0.pending.swap(true, Ordering::AcqRel) && self.0.waker.wake().is_err() {
            // The next call tries again.
            self.0.pending.store(false, Ordering::Release);
        }
    }

    /// Consumes a wake-up, so that the next `wake` ends another poll.
    pub(super) fn clear(&self) {
        self.0.pending.swap(false, Ordering::AcqRel);
    }
}
