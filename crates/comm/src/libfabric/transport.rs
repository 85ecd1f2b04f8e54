//! Data messages over libfabric, in place of the TCP connections of the data plane. Makes progress
//! when a thread waits.
//!
//! Every message starts with a header, which contains the whole message if it is small. The chunks of
//! a large message have their own tags and are received once a matching receive is posted: directly
//! into user memory if they are only copied and the provider needs no registration, else into bounce
//! buffers, from which each chunk is copied or reduced while others arrive.

mod on_message;

use std::collections::BTreeMap;
use std::os::fd::RawFd;
use std::time::Duration;

use regatta_wire::clock;

use super::FiResult;
use super::abi::CqEntry;
use super::atexit_guard::enter;
use super::endpoint::PollResult;
use super::match_queue::{IncomingMessage, MatchQueue};
use super::outgoing::{OutgoingMessage, SendWindow};
use super::requests::{InFlight, Op, RequestPool};
use super::shm_cleanup::remove_stale_segments;
use crate::tcp::{CommTable, Header, LinkDirection, PostedRecv, check_match};
use crate::transport::RequestId;

/// Completions read per poll.
const CQ_BATCH: usize = 16;

/// Polls in a row before control returns to the caller.
const MAX_POLLS: usize = 16;

/// Time for the provider to release user memory after a cancellation. After it, the endpoint is
/// closed, which aborts all communicators of this process.
pub const CANCEL_TIMEOUT: Duration = Duration::from_secs(2);

/// The same if a rank was lost, because requests to it never complete.
pub const CANCEL_TIMEOUT_RANK_LOST: Duration = Duration::from_millis(100);

/// Time for the last sends to complete.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(1);

/// Unsuccessful polls with `yield_now` before the thread sleeps.
const YIELDS: u32 = 20;

/// Sleep durations: with a file descriptor to poll, and the range of the backoff without one.
const FD_SLEEP: Duration = Duration::from_millis(50);
const MIN_SLEEP: Duration = Duration::from_micros(10);
const MAX_SLEEP: Duration = Duration::from_millis(1);

/// Unsuccessful polls, a few milliseconds, after which large unexpected messages are fetched.
const FETCH_AFTER: u32 = YIELDS + 10;

/// The messages exchanged with a peer.
#[derive(Default)]
struct PeerState {
    window: SendWindow,
    queue: MatchQueue,
}

/// The libfabric data plane of this process.
pub struct FabricTransport {
    pool: RequestPool,
    job: u64,
    ranks: u32,
    addresses: Vec<Vec<u8>>,
    peers: BTreeMap<u32, PeerState>,
    sends: BTreeMap<u64, OutgoingMessage>,
    recvs: BTreeMap<u64, IncomingMessage>,
    next: u64,
    /// Links that broke since the last call of [`Self::progress`].
    broken: Vec<(u32, LinkDirection, String)>,
    /// Why the endpoint failed.
    failure: Option<String>,
    /// Consecutive polls without completions.
    idle: u32,
}

/// How a waiting thread may sleep.
#[derive(Debug, Clone, Copy)]
pub struct SleepHint {
    /// A descriptor that becomes readable on a completion.
    pub fd: Option<RawFd>,
    /// The longest sleep.
    pub limit: Duration,
}

impl FabricTransport {
    /// A transport on an endpoint that knows the addresses of all ranks.
    pub fn new(mut pool: RequestPool, job: u64, addresses: &[Vec<u8>]) -> FiResult<Self> {
        pool.post_header_recvs()?;
        Ok(Self {
            pool,
            job,
            ranks: addresses.len() as u32,
            addresses: addresses.to_vec(),
            peers: BTreeMap::new(),
            sends: BTreeMap::new(),
            recvs: BTreeMap::new(),
            next: 0,
            broken: Vec::new(),
            failure: None,
            idle: 0,
        })
    }

    /// The provider and its domain.
    pub fn name(&self) -> String {
        let info = &self.pool.endpoint.info;
        format!("{} on {}", info.provider, info.domain)
    }

    /// Why the endpoint failed, if it did.
    pub fn failure(&self) -> Option<&str> {
        self.failure.as_deref()
    }

    /// Posts a send.
    pub fn send(
        &mut self,
        to: u32,
        header: Header,
        request: RequestId,
        start: *const u8,
        comms: &mut CommTable,
    ) {
        let Some(_guard) = enter() else { return };
        self.next += 1;
        self.sends.insert(self.next, OutgoingMessage::new(to, header, request, start));
        self.post_sends(comms);
    }

    pub fn receive(&mut self, from: u32, posted: PostedRecv, comms: &mut CommTable) {
        let Some(_guard) = enter() else { return };
        let queue = &mut self.peers.entry(from).or_default().queue;
        match queue.take_unexpected(|key| key == posted.key) {
            None => queue.posted.push_back(posted),
            Some(unexpected) => {
                let matches = check_match(&unexpected.message.header, &posted, comms);
                self.deliver_unexpected(from, unexpected, matches.then_some(posted), comms);
            }
        }
    }

    /// Makes progress without blocking. Returns links that broke.
    pub fn progress(&mut self, comms: &mut CommTable) -> Vec<(u32, LinkDirection, String)> {
        let Some(_guard) = enter() else { return Vec::new() };
        self.pool.needs_retry = false;
        if self.failure.is_none() {
            self.poll(comms);
        }
        if self.failure.is_none() {
            self.post_sends(comms);
            self.post_recvs();
            self.send_credits();
            if let Err(why) = self.pool.post_header_recvs() {
                self.fail(why);
            }
        }
        std::mem::take(&mut self.broken)
    }

    fn poll(&mut self, comms: &mut CommTable) {
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
                        if let Some(request) = self.pool.complete(entry.context) {
                            self.completed(request, entry.len, comms);
                        }
                    }
                }
                PollResult::Broken(why) => return self.fail(why),
                PollResult::Failed(context, why) => {
                    if let Some(request) = self.pool.complete(context) {
                        self.request_failed(request, why, comms);
                    }
                }
            }
            self.idle = 0;
        }
    }

    /// Handles a completed request.
    fn completed(&mut self, request: InFlight, length: usize, comms: &mut CommTable) {
        match (request.op, &request.bounce) {
            (Op::RecvHeader, Some(bounce)) => {
                let bytes = &bounce.bytes()[..length.min(bounce.bytes().len())];
                self.handle_header(bytes, comms);
            }
            (Op::SendChunk(id), _) => self.chunk_sent(id, comms),
            (Op::RecvChunk(id, at, size), bounce) => {
                let bytes = bounce.as_ref().map(|bounce| &bounce.bytes()[..size]);
                if length == size {
                    self.chunk_received(id, at, size, bytes, comms);
                } else {
                    self.fail_recv(id, format!("received a chunk of {length} bytes, not {size}"));
                }
            }
            _ => {}
        }
        self.pool.release(request.bounce);
    }

    /// Handles a failed request; without a reason, it was cancelled.
    fn request_failed(&mut self, request: InFlight, why: Option<String>, comms: &mut CommTable) {
        match (request.op, why) {
            (Op::SendHeader(to), Some(why)) => self.broken.push((to, LinkDirection::Send, why)),
            (Op::SendChunk(id), None) => self.chunk_sent(id, comms),
            (Op::SendChunk(id), Some(why)) => {
                if let Some(message) = self.sends.remove(&id) {
                    self.broken.push((message.to, LinkDirection::Send, why));
                }
            }
            (Op::RecvChunk(id, at, _), None) => {
                // The chunk still arrives and is discarded then.
                if let Some(message) = self.recvs.get_mut(&id) {
                    message.in_flight -= 1;
                    message.reposts.push(at);
                }
            }
            (Op::RecvChunk(id, ..), Some(why)) => self.fail_recv(id, why),
            (Op::SendHeader(_), None) | (Op::RecvHeader, _) => {}
        }
        self.pool.release(request.bounce);
    }

    fn chunk_sent(&mut self, id: u64, comms: &mut CommTable) {
        let Some(message) = self.sends.get_mut(&id) else { return };
        message.in_flight -= 1;
        comms.add_bytes_moved(message.header.key.comm_id, self.pool.chunk_bytes);
        if message.is_done() {
            finish(self.sends.remove(&id), comms);
        }
    }

    /// Posts sends. The headers to each peer are sent in order.
    fn post_sends(&mut self, comms: &mut CommTable) {
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
                    self.broken.push((to, LinkDirection::Send, why));
                    self.sends.remove(&id);
                }
                Ok(()) if message.is_done() => {
                    let header = message.header;
                    comms.add_bytes_moved(header.key.comm_id, header.length as usize);
                    finish(self.sends.remove(&id), comms);
                }
                Ok(()) => {}
            }
        }
    }

    /// Releases all user memory of a communicator within `timeout`.
    pub fn cancel(&mut self, comm_id: u64, timeout: Duration, comms: &mut CommTable) {
        let Some(_guard) = enter() else { return };
        for peer in self.peers.values_mut() {
            peer.queue.posted.retain(|posted| posted.key.comm_id != comm_id);
        }
        // A message whose header was sent is completed with arbitrary bytes, as the peer expects it.
        self.sends.retain(|_, s| s.header_sent || s.header.key.comm_id != comm_id);
        for message in self.sends.values_mut().filter(|s| s.header.key.comm_id == comm_id) {
            message.user = None;
        }
        for message in self.recvs.values_mut() {
            if message.posted.is_some() && message.message.header.key.comm_id == comm_id {
                message.discard();
            }
        }
        self.reclaim(comm_id, timeout, comms);
    }

    /// Waits until the provider has released a communicator's memory, usually at once. If it does
    /// not, closes the endpoint.
    fn reclaim(&mut self, comm_id: u64, timeout: Duration, comms: &mut CommTable) {
        if self.failure.is_none() {
            self.pool.cancel(comm_id);
        }
        let until = clock::now() + timeout;
        while self.failure.is_none() && self.pool.is_using(comm_id) {
            if clock::now() >= until {
                let ms = timeout.as_millis();
                self.fail(format!("the provider did not release user memory within {ms} ms"));
                break;
            }
            let broken = self.progress(comms);
            self.broken.extend(broken);
            std::thread::sleep(MIN_SLEEP);
        }
        if self.failure.is_some() {
            self.wait_until_released(comm_id, comms);
        }
    }

    /// Waits for an endpoint that cannot be closed while it may write to user memory, because the
    /// caller will reuse the memory.
    fn wait_until_released(&mut self, comm_id: u64, comms: &mut CommTable) {
        while !self.pool.close_ep() && self.pool.may_write(comm_id) {
            self.poll(comms);
            std::thread::sleep(MAX_SLEEP);
        }
    }

    fn fail(&mut self, why: String) {
        self.pool.close_ep();
        self.recvs.clear();
        self.failure.get_or_insert(why);
    }

    /// Closes a cancelled communicator and discards its unexpected messages.
    pub fn close(&mut self, comm_id: u64, comms: &mut CommTable) {
        let Some(_guard) = enter() else { return };
        let ranks: Vec<u32> = self.peers.keys().copied().collect();
        for rank in ranks {
            let unexpected =
                |p: &mut PeerState| p.queue.take_unexpected(|key| key.comm_id == comm_id);
            while let Some(unexpected) = self.peers.get_mut(&rank).and_then(unexpected) {
                self.deliver_unexpected(rank, unexpected, None, comms);
            }
        }
    }

    /// How a waiting thread may sleep.
    pub fn sleep_hint(&mut self) -> SleepHint {
        let guard = enter();
        if self.failure.is_some() || guard.is_none() {
            return SleepHint { fd: None, limit: FD_SLEEP };
        }
        let doubled = MIN_SLEEP * 2u32.saturating_pow(self.idle.saturating_sub(YIELDS).min(10));
        let limit = if self.idle < YIELDS { Duration::ZERO } else { doubled.min(MAX_SLEEP) };
        let short = SleepHint { fd: None, limit };
        if self.peers.values_mut().any(|peer| peer.queue.unfetched().is_some()) {
            if self.idle >= FETCH_AFTER {
                self.fetch_unexpected();
            }
            return short;
        }
        match self.pool.endpoint.wait_fd() {
            Err(()) => SleepHint { fd: None, limit: Duration::ZERO },
            Ok(Some(fd)) if !self.pool.needs_retry => SleepHint { fd: Some(fd), limit: FD_SLEEP },
            Ok(_) => short,
        }
    }

    /// Completes the last sends and closes the endpoint.
    pub fn shutdown(mut self) {
        let Some(_guard) = enter() else { return std::mem::forget(self) };
        let (until, mut comms) = (clock::now() + SHUTDOWN_TIMEOUT, CommTable::default());
        while self.failure.is_none() && self.pool.is_sending() && clock::now() < until {
            self.poll(&mut comms);
            std::thread::sleep(MIN_SLEEP);
        }
        remove_stale_segments(&self.addresses);
        self.pool.drop_or_leak(self.failure.is_some() || !self.recvs.is_empty());
    }
}

fn finish(message: Option<OutgoingMessage>, comms: &mut CommTable) {
    if let Some(message) = message.filter(|message| message.user.is_some()) {
        comms.complete(message.header.key.comm_id, message.request);
    }
}
