//! What goes through the slots in which round. Pure: all ranks work out the same rounds.
//!
//! In every round a rank posts once. Collectives that move bytes do it in one of two ways: a rank
//! posts one payload, for all who want it, or a piece for each rank. Reductions of whole buffers are
//! in [`Shares`].

use std::ops::Range;

use super::layout::{INLINE_BYTES, LINE_BYTES};
use super::reduce::Room;
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

    /// A part of them.
    pub fn part(&self, part: Range<usize>) -> Self {
        Self { at: self.at + part.start, slot: self.slot + part.start, bytes: part.len() }
    }

    /// They in blocks.
    pub fn blocks(self, bytes: usize) -> impl Iterator<Item = Self> {
        let start = (0..self.bytes).step_by(bytes);
        start.map(move |start| self.part(start..self.bytes.min(start + bytes)))
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

/// A part of a buffer for each rank.
#[derive(Debug)]
enum Parts {
    /// For one only.
    One(usize, Part),
    /// The same for all.
    Same(Part),
    /// One after the other, all of a length.
    Even(usize),
    /// As they are.
    Listed(Vec<Part>),
}

impl Parts {
    const NONE: Self = Self::Same(Part { at: 0, bytes: 0 });

    fn of(&self, rank: usize) -> Part {
        match self {
            Self::One(one, part) => {
                if *one == rank {
                    *part
                } else {
                    Part::default()
                }
            }
            Self::Same(part) => *part,
            Self::Even(bytes) => Part { at: rank * bytes, bytes: *bytes },
            Self::Listed(parts) => parts.get(rank).copied().unwrap_or_default(),
        }
    }
}

/// How a collective moves bytes.
#[derive(Debug)]
pub struct Plan {
    /// What this rank gives to each; only its own, if all get the same.
    give: Parts,
    /// What this rank takes from each.
    take: Parts,
    /// What it has for itself: where that is in its input, and where it goes.
    keep: (usize, Part),
    rank: usize,
    ranks: usize,
    for_each: bool,
    chunk: usize,
    /// How many rounds there are. At least one: all come to every collective.
    pub rounds: usize,
    /// Where a post is.
    pub room: Room,
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
        let own = || Parts::One(rank, start(rank));
        let roots = || Parts::One(root, start(rank));
        let each = || match call.counts {
            Counts::Equal(count) => Parts::Even(count * size),
            _ => Parts::Listed((0..ranks).map(part).collect()),
        };
        let (give, take) = match call.kind {
            Kind::Broadcast if rank == root => (own(), Parts::NONE),
            Kind::Broadcast => (Parts::NONE, roots()),
            Kind::AllGather => (own(), each()),
            Kind::Gather if rank == root => (Parts::NONE, each()),
            Kind::Gather => (own(), Parts::NONE),
            Kind::Scatter if rank == root => (each(), Parts::NONE),
            Kind::Scatter => (Parts::NONE, roots()),
            Kind::ReduceScatter => (each(), Parts::Same(start(rank))),
            Kind::AllToAll => exchanged(call, each),
            _ => (Parts::NONE, Parts::NONE),
        };
        let keep = match call.kind {
            Kind::AllGather => (0, part(rank)),
            Kind::Gather if rank == root => (0, part(rank)),
            Kind::Scatter if rank == root => (part(rank).at, start(rank)),
            Kind::ReduceScatter => (part(rank).at, start(rank)),
            Kind::AllToAll => (give.of(rank).at, take.of(rank)),
            _ => (0, Part::default()),
        };
        let for_each = matches!(call.kind, Kind::Scatter | Kind::ReduceScatter | Kind::AllToAll);
        let longest = match call.counts {
            Counts::Exchange { .. } => longest,
            Counts::Equal(_) => of(call, 0) * size,
            Counts::Each(_) => (0..ranks).map(|r| of(call, r) * size).max().unwrap_or(0),
        };
        let payload = if for_each { longest * ranks } else { longest };
        let inline = payload <= INLINE_BYTES && !matches!(call.counts, Counts::Exchange { .. });
        let room = if for_each { slot / ranks } else { slot };
        let room = (room & !(LINE_BYTES - 1)).max(LINE_BYTES);
        let chunk = if inline { longest } else { room.min(longest.next_multiple_of(LINE_BYTES)) };
        let rounds = longest.div_ceil(chunk.max(1)).max(1);
        let all_wait = call.kind == Kind::Barrier;
        let room = match inline {
            true => Room::Line,
            false => Room::Slot(if for_each { chunk * ranks } else { chunk }),
        };
        Self { give, take, keep, rank, ranks, for_each, chunk, rounds, room, all_wait }
    }

    /// What this rank posts in a round: where it is in its input.
    pub fn posts(&self, round: usize) -> impl Iterator<Item = Piece> + '_ {
        let for_all = if self.for_each { self.rank..self.rank } else { self.rank..self.rank + 1 };
        let for_each = if self.for_each { 0..self.ranks } else { 0..0 };
        let of = move |to: usize, slot| self.give.of(to).piece(round, self.chunk, slot);
        let each = for_each.filter(|to| *to != self.rank);
        for_all
            .filter_map(move |own| of(own, 0))
            .chain(each.filter_map(move |to| of(to, to * self.chunk)))
    }

    /// What this rank takes from another in a round: where it goes in its output.
    pub fn takes(&self, round: usize, from: usize) -> Option<Piece> {
        let slot = if self.for_each { self.rank * self.chunk } else { 0 };
        if from == self.rank { None } else { self.take.of(from).piece(round, self.chunk, slot) }
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
fn exchanged(call: &Call<'_>, each: impl Fn() -> Parts) -> (Parts, Parts) {
    let Counts::Exchange { send, receive } = &call.counts else { return (each(), each()) };
    let parts = |counts: &[usize]| {
        let mut at = 0;
        let part = |count: &usize| {
            let part = Part { at, bytes: count * call.dtype.size() };
            at += part.bytes;
            part
        };
        Parts::Listed(counts.iter().map(part).collect())
    };
    (parts(send), parts(receive))
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

    /// Where a post is: the chunk, and behind it what is reduced of the one before.
    pub fn room(&self) -> Room {
        Room::Slot(2 * self.whole())
    }

    /// Where a reduced share is.
    pub fn result(&self, piece: &Piece) -> Range<usize> {
        let start = self.whole() + piece.slot;
        start..start + piece.bytes
    }

    /// What a chunk takes.
    fn whole(&self) -> usize {
        self.bytes.min(self.chunk).next_multiple_of(LINE_BYTES)
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
        let inline = |kind, count| matches!(plan(kind, count).room, Room::Line);
        assert!(inline(Kind::AllGather, 48) && !inline(Kind::AllGather, 49));
        assert!(inline(Kind::AllToAll, 16) && !inline(Kind::AllToAll, 17));
        assert_eq!((plan(Kind::Barrier, 0).rounds, plan(Kind::AllGather, 5000).rounds), (1, 2));
    }
}
