//! Bounded waits for the library. NCCL itself waits a minute for a rank that died before it connected
//! and forever for a rank that never calls, so it runs in non-blocking mode and is polled.

use std::time::Duration;

use super::NcclEngine;
use super::sys::{IN_PROGRESS, RawComm};
use crate::event::poll_until;
use crate::gpu_runtime::SUCCESS;
use crate::{CommError, Result};

/// How long the ranks may take to connect their devices, which takes a while for many ranks.
const INIT_TIMEOUT: Duration = Duration::from_secs(300);

/// How long the device may take to stop aborted work.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

impl NcclEngine {
    /// Waits until all ranks have connected their devices.
    pub(super) fn wait_init(&self) -> Result {
        let timeout = self.config.desync_after.max(INIT_TIMEOUT);
        self.wait_library("communicator initialisation", timeout)
    }

    /// Waits until the library has enqueued a call on the stream; only then the stream may be used
    /// and the next call enqueued. This is no wait for the device, but the first call between two
    /// ranks connects them.
    pub(super) fn wait_enqueued(&self, what: &str) -> Result {
        self.wait_library(what, self.config.desync_after)
    }

    fn wait_library(&self, what: &str, timeout: Duration) -> Result {
        let done = poll_until(timeout, || match self.is_library_idle(what)? {
            true => Ok(true),
            false => self.check_not_aborted().map(|()| false),
        })?;
        done.then_some(()).ok_or_else(|| self.timeout_error(what, timeout, &[]))
    }

    /// Finalizes and destroys the communicator after all its calls have completed.
    pub(super) fn finalize(&mut self) {
        // An error has aborted the communicator.
        let idle = self.wait_idle();
        if idle.is_err() || self.raw.is_null() {
            return;
        }
        // SAFETY: the communicator is valid.
        let code = unsafe { (self.api.comm_finalize)(self.raw) };
        let done = self.check("finalizing", code);
        match done.and_then(|()| self.wait_library("finalizing", self.config.desync_after)) {
            // SAFETY: the communicator is valid and unused from here on.
            Ok(()) => drop(unsafe { (self.api.comm_destroy)(self.take_raw()) }),
            Err(_) => {
                let raw = self.take_raw();
                self.abort_raw(raw);
            }
        }
    }

    /// Aborts a communicator; whether its device work has stopped, so that buffers can be freed.
    pub(super) fn abort_raw(&self, raw: RawComm) -> bool {
        // SAFETY: the communicator is valid and unused from here on.
        unsafe { (self.api.comm_abort)(raw) };
        // A failed device runs nothing any more.
        poll_until(ABORT_TIMEOUT, || self.device.is_idle()).unwrap_or(true)
    }

    /// Whether the library has finished its current operation; fails on an asynchronous error.
    pub(super) fn is_library_idle(&self, what: &str) -> Result<bool> {
        let mut state = SUCCESS;
        // SAFETY: the communicator is valid; the function writes one integer.
        let code = unsafe { (self.api.comm_get_async_error)(self.raw, &mut state) };
        self.check(what, code).and_then(|()| self.check(what, state))?;
        Ok(state != IN_PROGRESS)
    }

    pub(super) fn check_not_aborted(&self) -> Result {
        let announced_error =
            self.monitor.announced_error(&|| self.monitor.current_call(), &|_, _| false);
        announced_error.map_or(Ok(()), Err)
    }

    /// The timeout of a wait for these ranks, or for all others.
    pub(super) fn timeout_error(&self, what: &str, timeout: Duration, ranks: &[u32]) -> CommError {
        let awaited = |rank: u32| rank != self.rank && (ranks.is_empty() || ranks.contains(&rank));
        let missing = self.peers.iter().filter(|peer| awaited(peer.rank));
        CommError::Timeout {
            call: what.to_owned(),
            seconds: timeout.as_secs(),
            missing: missing.cloned().collect(),
        }
    }
}
