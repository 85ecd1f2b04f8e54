//! The transport of one communicator over the connections of the process.

mod faults;
mod signature_barrier;
mod spin;

use std::sync::Arc;
use std::time::{Duration, Instant};

use regatta_model::hash::fnv1a;
use regatta_wire::clock;

use super::context::NetworkContext;
use crate::control::{CallWatch, CommMonitor};
use crate::engine::AbortFn;
use crate::error::Peer;
use crate::matching::{Envelope, MessageKey, PostedRecv};
use crate::network::{LinkDirection, Network, NetworkState, UserBuffer, UserSend};
use crate::transport::{MatchKey, RecvAction, RequestId, Transport};
use crate::{CommError, Result, Signature};
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
pub struct NetworkTransport {
    pub(super) context: Arc<NetworkContext>,
    pub(super) network: Arc<dyn Network>,
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

impl NetworkTransport {
    /// A communicator of these global ranks, of which this process is one.
    pub fn new(
        context: Arc<NetworkContext>,
        network: Arc<dyn Network>,
        comm_id: u64,
        members: Vec<u32>,
    ) -> Self {
        let own = |global: &u32| *global == context.config.rank;
        let rank = members.iter().position(own).unwrap_or(0) as u32;
        context.shared.lock().comms.get(comm_id);
        let monitor = CommMonitor::open(context.job.clone(), comm_id, members.clone());
        let shared = context.shared.clone();
        monitor.count_messages_with(move || {
            let state = shared.lock();
            state.comms.open.get(&comm_id).map(|c| c.message_counts.clone()).unwrap_or_default()
        });
        let watch = CallWatch::new(monitor.clone(), context.config.desync_after, clock::now());
        let spin = Spin::new(context.spin);
        Self {
            context,
            network,
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
        let timeout = self.context.config.desync_after.max(at_least);
        self.watch = CallWatch::new(self.monitor.clone(), timeout, clock::now());
        self
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
        self.watch =
            CallWatch::new(monitor.clone(), self.context.config.desync_after, clock::now());
        (self.monitor, self.role) = (monitor, role);
    }

    /// The node ID of each member.
    pub fn nodes(&self) -> Vec<u64> {
        let node = |global: &u32| self.context.job.members.get(*global as usize).map(|m| m.node);
        self.members.iter().map(|global| node(global).unwrap_or_default()).collect()
    }

    fn global(&self, rank: u32) -> u32 {
        self.members.get(rank as usize).copied().unwrap_or(u32::MAX)
    }

    /// Opens the connections for a message of this length.
    fn connect(&mut self, to: u32, length: usize) -> Result {
        let has_failed = || self.monitor.has_failed();
        if let Err(why) = self.network.connect(to, length, &has_failed) {
            // Connecting may have been interrupted by an abort rather than a network fault.
            self.check_abort(&self.context.shared.lock())?;
            self.report_conn_failure(to, LinkDirection::Send, why);
            self.context.shared.lock().broken.entry((to, LinkDirection::Send)).or_default();
        }
        Ok(())
    }

    /// Records a request and returns what identifies its message.
    fn record_request(
        &mut self,
        peer: u32,
        key: MatchKey,
        length: usize,
        direction: LinkDirection,
    ) -> (Envelope, RequestId) {
        let key = MessageKey::new(self.comm_id, key, self.calls_done + 1);
        let tagged = key.tagged;
        let mut state = self.context.shared.lock();
        let id = state.next_request();
        let comm = state.comms.get(self.comm_id);
        let signature_hash = comm.signature_hash;
        match (tagged, direction) {
            (false, LinkDirection::Send) => increment(&mut comm.message_counts.sent, peer),
            (false, LinkDirection::Recv) => comm.message_counts.awaited.push(peer),
            (true, _) => {
                self.current_message = Some(format!("a message with tag {}", key.number));
                self.watch.reset(comm.bytes_moved, clock::now());
                if direction == LinkDirection::Send {
                    increment(&mut self.p2p_sent, peer);
                }
            }
        }
        self.requests.push(PendingRequest { id, peer, direction, p2p: tagged });
        (Envelope { key, length: length as u64, signature_hash }, id)
    }

    /// Collects completed requests. Returns whether there are any.
    fn take_completed(
        &mut self,
        state: &mut NetworkState,
        done: &mut Vec<RequestId>,
        now: Instant,
    ) -> bool {
        let comm = state.comms.get(self.comm_id);
        done.append(&mut comm.completed);
        if done.is_empty() {
            return false;
        }
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

impl Transport for NetworkTransport {
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
        let mut state = shared.lock();
        let comm = state.comms.get(self.comm_id);
        comm.begin(signature);
        self.watch.reset(comm.bytes_moved, clock::now());
        self.check_abort(&state)?;
        drop(state);
        if self.context.config.debug { self.signature_barrier() } else { Ok(()) }
    }

    fn end(&mut self) {
        self.in_call = false;
        self.calls_done += 1;
    }

    unsafe fn post_send(&mut self, to: u32, key: MatchKey, data: *const [u8]) -> Result<RequestId> {
        self.monitor.check_not_failed()?;
        let to = self.global(to);
        self.connect(to, data.len())?;
        let (envelope, request) = self.record_request(to, key, data.len(), LinkDirection::Send);
        self.network.send(to, UserSend { envelope, request, start: data.cast() });
        Ok(request)
    }

    unsafe fn post_receive(
        &mut self,
        from: u32,
        key: MatchKey,
        into: *mut [u8],
        action: RecvAction,
    ) -> Result<RequestId> {
        if let RecvAction::ReduceInto(.., operand) = action
            && operand.len() != into.len()
        {
            let (destination, operand) = (into.len(), operand.len());
            let what = format!("the destination has {destination} bytes, the operand {operand}");
            return Err(CommError::invalid_call("receive", what));
        }
        self.monitor.check_not_failed()?;
        let from = self.global(from);
        let (envelope, request) = self.record_request(from, key, into.len(), LinkDirection::Recv);
        let buffer = UserBuffer::new(into, action);
        self.network.receive(from, PostedRecv { envelope, request, buffer });
        Ok(request)
    }

    fn progress(&mut self, timeout: Duration, done: &mut Vec<RequestId>) -> Result {
        self.monitor.check_not_failed()?;
        let context = self.context.clone();
        let shared = &context.shared;
        let start = clock::now();
        let mut now = start;
        let mut is_last_round = false;
        // The time of the last progress, and the bytes until then.
        let (mut active, mut moved) = (start, 0);
        loop {
            self.network.progress();
            let mut state = shared.lock();
            let bytes_moved = state.comms.get(self.comm_id).bytes_moved;
            let is_done = self.take_completed(&mut state, done, now);
            // A message that arrived before a fault was announced is received first.
            if !is_done && !is_last_round && self.announced_error(&state).is_some() {
                is_last_round = true;
                continue;
            }
            // What is complete at once says nothing about spinning.
            if is_done && now > start {
                self.spin.waited(now - active);
            }
            if moved != bytes_moved {
                (active, moved) = (now, bytes_moved);
            }
            let checked = (!is_done).then(|| self.check(&mut state, now));
            let next = match checked {
                Some(Ok(next)) if now < start + timeout => next.min(start + timeout),
                ended => {
                    shared.hand_over(&mut state);
                    return ended.map_or(Ok(()), |checked| checked.map(drop));
                }
            };
            if now < active + self.spin.budget() {
                drop(state);
                std::hint::spin_loop();
            } else {
                let limit = next.saturating_duration_since(now);
                drop(shared.wait(state, self.comm_id, &*self.network, limit));
            }
            now = clock::now();
        }
    }

    fn cancel(&mut self) {
        self.network.cancel(self.comm_id, self.context.job.registry.is_any_lost());
        self.context.shared.lock().comms.take_completed(self.comm_id);
        self.requests.clear();
    }

    fn abort_fn(&self) -> AbortFn {
        self.monitor.abort_fn()
    }
}

impl Drop for NetworkTransport {
    fn drop(&mut self) {
        self.network.cancel(self.comm_id, self.context.job.registry.is_any_lost());
        self.context.shared.lock().comms.close(self.comm_id);
        self.network.close(self.comm_id);
        if self.role != MonitorRole::Part {
            self.monitor.close(std::mem::take(&mut self.p2p_sent));
        }
    }
}
