//! [`CallWatch`]: what a waiting transport reports to rank 0 and when. No I/O of its own; time is an
//! argument.

use std::sync::Arc;
use std::time::{Duration, Instant};

use regatta_wire::clock;

use super::messages::{CommClosed, ConnFailure, StalledCall, ToRoot};
use super::monitor::CommMonitor;
use super::stall_detector::{StallAction, StallDetector};
use crate::{CommError, Result};

/// The time rank 0 has to diagnose a fault. After it, this rank reports what it observed itself.
const COORDINATOR_TIMEOUT: Duration = Duration::from_secs(6);

/// How often the decision of rank 0 is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// A wait in a call.
pub struct Wait {
    /// The sequence number of the collective; `None` for a message.
    pub call_number: Option<u64>,
    /// The global ranks it waits for.
    pub awaited: Vec<u32>,
    /// The call, for errors.
    pub call: String,
}

/// Watches the waits of one transport.
#[derive(Debug)]
pub struct CallWatch {
    monitor: Arc<CommMonitor>,
    stall: StallDetector,
    /// The ID of the published wait.
    wait: Option<u64>,
    /// The error to fail with unless rank 0 announces another one by then.
    suspicion: Option<(Instant, CommError)>,
}

impl CallWatch {
    /// A watch that reports calls without progress within `timeout`.
    pub fn new(monitor: Arc<CommMonitor>, timeout: Duration, now: Instant) -> Self {
        Self { monitor, stall: StallDetector::new(timeout, now), wait: None, suspicion: None }
    }

    /// Restarts at a completed or newly started operation.
    pub fn reset(&mut self, bytes_moved: u64, now: Instant) {
        self.stall.reset(bytes_moved, now);
        self.withdraw_wait();
        // The late rank has arrived.
        if let Some((_, CommError::Timeout { .. })) = self.suspicion {
            self.suspicion = None;
        }
    }

    fn withdraw_wait(&mut self) {
        if let Some(id) = self.wait.take() {
            self.monitor.remove_wait(id);
        }
    }

    /// Decides by the time and the bytes moved so far what to report with [`Self::report`].
    pub fn check(&mut self, bytes_moved: u64, now: Instant) -> StallAction {
        self.stall.check(bytes_moved, now)
    }

    /// Asks rank 0 whether the awaited ranks have departed or, after a timeout, for the cause.
    pub fn report(&mut self, action: StallAction, wait: Wait, now: Instant) {
        let timeout_s = match action {
            StallAction::Wait(_) => return,
            StallAction::Query => None,
            StallAction::Timeout => Some(self.stall.seconds(now)),
        };
        let Wait { call_number, awaited, call } = wait;
        self.withdraw_wait();
        self.wait = Some(self.monitor.add_wait(self.stall.since, awaited.clone()));
        if let Some(seconds) = timeout_s {
            self.monitor.take_clear();
            let missing = awaited.iter().map(|rank| self.monitor.peer(*rank)).collect();
            self.suspect(CommError::Timeout { call, seconds, missing }, now);
        }
        self.query(call_number, awaited, timeout_s);
    }

    fn query(&self, call: Option<u64>, awaited: Vec<u32>, timeout_s: Option<u64>) {
        let all = call.is_some() && timeout_s.is_some();
        let members = if all { self.monitor.members.clone() } else { Vec::new() };
        let (comm_id, awaited) = (self.monitor.comm_id, awaited.into_iter().collect());
        let stalled = StalledCall { comm_id, call, awaited, members };
        self.monitor.send(ToRoot::Query { stalled, timeout_s });
    }

    /// Reports a failed connection to rank 0, which may know a better cause.
    pub fn connection_failed(&mut self, rank: u32, sending: bool, why: String, call: String) {
        if self.suspicion.is_none() {
            let (comm_id, members) = (self.monitor.comm_id, self.monitor.members.clone());
            let failure = ConnFailure { comm_id, rank, sending, why: why.clone(), members };
            self.monitor.send(ToRoot::ConnFailed(failure));
            let error = CommError::RankLost { peer: self.monitor.peer(rank), why, call };
            self.suspect(error, clock::now());
        }
    }

    /// A message of another collective arrived: rank 0 finds out which rank made which call.
    pub fn call_mismatch(&mut self, sequence: u64, error: CommError, now: Instant) {
        if self.suspicion.is_none() {
            self.query(Some(sequence), Vec::new(), Some(self.stall.seconds(now)));
            self.suspect(error, now);
        }
    }

    /// Fails with an error unless rank 0 announces another one in time.
    pub fn suspect(&mut self, error: CommError, now: Instant) {
        self.suspect_until(error, now + COORDINATOR_TIMEOUT);
    }

    /// [`Self::suspect`] with a deadline.
    pub fn suspect_until(&mut self, error: CommError, until: Instant) {
        self.suspicion.get_or_insert((until, error));
    }

    /// Waits for the decision of rank 0 on a call that was reported or has failed.
    pub fn await_announced_error(mut self, call: &str, call_number: Option<u64>) -> CommError {
        let awaits =
            |_, closed: &CommClosed| call_number.is_some_and(|number| closed.calls < number);
        loop {
            if let Some(error) = self.monitor.announced_error(&|| call.to_owned(), &awaits) {
                return self.monitor.fail_with_announced(error);
            }
            if let Err(error) = self.check_suspicion(clock::now(), clock::now()) {
                return error;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// Fails with the suspected error if rank 0 has no better one. Returns when to check again.
    pub fn check_suspicion(&mut self, next: Instant, now: Instant) -> Result<Instant> {
        let Some((until, error)) = &self.suspicion else { return Ok(next) };
        let is_clear = self.monitor.take_clear();
        if now < *until && !is_clear {
            return Ok(next.min(*until));
        }
        let mut error = error.clone();
        if let (CommError::Timeout { missing, .. }, false) = (&mut error, is_clear) {
            // Rank 0 did not respond either.
            let coordinator = self.monitor.peer(0);
            if self.monitor.global_rank() != 0 && !missing.contains(&coordinator) {
                missing.insert(0, coordinator);
            }
        }
        Err(self.monitor.report_and_fail(error))
    }
}

/// The wait of a failed call stays, because it explains why this rank is late elsewhere.
impl Drop for CallWatch {
    fn drop(&mut self) {
        if !self.monitor.has_failed() {
            self.withdraw_wait();
        }
    }
}
