//! Groups of messages, which progress concurrently chunk by chunk.

use super::super::ShmEngine;
use super::super::layout::P2P_CHUNK_BYTES;
use super::super::signature_codec;
use super::super::wait::{CallCtx, IN_GROUP};
use super::{ChunkHeader, UnexpectedMessage, no_send_to_self};
use crate::{Call, CallKind, Result, Signature};

/// A message that is to be sent.
struct PendingSend<'a> {
    to: usize,
    header: ChunkHeader,
    rest: &'a [u8],
    ctx: CallCtx,
    done: bool,
}

/// A message that is to come.
struct PendingRecv<'a> {
    from: usize,
    header: ChunkHeader,
    rest: &'a mut [u8],
    ctx: CallCtx,
    /// Whether its first chunk has arrived.
    matched: bool,
    done: bool,
}

/// The messages of a group.
#[derive(Default)]
pub(in crate::shm) struct P2pGroup<'a> {
    sends: Vec<PendingSend<'a>>,
    receives: Vec<PendingRecv<'a>>,
}

impl P2pGroup<'_> {
    /// The first incomplete send to each rank; sends to a rank keep their order.
    fn next_sends(&self) -> impl Iterator<Item = usize> + '_ {
        let open = |i: &usize| !self.sends[*i].done;
        let first = |i: &usize| {
            let earlier = self.sends[..*i].iter();
            !earlier.into_iter().any(|other| !other.done && other.to == self.sends[*i].to)
        };
        (0..self.sends.len()).filter(open).filter(first)
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

impl ShmEngine {
    /// Runs the group to completion.
    pub(in crate::shm) fn wait_group(&mut self, group: &mut P2pGroup) -> Result {
        loop {
            let moved = self.progress(group)?;
            let (ranks, ctx) = group.awaited();
            let Some(ctx) = ctx else { return Ok(()) };
            if moved {
                continue;
            }
            let shape = if ranks.len() > 1 { IN_GROUP } else { 0 };
            let shown = Signature { shape, ..ctx.signature };
            self.shared.region.publish_call(ctx.activity, signature_codec::encode(&shown));
            let has_slot = |i: usize| {
                let to = group.sends[i].to;
                self.has_free_slot(to, self.p2p.sent[to] + 1)
            };
            let ready =
                || self.ranks_with_chunks().next().is_some() || group.next_sends().any(has_slot);
            self.shared.wait_long(&ranks, &ctx, &ready)?;
        }
    }

    /// Moves all chunks that can be moved now; whether there were any.
    pub(super) fn progress(&mut self, group: &mut P2pGroup) -> Result<bool> {
        Ok(self.progress_sends(group) | self.progress_recvs(group)?)
    }

    /// Posts the messages of a group. Messages to this rank itself are delivered at once, and
    /// unexpected messages are matched.
    pub(in crate::shm) fn post_group<'a>(&mut self, calls: Vec<Call<'a>>) -> Result<P2pGroup<'a>> {
        let mut group = P2pGroup::default();
        for call in calls {
            let ctx = self.begin_p2p(&call)?;
            let with = call.root as usize;
            match call.kind {
                CallKind::Send => {
                    let rest = call.input.unwrap_or(call.output);
                    let header = ChunkHeader::new(&call, rest.len());
                    if with == self.rank() {
                        let message = UnexpectedMessage { header, bytes: rest.to_vec() };
                        self.p2p.unexpected[with].push_back(message);
                    } else {
                        group.sends.push(PendingSend { to: with, header, rest, ctx, done: false });
                    }
                }
                _ => {
                    let header = ChunkHeader::new(&call, call.output.len());
                    let rest = call.output;
                    let awaited =
                        PendingRecv { from: with, header, rest, ctx, matched: false, done: false };
                    group.receives.push(awaited);
                }
            }
        }
        self.match_unexpected(&mut group)?;
        Ok(group)
    }

    /// Matches receives with unexpected messages.
    fn match_unexpected(&mut self, group: &mut P2pGroup) -> Result {
        for receive in group.receives.iter_mut().filter(|r| !r.matched && !r.done) {
            if let Some(message) = self.p2p.take_unexpected(receive.from, receive.header.tag) {
                self.check_header(receive.from, &receive.ctx, receive.header, message.header)?;
                receive.rest.copy_from_slice(&message.bytes);
                receive.done = true;
            } else if receive.from == self.rank() {
                return Err(no_send_to_self());
            }
        }
        Ok(())
    }

    /// Whether any chunk was sent.
    fn progress_sends(&mut self, group: &mut P2pGroup) -> bool {
        let mut moved = false;
        for i in group.next_sends().collect::<Vec<_>>() {
            let send = &mut group.sends[i];
            while !send.done && self.has_free_slot(send.to, self.p2p.sent[send.to] + 1) {
                let (chunk, more) = send.rest.split_at(send.rest.len().min(P2P_CHUNK_BYTES));
                let seq = self.p2p.sent[send.to] + 1;
                self.write_chunk(send.to, seq, send.header, chunk);
                send.rest = more;
                send.done = more.is_empty();
                moved = true;
            }
        }
        moved
    }

    /// Whether any chunk was received, either into its buffer or into the unexpected-message queue.
    fn progress_recvs(&mut self, group: &mut P2pGroup) -> Result<bool> {
        let mut moved = false;
        for from in self.ranks_with_chunks().collect::<Vec<_>>() {
            moved = true;
            let header = self.next_header(from);
            let open = |r: &&mut PendingRecv| !r.done && r.from == from;
            let matched = group.receives.iter_mut().filter(open).find(|r| r.matched);
            let receive = match matched {
                Some(receive) => Some(receive),
                None if self.p2p.partial[from].is_some() => None,
                None => group.receives.iter_mut().filter(open).find(|r| r.header.tag == header.tag),
            };
            let Some(receive) = receive else {
                self.queue_unexpected(from);
                // It may complete a message that a receive waits for.
                self.match_unexpected(group)?;
                continue;
            };
            if !receive.matched {
                self.check_header(from, &receive.ctx, receive.header, header)?;
                receive.matched = true;
            }
            let rest = std::mem::take(&mut receive.rest);
            let (chunk, more) = rest.split_at_mut(rest.len().min(P2P_CHUNK_BYTES));
            self.read_chunk(from, chunk);
            receive.done = more.is_empty();
            receive.rest = more;
        }
        Ok(moved)
    }
}
