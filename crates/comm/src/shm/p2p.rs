//! Point-to-point messages: chunks in a ring of slots per ordered pair of ranks, in send order. The
//! matching engine (`crate::matching`) decides which receive a message belongs to.

mod exchange;
mod group;

use std::sync::atomic::Ordering;

use super::ShmEngine;
use super::layout::{LINE_BYTES, P2P_CHUNK_BYTES, P2P_INLINE_BYTES, P2P_SLOTS};
use super::wait::CallCtx;
use crate::matching::{Envelope, MatchQueue, MessageKey};
use crate::transport::MatchKey;
use crate::{Call, DType, Result, Signature};

/// The rings to and from every rank.
#[derive(Debug)]
pub struct P2pRings {
    /// Chunks sent to each rank.
    sent: Vec<u64>,
    incoming: Vec<Incoming>,
}

impl P2pRings {
    pub fn new(ranks: usize) -> Self {
        let incoming = std::iter::repeat_with(Incoming::default).take(ranks).collect();
        Self { sent: vec![0; ranks], incoming }
    }
}

/// What a rank sends to this one.
#[derive(Debug, Default)]
struct Incoming {
    /// Chunks consumed.
    received: u64,
    /// Messages begun. The number of a message is its ID.
    messages: u64,
    queue: MatchQueue<(), Message>,
    /// The message of which chunks are still missing.
    arriving: Option<Arriving>,
}

/// A message that arrives chunk by chunk.
#[derive(Debug)]
struct Arriving {
    header: MessageHeader,
    to: Destination,
}

#[derive(Debug)]
enum Destination {
    /// The receive with this index in its group, of which this many bytes have arrived.
    Recv(usize, usize),
    /// The unexpected-message queue.
    Unexpected(Vec<u8>),
}

/// A message that arrived before a matching receive.
#[derive(Debug)]
struct Message {
    header: MessageHeader,
    bytes: Vec<u8>,
}

/// The header of every chunk of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct MessageHeader {
    tag: u32,
    dtype: u8,
    bytes: u64,
}

impl MessageHeader {
    fn new(call: &Call, bytes: usize) -> Self {
        Self { tag: call.tag, dtype: call.dtype as u8, bytes: bytes as u64 }
    }

    fn dtype(self) -> DType {
        DType::ALL.get(usize::from(self.dtype)).copied().unwrap_or(DType::U8)
    }

    /// Shared memory belongs to one communicator.
    fn envelope(self) -> Envelope {
        let key = MessageKey::new(0, MatchKey::Tag(self.tag), 0);
        Envelope { key, length: self.bytes, signature_hash: 0 }
    }
}

impl ShmEngine {
    fn begin_p2p(&self, call: &Call) -> Result<CallCtx> {
        let signature = Signature { root: call.root, ..call.signature(self.ranks()) };
        let ctx = CallCtx { calls: self.calls, signature, digest: 0 };
        let announced_error = self.shared.announced_error(&ctx);
        announced_error.map_or(Ok(ctx), |error| Err(self.shared.fail_with(error)))
    }

    /// Whether the next chunk to a rank has a free slot.
    fn has_free_slot(&self, to: usize) -> bool {
        let region = &self.shared.region;
        let consumed = region.word(region.layout.consumed(self.rank(), to)).load(Ordering::Acquire);
        self.p2p.sent[to] < consumed + P2P_SLOTS
    }

    /// Writes the next chunk to a free slot.
    fn write_chunk(&mut self, to: usize, header: MessageHeader, chunk: &[u8]) {
        let (region, rank, seq) = (&self.shared.region, self.rank(), self.p2p.sent[to] + 1);
        let line = region.layout.p2p_header(rank, to, seq);
        let what = u64::from(header.tag) | u64::from(header.dtype) << 32;
        region.word(line + 8).store(what, Ordering::Relaxed);
        region.word(line + 16).store(header.bytes, Ordering::Relaxed);
        // SAFETY: the slot is free, and it is not read before its sequence number is written.
        unsafe {
            let payload = self.chunk_payload(rank, to, seq, chunk.len());
            std::ptr::copy_nonoverlapping(chunk.as_ptr(), payload, chunk.len());
        }
        region.word(line).store(seq, Ordering::Release);
        region.ring_doorbell();
        self.p2p.sent[to] = seq;
    }

    /// Whether the next chunk of a rank has arrived.
    fn has_chunk(&self, from: usize) -> bool {
        let (region, seq) = (&self.shared.region, self.p2p.incoming[from].received + 1);
        region.word(region.layout.p2p_header(from, self.rank(), seq)).load(Ordering::Acquire) >= seq
    }

    /// Whether any rank's next chunk has arrived.
    fn has_chunks(&self) -> bool {
        self.others().any(|from| self.has_chunk(from))
    }

    /// The header of the next chunk.
    fn next_header(&self, from: usize) -> MessageHeader {
        let (region, seq) = (&self.shared.region, self.p2p.incoming[from].received + 1);
        let line = region.layout.p2p_header(from, self.rank(), seq);
        let what = region.word(line + 8).load(Ordering::Relaxed);
        let bytes = region.word(line + 16).load(Ordering::Relaxed);
        MessageHeader { tag: what as u32, dtype: (what >> 32) as u8, bytes }
    }

    /// Consumes the next chunk.
    fn read_chunk(&mut self, from: usize, chunk: &mut [u8]) {
        let (region, seq) = (&self.shared.region, self.p2p.incoming[from].received + 1);
        // SAFETY: the chunk was sent and is not overwritten before it is consumed.
        unsafe {
            let payload = self.chunk_payload(from, self.rank(), seq, chunk.len());
            std::ptr::copy_nonoverlapping(payload, chunk.as_mut_ptr(), chunk.len());
        }
        region.word(region.layout.consumed(from, self.rank())).store(seq, Ordering::Release);
        region.ring_doorbell();
        self.p2p.incoming[from].received = seq;
    }

    /// Address of a chunk: inline in its header line, if it fits.
    fn chunk_payload(&self, from: usize, to: usize, seq: u64, bytes: usize) -> *mut u8 {
        debug_assert!(bytes <= P2P_CHUNK_BYTES);
        let region = &self.shared.region;
        match bytes <= P2P_INLINE_BYTES {
            true => region.p2p_header(from, to, seq).wrapping_add(LINE_BYTES - P2P_INLINE_BYTES),
            false => region.p2p_slot(from, to, seq),
        }
    }
}
