//! Maps the blocks of a program to byte ranges of a call's buffers.

use std::ops::Range;

use super::dependency_scheduler::ByteRange;
use crate::schedule::BufferKind::{self, Input, Output, Scratch};
use crate::schedule::{BlockRange, Blocks, Program, equal_block};
use crate::{Call, CallKind, Counts, DType};

/// Lengths of a call's buffers and how they are cut into blocks.
pub(super) struct BlockLayout<'a> {
    pub(super) kind: CallKind,
    dtype: DType,
    counts: Counts<'a>,
    blocks: Blocks,
    /// The scratch blocks in use.
    scratch: Range<u32>,
    rank: usize,
    ranks: usize,
    input: Option<usize>,
    output: usize,
}

impl<'a> BlockLayout<'a> {
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

    /// Whether the input must be copied first, because received data would overwrite unsent data.
    pub(super) fn needs_copy(&self) -> bool {
        self.kind == CallKind::AllToAll && self.input.is_none()
    }

    /// The scratch bytes in use, as a range of a buffer with all blocks.
    pub(super) fn scratch_bytes(&self) -> Range<usize> {
        let start = |block: u32| self.start(Scratch, block as usize);
        start(self.scratch.start)..start(self.scratch.end)
    }

    /// The bytes of a block range; `None` if the buffer does not have them.
    pub(super) fn byte_range(&self, range: &BlockRange) -> Option<ByteRange> {
        let bytes = self.buffer_bytes(range)?;
        let buffer = match range.buffer {
            Input if self.input.is_none() && !self.needs_copy() => Output,
            buffer => buffer,
        };
        let bytes = match buffer {
            _ if bytes.is_empty() => 0..0,
            Input | Output => bytes,
            Scratch => {
                let used = self.scratch_bytes();
                let start = bytes.start.checked_sub(used.start)?;
                (bytes.end <= used.end).then(|| start..bytes.end - used.start)?
            }
        };
        Some(ByteRange { buffer, bytes })
    }

    /// The bytes of a block range in its buffer; for scratch, in a buffer with all blocks.
    fn buffer_bytes(&self, range: &BlockRange) -> Option<Range<usize>> {
        let (first, last) = (range.blocks.start as usize, range.blocks.end as usize);
        if first > last || last > self.blocks() {
            return None;
        }
        if first == last {
            return Some(0..0);
        }
        let bytes = self.start(range.buffer, first)..self.start(range.buffer, last);
        let length = match range.buffer {
            Input => self.input.unwrap_or(self.output),
            Output => self.output,
            Scratch => self.start(Scratch, self.blocks()),
        };
        if length == self.start(range.buffer, self.blocks()) {
            return Some(bytes);
        }
        // The buffer holds this rank's own block only.
        let own = first == self.rank && last == self.rank + 1 && bytes.len() == length;
        own.then_some(0..length)
    }

    /// This rank's result in the output.
    pub(super) fn result(&self) -> Option<Range<usize>> {
        let blocks = match self.kind {
            CallKind::ReduceScatter => self.rank as u32..self.rank as u32 + 1,
            _ => 0..self.blocks() as u32,
        };
        self.buffer_bytes(&BlockRange { buffer: Output, blocks })
    }

    fn blocks(&self) -> usize {
        self.blocks.count(self.ranks as u32) as usize
    }

    /// Byte offset of a block in a buffer with all blocks.
    fn start(&self, buffer: BufferKind, block: usize) -> usize {
        let elements = match self.blocks {
            Blocks::Equal(blocks) => equal_block(self.counts.of(0), blocks, block as u32).start,
            Blocks::PerRank if buffer == Input && self.input.is_some() => {
                self.counts.send_block(block).0
            }
            Blocks::PerRank => self.counts.offset(block),
        };
        elements * self.dtype.size()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call<'a>(
        kind: CallKind,
        counts: &[usize],
        input: &'a [u8],
        output: &'a mut [u8],
    ) -> Call<'a> {
        let counts = Counts::PerRank(counts.to_vec().into());
        Call { input: Some(input), ..Call::new(kind, DType::U8, counts, output) }
    }

    #[test]
    fn a_single_block_buffer_has_only_its_own_block() {
        let mut output = [0; 6];
        let call = call(CallKind::AllGather, &[1, 2, 3], &[0; 2], &mut output);
        let program = Program { blocks: Blocks::PerRank, rounds: Vec::new() };
        let layout = BlockLayout::new(&call, &program, 1, 3);
        let range = |buffer, blocks| layout.buffer_bytes(&BlockRange { buffer, blocks });
        assert_eq!(range(Input, 1..2), Some(0..2));
        assert_eq!(range(Input, 0..2), None);
        assert_eq!(range(Output, 1..3), Some(1..6));
        assert_eq!(range(Output, 2..4), None);
        assert_eq!(range(Output, 1..1), Some(0..0));
        assert_eq!(layout.byte_range(&BlockRange { buffer: Scratch, blocks: 0..1 }), None);
    }

    #[test]
    fn equal_blocks_differ_by_at_most_one_element() {
        let mut output = [0; 7];
        let call = call(CallKind::AllReduce, &[7, 7, 7], &[0; 7], &mut output);
        let program = Program { blocks: Blocks::Equal(3), rounds: Vec::new() };
        let layout = BlockLayout::new(&call, &program, 0, 3);
        let range =
            |block| layout.buffer_bytes(&BlockRange { buffer: Output, blocks: block..block + 1 });
        assert_eq!([range(0), range(1), range(2)], [Some(0..3), Some(3..5), Some(5..7)]);
    }
}
