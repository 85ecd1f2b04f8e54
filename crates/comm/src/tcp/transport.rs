//! The transport of one communicator over the connections of the process.

mod fault_channel;
mod faults;
mod signature_barrier;
mod spin;

use std::sync::{Arc, MutexGuard};
use std::time::{Duration, Instant};

use regatta_model::hash::fnv1a;
use regatta_wire::clock;

use super::context::TcpContext;
use super::data_plane::{DataPlane, LinkDirection, PostedRecv};
use super::frame::{Header, MessageKey, RAIL_STRIPE_MIN_BYTES, STRIPE_MIN_BYTES};
use crate::control::{CommClosed, Fault, MAX_CONNECTIONS, ToRoot};
use crate::error::Peer;

use crate::control::StallDetector;
use crate::engine::AbortFn;
use crate::transport::{MatchKey, RecvAction, RequestId, Transport};
use crate::{CommError, DType, ReduceOp, Result, Signature};
use spin::Spin;

/// A posted request.
struct PendingRequest {
    id: RequestId,
    /// The global rank of the peer.
    peer: u32,
    direction: LinkDirection,
    /// Whether it is a point-to-point message rather than part of a collective.
    p2p: bool,
}

/// The transport of one communicator.
pub struct TcpTransport {
    pub(super) context: Arc<TcpContext>,
    comm_id: u64,
    /// The global ranks of its members.
    pub(super) members: Vec<u32>,
    rank: u32,
    requests: Vec<PendingRequest>,
    /// The call in progress, for error messages.
    current_call: String,
    /// Whether a collective is in progress.
    in_call: bool,
    calls_done: u64,
    /// Point-to-point messages sent, by global rank.
    p2p_sent: Vec<(u32, u64)>,
    /// Point-to-point messages received, by global rank.
    p2p_received: Vec<(u32, u64)>,
    stall: StallDetector,
    spin: Spin,
    /// The error to fail with unless rank 0 reports another one by then.
    suspicion: Option<(Instant, CommError)>,
    failed: Option<CommError>,
}

impl TcpTransport {
    /// A communicator of these global ranks, of which this process is member `rank`.
    pub fn new(context: Arc<TcpContext>, comm_id: u64, members: Vec<u32>, rank: u32) -> Self {
        context.shared.lock().comms.get(comm_id);
        let stall = StallDetector::new(context.desync_after, clock::now());
        let spin = Spin::new(context.spin);
        Self {
            context,
            comm_id,
            members,
            rank,
            requests: Vec::new(),
            current_call: String::new(),
            in_call: false,
            calls_done: 0,
            p2p_sent: Vec::new(),
            p2p_received: Vec::new(),
            stall,
            spin,
            suspicion: None,
            failed: None,
        }
    }

    /// Raises the collective timeout to `at_least`.
    pub fn with_timeout(mut self, at_least: Duration) -> Self {
        self.stall = StallDetector::new(self.context.desync_after.max(at_least), clock::now());
        self
    }

    /// A communicator of some of the members.
    pub fn subgroup(&self, comm_id: u64, members: Vec<u32>, rank: u32) -> Self {
        Self::new(self.context.clone(), comm_id, members, rank)
    }

    /// The ID of a communicator derived from this one after the current call, such as the
    /// sub-communicator of a colour. Its members all compute the same ID without communicating.
    pub(super) fn derived_comm_id(&self, discriminant: u64) -> u64 {
        let words = [self.comm_id, self.calls_done, discriminant];
        fnv1a(words.into_iter().flat_map(u64::to_le_bytes))
    }

    /// A duplicate with the same members that reports faults of a hierarchical communicator. Needs no
    /// communication.
    pub fn fault_channel(&self) -> Self {
        const FAULT_CHANNEL: u64 = 1 << 32;
        let comm_id = self.derived_comm_id(FAULT_CHANNEL);
        self.subgroup(comm_id, self.members.clone(), self.rank)
    }

    /// The node ID of each member.
    pub fn nodes(&self) -> Vec<u64> {
        let node = |global: &u32| self.context.members.get(*global as usize).map(|m| m.node);
        self.members.iter().map(|global| node(global).unwrap_or_default()).collect()
    }

    /// The peer with this global rank, as this communicator names it.
    fn peer(&self, global: u32) -> Peer {
        let member = self.members.iter().position(|&m| m == global);
        let host = self.context.members.get(global as usize).map(|m| m.host.clone());
        let host = host.unwrap_or_else(|| "?".to_owned());
        match member {
            Some(rank) => Peer::new(rank as u32, host),
            None => Peer::global(global, host),
        }
    }

    fn global(&self, rank: u32) -> u32 {
        self.members.get(rank as usize).copied().unwrap_or(u32::MAX)
    }

    /// The global rank of a peer named in an error.
    fn global_of(&self, peer: &Peer) -> u32 {
        if peer.global { peer.rank } else { self.global(peer.rank) }
    }

    fn global_rank(&self) -> u32 {
        self.context.rank
    }

    /// Returns the error the communicator failed with, if any.
    fn check_not_failed(&self) -> Result {
        self.failed.clone().map_or(Ok(()), Err)
    }

    fn fail(&mut self, error: CommError) -> CommError {
        self.failed.get_or_insert(error).clone()
    }

    /// Opens the connections for a message of this length and returns its stripe count.
    fn connect(&mut self, to: u32, length: usize) -> Result<u8> {
        // Connections over several NICs pay off earlier than several over one.
        let rails = self.context.bind.len().min(usize::from(MAX_CONNECTIONS)) as u8;
        let stripes = match length {
            _ if length >= STRIPE_MIN_BYTES => self.context.connections.max(rails).max(1),
            _ if length >= RAIL_STRIPE_MIN_BYTES => rails.max(1),
            _ => 1,
        };
        let plane = self.context.shared.lock();
        if plane.fabric.is_some() {
            return Ok(1);
        }
        let have = plane.connections_to(to);
        let broken = plane.broken.contains_key(&(to, LinkDirection::Send));
        drop(plane);
        if have < usize::from(stripes) && !broken {
            let abort = || self.abort_record(&self.context.shared.lock());
            if let Err(why) = self.context.connect(to, stripes, &|| abort().is_some()) {
                // Connecting may have been interrupted by an abort rather than a network fault.
                if let Some(error) = abort() {
                    return Err(self.fail(error));
                }
                self.report_conn_failure(to, LinkDirection::Send, why);
                self.context.shared.lock().broken.entry((to, LinkDirection::Send)).or_default();
            }
        }
        Ok(stripes)
    }

    /// Records a point-to-point message as the current call.
    fn record_p2p(&mut self, key: MatchKey, plane: &DataPlane) {
        if let MatchKey::Tag(tag) = key {
            self.current_call = format!("a message with tag {tag}");
            let moved = plane.comms.peek(self.comm_id).map_or(0, |comm| comm.bytes_moved);
            self.stall.reset(moved, clock::now());
        }
    }

    /// Posts a receive, under the conditions of [`Transport::post_receive`].
    fn receive(
        &mut self,
        from: u32,
        key: MatchKey,
        into: *mut [u8],
        action: RecvAction,
        operand: Option<*const u8>,
    ) -> Result<RequestId> {
        self.check_not_failed()?;
        let from = self.global(from);
        let shared = self.context.shared.clone();
        let mut plane = shared.lock();
        self.record_p2p(key, &plane);
        let comm = plane.comms.get(self.comm_id);
        let signature_hash = comm.signature_hash;
        let key = MessageKey::new(self.comm_id, key, self.calls_done + 1);
        if !key.tagged {
            comm.message_counts.awaited.push(from);
        }
        let (start, length, request) = (into.cast::<u8>(), into.len(), RequestId(0));
        let posted = PostedRecv { key, signature_hash, request, start, length, action, operand };
        let id = plane.receive(from, posted);
        shared.wake_poller(&plane);
        let direction = LinkDirection::Recv;
        self.requests.push(PendingRequest { id, peer: from, direction, p2p: key.tagged });
        Ok(id)
    }

    /// Collects completed requests. Returns whether there are any.
    fn take_completed(
        &mut self,
        plane: &mut DataPlane,
        done: &mut Vec<RequestId>,
        now: Instant,
    ) -> bool {
        plane.take_completed(self.comm_id, done);
        if done.is_empty() {
            return false;
        }
        let comm = plane.comms.get(self.comm_id);
        let (p2p_received, counts) = (&mut self.p2p_received, &mut comm.message_counts);
        self.requests.retain(|request| {
            let is_done = done.contains(&request.id);
            match (is_done && request.direction == LinkDirection::Recv, request.p2p) {
                (true, true) => increment(p2p_received, request.peer),
                (true, false) => {
                    increment(&mut counts.received, request.peer);
                    let awaited = counts.awaited.iter().position(|from| *from == request.peer);
                    awaited.map(|at| counts.awaited.swap_remove(at));
                }
                _ => {}
            }
            !is_done
        });
        self.stall.reset(comm.bytes_moved, now);
        comm.waiting_for = None;
        // The late rank has arrived.
        if let Some((_, CommError::Timeout { .. })) = self.suspicion {
            self.suspicion = None;
        }
        true
    }
}

fn increment(counts: &mut Vec<(u32, u64)>, rank: u32) {
    match counts.iter_mut().find(|(counted, _)| *counted == rank) {
        Some((_, count)) => *count += 1,
        None => counts.push((rank, 1)),
    }
}

impl Transport for TcpTransport {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn ranks(&self) -> u32 {
        self.members.len() as u32
    }

    fn peers(&self) -> Vec<Peer> {
        self.members.iter().map(|global| self.peer(*global)).collect()
    }

    fn begin(&mut self, signature: Signature) -> Result {
        self.check_not_failed()?;
        self.current_call = signature.to_string();
        self.in_call = true;
        let shared = self.context.shared.clone();
        let mut plane = shared.lock();
        let comm = plane.comms.get(self.comm_id);
        comm.begin(signature);
        self.stall.reset(comm.bytes_moved, clock::now());
        self.check_abort(&plane)?;
        drop(plane);
        if self.context.debug { self.signature_barrier() } else { Ok(()) }
    }

    fn end(&mut self) {
        self.in_call = false;
        self.calls_done += 1;
    }

    unsafe fn post_send(&mut self, to: u32, key: MatchKey, data: *const [u8]) -> Result<RequestId> {
        self.check_not_failed()?;
        let to = self.global(to);
        let stripes = self.connect(to, data.len())?;
        let shared = self.context.shared.clone();
        let mut plane = shared.lock();
        self.record_p2p(key, &plane);
        let comm = plane.comms.get(self.comm_id);
        let signature_hash = comm.signature_hash;
        let key = MessageKey::new(self.comm_id, key, self.calls_done + 1);
        if !key.tagged {
            increment(&mut comm.message_counts.sent, to);
        }
        let header = Header { key, length: data.len() as u64, signature_hash, stripes };
        let id = plane.send(to, header, data);
        shared.wake_poller(&plane);
        let direction = LinkDirection::Send;
        self.requests.push(PendingRequest { id, peer: to, direction, p2p: key.tagged });
        if key.tagged {
            increment(&mut self.p2p_sent, to);
        }
        Ok(id)
    }

    unsafe fn post_receive(
        &mut self,
        from: u32,
        key: MatchKey,
        into: *mut [u8],
        action: RecvAction,
    ) -> Result<RequestId> {
        self.receive(from, key, into, action, None)
    }

    unsafe fn post_reduce(
        &mut self,
        from: u32,
        key: MatchKey,
        into: *mut [u8],
        operand: *const [u8],
        dtype: DType,
        op: ReduceOp,
    ) -> Result<RequestId> {
        if operand.len() != into.len() {
            let (destination, operand) = (into.len(), operand.len());
            let what = format!("the destination has {destination} bytes, the operand {operand}");
            return Err(CommError::invalid_call("receive", what));
        }
        self.receive(from, key, into, RecvAction::Reduce(dtype, op), Some(operand.cast()))
    }

    fn progress(&mut self, timeout: Duration, done: &mut Vec<RequestId>) -> Result {
        self.check_not_failed()?;
        let context = self.context.clone();
        let shared = &context.shared;
        let start = clock::now();
        let mut now = start;
        let mut plane: MutexGuard<'_, DataPlane> = shared.lock();
        loop {
            plane.progress();
            if self.take_completed(&mut plane, done, now) {
                shared.notify_waiters(&mut plane);
                self.spin.waited(now - start);
                return Ok(());
            }
            let next = match self.check(&mut plane, now) {
                Ok(next) => next,
                Err(error) => {
                    shared.notify_waiters(&mut plane);
                    return Err(error);
                }
            };
            let until = next.min(start + timeout);
            if now >= start + timeout {
                shared.notify_waiters(&mut plane);
                return Ok(());
            }
            plane = match now < start + self.spin.budget() {
                true => shared.yield_lock(plane),
                false => shared.wait(plane, until.saturating_duration_since(now)),
            };
            now = clock::now();
        }
    }

    fn cancel(&mut self) {
        self.context.shared.lock().cancel(self.comm_id);
        self.requests.clear();
    }

    fn abort_fn(&self) -> AbortFn {
        let (shared, control) = (self.context.shared.clone(), self.context.control.clone());
        let (comm_id, rank) = (self.comm_id, self.context.rank);
        Arc::new(move |why| {
            let fault = Fault::Aborted { rank, why: why.to_owned() };
            control.send(ToRoot::Abort { comm_id, fault: fault.clone() });
            shared.abort(Some(comm_id), fault);
        })
    }
}

/// Announces the departure, so no rank waits for this one. After an error the others know already.
impl Drop for TcpTransport {
    fn drop(&mut self) {
        self.context.shared.abort_callbacks().retain(|callback| callback.comm_id != self.comm_id);
        self.context.shared.lock().close(self.comm_id);
        if self.failed.is_none() {
            let p2p_sent = std::mem::take(&mut self.p2p_sent);
            let (comm_id, size, calls) = (self.comm_id, self.members.len() as u32, self.calls_done);
            let closed = CommClosed { comm_id, size, calls, p2p_sent };
            self.context.control.send(ToRoot::Closed(closed));
        }
    }
}
