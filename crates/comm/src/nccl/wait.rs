//! Waiting for the library and the device: never for ever, and not for ranks that are gone. The
//! library itself would wait a minute for a rank that died before they were connected, and for one
//! that is silent without end, so nothing is asked of it that keeps the caller.

use std::time::{Duration, Instant};

use super::sys::{IN_PROGRESS, OK, RawComm};
use super::{Nccl, explain};
use crate::error::Peer;
use crate::{Collectives, CommError, Kind};

/// How long ranks that are all there may take to connect their devices: many need a while.
const CONNECT_WITHIN: Duration = Duration::from_secs(300);

/// How long a device may take to stop what was broken off.
const STOP_WITHIN: Duration = Duration::from_secs(10);

/// What is soon over is spun for; what is not is not worth a core.
const SPIN: Duration = Duration::from_millis(1);
const NAP: Duration = Duration::from_micros(20);

/// How often it is asked how the other ranks are.
const LOOK: Duration = Duration::from_millis(2);

impl Nccl {
    /// Waits until all ranks have connected their devices.
    pub(super) fn awaken(&self) -> Result<(), CommError> {
        let limit = self.settings.desync_after.max(CONNECT_WITHIN);
        self.patiently(limit, || self.is_done(self.raw, "a communicator"))?
            .then_some(())
            .ok_or_else(|| self.late("a communicator", limit, |_| true))
    }

    /// Waits until the library has queued what it was asked for: only then it takes the next.
    pub(super) fn accepted(&self, kind: Kind) -> Result<(), CommError> {
        let limit = self.settings.desync_after;
        self.patiently(limit, || self.is_done(self.raw, kind.name()))?
            .then_some(())
            .ok_or_else(|| self.late(kind.name(), limit, |_| true))
    }

    /// Waits until the library has queued what it was asked for, and the device has done it.
    /// Of messages the other ranks are named.
    pub(super) fn settle(&self, kind: Kind, others: &[u32]) -> Result<(), CommError> {
        let limit = self.settings.desync_after;
        let mut queued = false;
        let done = self.patiently(limit, || {
            queued = queued || self.is_done(self.raw, kind.name())?;
            Ok(queued && self.is_idle()?)
        })?;
        let message = matches!(kind, Kind::Send | Kind::Receive);
        done.then_some(())
            .ok_or_else(|| self.late(kind.name(), limit, |p| !message || others.contains(&p.rank)))
    }

    /// Ends a communicator in peace: what was sent to others must have reached them.
    pub(super) fn farewell(&self, raw: RawComm) {
        let functions = &self.device.functions;
        // SAFETY: the communicator is ours.
        let code = unsafe { (functions.finalize)(raw) };
        let done = explain(functions, "the end", code).and_then(|()| {
            let limit = self.settings.desync_after;
            self.patiently(limit, || self.is_done(raw, "the end"))
        });
        match done {
            // SAFETY: the communicator is ours, and nobody uses it any more.
            Ok(true) => drop(unsafe { (functions.destroy)(raw) }),
            _ => self.break_off(raw),
        }
    }

    /// Ends a communicator at once. What it does on the device is over when this returns: whoever
    /// has buffers there may free them.
    pub(super) fn break_off(&self, raw: RawComm) {
        // SAFETY: the communicator is ours, and is used no more.
        unsafe { (self.device.functions.abort)(raw) };
        let start = Instant::now();
        // A device that failed does nothing any more.
        while self.device.is_idle() == Ok(false) && start.elapsed() < STOP_WITHIN {
            std::thread::sleep(NAP);
        }
    }

    /// Whether the library has done what it was asked for.
    fn is_done(&self, raw: RawComm, what: &str) -> Result<bool, CommError> {
        let mut code = OK;
        let functions = &self.device.functions;
        // SAFETY: the communicator is ours; the function writes one number.
        let asked = unsafe { (functions.async_error)(raw, &mut code) };
        explain(functions, what, asked).and_then(|()| explain(functions, what, code))?;
        Ok(code != IN_PROGRESS)
    }

    /// Whether the device has done all; not if the library knows of a failure.
    fn is_idle(&self) -> Result<bool, CommError> {
        let idle = self.device.is_idle()?;
        if !idle {
            self.is_done(self.raw, "work on the device")?;
        }
        Ok(idle)
    }

    /// Waits until something is done, as long as it may take, and as long as no rank gives up. Tells
    /// whether it is done.
    fn patiently(
        &self,
        limit: Duration,
        mut done: impl FnMut() -> Result<bool, CommError>,
    ) -> Result<bool, CommError> {
        let start = Instant::now();
        let mut look = LOOK;
        loop {
            if done()? {
                return Ok(true);
            }
            let waited = start.elapsed();
            if waited >= look {
                look = waited + LOOK;
                self.go_on()?;
            }
            if waited >= limit {
                return Ok(false);
            }
            if waited > SPIN {
                std::thread::sleep(NAP);
            }
        }
    }

    /// Whether this rank and all others have not given up.
    fn go_on(&self) -> Result<(), CommError> {
        if let Some(why) = self.aborted.get() {
            let by = self.peers[self.rank as usize].clone();
            return Err(CommError::Aborted { by, why: why.clone() });
        }
        match self.meeting.is_over() {
            // Its next call says why, and waits for nobody.
            true => self.meeting.barrier(),
            false => Ok(()),
        }
    }

    /// Those that did not come.
    fn late(&self, what: &str, limit: Duration, awaited: impl Fn(&Peer) -> bool) -> CommError {
        let missing = self.peers.iter().filter(|p| p.rank != self.rank && awaited(p));
        CommError::Late {
            call: what.to_owned(),
            seconds: limit.as_secs(),
            missing: missing.cloned().collect(),
        }
    }
}
