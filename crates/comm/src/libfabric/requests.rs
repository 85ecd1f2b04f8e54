//! Requests in flight on the endpoint, with the memory they need until they complete.

use std::ffi::c_void;

use regatta_fabric::FiResult;
use regatta_fabric::abi::Context;
use regatta_fabric::endpoint::{Address, Endpoint};
use regatta_fabric::in_flight::InFlight;
use regatta_fabric::memory::{Memory, Region};

use super::message_header::{HeaderKind, MESSAGE_HEADER_BYTES, MessageHeader};
use super::tag::{FabricTags, HEADER_TAG};
use crate::buffer::Buffer;

/// Size of a header with an eager message, unless the provider prefers less. Most providers send
/// this much without a rendezvous.
const EAGER_BYTES: usize = 16 << 10;

/// Chunk size, unless the provider allows less. Small enough that a chunk is still in the cache when
/// it is reduced.
const CHUNK_BYTES: usize = 256 << 10;

/// Chunks start at multiples of this, so elements are not split.
const CHUNK_ALIGN: usize = 64;

/// Number of posted header receives.
const HEADER_RECVS: usize = 64;

/// A posted operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Op {
    RecvHeader,
    /// Sends a header to a rank, with its eager message this many bytes.
    SendHeader(u32, usize),
    SendChunk(Chunk),
    RecvChunk(Chunk),
}

/// A chunk of a large message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Chunk {
    /// The ID of the message.
    pub message: u64,
    /// The other rank.
    pub peer: u32,
    /// The number among the chunks of the sender.
    pub number: u64,
    /// The offset within the message.
    pub at: usize,
    pub size: usize,
}

/// A request in flight.
pub struct Request {
    pub op: Op,
    pub memory: RequestMemory,
}

/// The memory that a request reads or writes.
pub enum RequestMemory {
    Bounce(BounceBuffer),
    User(UserMemory),
}

/// An internal buffer, registered with the provider if required.
pub struct BounceBuffer {
    pub buffer: Buffer,
    region: Region,
}

/// User memory and the communicator it belongs to.
#[derive(Clone, Copy)]
pub struct UserMemory {
    pub start: *mut u8,
    pub comm_id: u64,
}

// SAFETY: the memory is only accessed by the provider and under the lock of the endpoint; the caller
// of the transport guarantees that it is valid.
unsafe impl Send for UserMemory {}

/// The endpoint and its requests.
pub struct RequestPool {
    pub endpoint: Endpoint,
    /// By rank.
    addresses: Vec<Address>,
    requests: InFlight<Request>,
    /// Unused bounce buffers, for headers and for chunks.
    bounce_buffers: [Vec<BounceBuffer>; 2],
    tags: FabricTags,
    pub job: u64,
    rank: u32,
    posted_headers: usize,
    /// Size of a header with its eager message.
    eager_bytes: usize,
    /// Size of a chunk.
    pub chunk_bytes: usize,
    /// Whether posting failed with `FI_EAGAIN`.
    pub needs_retry: bool,
}

impl RequestPool {
    /// An endpoint that knows the addresses of all ranks.
    pub fn new(
        mut endpoint: Endpoint,
        addresses: &[Vec<u8>],
        tags: FabricTags,
        job: u64,
        rank: u32,
    ) -> FiResult<Self> {
        let insert = |(rank, address): (usize, &Vec<u8>)| {
            let inserted = endpoint.insert_address(address);
            inserted.map_err(|why| format!("address of rank {rank}: {why}"))
        };
        let addresses = addresses.iter().enumerate().map(insert).collect::<FiResult<_>>()?;
        let info = &endpoint.info;
        // Injected data has left when the send completes. Data that the provider only references,
        // as shm does from 4 KiB on, may be fetched after this rank has exited.
        let eager = if info.inject >= 1024 { info.inject.min(EAGER_BYTES) } else { EAGER_BYTES };
        let eager_bytes = eager.min(info.max_msg_size);
        let chunk_bytes =
            CHUNK_BYTES.min(info.max_msg_size / CHUNK_ALIGN * CHUNK_ALIGN).max(CHUNK_ALIGN);
        Ok(Self {
            endpoint,
            addresses,
            requests: InFlight::default(),
            bounce_buffers: [Vec::new(), Vec::new()],
            tags,
            job,
            rank,
            posted_headers: 0,
            eager_bytes,
            chunk_bytes,
            needs_retry: false,
        })
    }

    /// The largest message that is sent eagerly with its header.
    pub fn eager_limit(&self) -> usize {
        self.eager_bytes.saturating_sub(MESSAGE_HEADER_BYTES)
    }

    /// Whether user memory can be used without registration.
    fn is_direct(&self) -> bool {
        !self.endpoint.info.needs_registration
    }

    /// Sends a header, with the eager message if there is one. Returns false if the caller must retry.
    pub fn send_header(&mut self, to: u32, kind: HeaderKind, message: &[u8]) -> FiResult<bool> {
        let mut bounce = self.bounce_buffer(false)?;
        let header = MessageHeader { job: self.job, from: self.rank, kind };
        let (first, rest) = bounce.buffer.bytes_mut().split_at_mut(MESSAGE_HEADER_BYTES);
        first.copy_from_slice(&header.encode());
        rest[..message.len()].copy_from_slice(message);
        let length = MESSAGE_HEADER_BYTES + message.len();
        self.post(Op::SendHeader(to, length), RequestMemory::Bounce(bounce))
    }

    /// Sends a chunk of user memory; if it was reclaimed, arbitrary bytes. Returns false to retry.
    pub fn send_chunk(&mut self, chunk: Chunk, from: Option<UserMemory>) -> FiResult<bool> {
        let memory = match from {
            Some(user) if self.is_direct() => RequestMemory::User(user),
            from => {
                let mut bounce = self.bounce_buffer(true)?;
                if let Some(from) = from {
                    // SAFETY: user memory of this size, and a chunk fits into the bounce buffer.
                    let bytes = unsafe { std::slice::from_raw_parts(from.start, chunk.size) };
                    bounce.buffer.bytes_mut()[..chunk.size].copy_from_slice(bytes);
                }
                RequestMemory::Bounce(bounce)
            }
        };
        self.post(Op::SendChunk(chunk), memory)
    }

    /// Receives a chunk directly into user memory or into a bounce buffer. Returns false to retry.
    pub fn receive_chunk(&mut self, chunk: Chunk, into: Option<UserMemory>) -> FiResult<bool> {
        let memory = match into.filter(|_| self.is_direct()) {
            Some(user) => RequestMemory::User(user),
            None => RequestMemory::Bounce(self.bounce_buffer(true)?),
        };
        self.post(Op::RecvChunk(chunk), memory)
    }

    /// Keeps enough header receives posted.
    pub fn post_header_recvs(&mut self) -> FiResult {
        let target = HEADER_RECVS.min(self.endpoint.info.rx_size / 2).max(1);
        while self.posted_headers < target {
            let bounce = RequestMemory::Bounce(self.bounce_buffer(false)?);
            if !self.post(Op::RecvHeader, bounce)? {
                break;
            }
            self.posted_headers += 1;
        }
        Ok(())
    }

    /// Posts an operation.
    fn post(&mut self, op: Op, mut memory: RequestMemory) -> FiResult<bool> {
        let chunk_tag = |from, chunk: Chunk| self.tags.chunk(from, chunk.number);
        let (to, length, tag) = match op {
            Op::RecvHeader => (None, self.eager_bytes, HEADER_TAG),
            Op::SendHeader(to, length) => (Some(to), length, HEADER_TAG),
            Op::SendChunk(chunk) => (Some(chunk.peer), chunk.size, chunk_tag(self.rank, chunk)),
            Op::RecvChunk(chunk) => (None, chunk.size, chunk_tag(chunk.peer, chunk)),
        };
        let (start, region) = match &mut memory {
            RequestMemory::Bounce(bounce) => {
                (bounce.buffer.bytes_mut().as_mut_ptr(), bounce.region)
            }
            RequestMemory::User(user) => (user.start, Region::NONE),
        };
        let to = match to.map(|to| self.addresses.get(to as usize).copied()) {
            Some(None) => return Err("no such rank".to_owned()),
            to => to.flatten(),
        };
        let bytes = std::ptr::slice_from_raw_parts_mut(start, length);
        let endpoint = &mut self.endpoint;
        // SAFETY: user memory is valid until the request completes, and the rest is owned by it.
        let post = |context| unsafe { endpoint.post(to, bytes, region, tag, context) };
        match self.requests.post(Request { op, memory }, post) {
            Ok(()) => Ok(true),
            Err((request, why)) => {
                self.needs_retry = true;
                self.release(request.memory);
                why.map_or(Ok(false), Err)
            }
        }
    }

    /// Completes the request with this context.
    pub fn complete(&mut self, context: *mut c_void) -> Option<Request> {
        let request = self.requests.complete(context)?;
        if request.op == Op::RecvHeader {
            self.posted_headers -= 1;
        }
        Some(request)
    }

    /// Returns a bounce buffer to the pool.
    pub fn release(&mut self, memory: RequestMemory) {
        if let RequestMemory::Bounce(bounce) = memory {
            let is_chunk = bounce.buffer.bytes().len() > self.eager_bytes;
            self.bounce_buffers[usize::from(is_chunk)].push(bounce);
        }
    }

    fn bounce_buffer(&mut self, for_chunk: bool) -> FiResult<BounceBuffer> {
        if let Some(bounce) = self.bounce_buffers[usize::from(for_chunk)].pop() {
            return Ok(bounce);
        }
        let chunk_bytes = self.chunk_bytes.max(self.eager_bytes + 1);
        let bytes = if for_chunk { chunk_bytes } else { self.eager_bytes };
        let mut buffer = Buffer::zeroed(bytes);
        let region =
            self.endpoint.register(Memory::host(buffer.bytes_mut().as_mut_ptr(), bytes), false)?;
        Ok(BounceBuffer { buffer, region })
    }

    /// Requests cancellation of all operations on user memory of a communicator.
    pub fn cancel(&mut self, comm_id: u64) {
        let contexts: Vec<_> = self.using(comm_id).map(|(_, context)| context).collect();
        contexts.into_iter().for_each(|context| self.endpoint.cancel(context));
    }

    /// The operations on user memory of a communicator.
    pub fn using(&self, comm_id: u64) -> impl Iterator<Item = (Op, *mut Context)> {
        self.requests.iter().filter_map(move |(request, context)| match &request.memory {
            RequestMemory::User(user) => (user.comm_id == comm_id).then_some((request.op, context)),
            RequestMemory::Bounce(_) => None,
        })
    }

    /// The operations in flight.
    pub fn in_flight(&self) -> impl Iterator<Item = Op> {
        self.requests.iter().map(|(request, _)| request.op)
    }

    /// Closes the endpoint, after which no memory is accessed and nothing completes. A provider with
    /// manual progress accesses memory only when polled, so it stays open. Returns false if closing
    /// fails and requests in flight may still access memory.
    pub fn close_ep(&mut self) -> bool {
        if self.endpoint.info.manual_progress {
            return true;
        }
        if !self.endpoint.close_ep() {
            return false;
        }
        let cancelled = self.requests.take_all();
        cancelled.into_iter().for_each(|request| self.release(request.memory));
        true
    }

    /// Drops the pool at shutdown. Closing an endpoint during a transfer crashes some providers, so
    /// one with manual progress is leaked in that case.
    pub fn drop_or_leak(self, unfinished: bool) {
        let is_busy = || self.in_flight().any(|op| op != Op::RecvHeader);
        if self.endpoint.info.manual_progress && (unfinished || is_busy()) {
            std::mem::forget(self);
        }
    }
}

impl Drop for RequestPool {
    fn drop(&mut self) {
        if !self.endpoint.close() {
            // An open endpoint may write to its buffers at any time, so they are leaked.
            self.requests.leak();
            std::mem::forget(std::mem::take(&mut self.bounce_buffers));
        }
    }
}
