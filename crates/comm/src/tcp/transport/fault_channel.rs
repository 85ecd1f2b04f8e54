//! Resolving errors of a hierarchical collective, of which this rank sees one part, with rank 0.

use std::time::{Duration, Instant};

use super::TcpTransport;
use super::faults::COORDINATOR_TIMEOUT;
use crate::fault_channel::FaultChannel;
use crate::tcp::control_messages::{Fault, ToRoot};
use crate::tcp::mesh::AbortCallback;
use crate::transport::Transport;
use crate::wait_graph::WaitEdges;
use crate::worker::{AbortFn, HasFailedFn};
use crate::{CommError, Result, Signature};

/// How often the response of rank 0 is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(5);

impl FaultChannel for TcpTransport {
    fn begin(&mut self, signature: Signature) -> Result {
        Transport::begin(self, signature)
    }

    fn end(&mut self) {
        Transport::end(self);
    }

    fn resolve(&mut self, error: CommError) -> CommError {
        if let Some(known) = self.failed.clone().or_else(|| FaultChannel::abort_record(self)) {
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
            CommError::Timeout { .. } => {
                self.query_status(&error);
                false
            }
            CommError::CallMismatch { ours, .. } if !ours.kind.is_p2p() => {
                self.query_status(&error);
                false
            }
            CommError::System { .. } if self.in_call => {
                self.query_status(&error);
                false
            }
            // A loss is certain, and other ranks know nothing about a message.
            _ => {
                self.report(&error);
                true
            }
        };
        let mut until = Instant::now() + COORDINATOR_TIMEOUT;
        loop {
            if let Some(error) = FaultChannel::abort_record(self) {
                return self.fail(error);
            }
            let cleared = self.context.shared.lock().fault_state.clear.remove(&self.comm_id);
            let expired = Instant::now() >= until;
            if !reported && (cleared || expired) {
                // Rank 0 has no better diagnosis, so all ranks get the one of this rank.
                self.report(&error);
                (reported, until) = (true, Instant::now() + COORDINATOR_TIMEOUT);
            } else if expired {
                return self.fail(error);
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }

    fn abort_record(&self) -> Option<CommError> {
        TcpTransport::abort_record(self, &self.context.shared.lock())
    }

    fn on_abort(&self, abort: AbortFn, waits: WaitEdges) {
        let (comm_id, members) = (self.comm_id, self.members.clone());
        let callback = AbortCallback { comm_id, members, abort, waits };
        self.context.shared.abort_callbacks().push(callback);
    }

    fn abort_fn(&self) -> AbortFn {
        Transport::abort_fn(self)
    }

    fn has_failed_fn(&self) -> HasFailedFn {
        TcpTransport::has_failed_fn(self)
    }
}

impl TcpTransport {
    /// Queries the status of all members, and of the ranks that a sub-communicator waits for.
    fn query_status(&self, error: &CommError) {
        let (awaited, timeout_s) = match error {
            CommError::Timeout { missing, seconds, .. } => {
                (missing.iter().map(|peer| self.global_of(peer)).collect(), *seconds)
            }
            _ => (Vec::new(), self.stall.seconds(Instant::now())),
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
