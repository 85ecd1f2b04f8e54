//! What a transport reports to the control plane: failed connections, protocol errors and timeouts.

use std::time::{Duration, Instant};

use super::{NetworkTransport, PendingRequest};
use crate::control::{CommClosed, StallAction, Wait};
use crate::matching::ProtocolError;
use crate::network::{LinkDirection, NetworkState};
use crate::transport::RequestId;
use crate::{CommError, DType, Result};

/// Appended to the call when a large send is not received.
const SEND_DEADLOCK: &str = " that is not received (blocking sends in a cycle deadlock: post sends \
                             and receives in one group)";

impl NetworkTransport {
    /// Reports a failed connection to rank 0, which may know a better cause.
    pub(super) fn report_conn_failure(&mut self, rank: u32, direction: LinkDirection, why: String) {
        let call = self.current_call();
        self.watch.connection_failed(rank, direction == LinkDirection::Send, why, call);
    }

    /// The call in progress.
    fn current_call(&self) -> String {
        match &self.current_message {
            Some(message) if !self.in_call => message.clone(),
            _ => self.monitor.current_call(),
        }
    }

    /// The error this communicator has failed with, if rank 0 or a departure made it fail.
    pub(super) fn announced_error(&self, state: &NetworkState) -> Option<CommError> {
        let awaits = |rank: u32, closed: &CommClosed| self.awaits_departed(rank, closed, state);
        self.monitor.announced_error(&|| self.describe_wait(), &awaits)
    }

    /// Whether the current call waits for a rank that has closed the communicator.
    fn awaits_departed(&self, rank: u32, closed: &CommClosed, state: &NetworkState) -> bool {
        if self.in_call {
            return closed.calls < self.monitor.calls();
        }
        let count = |counts: &[(u32, u64)], of: u32| {
            counts.iter().find(|(rank, _)| *rank == of).map_or(0, |(_, count)| *count)
        };
        // A completed request that is not yet collected may be the last one the peer served.
        let comm = state.comms.open.get(&self.comm_id);
        let is_done = |id: &RequestId| comm.is_some_and(|comm| comm.completed.contains(id));
        let waits = self.requests.iter().any(|r| r.peer == rank && !is_done(&r.id));
        waits
            && count(&self.p2p_received, rank) >= count(&closed.p2p_sent, self.context.config.rank)
    }

    /// The call that waits, with a likely reason if it times out.
    fn describe_wait(&self) -> String {
        let sending = |r: &PendingRequest| r.p2p && r.direction == LinkDirection::Send;
        let reason = if self.requests.iter().any(sending) { SEND_DEADLOCK } else { "" };
        format!("{}{reason}", self.current_call())
    }

    /// The wait of the pending requests.
    fn wait(&self) -> Wait {
        let mut awaited: Vec<u32> = self.requests.iter().map(|request| request.peer).collect();
        awaited.sort_unstable();
        awaited.dedup();
        let call_number = self.in_call.then(|| self.monitor.calls());
        Wait { call_number, awaited, call: self.describe_wait() }
    }

    /// Fails if a fault is known.
    pub(super) fn check_abort(&self, state: &NetworkState) -> Result {
        let announced_error = self.announced_error(state);
        announced_error.map_or(Ok(()), |error| Err(self.monitor.fail_with_announced(error)))
    }

    /// Checks for faults, protocol errors and timeouts. Returns when to check again.
    pub(super) fn check(&mut self, state: &mut NetworkState, now: Instant) -> Result<Instant> {
        self.check_abort(state)?;
        if let Some(why) = self.network.failure() {
            let error = CommError::system("libfabric endpoint closed", why);
            return Err(self.monitor.report_and_fail(error));
        }
        match state.comms.get(self.comm_id).protocol_error.take() {
            Some(ProtocolError::SizeMismatch { request, sent, expected }) => {
                return Err(self.count_mismatch(request, sent, expected));
            }
            Some(ProtocolError::CallMismatch { .. }) => {
                let why = "received a message of another collective";
                let error = CommError::system(self.current_call(), why);
                self.watch.call_mismatch(self.monitor.calls(), error, now);
            }
            None => {}
        }
        let broken = |r: &PendingRequest| {
            Some((r.peer, r.direction, state.broken.get(&(r.peer, r.direction))?))
        };
        let broken = self.requests.iter().find_map(broken);
        if let Some((rank, direction, why)) = broken {
            self.report_conn_failure(rank, direction, why.clone());
        }
        let moved = state.comms.get(self.comm_id).bytes_moved;
        let next = match self.watch.check(moved, now) {
            StallAction::Wait(then) => then,
            action => {
                self.watch.report(action, self.wait(), now);
                self.check_acks();
                now
            }
        };
        self.watch.check_suspicion(next, now)
    }

    /// The size of a message differs from the posted receive, both in bytes.
    fn count_mismatch(&self, request: RequestId, sent: u64, expected: u64) -> CommError {
        let from = self.requests.iter().find(|pending| pending.id == request);
        let from = self.monitor.peer(from.map_or(u32::MAX, |pending| pending.peer));
        let (to, dtype) = (self.monitor.peer(self.context.config.rank), DType::U8);
        CommError::CountMismatch { from, to, dtype, sent, expected }
    }

    /// Checks that the kernels of the awaited peers still acknowledge data.
    fn check_acks(&mut self) {
        let limit: Duration = self.context.config.lost_after;
        let unacked = self.requests.iter().find_map(|request| {
            let unacked =
                self.network.unacked_for(request.peer).filter(|unacked| *unacked >= limit)?;
            Some((request.peer, request.direction, unacked))
        });
        if let Some((rank, direction, unacked)) = unacked {
            let why = format!("no TCP acknowledgement for {} s", unacked.as_secs());
            self.report_conn_failure(rank, direction, why);
        }
    }
}
