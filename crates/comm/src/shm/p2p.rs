//! Point-to-point messages: chunks in a ring of slots per ordered pair of ranks, in send order. A
//! message whose tag is not awaited goes to the unexpected-message queue.

mod exchange;
mod group;

use std::collections::VecDeque;
use std::sync::atomic::Ordering;

use super::ShmEngine;
use super::layout::{LINE_BYTES, P2P_CHUNK_BYTES, P2P_INLINE_BYTES, P2P_SLOTS};
use super::region::Activity;
use super::signature_codec;
use super::wait::CallCtx;
use crate::{Call, CallKind, CommError, DType, Result, Signature};

/// Positions in the rings from and to every rank, and the unexpected-message queues.
#[derive(Debug)]
pub struct P2pRing {
    pub(super) sent: Vec<u64>,
    received: Vec<u64>,
    pub(super) unexpected: Vec<VecDeque<UnexpectedMessage>>,
    /// Unexpected messages of which chunks are still missing.
    pub(super) partial: Vec<Option<UnexpectedMessage>>,
}

impl P2pRing {
    pub fn new(ranks: usize) -> Self {
        let unexpected = std::iter::repeat_with(VecDeque::new).take(ranks).collect();
        let partial = std::iter::repeat_with(|| None).take(ranks).collect();
        Self { sent: vec![0; ranks], received: vec![0; ranks], unexpected, partial }
    }

    /// Takes the first unexpected message with this tag.
    pub(super) fn take_unexpected(&mut self, from: usize, tag: u32) -> Option<UnexpectedMessage> {
        let at = self.unexpected[from].iter().position(|message| message.header.tag == tag)?;
        self.unexpected[from].remove(at)
    }
}

/// Header of every chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ChunkHeader {
    pub tag: u32,
    pub dtype: u8,
    pub bytes: u64,
}

impl ChunkHeader {
    pub fn new(call: &Call, bytes: usize) -> Self {
        Self { tag: call.tag, dtype: call.dtype as u8, bytes: bytes as u64 }
    }
}

fn no_send_to_self() -> CommError {
    let what = "no matching send from this rank to itself";
    CommError::invalid_call(CallKind::Receive.name(), what)
}

/// A message that arrived before a matching receive.
#[derive(Debug)]
pub(super) struct UnexpectedMessage {
    pub header: ChunkHeader,
    pub bytes: Vec<u8>,
}

impl ShmEngine {
    pub(super) fn begin_p2p(&self, call: &Call) -> Result<CallCtx> {
        let signature = Signature { root: call.root, ..call.signature(self.ranks()) };
        let ctx = CallCtx { activity: Activity::P2p(self.calls), signature, digest: 0 };
        self.shared.region.publish_call(ctx.activity, signature_codec::encode(&signature));
        let announced_error = self.shared.announced_error(&ctx);
        announced_error.map_or(Ok(ctx), |error| Err(self.shared.fail_with(error)))
    }

    pub(super) fn send(&mut self, call: &Call) -> Result {
        let ctx = self.begin_p2p(call)?;
        let to = call.root as usize;
        let data = call.input.unwrap_or(call.output);
        let header = ChunkHeader::new(call, data.len());
        if to == self.rank() {
            self.p2p.unexpected[to].push_back(UnexpectedMessage { header, bytes: data.to_vec() });
            return Ok(());
        }
        let mut rest = data;
        loop {
            let (chunk, more) = rest.split_at(rest.len().min(P2P_CHUNK_BYTES));
            self.send_chunk(to, &ctx, header, chunk)?;
            rest = more;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    fn send_chunk(
        &mut self,
        to: usize,
        ctx: &CallCtx,
        header: ChunkHeader,
        chunk: &[u8],
    ) -> Result {
        let seq = self.p2p.sent[to] + 1;
        while !self.has_free_slot(to, seq) {
            // Ranks may send in a cycle before they receive: drain incoming chunks to avoid a
            // deadlock.
            let moves = || self.has_free_slot(to, seq) || self.ranks_with_chunks().next().is_some();
            self.shared.wait(to, ctx, moves)?;
            if !self.has_free_slot(to, seq) {
                self.ranks_with_chunks()
                    .collect::<Vec<_>>()
                    .into_iter()
                    .for_each(|from| self.queue_unexpected(from));
            }
        }
        self.write_chunk(to, seq, header, chunk);
        Ok(())
    }

    /// Writes a chunk to a free slot.
    pub(super) fn write_chunk(&mut self, to: usize, seq: u64, header: ChunkHeader, chunk: &[u8]) {
        let (region, rank) = (&self.shared.region, self.rank());
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

    /// The ranks with a chunk to be consumed.
    pub(super) fn ranks_with_chunks(&self) -> impl Iterator<Item = usize> + '_ {
        self.others().filter(|from| self.has_chunk(*from))
    }

    pub(super) fn receive(&mut self, call: Call<'_>) -> Result {
        let ctx = self.begin_p2p(&call)?;
        let from = call.root as usize;
        let wanted = ChunkHeader::new(&call, call.output.len());
        loop {
            if let Some(message) = self.p2p.take_unexpected(from, wanted.tag) {
                self.check_header(from, &ctx, wanted, message.header)?;
                call.output.copy_from_slice(&message.bytes);
                return Ok(());
            }
            if from == self.rank() {
                return Err(no_send_to_self());
            }
            self.shared.wait(from, &ctx, || self.has_chunk(from))?;
            let header = self.next_header(from);
            if self.p2p.partial[from].is_none() && header.tag == wanted.tag {
                self.check_header(from, &ctx, wanted, header)?;
                return self.receive_chunks(from, &ctx, call.output);
            }
            self.queue_unexpected(from);
        }
    }

    /// Moves the next chunk to the unexpected-message queue.
    pub(super) fn queue_unexpected(&mut self, from: usize) {
        let matched = self.p2p.partial[from].take();
        let mut message = matched.unwrap_or_else(|| UnexpectedMessage {
            header: self.next_header(from),
            bytes: Vec::new(),
        });
        let done = message.bytes.len();
        let total = message.header.bytes as usize;
        message.bytes.resize(total.min(done + P2P_CHUNK_BYTES), 0);
        self.read_chunk(from, &mut message.bytes[done..]);
        match message.bytes.len() == total {
            true => self.p2p.unexpected[from].push_back(message),
            false => self.p2p.partial[from] = Some(message),
        }
    }

    /// The header of the next chunk.
    pub(super) fn next_header(&self, from: usize) -> ChunkHeader {
        let (region, seq) = (&self.shared.region, self.p2p.received[from] + 1);
        let line = region.layout.p2p_header(from, self.rank(), seq);
        let what = region.word(line + 8).load(Ordering::Relaxed);
        let bytes = region.word(line + 16).load(Ordering::Relaxed);
        ChunkHeader { tag: what as u32, dtype: (what >> 32) as u8, bytes }
    }

    /// Receives all chunks of a message.
    fn receive_chunks(&mut self, from: usize, ctx: &CallCtx, out: &mut [u8]) -> Result {
        let mut rest = out;
        loop {
            self.shared.wait(from, ctx, || self.has_chunk(from))?;
            let (chunk, more) = rest.split_at_mut(rest.len().min(P2P_CHUNK_BYTES));
            self.read_chunk(from, chunk);
            rest = more;
            if rest.is_empty() {
                return Ok(());
            }
        }
    }

    /// Consumes the next chunk.
    pub(super) fn read_chunk(&mut self, from: usize, chunk: &mut [u8]) {
        let (region, seq) = (&self.shared.region, self.p2p.received[from] + 1);
        // SAFETY: the chunk was sent and is not overwritten before it is consumed.
        unsafe {
            let payload = self.chunk_payload(from, self.rank(), seq, chunk.len());
            std::ptr::copy_nonoverlapping(payload, chunk.as_mut_ptr(), chunk.len());
        }
        region.word(region.layout.consumed(from, self.rank())).store(seq, Ordering::Release);
        region.ring_doorbell();
        self.p2p.received[from] = seq;
    }

    /// A different dtype or length is a mismatch between the ranks.
    pub(super) fn check_header(
        &self,
        from: usize,
        ctx: &CallCtx,
        wanted: ChunkHeader,
        header: ChunkHeader,
    ) -> Result {
        if header == wanted {
            return Ok(());
        }
        let dtype = DType::ALL.get(usize::from(header.dtype)).copied().unwrap_or(DType::U8);
        let theirs = Signature {
            kind: CallKind::Send,
            dtype,
            root: self.rank() as u32,
            count: header.bytes / dtype.size() as u64,
            ..ctx.signature
        };
        Err(self.shared.publish_error(self.shared.mismatch(from, ctx, theirs)))
    }

    /// Whether the next chunk has arrived.
    fn has_chunk(&self, from: usize) -> bool {
        let (region, seq) = (&self.shared.region, self.p2p.received[from] + 1);
        region.word(region.layout.p2p_header(from, self.rank(), seq)).load(Ordering::Acquire) >= seq
    }

    pub(super) fn has_free_slot(&self, to: usize, seq: u64) -> bool {
        let region = &self.shared.region;
        region.word(region.layout.consumed(self.rank(), to)).load(Ordering::Acquire) + P2P_SLOTS
            >= seq
    }

    /// Address of a chunk: inline in its header line, if it fits.
    fn chunk_payload(&self, from: usize, to: usize, seq: u64, bytes: usize) -> *mut u8 {
        let region = &self.shared.region;
        match bytes <= P2P_INLINE_BYTES {
            true => region.p2p_header(from, to, seq).wrapping_add(LINE_BYTES - P2P_INLINE_BYTES),
            false => region.p2p_slot(from, to, seq),
        }
    }
}
