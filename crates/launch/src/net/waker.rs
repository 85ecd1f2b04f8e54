//! Ends a wait from another thread.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// A handle whose [`Self::wake`] ends the current or the next wait of its [`super::Net`].
#[derive(Debug, Clone)]
pub struct Waker(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    waker: mio::Waker,
    /// Asked for, and not yet seen: to ask again is then free.
    asked: AtomicBool,
}

impl Waker {
    pub(super) fn new(registry: &mio::Registry, token: mio::Token) -> io::Result<Self> {
        let waker = mio::Waker::new(registry, token)?;
        Ok(Self(Arc::new(Shared { waker, asked: AtomicBool::new(false) })))
    }

    /// Ends a wait. What was written before this call is seen after the wait.
    pub fn wake(&self) {
        if !self.0.asked.swap(true, Ordering::AcqRel) && self.0.waker.wake().is_err() {
            // The next call tries again.
            self.0.asked.store(false, Ordering::Release);
        }
    }

    /// The wait has ended: the next call of `wake` must end another.
    pub(super) fn seen(&self) {
        self.0.asked.swap(false, Ordering::AcqRel);
    }
}
