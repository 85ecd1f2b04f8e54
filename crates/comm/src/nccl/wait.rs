//! Bounded waits for the library and the device. NCCL itself waits a minute for a rank that died
//! before it connected and forever for a rank that never calls, so it runs in non-blocking mode and
//! is polled.

use std::time::Duration;

use regatta_wire::clock;

use super::NcclEngine;
use super::sys::{IN_PROGRESS, RawComm};
use crate::error::Peer;
use crate::gpu_runtime::SUCCESS;
use crate::{CallKind, Collectives, CommError, Result};

/// How long the ranks may take to connect their devices, which takes a while for many ranks.
const INIT_TIMEOUT: Duration = Duration::from_secs(300);

/// How long the device may take to stop aborted work.
const ABORT_TIMEOUT: Duration = Duration::from_secs(10);

/// Short operations are spun for; after this, polling sleeps in between.
const SPIN: Duration = Duration::from_millis(1);
const POLL_SLEEP: Duration = Duration::from_micros(20);

/// How often the state of the other ranks is checked.
const FAULT_CHECK_INTERVAL: Duration = Duration::from_millis(2);

impl NcclEngine {
    /// Waits until all ranks have connected their devices.
    pub(super) fn wait_init(&self) -> Result {
        let timeout = self.config.desync_after.max(INIT_TIMEOUT);
        self.wait_library("communicator initialisation", timeout)
    }

    /// Waits until the library has enqueued the call; only then it accepts the next one.
    pub(super) fn wait_enqueued(&self, kind: CallKind) -> Result {
        self.wait_library(kind.name(), self.config.desync_after)
    }

    fn wait_library(&self, what: &str, timeout: Duration) -> Result {
        let done = self.with_timeout(timeout, || self.is_done(self.raw, what))?;
        done.then_some(()).ok_or_else(|| self.timeout_error(what, timeout, |_| true))
    }

    /// Waits until the device has completed the call. A timed-out message names `peers`.
    pub(super) fn synchronize(&self, kind: CallKind, peers: &[u32]) -> Result {
        let timeout = self.config.desync_after;
        let mut enqueued = false;
        let done = self.with_timeout(timeout, || {
            enqueued = enqueued || self.is_done(self.raw, kind.name())?;
            Ok(enqueued && self.is_idle()?)
        })?;
        let awaited = |peer: &Peer| !kind.is_p2p() || peers.contains(&peer.rank);
        done.then_some(()).ok_or_else(|| self.timeout_error(kind.name(), timeout, awaited))
    }

    /// Finalizes and destroys a communicator after all its messages have arrived.
    pub(super) fn finalize(&self, raw: RawComm) {
        // SAFETY: the communicator is valid.
        let code = unsafe { (self.api.comm_finalize)(raw) };
        let done = self.check("finalizing", code).and_then(|()| {
            self.with_timeout(self.config.desync_after, || self.is_done(raw, "finalizing"))
        });
        match done {
            // SAFETY: the communicator is valid and unused from here on.
            Ok(true) => drop(unsafe { (self.api.comm_destroy)(raw) }),
            _ => self.abort_raw(raw),
        }
    }

    /// Aborts a communicator. Its device work has stopped on return, so that buffers can be freed.
    pub(super) fn abort_raw(&self, raw: RawComm) {
        // SAFETY: the communicator is valid and unused from here on.
        unsafe { (self.api.comm_abort)(raw) };
        let start = clock::now();
        // A failed device runs nothing any more.
        while self.device.is_idle() == Ok(false) && clock::elapsed(start) < ABORT_TIMEOUT {
            std::thread::sleep(POLL_SLEEP);
        }
    }

    /// Whether the library has finished its current operation.
    fn is_done(&self, raw: RawComm, what: &str) -> Result<bool> {
        let mut state = SUCCESS;
        // SAFETY: the communicator is valid; the function writes one integer.
        let code = unsafe { (self.api.comm_get_async_error)(raw, &mut state) };
        self.check(what, code).and_then(|()| self.check(what, state))?;
        Ok(state != IN_PROGRESS)
    }

    /// Whether the stream is idle; fails if the library has an asynchronous error.
    fn is_idle(&self) -> Result<bool> {
        let idle = self.device.is_idle()?;
        if !idle {
            self.is_done(self.raw, "device work")?;
        }
        Ok(idle)
    }

    /// Polls `done` until it holds, a rank aborts or the timeout expires; whether it holds.
    fn with_timeout(
        &self,
        timeout: Duration,
        mut done: impl FnMut() -> Result<bool>,
    ) -> Result<bool> {
        let start = clock::now();
        let mut next_check = FAULT_CHECK_INTERVAL;
        loop {
            if done()? {
                return Ok(true);
            }
            let waited = clock::elapsed(start);
            if waited >= next_check {
                next_check = waited + FAULT_CHECK_INTERVAL;
                self.check_not_aborted()?;
            }
            if waited >= timeout {
                return Ok(false);
            }
            if waited > SPIN {
                std::thread::sleep(POLL_SLEEP);
            }
        }
    }

    fn check_not_aborted(&self) -> Result {
        if let Some(why) = self.aborted.get() {
            let by = self.peers[self.rank as usize].clone();
            return Err(CommError::Aborted { by, why: why.clone() });
        }
        match self.bootstrap.has_failed() {
            // A call on a failed communicator returns its error without waiting.
            true => self.bootstrap.barrier(),
            false => Ok(()),
        }
    }

    fn timeout_error(
        &self,
        what: &str,
        timeout: Duration,
        awaited: impl Fn(&Peer) -> bool,
    ) -> CommError {
        let missing = self.peers.iter().filter(|peer| peer.rank != self.rank && awaited(peer));
        CommError::Timeout {
            call: what.to_owned(),
            seconds: timeout.as_secs(),
            missing: missing.cloned().collect(),
        }
    }
}
