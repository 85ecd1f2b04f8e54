//! Fault handling for collectives that run on several engines. Each engine sees only its part; the
//! fault channel spans the whole communicator, so that all ranks report the same error.

use std::time::Duration;

use regatta_wire::clock;

use super::TcpTransport;
use super::faults::COORDINATOR_TIMEOUT;

use crate::CommError;
use crate::control::wait_graph::WaitEdges;
use crate::control::{Fault, ToRoot};
use crate::engine::AbortFn;
use crate::tcp::data_plane::AbortCallback;

/// How often the response of rank 0 is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl TcpTransport {
    /// Resolves the error of one engine, in ranks of the whole communicator, to the error that all
    /// ranks report.
    pub(crate) fn resolve(&mut self, error: CommError) -> CommError {
        if let Some(known) = self.failed.clone().or_else(|| self.known_abort()) {
            return self.fail(known);
        }
        let mut reported = match &error {
            CommError::InvalidCall { .. } => return error,
            // The local information is complete.
            CommError::CountMismatch { .. } => {
                self.report(&error);
                return self.fail(error);
            }
            // The aborting rank has reported the cause.
            CommError::Aborted { .. } => false,
            _ if self.needs_diagnosis(&error) => {
                self.query_status(&error);
                false
            }
            // A loss is certain, and other ranks know nothing about a message.
            _ => {
                self.report(&error);
                true
            }
        };
        let mut until = clock::now() + COORDINATOR_TIMEOUT;
        loop {
            if let Some(error) = self.known_abort() {
                return self.fail(error);
            }
            let cleared = self.context.shared.lock().fault_state.clear.remove(&self.comm_id);
            let expired = clock::now() >= until;
            if !reported && (cleared || expired) {
                // Rank 0 has no better diagnosis, so all ranks get the one of this rank.
                self.report(&error);
                (reported, until) = (true, clock::now() + COORDINATOR_TIMEOUT);
            } else if expired {
                return self.fail(error);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    /// The error that all ranks report, if the communicator has failed.
    pub(crate) fn known_abort(&self) -> Option<CommError> {
        self.abort_record(&self.context.shared.lock())
    }

    /// Registers a callback for the abort of the communicator, invoked on another thread. The
    /// engines may be blocked where they do not see the abort. `waits` returns the ranks they wait
    /// for.
    pub(crate) fn on_abort(&self, abort: AbortFn, waits: WaitEdges) {
        let (comm_id, members) = (self.comm_id, self.members.clone());
        let callback = AbortCallback { comm_id, members, abort, waits };
        self.context.shared.abort_callbacks().push(callback);
    }

    /// Whether rank 0 may know a better cause than this rank.
    fn needs_diagnosis(&self, error: &CommError) -> bool {
        match error {
            CommError::Timeout { .. } => true,
            CommError::CallMismatch { ours, .. } => !ours.kind.is_p2p(),
            CommError::System { .. } => self.in_call,
            _ => false,
        }
    }

    /// Queries the status of all members, and of the ranks that a sub-communicator waits for.
    fn query_status(&self, error: &CommError) {
        let (awaited, timeout_s) = match error {
            CommError::Timeout { missing, seconds, .. } => {
                (missing.iter().map(|peer| self.global_of(peer)).collect(), *seconds)
            }
            _ => (Vec::new(), self.stall.seconds(clock::now())),
        };
        // A late message concerns only its two ranks.
        let all = self.in_call || awaited.is_empty();
        let members = if all { self.members.clone() } else { Vec::new() };
        let (comm_id, timeout_s) = (self.comm_id, Some(timeout_s));
        let call = self.in_call.then_some(self.calls_done + 1);
        self.context.control.send(ToRoot::Query { comm_id, call, awaited, members, timeout_s });
    }

    fn report(&self, error: &CommError) {
        let fault = match error {
            // The sequence number is that of a sub-communicator, so it means nothing to the others.
            CommError::CallMismatch { ours, .. } if !ours.kind.is_p2p() => {
                Fault::Aborted { rank: self.global_rank(), why: error.to_string() }
            }
            _ => self.fault(error),
        };
        let comm_id = self.comm_id;
        self.context.control.send(ToRoot::Abort { comm_id, fault });
    }
}
