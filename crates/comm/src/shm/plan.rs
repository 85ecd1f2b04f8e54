//! What goes through the slots in which round. Pure: all ranks work out the same rounds.
//!
//! In every round a rank posts once. Collectives that move bytes do it in one of two ways: a rank
//! posts one payload, for all who want it, or a piece for each rank. Reductions of whole buffers are
//! in [`Shares`].

use std::ops::Range;

use super::layout::{INLINE_BYTES, LINE_BYTES};
use crate::{Call, Counts, Kind};

/// Bytes that go from a buffer to a slot, or back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Where they are in the buffer.
    pub at: usize,
    /// Where they are in the slot.
    pub slot: usize,
    pub bytes: usize,
}

impl Piece {
    pub fn in_buffer(&self) -> Range<usize> {
        self.at..self.at + self.bytes
    }

    pub fn in_slot(&self) -> Range<usize> {
        self.slot..self.slot + self.bytes
    }
}

/// A part of a buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
struct Part {
    at: usize,
    bytes: usize,
}

impl Part {
    /// What of it goes in a round.
    fn piece(self, round: usize, chunk: usize, slot: usize) -> Option<Piece> {
        let start = round * chunk;
        let bytes = self.bytes.saturating_sub(start).min(chunk);
        (bytes > 0).then_some(Piece { at: self.at + start, slot, bytes })
    }
}

/// How a collective moves bytes.
#[derive(Debug)]
pub struct Plan {
    /// What this rank gives to each; only its own, if all get the same.
    give: Vec<Part>,
    /// What this rank takes from each.
    take: Vec<Part>,
    /// What it has for itself: where that is in its input, and where it goes.
    keep: (usize, Part),
    rank: usize,
    for_each: bool,
    chunk: usize,
    /// How many rounds there are. At least one: all come to every collective.
    pub rounds: usize,
    /// Whether all fits into the lines of the posts.
    pub inline: bool,
    /// Whether everybody waits for everybody, even where nothing is taken.
    pub all_wait: bool,
}

impl Plan {
    /// The plan of a collective. `longest`: the longest part that any rank gives, where this rank
    /// cannot know.
    pub fn new(call: &Call<'_>, rank: usize, ranks: usize, slot: usize, longest: usize) -> Self {
        let size = call.dtype.size();
        let root = call.root as usize;
        let part = |r: usize| Part { at: call.counts.offset(r) * size, bytes: of(call, r) * size };
        let start = |r: usize| Part { at: 0, ..part(r) };
        let nobody = vec![Part::default(); ranks];
        let only = |r: usize, part: Part| {
            let mut parts = nobody.clone();
            parts[r] = part;
            parts
        };
        let each = || (0..ranks).map(part).collect::<Vec<_>>();
        let (give, take) = match call.kind {
            Kind::Broadcast if rank == root => (only(rank, start(rank)), nobody),
            Kind::Broadcast => (nobody.clone(), only(root, start(rank))),
            Kind::AllGather => (only(rank, start(rank)), each()),
            Kind::Gather if rank == root => (nobody, each()),
            Kind::Gather => (only(rank, start(rank)), nobody),
            Kind::Scatter if rank == root => (each(), nobody),
            Kind::Scatter => (nobody.clone(), only(root, start(rank))),
            Kind::ReduceScatter => (each(), vec![start(rank); ranks]),
            Kind::AllToAll => exchanged(call, ranks),
            _ => (nobody.clone(), nobody),
        };
        let keep = match call.kind {
            Kind::AllGather => (0, part(rank)),
            Kind::Gather if rank == root => (0, part(rank)),
            Kind::Scatter if rank == root => (part(rank).at, start(rank)),
            Kind::ReduceScatter => (part(rank).at, start(rank)),
            Kind::AllToAll => (give[rank].at, take[rank]),
            _ => (0, Part::default()),
        };
        let for_each = matches!(call.kind, Kind::Scatter | Kind::ReduceScatter | Kind::AllToAll);
        let longest = match call.counts {
            Counts::Exchange { .. } => longest,
            _ => (0..ranks).map(|r| part(r).bytes).max().unwrap_or(0),
        };
        let payload = if for_each { longest * ranks } else { longest };
        let inline = payload <= INLINE_BYTES && !matches!(call.counts, Counts::Exchange { .. });
        let room = if for_each { slot / ranks } else { slot };
        let room = (room & !(LINE_BYTES - 1)).max(LINE_BYTES);
        let chunk = if inline { longest } else { room.min(longest.next_multiple_of(LINE_BYTES)) };
        let rounds = longest.div_ceil(chunk.max(1)).max(1);
        let all_wait = call.kind == Kind::Barrier;
        Self { give, take, keep, rank, for_each, chunk, rounds, inline, all_wait }
    }

    /// What this rank posts in a round: where it is in its input.
    pub fn posts(&self, round: usize) -> impl Iterator<Item = Piece> + '_ {
        self.give.iter().enumerate().filter_map(move |(to, part)| match self.for_each {
            true if to == self.rank => None,
            true => part.piece(round, self.chunk, to * self.chunk),
            false => part.piece(round, self.chunk, 0),
        })
    }

    /// What this rank takes from another in a round: where it goes in its output.
    pub fn takes(&self, round: usize, from: usize) -> Option<Piece> {
        let slot = if self.for_each { self.rank * self.chunk } else { 0 };
        if from == self.rank { None } else { self.take[from].piece(round, self.chunk, slot) }
    }

    /// What this rank has for itself in a round: where it is in its input, and where it goes.
    pub fn keeps(&self, round: usize) -> Option<(usize, Piece)> {
        let (from, part) = self.keep;
        let piece = part.piece(round, self.chunk, 0)?;
        Some((from + piece.at - part.at, piece))
    }
}

/// The elements of a rank's part; of a whole buffer all say the same.
fn of(call: &Call<'_>, rank: usize) -> usize {
    if call.kind == Kind::Barrier { 0 } else { call.counts.of(rank) }
}

/// What goes to each rank, and what comes from each.
fn exchanged(call: &Call<'_>, ranks: usize) -> (Vec<Part>, Vec<Part>) {
    let size = call.dtype.size();
    let parts = |count: &dyn Fn(usize) -> usize| {
        let mut at = 0;
        let part = |r: usize| {
            let part = Part { at, bytes: count(r) * size };
            at += part.bytes;
            part
        };
        (0..ranks).map(part).collect()
    };
    match &call.counts {
        Counts::Exchange { send, receive } => (parts(&|r| send[r]), parts(&|r| receive[r])),
        counts => (parts(&|r| counts.of(r)), parts(&|r| counts.of(r))),
    }
}

/// A reduction of whole buffers: chunk after chunk, and of each chunk every rank reduces a share.
#[derive(Debug, Clone, Copy)]
pub struct Shares {
    bytes: usize,
    chunk: usize,
    ranks: usize,
    pub rounds: usize,
}

impl Shares {
    pub fn new(bytes: usize, chunk: usize, ranks: usize) -> Self {
        Self { bytes, chunk, ranks, rounds: bytes.div_ceil(chunk) }
    }

    /// The share of a rank in a round. In the slot a chunk is as in the buffer.
    pub fn share(&self, round: usize, rank: usize) -> Piece {
        let start = round * self.chunk;
        let length = self.bytes.saturating_sub(start).min(self.chunk);
        // Whole lines for each, so that no two ranks write one.
        let lines = length.div_ceil(LINE_BYTES);
        let cut = |rank: usize| (lines * rank / self.ranks * LINE_BYTES).min(length);
        let (from, to) = (cut(rank), cut(rank + 1));
        Piece { at: start + from, slot: from, bytes: to - from }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{DType, ReduceOp};

    #[test]
    fn shares_are_all_of_it_once() {
        for (bytes, chunk, ranks) in [(1000, 256, 3), (64, 64, 5), (4096, 1024, 1), (1, 64, 2)] {
            let shares = Shares::new(bytes, chunk, ranks);
            let mut next = 0;
            for round in 0..shares.rounds {
                for rank in 0..ranks {
                    let piece = shares.share(round, rank);
                    assert_eq!(piece.at, next);
                    assert!(piece.slot + piece.bytes <= chunk);
                    next += piece.bytes;
                }
            }
            assert_eq!(next, bytes);
        }
    }

    fn call(kind: Kind, counts: Counts<'static>) -> Call<'static> {
        let (dtype, op) = (DType::U8, ReduceOp::Sum);
        Call { kind, dtype, op, root: 1, tag: 0, counts, input: None, output: &mut [] }
    }

    #[test]
    fn what_one_posts_for_another_is_what_that_takes() {
        let counts = Counts::Each(vec![300, 0, 1000].into());
        for kind in [Kind::AllGather, Kind::Gather, Kind::Scatter, Kind::ReduceScatter] {
            let plans: Vec<Plan> =
                (0..3).map(|r| Plan::new(&call(kind, counts.clone()), r, 3, 256, 0)).collect();
            assert!(plans.iter().all(|p| p.rounds == plans[0].rounds));
            for round in 0..plans[0].rounds {
                for (to, from) in [(0, 1), (1, 2), (2, 0), (0, 2), (1, 0), (2, 1)] {
                    let posted: Vec<Piece> = plans[from].posts(round).collect();
                    let Some(taken) = plans[to].takes(round, from) else { continue };
                    let found = posted.iter().find(|p| p.in_slot() == taken.in_slot());
                    assert!(found.is_some(), "{kind:?} {from} to {to}: {taken:?} of {posted:?}");
                    assert!(taken.in_slot().end <= 256);
                }
            }
        }
    }

    #[test]
    fn small_ones_fit_into_the_line() {
        let plan = |kind, count| Plan::new(&call(kind, Counts::Equal(count)), 0, 3, 4096, 0);
        assert!(plan(Kind::AllGather, 48).inline && !plan(Kind::AllGather, 49).inline);
        assert!(plan(Kind::AllToAll, 16).inline && !plan(Kind::AllToAll, 17).inline);
        assert_eq!((plan(Kind::Barrier, 0).rounds, plan(Kind::AllGather, 5000).rounds), (1, 2));
    }
}
