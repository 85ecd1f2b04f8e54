//! Where the blocks of a program lie in the buffers of a call.

use std::ops::Range;

use super::flow::Span;
use crate::schedule::{Blocks, Piece, Place, Program};
use crate::{Call, Counts, DType, Kind};

/// The shape of a call's buffers.
pub(super) struct Cut<'a> {
    pub(super) kind: Kind,
    dtype: DType,
    counts: Counts<'a>,
    blocks: Blocks,
    /// The blocks of scratch room.
    scratch: Range<u32>,
    rank: usize,
    ranks: usize,
    input: Option<usize>,
    output: usize,
}

impl<'a> Cut<'a> {
    pub(super) fn new(call: &Call<'a>, program: &Program, rank: u32, ranks: u32) -> Self {
        Self {
            kind: call.kind,
            dtype: call.dtype,
            counts: call.counts.clone(),
            blocks: program.blocks,
            scratch: program.scratch(),
            rank: rank as usize,
            ranks: ranks as usize,
            input: call.input.map(<[u8]>::len),
            output: call.output.len(),
        }
    }

    /// Whether the input must be copied first: what comes would overwrite what is still to go.
    pub(super) fn needs_copy(&self) -> bool {
        self.kind == Kind::AllToAll && self.input.is_none()
    }

    /// Which bytes the scratch room is, of a buffer that has all blocks.
    pub(super) fn room(&self) -> Range<usize> {
        let start = |block: u32| self.start(Place::Scratch, block as usize);
        start(self.scratch.start)..start(self.scratch.end)
    }

    /// Where a piece is; none if the buffer has not got it.
    pub(super) fn span(&self, piece: &Piece) -> Option<Span> {
        let bytes = self.range(piece)?;
        let place = match piece.place {
            Place::Input if self.input.is_none() && !self.needs_copy() => Place::Output,
            place => place,
        };
        if bytes.is_empty() {
            return Some(Span { place, bytes: 0..0 });
        }
        if place != Place::Scratch {
            return Some(Span { place, bytes });
        }
        let room = self.room();
        let within = room.start <= bytes.start && bytes.end <= room.end;
        within.then(|| Span { place, bytes: bytes.start - room.start..bytes.end - room.start })
    }

    /// Which bytes a piece is in its buffer, or of scratch room for all blocks.
    fn range(&self, piece: &Piece) -> Option<Range<usize>> {
        let Range { start, end } = piece.blocks;
        let (first, last) = (start as usize, end as usize);
        if first > last || last > self.blocks() {
            return None;
        }
        if first == last {
            return Some(0..0);
        }
        let range = self.start(piece.place, first)..self.start(piece.place, last);
        let length = match piece.place {
            Place::Input => self.input.unwrap_or(self.output),
            Place::Output => self.output,
            Place::Scratch => self.start(Place::Scratch, self.blocks()),
        };
        if length == self.start(piece.place, self.blocks()) {
            return Some(range);
        }
        // It has room for the rank's own part only.
        let own = first == self.rank && last == self.rank + 1 && range.len() == length;
        own.then_some(0..length)
    }

    /// What the rank gets, in the output.
    pub(super) fn result(&self) -> Option<Range<usize>> {
        let (first, count) = match self.kind {
            Kind::ReduceScatter => (self.rank, 1),
            _ => (0, self.blocks()),
        };
        let blocks = first as u32..(first + count) as u32;
        self.range(&Piece { place: Place::Output, blocks })
    }

    fn blocks(&self) -> usize {
        match self.blocks {
            Blocks::Shares(shares) => shares as usize,
            Blocks::Parts => self.ranks,
        }
    }

    /// Where a block begins, in bytes, in a buffer that has them all.
    fn start(&self, place: Place, block: usize) -> usize {
        let elements = match (self.blocks, &self.counts) {
            // Without a product that could overflow.
            (Blocks::Shares(shares), counts) => {
                let (count, shares) = (counts.of(0), shares.max(1) as usize);
                count / shares * block + block.min(count % shares)
            }
            (Blocks::Parts, Counts::Exchange { send, .. })
                if place == Place::Input && self.input.is_some() =>
            {
                send.iter().take(block).sum()
            }
            (Blocks::Parts, counts) => counts.offset(block),
        };
        elements * self.dtype.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ReduceOp;

    fn call<'a>(kind: Kind, counts: &[usize], input: &'a [u8], output: &'a mut [u8]) -> Call<'a> {
        Call {
            kind,
            dtype: DType::U8,
            op: ReduceOp::Sum,
            root: 0,
            tag: 0,
            counts: Counts::Each(counts.to_vec().into()),
            input: Some(input),
            output,
        }
    }

    #[test]
    fn a_buffer_for_one_part_has_that_part_only() {
        let mut output = [0; 6];
        let call = call(Kind::AllGather, &[1, 2, 3], &[0; 2], &mut output);
        let program = Program { blocks: Blocks::Parts, rounds: Vec::new() };
        let cut = Cut::new(&call, &program, 1, 3);
        let range = |place, blocks| cut.range(&Piece { place, blocks });
        assert_eq!(range(Place::Input, 1..2), Some(0..2));
        assert_eq!(range(Place::Input, 0..2), None);
        assert_eq!(range(Place::Output, 1..3), Some(1..6));
        assert_eq!(range(Place::Output, 2..4), None);
        assert_eq!(range(Place::Output, 1..1), Some(0..0));
        assert_eq!(cut.span(&Piece { place: Place::Scratch, blocks: 0..1 }), None);
    }

    #[test]
    fn shares_are_as_equal_as_it_goes() {
        let mut output = [0; 7];
        let call = call(Kind::AllReduce, &[7, 7, 7], &[0; 7], &mut output);
        let program = Program { blocks: Blocks::Shares(3), rounds: Vec::new() };
        let cut = Cut::new(&call, &program, 0, 3);
        let range = |block| cut.range(&Piece { place: Place::Output, blocks: block..block + 1 });
        assert_eq!([range(0), range(1), range(2)], [Some(0..3), Some(3..5), Some(5..7)]);
    }
}
