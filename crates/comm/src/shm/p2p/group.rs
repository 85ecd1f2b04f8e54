//! Groups of messages, which progress concurrently chunk by chunk.

use super::super::ShmEngine;
use super::super::layout::P2P_CHUNK_BYTES;
use super::super::wait::{CallCtx, IN_GROUP};
use super::{Arriving, Destination, Message, MessageHeader};
use crate::matching::{CommStatus, MatchResult, PostedRecv, ProtocolError};
use crate::transport::RequestId;
use crate::{Call, CallKind, CommError, Result, Signature};

/// A message that is to be sent.
struct PendingSend<'a> {
    to: usize,
    header: MessageHeader,
    rest: &'a [u8],
    ctx: CallCtx,
    done: bool,
}

/// A message that is to come.
struct PendingRecv<'a> {
    from: usize,
    header: MessageHeader,
    out: &'a mut [u8],
    ctx: CallCtx,
    done: bool,
}

/// The messages of a group.
#[derive(Default)]
pub(in crate::shm) struct P2pGroup<'a> {
    sends: Vec<PendingSend<'a>>,
    receives: Vec<PendingRecv<'a>>,
}

impl P2pGroup<'_> {
    fn is_complete(&self) -> bool {
        self.sends.iter().all(|send| send.done) && self.receives.iter().all(|recv| recv.done)
    }

    /// Whether a send is the first incomplete one to its rank; sends to a rank keep their order.
    fn is_next(&self, send: usize) -> bool {
        let PendingSend { to, done, .. } = &self.sends[send];
        !done && !self.sends[..send].iter().any(|earlier| !earlier.done && earlier.to == *to)
    }

    /// The awaited ranks, and the call that waits for the first of them.
    pub(super) fn awaited(&self) -> (Vec<usize>, Option<CallCtx>) {
        let receives = self.receives.iter().filter(|r| !r.done).map(|r| (r.from, r.ctx));
        let sends = self.sends.iter().filter(|s| !s.done).map(|s| (s.to, s.ctx));
        let all: Vec<(usize, CallCtx)> = receives.chain(sends).collect();
        let mut ranks: Vec<usize> = Vec::new();
        for (rank, _) in &all {
            if !ranks.contains(rank) {
                ranks.push(*rank);
            }
        }
        (ranks, all.first().map(|(_, ctx)| *ctx))
    }
}

fn no_send_to_self() -> CommError {
    let what = "no matching send from this rank to itself";
    CommError::invalid_call(CallKind::Receive.name(), what)
}

impl ShmEngine {
    /// Posts the messages of a group. Messages to this rank itself are delivered at once, and
    /// receives are matched with unexpected messages.
    pub(in crate::shm) fn post_group<'a>(&mut self, calls: Vec<Call<'a>>) -> Result<P2pGroup<'a>> {
        let mut group = P2pGroup::default();
        for call in calls {
            let ctx = self.begin_p2p(&call)?;
            match call.kind {
                CallKind::Send => self.post_send(&mut group, call, ctx)?,
                _ => self.post_receive(&mut group, call, ctx)?,
            }
        }
        if group.receives.iter().any(|recv| recv.from == self.rank() && !recv.done) {
            self.p2p.incoming.iter_mut().for_each(|incoming| incoming.queue.cancel(0));
            return Err(no_send_to_self());
        }
        Ok(group)
    }

    fn post_send<'a>(&mut self, group: &mut P2pGroup<'a>, call: Call<'a>, ctx: CallCtx) -> Result {
        let to = call.root as usize;
        let header = MessageHeader::new(&call, call.input.map_or(call.output.len(), <[u8]>::len));
        let rest: &[u8] = call.input.unwrap_or(call.output);
        if to != self.rank() {
            group.sends.push(PendingSend { to, header, rest, ctx, done: false });
            return Ok(());
        }
        let message = Message { header, bytes: rest.to_vec() };
        let matched = self.arrive(to, header, Some(message));
        self.deliver(group, to, header, matched).map(drop)
    }

    fn post_receive<'a>(
        &mut self,
        group: &mut P2pGroup<'a>,
        call: Call<'a>,
        ctx: CallCtx,
    ) -> Result {
        let (from, request) = (call.root as usize, RequestId(group.receives.len() as u64));
        let header = MessageHeader::new(&call, call.output.len());
        group.receives.push(PendingRecv { from, header, out: call.output, ctx, done: false });
        let incoming = &mut self.p2p.incoming[from];
        let recv = PostedRecv { envelope: header.envelope(), request, buffer: () };
        let matched = incoming.queue.post(recv);
        let arriving = incoming.arriving.as_ref().map(|arriving| arriving.header);
        self.deliver(group, from, arriving.unwrap_or(header), matched).map(drop)
    }

    /// Runs the group to completion.
    pub(in crate::shm) fn wait_group(&mut self, group: &mut P2pGroup) -> Result {
        loop {
            let moved = self.progress(group)?;
            if group.is_complete() {
                return Ok(());
            }
            if moved {
                continue;
            }
            let can_send = |i: usize| group.is_next(i) && self.has_free_slot(group.sends[i].to);
            let ready = || self.has_chunks() || (0..group.sends.len()).any(can_send);
            if self.shared.spin(&ready) {
                continue;
            }
            let (ranks, ctx) = group.awaited();
            let Some(mut ctx) = ctx else { return Ok(()) };
            ctx.signature.shape = if ranks.len() > 1 { IN_GROUP } else { 0 };
            self.shared.wait_long(&ranks, &ctx, &ready)?;
        }
    }

    /// Moves all chunks that can be moved now; whether there were any.
    pub(super) fn progress(&mut self, group: &mut P2pGroup) -> Result<bool> {
        let mut moved = self.progress_sends(group);
        for from in self.others() {
            if self.has_chunk(from) {
                self.progress_recv(group, from)?;
                moved = true;
            }
        }
        Ok(moved)
    }

    /// Whether any chunk was sent.
    fn progress_sends(&mut self, group: &mut P2pGroup) -> bool {
        let mut moved = false;
        for i in 0..group.sends.len() {
            if !group.is_next(i) {
                continue;
            }
            let send = &mut group.sends[i];
            while !send.done && self.has_free_slot(send.to) {
                let (chunk, more) = send.rest.split_at(send.rest.len().min(P2P_CHUNK_BYTES));
                self.write_chunk(send.to, send.header, chunk);
                send.rest = more;
                send.done = more.is_empty();
                moved = true;
            }
        }
        moved
    }

    /// Receives a chunk, either into the buffer of a receive or for the unexpected-message queue.
    fn progress_recv(&mut self, group: &mut P2pGroup, from: usize) -> Result {
        let mut arriving = match self.p2p.incoming[from].arriving.take() {
            Some(arriving) => arriving,
            None => self.begin_message(group, from)?,
        };
        let bytes = arriving.header.bytes as usize;
        let is_complete = match &mut arriving.to {
            Destination::Recv(index, done) => {
                let recv = &mut group.receives[*index];
                let end = bytes.min(*done + P2P_CHUNK_BYTES);
                self.read_chunk(from, &mut recv.out[*done..end]);
                *done = end;
                recv.done = end == bytes;
                recv.done
            }
            Destination::Unexpected(buffered) => {
                let done = buffered.len();
                buffered.resize(bytes.min(done + P2P_CHUNK_BYTES), 0);
                self.read_chunk(from, &mut buffered[done..]);
                buffered.len() == bytes
            }
        };
        match arriving {
            arriving if !is_complete => self.p2p.incoming[from].arriving = Some(arriving),
            Arriving { header, to: Destination::Unexpected(bytes) } => {
                let incoming = &mut self.p2p.incoming[from];
                let matched = incoming.queue.supply(incoming.messages, Message { header, bytes });
                self.deliver(group, from, header, matched)?;
            }
            Arriving { to: Destination::Recv(..), .. } => {}
        }
        Ok(())
    }

    /// Decides where the message goes whose first chunk has arrived.
    fn begin_message(&mut self, group: &mut P2pGroup, from: usize) -> Result<Arriving> {
        let header = self.next_header(from);
        let matched = self.arrive(from, header, None);
        let to = match self.deliver(group, from, header, matched)? {
            Some(index) => Destination::Recv(index, 0),
            None => Destination::Unexpected(Vec::new()),
        };
        Ok(Arriving { header, to })
    }

    fn arrive(
        &mut self,
        from: usize,
        header: MessageHeader,
        message: Option<Message>,
    ) -> MatchResult<(), Message> {
        let incoming = &mut self.p2p.incoming[from];
        incoming.messages += 1;
        let open = || CommStatus::Open { calls: 0, signature_hash: 0 };
        incoming.queue.arrive(incoming.messages, header.envelope(), message, open)
    }

    /// Delivers a matched message, or returns the receive that its chunks go to. `header`: that of a
    /// message which has not arrived completely.
    fn deliver(
        &self,
        group: &mut P2pGroup,
        from: usize,
        header: MessageHeader,
        matched: MatchResult<(), Message>,
    ) -> Result<Option<usize>> {
        match matched {
            MatchResult::Deliver(recv, message) => {
                let index = recv.request.0 as usize;
                let recv = &mut group.receives[index];
                let header = message.as_ref().map_or(header, |message| message.header);
                if header.dtype != recv.header.dtype {
                    return Err(self.message_mismatch(from, &recv.ctx, header));
                }
                if let Some(message) = message {
                    recv.out.copy_from_slice(&message.bytes);
                    recv.done = true;
                }
                Ok(Some(index))
            }
            MatchResult::Discard(message, Some(ProtocolError::SizeMismatch { request, .. })) => {
                let ctx = group.receives[request.0 as usize].ctx;
                let header = message.map_or(header, |message| message.header);
                Err(self.message_mismatch(from, &ctx, header))
            }
            MatchResult::Discard(..) | MatchResult::Queued => Ok(None),
        }
    }

    /// The error of a message with another dtype or length than its receive.
    fn message_mismatch(&self, from: usize, ctx: &CallCtx, header: MessageHeader) -> CommError {
        let dtype = header.dtype();
        let theirs = Signature {
            kind: CallKind::Send,
            dtype,
            root: self.rank() as u32,
            count: header.bytes / dtype.size() as u64,
            ..ctx.signature
        };
        self.shared.publish_error(self.shared.mismatch(from, ctx, theirs))
    }
}
