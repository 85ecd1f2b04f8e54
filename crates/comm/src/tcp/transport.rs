//! The transport of one communicator over the connections of the process.

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
use crate::control::{CallWatch, CommMonitor, MAX_CONNECTIONS};
use crate::error::Peer;

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
    /// The control plane's view of the communicator, which may run calls on several transports.
    pub(super) monitor: Arc<CommMonitor>,
    role: MonitorRole,
    requests: Vec<PendingRequest>,
    /// The message in progress, for errors.
    current_message: Option<String>,
    /// Whether a collective is in progress.
    in_call: bool,
    calls_done: u64,
    /// Point-to-point messages sent, by global rank.
    p2p_sent: Vec<(u32, u64)>,
    /// Point-to-point messages received, by global rank.
    p2p_received: Vec<(u32, u64)>,
    watch: CallWatch,
    spin: Spin,
}

/// What a transport does for the monitor of its communicator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MonitorRole {
    /// The only transport: it records the calls and closes the communicator.
    Sole,
    /// The one of several transports that closes the communicator.
    Main,
    /// One of several transports.
    Part,
}

impl TcpTransport {
    /// A communicator of these global ranks, of which this process is member `rank`.
    pub fn new(context: Arc<TcpContext>, comm_id: u64, members: Vec<u32>, rank: u32) -> Self {
        context.shared.lock().comms.get(comm_id);
        let monitor = CommMonitor::open(context.job.clone(), comm_id, members.clone());
        let shared = context.shared.clone();
        monitor.count_messages_with(move || {
            let plane = shared.lock();
            plane.comms.peek(comm_id).map(|c| c.message_counts.clone()).unwrap_or_default()
        });
        let watch = CallWatch::new(monitor.clone(), context.desync_after, clock::now());
        let spin = Spin::new(context.spin);
        Self {
            context,
            comm_id,
            members,
            rank,
            monitor,
            role: MonitorRole::Sole,
            requests: Vec::new(),
            current_message: None,
            in_call: false,
            calls_done: 0,
            p2p_sent: Vec::new(),
            p2p_received: Vec::new(),
            watch,
            spin,
        }
    }

    /// Raises the collective timeout to `at_least`.
    pub fn with_timeout(mut self, at_least: Duration) -> Self {
        let timeout = self.context.desync_after.max(at_least);
        self.watch = CallWatch::new(self.monitor.clone(), timeout, clock::now());
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

    /// The monitor of a communicator with the same members that runs on several transports.
    pub fn derived_monitor(&self) -> Arc<CommMonitor> {
        const SEVERAL_TRANSPORTS: u64 = 1 << 32;
        let comm_id = self.derived_comm_id(SEVERAL_TRANSPORTS);
        CommMonitor::open(self.context.job.clone(), comm_id, self.members.clone())
    }

    /// Makes this one of several transports of a communicator.
    pub(crate) fn set_monitor(&mut self, monitor: Arc<CommMonitor>, role: MonitorRole) {
        self.monitor.close(Vec::new());
        self.watch = CallWatch::new(monitor.clone(), self.context.desync_after, clock::now());
        (self.monitor, self.role) = (monitor, role);
    }

    /// The node ID of each member.
    pub fn nodes(&self) -> Vec<u64> {
        let node = |global: &u32| self.context.members.get(*global as usize).map(|m| m.node);
        self.members.iter().map(|global| node(global).unwrap_or_default()).collect()
    }

    fn global(&self, rank: u32) -> u32 {
        self.members.get(rank as usize).copied().unwrap_or(u32::MAX)
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
            let has_failed = || self.monitor.has_failed();
            if let Err(why) = self.context.connect(to, stripes, &has_failed) {
                // Connecting may have been interrupted by an abort rather than a network fault.
                self.check_abort(&self.context.shared.lock())?;
                self.report_conn_failure(to, LinkDirection::Send, why);
                self.context.shared.lock().broken.entry((to, LinkDirection::Send)).or_default();
            }
        }
        Ok(stripes)
    }

    /// Records a point-to-point message as the current call.
    fn record_p2p(&mut self, key: MatchKey, plane: &DataPlane) {
        if let MatchKey::Tag(tag) = key {
            self.current_message = Some(format!("a message with tag {tag}"));
            let moved = plane.comms.peek(self.comm_id).map_or(0, |comm| comm.bytes_moved);
            self.watch.reset(moved, clock::now());
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
        self.monitor.check_not_failed()?;
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
        self.watch.reset(comm.bytes_moved, now);
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
        self.members.iter().map(|global| self.monitor.peer(*global)).collect()
    }

    fn begin(&mut self, signature: Signature) -> Result {
        self.monitor.check_not_failed()?;
        if self.role == MonitorRole::Sole {
            self.monitor.begin(&signature);
        }
        self.in_call = true;
        let shared = self.context.shared.clone();
        let mut plane = shared.lock();
        let comm = plane.comms.get(self.comm_id);
        comm.begin(signature);
        self.watch.reset(comm.bytes_moved, clock::now());
        self.check_abort(&plane)?;
        drop(plane);
        if self.context.debug { self.signature_barrier() } else { Ok(()) }
    }

    fn end(&mut self) {
        self.in_call = false;
        self.calls_done += 1;
    }

    unsafe fn post_send(&mut self, to: u32, key: MatchKey, data: *const [u8]) -> Result<RequestId> {
        self.monitor.check_not_failed()?;
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
        self.monitor.check_not_failed()?;
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
        let is_rank_lost = self.context.job.registry.is_any_lost();
        self.context.shared.lock().cancel(self.comm_id, is_rank_lost);
        self.requests.clear();
    }

    fn abort_fn(&self) -> AbortFn {
        self.monitor.abort_fn()
    }
}

impl Drop for TcpTransport {
    fn drop(&mut self) {
        let is_rank_lost = self.context.job.registry.is_any_lost();
        self.context.shared.lock().close(self.comm_id, is_rank_lost);
        if self.role != MonitorRole::Part {
            self.monitor.close(std::mem::take(&mut self.p2p_sent));
        }
    }
}
