//! Which bytes go through which slot in which round. Pure: all ranks derive the same rounds.
//!
//! A rank posts once per round: either one payload for all readers, or one chunk per rank.
//! Reductions of whole buffers use [`ReduceShards`].

use std::ops::Range;

use super::layout::LINE_BYTES;
use crate::{Call, CallKind, Counts};

/// Bytes that move between a buffer and a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SlotChunk {
    /// Offset in the buffer.
    pub offset: usize,
    pub slot_offset: usize,
    pub bytes: usize,
}

impl SlotChunk {
    pub fn in_buffer(&self) -> Range<usize> {
        self.offset..self.offset + self.bytes
    }

    /// A subrange.
    pub fn part(&self, part: Range<usize>) -> Self {
        let (offset, slot_offset) = (self.offset + part.start, self.slot_offset + part.start);
        Self { offset, slot_offset, bytes: part.len() }
    }

    /// Splits into blocks of `bytes` bytes.
    pub fn blocks(self, bytes: usize) -> impl Iterator<Item = Self> {
        let start = (0..self.bytes).step_by(bytes);
        start.map(move |start| self.part(start..self.bytes.min(start + bytes)))
    }

    pub fn in_slot(&self) -> Range<usize> {
        self.slot_offset..self.slot_offset + self.bytes
    }
}

/// A contiguous part of a buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Extent {
    offset: usize,
    bytes: usize,
}

impl Extent {
    /// The part that moves in a round.
    fn chunk(self, round: usize, chunk_bytes: usize, slot_offset: usize) -> Option<SlotChunk> {
        let start = round * chunk_bytes;
        let bytes = self.bytes.saturating_sub(start).min(chunk_bytes);
        (bytes > 0).then_some(SlotChunk { offset: self.offset + start, slot_offset, bytes })
    }
}

/// A part of a buffer per rank.
#[derive(Debug)]
enum Extents {
    /// For one rank only.
    One(usize, Extent),
    /// The same for all ranks.
    Same(Extent),
    /// Consecutive parts of this length.
    Even(usize),
    /// Individual parts.
    Listed(Vec<Extent>),
}

impl Extents {
    const NONE: Self = Self::Same(Extent { offset: 0, bytes: 0 });

    fn of(&self, rank: usize) -> Extent {
        match self {
            Self::One(one, part) if *one == rank => *part,
            Self::One(..) => Extent::default(),
            Self::Same(part) => *part,
            Self::Even(bytes) => Extent { offset: rank * bytes, bytes: *bytes },
            Self::Listed(parts) => parts.get(rank).copied().unwrap_or_default(),
        }
    }
}

/// The rounds of a collective.
#[derive(Debug)]
pub struct RoundPlan {
    /// What this rank sends to each rank; only its own entry is used if all get the same.
    send: Extents,
    /// What this rank receives from each rank.
    recv: Extents,
    /// This rank's own block: offset in the input, and destination.
    own: (usize, Extent),
    rank: usize,
    ranks: usize,
    per_rank: bool,
    chunk: usize,
    /// Number of rounds; at least one, because every collective synchronises.
    pub rounds: usize,
    /// The only rank that sends, if not all do.
    sender: Option<usize>,
    /// Offset in a sender's input of what this rank receives.
    pub remote_offset: usize,
    /// Bytes of the largest buffer.
    pub bytes: usize,
    /// Whether this rank can derive the offsets of all ranks.
    pub is_regular: bool,
}

impl RoundPlan {
    /// The plan of a collective. `max_block_bytes`: the longest block of any rank, where this rank
    /// cannot derive it.
    pub fn new(
        call: &Call,
        rank: usize,
        ranks: usize,
        slot_bytes: usize,
        max_block_bytes: usize,
    ) -> Self {
        let size = call.dtype.size();
        let root = call.root as usize;
        let part = |r: usize| Extent {
            offset: call.counts.offset(r) * size,
            bytes: call.counts.of(r) * size,
        };
        let start = |r: usize| Extent { offset: 0, ..part(r) };
        let own_block = || Extents::One(rank, start(rank));
        let root_block = || Extents::One(root, start(rank));
        let each = || match call.counts {
            Counts::Equal(count) => Extents::Even(count * size),
            _ => Extents::Listed((0..ranks).map(part).collect()),
        };
        use CallKind::{AllGather, AllToAll, Broadcast, Gather, ReduceScatter, Scatter};
        let (send, recv) = match call.kind {
            Broadcast if rank == root => (own_block(), Extents::NONE),
            Broadcast => (Extents::NONE, root_block()),
            AllGather => (own_block(), each()),
            Gather if rank == root => (Extents::NONE, each()),
            Gather => (own_block(), Extents::NONE),
            Scatter if rank == root => (each(), Extents::NONE),
            Scatter => (Extents::NONE, root_block()),
            ReduceScatter => (each(), Extents::Same(start(rank))),
            AllToAll => all_to_all_extents(call, each),
            _ => (Extents::NONE, Extents::NONE),
        };
        let own = match call.kind {
            AllGather => (0, part(rank)),
            Gather if rank == root => (0, part(rank)),
            Scatter if rank == root => (part(rank).offset, start(rank)),
            ReduceScatter => (part(rank).offset, start(rank)),
            AllToAll => (send.of(rank).offset, recv.of(rank)),
            _ => (0, Extent::default()),
        };
        let per_rank = matches!(call.kind, Scatter | ReduceScatter | AllToAll);
        let max_block_bytes = match call.counts {
            Counts::PerPair { .. } => max_block_bytes,
            Counts::Equal(_) => part(0).bytes,
            Counts::PerRank(_) => (0..ranks).map(|r| part(r).bytes).max().unwrap_or(0),
        };
        let sender = matches!(call.kind, Broadcast | Scatter).then_some(root);
        let remote_offset = if per_rank { part(rank).offset } else { 0 };
        let is_regular = !matches!(call.counts, Counts::PerPair { .. });
        let bytes = max_block_bytes * if call.kind == Broadcast { 1 } else { ranks };
        let capacity = if per_rank { slot_bytes / ranks } else { slot_bytes };
        let capacity = (capacity & !(LINE_BYTES - 1)).max(LINE_BYTES);
        let chunk = capacity.min(max_block_bytes.next_multiple_of(LINE_BYTES));
        let rounds = max_block_bytes.div_ceil(chunk.max(1)).max(1);
        Self {
            send,
            recv,
            own,
            rank,
            ranks,
            per_rank,
            chunk,
            rounds,
            sender,
            remote_offset,
            bytes,
            is_regular,
        }
    }

    /// What this rank posts in a round, from its input.
    pub fn sends(&self, round: usize) -> impl Iterator<Item = SlotChunk> + '_ {
        let shared = if self.per_rank { self.rank..self.rank } else { self.rank..self.rank + 1 };
        let per_rank = if self.per_rank { 0..self.ranks } else { 0..0 };
        let of = move |to: usize, slot| self.send.of(to).chunk(round, self.chunk, slot);
        let each = per_rank.filter(|to| *to != self.rank);
        shared
            .filter_map(move |own| of(own, 0))
            .chain(each.filter_map(move |to| of(to, to * self.chunk)))
    }

    /// What this rank receives from another in a round, into its output.
    pub fn recv(&self, round: usize, from: usize) -> Option<SlotChunk> {
        let slot = if self.per_rank { self.rank * self.chunk } else { 0 };
        if from == self.rank { None } else { self.recv.of(from).chunk(round, self.chunk, slot) }
    }

    /// Whether other ranks receive from this one.
    pub fn is_sender(&self, rank: usize) -> bool {
        self.sender.is_none_or(|sender| sender == rank)
    }

    /// All that this rank receives from another, into its output.
    pub fn recv_block(&self, from: usize) -> Option<SlotChunk> {
        self.recv.of(from).chunk(0, usize::MAX, 0)
    }

    /// All that this rank sends to another, from its input.
    pub fn send_block(&self, to: usize) -> Option<SlotChunk> {
        self.send.of(to).chunk(0, usize::MAX, 0)
    }

    /// This rank's own block: offset in the input, and destination.
    pub fn own_block(&self) -> Option<(usize, SlotChunk)> {
        let (from, part) = self.own;
        Some((from, part.chunk(0, usize::MAX, 0)?))
    }

    /// The part of this rank's own block in a round: offset in the input, and destination.
    pub fn own_copy(&self, round: usize) -> Option<(usize, SlotChunk)> {
        let (from, part) = self.own;
        let chunk = part.chunk(round, self.chunk, 0)?;
        Some((from + chunk.offset - part.offset, chunk))
    }
}

/// What an all-to-all sends to and receives from each rank.
fn all_to_all_extents(call: &Call, each: impl Fn() -> Extents) -> (Extents, Extents) {
    let Counts::PerPair { send, receive } = &call.counts else { return (each(), each()) };
    let parts = |counts: &[usize]| {
        let mut offset = 0;
        let part = |count: &usize| {
            let part = Extent { offset, bytes: count * call.dtype.size() };
            offset += part.bytes;
            part
        };
        Extents::Listed(counts.iter().map(part).collect())
    };
    (parts(send), parts(receive))
}

/// A reduction of whole buffers in chunks; of each chunk every rank reduces one shard.
#[derive(Debug, Clone, Copy)]
pub struct ReduceShards {
    bytes: usize,
    chunk: usize,
    ranks: usize,
    pub rounds: usize,
    /// Whether the slot has the inputs of a chunk, before the results of the previous one.
    has_inputs: bool,
}

impl ReduceShards {
    pub fn new(bytes: usize, chunk: usize, ranks: usize) -> Self {
        Self { bytes, chunk, ranks, rounds: bytes.div_ceil(chunk), has_inputs: true }
    }

    /// Without inputs in the slots.
    pub fn without_inputs(self) -> Self {
        Self { has_inputs: false, ..self }
    }

    /// Location of a reduced shard of the previous chunk in the slot.
    pub fn result(&self, chunk: &SlotChunk) -> Range<usize> {
        let start = self.padded_chunk() + chunk.slot_offset;
        start..start + chunk.bytes
    }

    /// Slot bytes of the inputs of a chunk.
    fn padded_chunk(&self) -> usize {
        match self.has_inputs {
            true => self.bytes.min(self.chunk).next_multiple_of(LINE_BYTES),
            false => 0,
        }
    }

    /// A rank's shard in a round. The inputs of a chunk have the same layout in slot and buffer.
    pub fn shard(&self, round: usize, rank: usize) -> SlotChunk {
        let start = round * self.chunk;
        let length = self.bytes.saturating_sub(start).min(self.chunk);
        // Whole cache lines per shard, so that no two ranks write the same line.
        let lines = length.div_ceil(LINE_BYTES);
        let cut = |rank: usize| (lines * rank / self.ranks * LINE_BYTES).min(length);
        let (from, to) = (cut(rank), cut(rank + 1));
        let slot_offset = if self.has_inputs { from } else { 0 };
        SlotChunk { offset: start + from, slot_offset, bytes: to - from }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::DType;

    #[test]
    fn shards_cover_the_buffer_once() {
        for (bytes, chunk, ranks) in [(1000, 256, 3), (64, 64, 5), (4096, 1024, 1), (1, 64, 2)] {
            let shards = ReduceShards::new(bytes, chunk, ranks);
            let mut next = 0;
            for round in 0..shards.rounds {
                for rank in 0..ranks {
                    let shard = shards.shard(round, rank);
                    assert_eq!(shard.offset, next);
                    assert!(shard.slot_offset + shard.bytes <= chunk);
                    next += shard.bytes;
                }
            }
            assert_eq!(next, bytes);
        }
    }

    fn call(kind: CallKind, counts: Counts<'static>) -> Call<'static> {
        Call { root: 1, ..Call::new(kind, DType::U8, counts, &mut []) }
    }

    #[test]
    fn sends_match_receives() {
        let counts = Counts::PerRank(vec![300, 0, 1000].into());
        for kind in
            [CallKind::AllGather, CallKind::Gather, CallKind::Scatter, CallKind::ReduceScatter]
        {
            let plans: Vec<RoundPlan> =
                (0..3).map(|r| RoundPlan::new(&call(kind, counts.clone()), r, 3, 256, 0)).collect();
            assert!(plans.iter().all(|p| p.rounds == plans[0].rounds));
            for round in 0..plans[0].rounds {
                for (to, from) in [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)] {
                    let posted: Vec<SlotChunk> = plans[from].sends(round).collect();
                    let Some(received) = plans[to].recv(round, from) else { continue };
                    let found = posted.iter().find(|p| p.in_slot() == received.in_slot());
                    assert!(found.is_some(), "{kind:?} {from} to {to}: {received:?} of {posted:?}");
                    assert!(received.in_slot().end <= 256);
                }
            }
        }
    }
}
