//! Fault detection of a communicator: faults announced by rank 0, protocol errors and timeouts.

use std::sync::Arc;
use std::time::{Duration, Instant};

use regatta_wire::clock;

use super::{PendingRequest, TcpTransport};
use crate::control::StallAction;
use crate::control::{CommClosed, Fault, ToRoot};
use crate::engine::HasFailedFn;
use crate::error::Peer;
use crate::libfabric::FabricTransport;
use crate::tcp::data_plane::{DataPlane, LinkDirection, ProtocolError};
use crate::transport::RequestId;
use crate::{CommError, DType, Result, Signature};

/// The time rank 0 has to diagnose a fault. After it, this rank reports what it observed itself.
pub(super) const COORDINATOR_TIMEOUT: Duration = Duration::from_secs(6);

/// Appended to the call when a large send is not received.
const SEND_DEADLOCK: &str = " that is not received (blocking sends in a cycle deadlock: post sends \
                             and receives in one group)";

/// The known fault of a communicator with these members.
fn fault_of<'a>(plane: &'a DataPlane, comm_id: u64, members: &[u32]) -> Option<&'a Fault> {
    let concerns = |(of, fault): &&(Option<u64>, Fault)| match of {
        Some(of) => *of == comm_id,
        None => fault.concerns(members),
    };
    plane.fault_state.faults.iter().find(concerns).map(|(_, fault)| fault)
}

impl TcpTransport {
    /// Reports a failed connection to rank 0, which may know a better cause.
    pub(super) fn report_conn_failure(&mut self, rank: u32, direction: LinkDirection, why: String) {
        if self.suspicion.is_none() {
            let sending = direction == LinkDirection::Send;
            let comm_id = self.comm_id;
            let (members, cause) = (self.members.clone(), why.clone());
            let report = ToRoot::ConnFailed { comm_id, rank, sending, why: cause, members };
            self.context.control.send(report);
            let (peer, call) = (self.peer(rank), self.current_call.clone());
            let error = CommError::RankLost { peer, why, call };
            self.suspicion = Some((clock::now() + COORDINATOR_TIMEOUT, error));
        }
    }

    /// A function that tells whether this communicator is known to have failed.
    pub fn has_failed_fn(&self) -> HasFailedFn {
        let (shared, comm_id) = (self.context.shared.clone(), self.comm_id);
        let members = self.members.clone();
        Arc::new(move || fault_of(&shared.lock(), comm_id, &members).is_some())
    }

    /// The error this communicator has failed with, if rank 0 or a departure made it fail.
    pub(super) fn abort_record(&self, plane: &DataPlane) -> Option<CommError> {
        if let Some(fault) = fault_of(plane, self.comm_id, &self.members) {
            return Some(self.comm_error(fault, plane));
        }
        let closed = &plane.fault_state.closed;
        let closed = closed.iter().filter(|((comm_id, _), _)| *comm_id == self.comm_id);
        closed
            .map(|((_, rank), closed)| (*rank, closed))
            .find(|(rank, closed)| self.awaits_departed(*rank, closed, plane))
            .map(|(rank, _)| CommError::Aborted {
                by: self.peer(rank),
                why: format!("it closed the communicator before {}", self.current_call),
            })
    }

    /// Whether the current call waits for a rank that has closed the communicator.
    fn awaits_departed(&self, rank: u32, closed: &CommClosed, plane: &DataPlane) -> bool {
        if self.in_call {
            return closed.calls <= self.calls_done;
        }
        let count = |counts: &[(u32, u64)], of: u32| {
            counts.iter().find(|(rank, _)| *rank == of).map_or(0, |(_, count)| *count)
        };
        // A completed request that is not yet collected may be the last one the peer served.
        let comm = plane.comms.peek(self.comm_id);
        let is_done = |id: &RequestId| comm.is_some_and(|comm| comm.completed.contains(id));
        let waits = self.requests.iter().any(|r| r.peer == rank && !is_done(&r.id));
        waits && count(&self.p2p_received, rank) >= count(&closed.p2p_sent, self.global_rank())
    }

    /// The error of a fault, from the view of this rank.
    fn comm_error(&self, fault: &Fault, plane: &DataPlane) -> CommError {
        match fault {
            Fault::Lost { rank, why } => CommError::RankLost {
                peer: self.peer(*rank),
                why: why.clone(),
                call: self.current_call.clone(),
            },
            Fault::CallMismatch { sequence, majority, minority } if majority.1.kind.is_p2p() => {
                // Only the two ranks of a message made the calls. If this is one of them, it is named first.
                let swap = minority.0 == self.global_rank();
                let (ours, theirs) = if swap { (minority, majority) } else { (majority, minority) };
                self.mismatch(*sequence, *ours, *theirs)
            }
            Fault::CallMismatch { sequence, majority, minority } => {
                let own = plane.comms.peek(self.comm_id).and_then(|c| c.signature_of(*sequence));
                self.call_mismatch(*sequence, own, *majority, *minority)
            }
            Fault::Timeout { seconds, missing, .. } => CommError::Timeout {
                call: self.describe_wait(),
                seconds: *seconds,
                missing: missing.iter().map(|rank| self.peer(*rank)).collect(),
            },
            Fault::LinkBroken { from, to, why } => CommError::LinkBroken {
                from: self.peer(*from),
                to: self.peer(*to),
                why: why.clone(),
                call: self.current_call.clone(),
            },
            Fault::Aborted { rank, why } => {
                CommError::Aborted { by: self.peer(*rank), why: why.clone() }
            }
        }
    }

    /// A rank of the majority names the minority, and vice versa.
    fn call_mismatch(
        &self,
        sequence: u64,
        own: Option<Signature>,
        majority: (u32, Signature),
        minority: (u32, Signature),
    ) -> CommError {
        // A rank that has not made the call yet is given the calls of two others.
        let by = if own.is_some() { self.global_rank() } else { majority.0 };
        let own = own.unwrap_or(majority.1);
        let theirs = if own == majority.1 { minority } else { majority };
        self.mismatch(sequence, (by, own), theirs)
    }

    fn mismatch(&self, seq: u64, ours: (u32, Signature), theirs: (u32, Signature)) -> CommError {
        CommError::CallMismatch {
            sequence: seq,
            ours_by: self.peer(ours.0),
            ours: Box::new(ours.1),
            theirs_by: self.peer(theirs.0),
            theirs: Box::new(theirs.1),
        }
    }

    /// The call that timed out, with a likely reason.
    fn describe_wait(&self) -> String {
        let sending = |r: &PendingRequest| r.p2p && r.direction == LinkDirection::Send;
        let reason = if self.requests.iter().any(sending) { SEND_DEADLOCK } else { "" };
        format!("{}{reason}", self.current_call)
    }

    /// The timeout as this rank sees it, in case rank 0 does not respond.
    fn local_timeout(&self, seconds: u64) -> CommError {
        let missing = self.awaited().into_iter().map(|rank| self.peer(rank)).collect();
        CommError::Timeout { call: self.describe_wait(), seconds, missing }
    }

    /// The global ranks this rank waits for.
    fn awaited(&self) -> Vec<u32> {
        let mut ranks: Vec<u32> = self.requests.iter().map(|request| request.peer).collect();
        ranks.sort_unstable();
        ranks.dedup();
        ranks
    }

    /// Asks rank 0 whether the awaited ranks have departed or, after a timeout, for the cause.
    fn query(&self, timeout_s: Option<u64>) {
        let all = self.in_call && timeout_s.is_some();
        let members = if all { self.members.clone() } else { Vec::new() };
        let (comm_id, awaited) = (self.comm_id, self.awaited());
        let call = self.in_call.then_some(self.calls_done + 1);
        self.context.control.send(ToRoot::Query { comm_id, call, awaited, members, timeout_s });
    }

    /// Reports an error to all ranks and fails with it.
    fn report_and_fail(&mut self, error: CommError) -> CommError {
        let fault = self.fault(&error);
        self.context.control.send(ToRoot::Abort { comm_id: self.comm_id, fault });
        self.fail(error)
    }

    /// An error as a fault in terms of global ranks.
    pub(super) fn fault(&self, error: &CommError) -> Fault {
        let global = |peer: &Peer| self.global_of(peer);
        match error {
            CommError::Timeout { seconds, missing, .. } => Fault::Timeout {
                sequence: self.calls_done + 1,
                seconds: *seconds,
                missing: missing.iter().map(global).collect(),
            },
            CommError::RankLost { peer, why, .. } => {
                Fault::Lost { rank: global(peer), why: why.clone() }
            }
            CommError::Aborted { by, why } => Fault::Aborted { rank: global(by), why: why.clone() },
            CommError::LinkBroken { from, to, why, .. } => {
                Fault::LinkBroken { from: global(from), to: global(to), why: why.clone() }
            }
            CommError::CallMismatch { sequence, ours_by, ours, theirs_by, theirs } => {
                Fault::CallMismatch {
                    sequence: *sequence,
                    majority: (global(ours_by), **ours),
                    minority: (global(theirs_by), **theirs),
                }
            }
            _ => Fault::Aborted { rank: self.global_rank(), why: error.to_string() },
        }
    }

    /// Fails if a fault is known. A departure is reported to the others, because this rank will
    /// depart as well.
    pub(super) fn check_abort(&mut self, plane: &DataPlane) -> Result {
        match self.abort_record(plane) {
            None => Ok(()),
            Some(error @ CommError::Aborted { .. }) => Err(self.report_and_fail(error)),
            Some(error) => Err(self.fail(error)),
        }
    }

    /// Checks for faults, protocol errors and timeouts. Returns when to check again.
    pub(super) fn check(&mut self, plane: &mut DataPlane, now: Instant) -> Result<Instant> {
        self.check_abort(plane)?;
        if let Some(why) = plane.fabric.as_ref().and_then(FabricTransport::failure) {
            let error = CommError::system("libfabric endpoint closed", why);
            return Err(self.report_and_fail(error));
        }
        match plane.comms.get(self.comm_id).protocol_error.take() {
            Some(ProtocolError::SizeMismatch { request, sent, expected }) => {
                return Err(self.count_mismatch(request, sent, expected));
            }
            Some(ProtocolError::CallMismatch { call }) => self.query_call_mismatch(call, now),
            None => {}
        }
        let broken = |r: &PendingRequest| {
            Some((r.peer, r.direction, plane.broken.get(&(r.peer, r.direction))?))
        };
        let broken = self.requests.iter().find_map(broken);
        if let Some((rank, direction, why)) = broken {
            self.report_conn_failure(rank, direction, why.clone());
        }
        let moved = plane.comms.get(self.comm_id).bytes_moved;
        let next = match self.stall.check(moved, now) {
            StallAction::Wait(then) => then,
            StallAction::Query => {
                let waits = Some((self.stall.since, self.awaited()));
                plane.comms.get(self.comm_id).waiting_for = waits;
                self.query(None);
                self.check_acks(plane);
                now
            }
            StallAction::Timeout => {
                let seconds = self.stall.seconds(now);
                plane.fault_state.clear.remove(&self.comm_id);
                self.query(Some(seconds));
                let error = self.local_timeout(seconds);
                self.suspicion.get_or_insert((now + COORDINATOR_TIMEOUT, error));
                now
            }
        };
        let cleared = plane.fault_state.clear.remove(&self.comm_id);
        match &self.suspicion {
            Some((until, error)) if now >= *until || cleared => {
                let mut error = error.clone();
                if let (CommError::Timeout { missing, .. }, false) = (&mut error, cleared) {
                    self.add_coordinator(missing);
                }
                Err(self.report_and_fail(error))
            }
            Some((until, _)) => Ok(next.min(*until)),
            None => Ok(next),
        }
    }

    /// The size of a message differs from the posted receive, both in bytes.
    fn count_mismatch(&self, request: RequestId, sent: u64, expected: u64) -> CommError {
        let from = self.requests.iter().find(|pending| pending.id == request);
        let from = self.peer(from.map_or(u32::MAX, |pending| pending.peer));
        let (to, dtype) = (self.peer(self.global_rank()), DType::U8);
        CommError::CountMismatch { from, to, dtype, sent, expected }
    }

    /// Checks that the kernels of the awaited peers still acknowledge data.
    fn check_acks(&mut self, plane: &DataPlane) {
        let limit = self.context.lost_after;
        let unacked = self.requests.iter().find_map(|request| {
            let unacked = plane.unacked_for(request.peer).filter(|unacked| *unacked >= limit)?;
            Some((request.peer, request.direction, unacked))
        });
        if let Some((rank, direction, unacked)) = unacked {
            let why = format!("no TCP acknowledgement for {} s", unacked.as_secs());
            self.report_conn_failure(rank, direction, why);
        }
    }

    /// Adds rank 0 to the late ranks, because it did not respond either.
    fn add_coordinator(&self, missing: &mut Vec<Peer>) {
        let coordinator = self.peer(0);
        if self.global_rank() != 0 && !missing.contains(&coordinator) {
            missing.insert(0, coordinator);
        }
    }

    /// A message of another call arrived: rank 0 finds out which rank made which call.
    fn query_call_mismatch(&mut self, call: u64, now: Instant) {
        let why = format!("received a message of another collective in call {call}");
        let error = CommError::system(self.current_call.as_str(), why);
        let (comm_id, call, awaited) = (self.comm_id, Some(call), Vec::new());
        let (members, timeout_s) = (self.members.clone(), Some(self.stall.seconds(now)));
        self.context.control.send(ToRoot::Query { comm_id, call, awaited, members, timeout_s });
        self.suspicion.get_or_insert((now + COORDINATOR_TIMEOUT, error));
    }
}
