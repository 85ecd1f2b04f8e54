//! The state of a connection: its peer and its requests. No I/O.

use std::net::TcpStream;
use std::sync::Arc;

use super::{BULK_BYTES, Buffer, TestResult};
use crate::endpoint::Address;
use crate::net::clear_to_send::ClearToSend;
use crate::net::grants::{Grant, Grants};
use crate::net::{MAX_GROUPED_RECVS, MAX_REQUESTS, NetResult, tag};
use crate::shm_cleanup::is_running;
use crate::shm_lock::SegmentLock;

/// What was sent before the peer closed the connection may still arrive. It fails after this many checks without
/// a message, about a second. Time would count while this process is stopped.
const CLOSE_CHECKS: u32 = 20;
/// The same if its endpoint has not reported the end of the data: segments may be lost and sent again.
const DATA_CHECKS: u32 = 200;

/// Requests of a connection: sends or receives, and as many flushes.
pub const SLOTS: usize = 2 * MAX_REQUESTS;

/// What a connection is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// Sends.
    Send,
    /// Receives.
    Recv,
}

/// What a connection does.
pub enum Role {
    /// Sends what the peer has granted.
    Send(Box<Grants>),
    /// Receives; the number of the next group.
    Recv { sequence: u16 },
}

/// What the peer has closed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Closed {
    /// The TCP connection that carries no data.
    Control,
    /// The endpoint of the connection, after which nothing arrives.
    Data,
}

/// Checks until a connection fails that the peer has closed.
#[derive(Debug, Clone, Copy)]
struct Closing {
    limit: u32,
    left: u32,
}

/// The process at the other end.
pub struct Peer {
    /// Host and process, for errors.
    pub name: String,
    /// `None` if the connection has an endpoint of its own.
    pub address: Option<Address>,
    /// The encoded address.
    pub fabric_address: Vec<u8>,
    /// Its connection, and that one's key.
    pub connection: u32,
    pub key: u64,
    /// Says whether it exists.
    pub stream: TcpStream,
    /// Of the provider shm: released if the process is killed with it.
    pub segment_lock: Option<Arc<SegmentLock>>,
    /// Whether its process was found by the number in its shm address. Not in another PID namespace.
    pub is_visible: bool,
}

impl Peer {
    /// Whether its process of the provider shm has ended, not only closed the connection.
    pub fn has_exited(&self) -> bool {
        self.is_visible && !is_running(&self.fabric_address)
    }
}

/// What a request does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Sends its buffer, to this tag.
    Send { tag: u64 },
    /// Posts the receives from this index on.
    Receive { index: usize },
    /// Sends the clear-to-send.
    ClearToSend,
    /// Reads, from this address with this key.
    Flush { from: (u64, u64) },
    /// Nothing: it waits for completions.
    Wait,
}

/// A request.
#[derive(Debug, Clone, Copy)]
pub struct Request {
    pub step: Step,
    pub count: usize,
    pub buffers: [Buffer; MAX_GROUPED_RECVS],
    /// Tags of the host program.
    host_tags: [i32; MAX_GROUPED_RECVS],
    sizes: [usize; MAX_GROUPED_RECVS],
    pub sequence: u16,
    /// Messages that have not completed.
    remaining: usize,
    /// Whether it probably has many bytes.
    pub is_bulk: bool,
}

/// A connection.
pub struct ConnectionState {
    pub role: Role,
    pub key: u64,
    /// `None` during the handshake.
    pub peer: Option<Peer>,
    requests: [Option<Request>; SLOTS],
    /// Whether messages can be posted.
    pub is_established: bool,
    /// About the bytes of the largest of the last groups that were received.
    last_received: Option<usize>,
    /// If the peer closed it.
    closing: Option<Closing>,
    failure: Option<String>,
}

impl ConnectionState {
    pub fn new(direction: Direction, key: u64) -> Self {
        let role = match direction {
            Direction::Send => Role::Send(Box::default()),
            Direction::Recv => Role::Recv { sequence: 0 },
        };
        Self {
            role,
            key,
            peer: None,
            requests: [None; SLOTS],
            is_established: false,
            last_received: None,
            closing: None,
            failure: None,
        }
    }

    /// Whether it works.
    pub fn check(&self) -> NetResult {
        let name = self.peer.as_ref().map_or("a peer", |peer| &peer.name);
        self.failure.as_ref().map_or(Ok(()), |why| Err(format!("{name}: {why}")))
    }

    /// Whether fewer requests than this are in use.
    pub fn has_free_request(&self, limit: usize) -> bool {
        self.requests.iter().flatten().count() < limit.min(SLOTS)
    }

    pub fn request(&mut self, slot: u8) -> Option<&mut Request> {
        self.requests.get_mut(usize::from(slot))?.as_mut()
    }

    /// All requests.
    pub fn requests(&self) -> impl Iterator<Item = &Request> {
        self.requests.iter().flatten()
    }

    /// Whether its messages match in order, because it has an endpoint of its own.
    pub fn is_in_order(&self) -> bool {
        self.peer.as_ref().is_some_and(|peer| peer.address.is_none())
    }

    /// The receive that a send with this tag goes to. `None` if it is not granted yet.
    pub fn grant(&mut self, tag: i32) -> NetResult<Option<Grant>> {
        let is_in_order = self.is_in_order();
        match &mut self.role {
            Role::Recv { .. } => Err("not a connection to send on".to_owned()),
            Role::Send(_) if is_in_order => {
                Ok(Some(Grant { sequence: 0, index: 0, size: u64::MAX }))
            }
            Role::Send(grants) => Ok(grants.take(tag)),
        }
    }

    pub fn start_send(&mut self, buffer: Buffer, grant: Grant) -> u8 {
        let peer = self.peer.as_ref().map_or(0, |peer| peer.connection);
        let tag = tag::data(peer, grant.sequence, grant.index);
        self.start(&[(buffer, 0)], Step::Send { tag }, grant.sequence)
    }

    pub fn start_receive(&mut self, group: &[(Buffer, i32)]) -> u8 {
        self.postpone_end();
        let mut number = 0;
        if let Role::Recv { sequence } = &mut self.role {
            number = *sequence;
            *sequence = sequence.wrapping_add(1);
        }
        self.start(group, Step::Receive { index: 0 }, number)
    }

    /// Starts a flush of memory of a registration.
    pub fn start_flush(&mut self, memory: Buffer, from: (u64, u64)) -> u8 {
        self.start(&[(memory, 0)], Step::Flush { from }, 0)
    }

    fn start(&mut self, group: &[(Buffer, i32)], step: Step, sequence: u16) -> u8 {
        let slot = self.requests.iter().position(Option::is_none).unwrap_or(0);
        let mut request = Request {
            step,
            count: group.len(),
            buffers: [Buffer::NONE; MAX_GROUPED_RECVS],
            host_tags: [0; MAX_GROUPED_RECVS],
            sizes: [0; MAX_GROUPED_RECVS],
            sequence,
            remaining: group.len(),
            is_bulk: self.expected_bytes(group) >= BULK_BYTES,
        };
        for (index, (buffer, tag)) in group.iter().enumerate() {
            request.buffers[index] = *buffer;
            request.host_tags[index] = *tag;
        }
        self.requests[slot] = Some(request);
        slot as u8
    }

    /// Bytes that a request probably has. Receives are posted with room for the largest message: they are taken
    /// to be as long as the last ones.
    fn expected_bytes(&self, group: &[(Buffer, i32)]) -> usize {
        let posted = group.iter().map(|(buffer, _)| buffer.length).sum();
        self.last_received.map_or(posted, |last| last.min(posted))
    }

    /// The message that grants the receives of a request, and where it goes. None if messages match in order.
    pub fn clear_to_send(&self, request: &Request) -> Option<(Address, ClearToSend)> {
        let peer = self.peer.as_ref()?;
        let to = peer.address?;
        let mut recvs = [(0, 0); MAX_GROUPED_RECVS];
        for (index, recv) in recvs.iter_mut().enumerate().take(request.count) {
            *recv = (request.host_tags[index], request.buffers[index].length as u64);
        }
        let (connection, key, sequence) = (peer.connection, peer.key, request.sequence);
        let count = request.count as u8;
        Some((to, ClearToSend { connection, key, sequence, count, recvs }))
    }

    /// A message of a request has completed, with this many bytes received.
    pub fn complete(&mut self, slot: u8, index: usize, received: usize) {
        self.postpone_end();
        let is_send = matches!(self.role, Role::Send(_));
        let Some(request) = self.request(slot) else { return };
        request.remaining = request.remaining.saturating_sub(1);
        let Some(size) = request.sizes.get_mut(index) else { return };
        // Providers do not report the size of sends.
        *size = if is_send { request.buffers[0].length } else { received };
    }

    /// Ends a request that is complete, and returns whether it was taken to have many bytes.
    pub fn take_done(&mut self, slot: u8) -> Option<(TestResult, bool)> {
        let request = *self.request(slot)?;
        if request.remaining > 0 || request.step != Step::Wait {
            return None;
        }
        // A flush has no messages.
        if let Role::Recv { .. } = self.role
            && request.buffers[0].length > 0
        {
            let received = request.sizes[..request.count].iter().sum();
            let last = self.last_received.map_or(0, |last| last / 2);
            self.last_received = Some(last.max(received));
        }
        self.requests[usize::from(slot)] = None;
        Some((TestResult::Done { count: request.count, sizes: request.sizes }, request.is_bulk))
    }

    /// Whether messages may have been sent for which no receive is posted yet. The sender may have closed the
    /// connection since.
    fn may_have_data(&self) -> bool {
        let is_recv = matches!(self.role, Role::Recv { .. });
        is_recv && self.is_in_order() && self.is_established && self.requests().next().is_none()
    }

    pub fn fail(&mut self, why: impl Into<String>) {
        self.failure.get_or_insert(why.into());
    }

    pub fn has_failed(&self) -> bool {
        self.failure.is_some()
    }

    /// The peer closed the connection.
    pub fn closed(&mut self, what: Closed) {
        let is_recv = matches!(self.role, Role::Recv { .. });
        let has_data = is_recv && self.is_in_order() && self.is_established;
        let checks = if what == Closed::Control && has_data { DATA_CHECKS } else { CLOSE_CHECKS };
        let limit = self.closing.map_or(checks, |closing| closing.limit.min(checks));
        self.closing = Some(Closing { limit, left: limit });
    }

    /// More may follow a message, also if the peer has closed the connection.
    fn postpone_end(&mut self) {
        if let Some(closing) = &mut self.closing {
            closing.left = closing.limit;
        }
    }

    /// Fails if the peer closed the connection and what it has sent has had time to arrive.
    pub fn check_closed(&mut self) {
        let Some(closing) = &mut self.closing else { return };
        closing.left = closing.left.saturating_sub(1);
        if closing.left == 0 && !self.may_have_data() {
            self.fail("the peer closed the connection or ended");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Checks until it fails.
    fn checks(connection: &mut ConnectionState) -> u32 {
        (1..).find(|_| (connection.check_closed(), connection.has_failed()).1).unwrap()
    }

    #[test]
    fn messages_postpone_the_end_of_a_closed_connection() {
        let mut connection = ConnectionState::new(Direction::Recv, 1);
        connection.check_closed();
        connection.closed(Closed::Control);
        let slot = connection.start_receive(&[(Buffer::NONE, 0), (Buffer::NONE, 0)]);
        (1..CLOSE_CHECKS).for_each(|_| connection.check_closed());
        connection.complete(slot, 0, 10);
        assert_eq!(connection.check(), Ok(()));
        assert_eq!(checks(&mut connection), CLOSE_CHECKS);
    }

    #[test]
    fn data_may_arrive_late_until_its_end_is_reported() {
        let established = || {
            let mut connection = ConnectionState::new(Direction::Recv, 1);
            let (local, _) = std::os::unix::net::UnixStream::pair().unwrap();
            connection.peer = Some(Peer {
                name: "node2 (process 3)".to_owned(),
                address: None,
                fabric_address: Vec::new(),
                connection: 4,
                key: 5,
                stream: std::os::fd::OwnedFd::from(local).into(),
                segment_lock: None,
                is_visible: false,
            });
            connection.is_established = true;
            connection.closed(Closed::Control);
            connection
        };
        let mut idle = established();
        (0..2 * DATA_CHECKS).for_each(|_| idle.check_closed());
        assert_eq!(idle.check(), Ok(()), "no receive is posted");
        idle.start_receive(&[(Buffer::NONE, 0)]);
        assert_eq!(checks(&mut idle), DATA_CHECKS);
        let error = idle.check().unwrap_err();
        assert_eq!(error, "node2 (process 3): the peer closed the connection or ended");
        let mut ended = established();
        ended.start_receive(&[(Buffer::NONE, 0)]);
        ended.closed(Closed::Data);
        assert_eq!(checks(&mut ended), CLOSE_CHECKS);
    }
}
