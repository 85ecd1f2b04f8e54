//! The endpoint of this process and the messages on it. Makes progress when a thread waits.
//!
//! Every message starts with a header, which contains the whole message if it is small. The chunks of
//! a large message have their own tags and are received once a matching receive is posted: directly
//! into user memory if they are only copied and the provider needs no registration, else into bounce
//! buffers, from which each chunk is copied or reduced while others arrive.

mod on_message;

pub use on_message::Delivery;

use std::collections::BTreeMap;
use std::ffi::c_void;
use std::sync::Arc;
use std::time::Duration;

use regatta_fabric::FiResult;
use regatta_fabric::abi::CqEntry;
use regatta_fabric::endpoint::{PollResult, WaitObject};
use regatta_fabric::shm_cleanup::remove_stale_segments;
use regatta_wire::clock;

use super::incoming::{IncomingMessage, Resequencer};
use super::message_header::Message;
use super::outgoing::{OutgoingMessage, SendWindow};
use super::requests::{Chunk, Op, Request, RequestPool};
use crate::matching::MatchQueue;
use crate::network::{LinkDirection, Report, SharedState, SleepSet, UserBuffer, UserSend};

/// Completions read per poll.
const CQ_BATCH: usize = 16;

/// Polls in a row before control returns to the caller.
const MAX_POLLS: usize = 16;

/// Time for the last sends to complete.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Unsuccessful polls with `yield_now` before the thread sleeps.
const YIELDS: u32 = 20;

/// Sleep durations: with a file descriptor to poll, and the range of the backoff without one.
const FD_SLEEP: Duration = Duration::from_millis(50);
pub const MIN_SLEEP: Duration = Duration::from_micros(10);
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// Unsuccessful polls, a few milliseconds, after which large unexpected messages are fetched.
const FETCH_AFTER: u32 = YIELDS + 10;

/// The payload of an unexpected message.
#[derive(Debug, Clone)]
enum Payload {
    Bytes(Vec<u8>),
    /// A large message that is still at the sender.
    Remote(Message),
}

/// The messages exchanged with a peer.
#[derive(Default)]
struct PeerState {
    window: SendWindow,
    order: Resequencer,
    queue: MatchQueue<UserBuffer, Payload>,
    /// Consumed messages for which the peer has not received credits.
    credits: u64,
}

/// The endpoint of this process.
pub struct Fabric {
    pool: RequestPool,
    /// The addresses of all ranks.
    addresses: Vec<Vec<u8>>,
    shared: Arc<SharedState>,
    peers: BTreeMap<u32, PeerState>,
    sends: BTreeMap<u64, OutgoingMessage>,
    recvs: BTreeMap<u64, IncomingMessage>,
    next: u64,
    /// What happened since it was last taken.
    pub report: Report,
    /// Copies and reductions to be run without the lock.
    deliveries: Vec<Delivery>,
    /// The communicators of the deliveries that are running.
    delivering: Vec<u64>,
    /// Why the endpoint failed.
    pub failure: Option<String>,
    /// Consecutive polls without completions.
    idle: u32,
}

impl Fabric {
    /// An endpoint that knows the addresses of all ranks.
    pub fn new(
        mut pool: RequestPool,
        addresses: &[Vec<u8>],
        shared: Arc<SharedState>,
    ) -> FiResult<Self> {
        pool.post_header_recvs()?;
        Ok(Self {
            pool,
            addresses: addresses.to_vec(),
            shared,
            peers: BTreeMap::new(),
            sends: BTreeMap::new(),
            recvs: BTreeMap::new(),
            next: 0,
            report: Report::default(),
            deliveries: Vec::new(),
            delivering: Vec::new(),
            failure: None,
            idle: 0,
        })
    }

    /// The provider and its domain.
    pub fn name(&self) -> String {
        let info = &self.pool.endpoint.info;
        format!("{} on {}", info.provider, info.domain)
    }

    /// Posts a send.
    pub fn send(&mut self, to: u32, message: UserSend) {
        self.next += 1;
        self.sends.insert(self.next, OutgoingMessage::new(to, message));
        self.post_sends();
    }

    /// Makes progress without blocking.
    pub fn progress(&mut self) {
        self.pool.needs_retry = false;
        if self.failure.is_none() {
            self.poll();
        }
        if self.failure.is_none() {
            self.post_sends();
            self.post_recvs();
            self.send_credits();
            if let Err(why) = self.pool.post_header_recvs() {
                self.fail(why);
            }
        }
    }

    fn poll(&mut self) {
        let empty = CqEntry { context: std::ptr::null_mut(), flags: 0, len: 0 };
        for _ in 0..MAX_POLLS {
            let mut entries = [empty; CQ_BATCH];
            match self.pool.endpoint.poll_cq(&mut entries) {
                PollResult::Empty => {
                    self.idle = self.idle.saturating_add(1);
                    return;
                }
                PollResult::Done(count) => {
                    for entry in &entries[..count] {
                        self.ended(entry.context, Ok(entry.len));
                    }
                }
                PollResult::Broken(why) => return self.fail(why),
                PollResult::Failed(context, why) => self.ended(context, Err(why)),
            }
            self.idle = 0;
        }
    }

    /// Handles a request that transferred this many bytes or failed; without a reason, it was cancelled.
    fn ended(&mut self, context: *mut c_void, end: Result<usize, Option<String>>) {
        let Some(Request { op, memory }) = self.pool.complete(context) else { return };
        match (op, end) {
            (Op::RecvHeader, Ok(length)) => return self.handle_header(memory, length),
            (Op::RecvChunk(chunk), Ok(length)) if length == chunk.size => {
                return self.chunk_received(chunk, memory);
            }
            (Op::RecvChunk(Chunk { message, size, .. }), Ok(length)) => {
                self.fail_recv(message, format!("received a chunk of {length} bytes, not {size}"));
            }
            (Op::RecvChunk(chunk), Err(Some(why))) => self.fail_recv(chunk.message, why),
            (Op::RecvChunk(chunk), Err(None)) => {
                // The chunk still arrives and is discarded then.
                if let Some(message) = self.recvs.get_mut(&chunk.message) {
                    message.in_flight -= 1;
                    message.reposts.push(chunk.at);
                }
            }
            (Op::SendChunk(chunk), Ok(_) | Err(None)) => self.chunk_sent(chunk.message),
            (Op::SendChunk(chunk), Err(Some(why))) => {
                if self.sends.remove(&chunk.message).is_some() {
                    self.report.broken.push((chunk.peer, LinkDirection::Send, why));
                }
            }
            (Op::SendHeader(to, _), Err(Some(why))) => {
                self.report.broken.push((to, LinkDirection::Send, why));
            }
            (Op::SendHeader(..), Ok(_) | Err(None)) | (Op::RecvHeader, Err(_)) => {}
        }
        self.pool.release(memory);
    }

    fn chunk_sent(&mut self, id: u64) {
        let Some(message) = self.sends.get_mut(&id) else { return };
        message.in_flight -= 1;
        self.report.add_moved(message.comm_id(), self.pool.chunk_bytes);
        if message.is_done() {
            self.finish_send(id);
        }
    }

    fn finish_send(&mut self, id: u64) {
        if let Some(message) = self.sends.remove(&id).filter(|message| message.user.is_some()) {
            self.report.completed.push((message.comm_id(), message.request));
        }
    }

    /// Posts sends. The headers to each peer are sent in order.
    fn post_sends(&mut self) {
        if self.failure.is_some() {
            return;
        }
        let mut blocked: Vec<u32> = Vec::new();
        let mut last = 0;
        while let Some((&id, message)) = self.sends.range_mut(last + 1..).next() {
            last = id;
            if !message.header_sent && blocked.contains(&message.to) {
                continue;
            }
            let to = message.to;
            let window = &mut self.peers.entry(to).or_default().window;
            let posted = message.post(id, window, &mut self.pool);
            if !message.header_sent {
                blocked.push(to);
            }
            match posted {
                Err(why) => {
                    self.report.broken.push((to, LinkDirection::Send, why));
                    self.sends.remove(&id);
                }
                Ok(()) if message.is_done() => {
                    self.report.add_moved(message.comm_id(), message.length());
                    self.finish_send(id);
                }
                Ok(()) => {}
            }
        }
    }

    /// Begins to release all user memory of a communicator.
    pub fn cancel(&mut self, comm_id: u64) {
        self.peers.values_mut().for_each(|peer| peer.queue.cancel(comm_id));
        // A message whose header was sent is completed with arbitrary bytes, as the peer expects it.
        self.sends.retain(|_, send| send.header_sent || send.comm_id() != comm_id);
        for message in self.sends.values_mut().filter(|send| send.comm_id() == comm_id) {
            message.user = None;
        }
        for message in self.recvs.values_mut().filter(|recv| recv.comm_id() == comm_id) {
            message.recv = None;
        }
        if self.failure.is_none() {
            self.pool.cancel(comm_id);
        }
    }

    /// Whether all user memory of a cancelled communicator is released, usually at once. If it is not
    /// in time, closes the endpoint. An endpoint that cannot be closed while it may write to user
    /// memory is waited for, because the caller will reuse the memory.
    pub fn is_released(&mut self, comm_id: u64, expired: bool) -> bool {
        if self.failure.is_none() && self.pool.using(comm_id).next().is_some() {
            if !expired {
                self.progress();
                return false;
            }
            self.fail("the provider did not release user memory in time".to_owned());
        }
        let writes = |(op, _): (Op, _)| matches!(op, Op::RecvChunk(..));
        let may_write = |pool: &RequestPool| pool.using(comm_id).any(writes);
        if self.failure.is_some() && !self.pool.close_ep() && may_write(&self.pool) {
            self.poll();
            return false;
        }
        !self.delivering.contains(&comm_id)
    }

    fn fail(&mut self, why: String) {
        self.pool.close_ep();
        self.recvs.clear();
        self.failure.get_or_insert(why);
    }

    /// How a waiting thread may sleep.
    pub fn sleep_set(&mut self) -> SleepSet {
        let sleep = |fd, limit| SleepSet { sockets: Vec::new(), fd, limit };
        if self.failure.is_some() {
            return sleep(None, FD_SLEEP);
        }
        let doubled = MIN_SLEEP * 2u32.saturating_pow(self.idle.saturating_sub(YIELDS).min(10));
        let limit = if self.idle < YIELDS { Duration::ZERO } else { doubled.min(MAX_SLEEP) };
        if self.peers.values().any(|peer| peer.queue.any_payload(is_remote)) {
            if self.idle >= FETCH_AFTER {
                self.fetch_unexpected();
            }
            return sleep(None, limit);
        }
        match self.pool.endpoint.wait_object() {
            WaitObject::Ready => sleep(None, Duration::ZERO),
            WaitObject::Fd(fd) if !self.pool.needs_retry => sleep(Some(fd), FD_SLEEP),
            WaitObject::Fd(_) | WaitObject::None => sleep(None, limit),
        }
    }

    /// Completes the last sends and closes the endpoint.
    pub fn shutdown(mut self) {
        let until = clock::now() + SHUTDOWN_TIMEOUT;
        let sends = |op: Op| matches!(op, Op::SendHeader(..) | Op::SendChunk(_));
        let is_sending = |pool: &RequestPool| pool.in_flight().any(sends);
        while self.failure.is_none() && is_sending(&self.pool) && clock::now() < until {
            self.poll();
            std::thread::sleep(MIN_SLEEP);
        }
        remove_stale_segments(&self.addresses);
        self.pool.drop_or_leak(self.failure.is_some() || !self.recvs.is_empty());
    }
}

fn is_remote(payload: &Payload) -> bool {
    matches!(payload, Payload::Remote(_))
}
