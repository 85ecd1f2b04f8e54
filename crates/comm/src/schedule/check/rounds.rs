//! Checks each round on its own: valid block ranges and no conflicting accesses.

use super::rank_buffers::RankBuffers;
use super::{CheckError, Defect, wrong};
use crate::CallKind;
use crate::schedule::BufferKind::{self, Input, Output, Scratch};
use crate::schedule::{BlockRange, Program, ProgramStep, Round};

pub(super) fn check(kind: CallKind, root: u32, programs: &[Program]) -> Result<(), CheckError> {
    let ranks = programs.len() as u32;
    let Some(first) = programs.first() else { return Ok(()) };
    let blocks = first.blocks.count(ranks);
    let mut last_writes = LastWrites::new(blocks as usize);
    for (rank, program) in programs.iter().enumerate() {
        let rank = rank as u32;
        if program.blocks != first.blocks {
            return wrong(rank, 0, Defect::BlockCountMismatch);
        }
        let buffers = RankBuffers { kind, ranks, rank, root, blocks };
        for (at, round) in program.rounds.iter().enumerate() {
            let one = round.iter().try_for_each(|step| check_step(&buffers, step));
            one.and_then(|()| last_writes.check(&buffers, round))
                .or_else(|p| wrong(rank, at, p))?;
        }
    }
    Ok(())
}

/// Checks the peer and the block ranges of a step.
fn check_step(buffers: &RankBuffers, step: &ProgramStep) -> Result<(), Defect> {
    if let ProgramStep::Send { to: peer, .. } | ProgramStep::Receive { from: peer, .. } = step
        && (*peer >= buffers.ranks || *peer == buffers.rank)
    {
        return Err(Defect::InvalidPeer { peer: *peer });
    }
    if let ProgramStep::Copy { from, to } = step
        && from.blocks.len() != to.blocks.len()
    {
        return Err(Defect::CopyLength { from: from.blocks.len(), to: to.blocks.len() });
    }
    if let Some(range) = step.writes() {
        if range.buffer == Input && !range.blocks.is_empty() {
            return Err(missing(range.buffer, range.blocks.start, "written"));
        }
        check_range(buffers, range, "written")?;
    }
    step.reads().map_or(Ok(()), |range| check_range(buffers, range, "read"))
}

fn check_range(
    buffers: &RankBuffers,
    range: &BlockRange,
    used: &'static str,
) -> Result<(), Defect> {
    let (available, blocks) = (buffers.blocks(range.buffer), &range.blocks);
    if blocks.is_empty() || (available.start <= blocks.start && blocks.end <= available.end) {
        return Ok(());
    }
    let block = if available.contains(&blocks.start) { available.end } else { blocks.start };
    Err(missing(range.buffer, block, used))
}

fn missing(buffer: BufferKind, block: u32, used: &'static str) -> Defect {
    Defect::InvalidBlock { buffer, block, used }
}

/// The round in which each output and scratch block was last written. Rounds are numbered across
/// all ranks, so that nothing needs to be reset.
struct LastWrites {
    round: u64,
    output: Vec<u64>,
    scratch: Vec<u64>,
    /// The same for output blocks that are only copied from the input, which is a no-op in place.
    copied_input: Vec<u64>,
}

impl LastWrites {
    fn new(blocks: usize) -> Self {
        let none = || vec![0; blocks];
        Self { round: 0, output: none(), scratch: none(), copied_input: none() }
    }

    fn check(&mut self, buffers: &RankBuffers, round: &Round) -> Result<(), Defect> {
        self.round += 1;
        round.iter().try_for_each(|step| self.write(step))?;
        // A reduction reads and writes its destination in one step.
        let reads = round.iter().filter(|step| !matches!(step, ProgramStep::Receive { .. }));
        reads.filter_map(ProgramStep::reads).try_for_each(|range| self.read(buffers, range))
    }

    fn write(&mut self, step: &ProgramStep) -> Result<(), Defect> {
        let Some(BlockRange { buffer, blocks }) = step.writes() else { return Ok(()) };
        let last_writes = if *buffer == Output { &mut self.output } else { &mut self.scratch };
        for block in blocks.clone() {
            if std::mem::replace(&mut last_writes[block as usize], self.round) == self.round {
                return Err(Defect::WrittenTwice { buffer: *buffer, block });
            }
        }
        if let ProgramStep::Copy { from, to } = step
            && (from.buffer, to.buffer) == (Input, Output)
            && from.blocks == to.blocks
        {
            blocks.clone().for_each(|block| self.copied_input[block as usize] = self.round);
        }
        Ok(())
    }

    fn read(&self, buffers: &RankBuffers, range: &BlockRange) -> Result<(), Defect> {
        let buffer = range.buffer;
        let written = |block: &u32| {
            let at = *block as usize;
            match buffer {
                Output => self.output[at] == self.round,
                Scratch => self.scratch[at] == self.round,
                Input => {
                    buffers.aliased(*block)
                        && self.output[at] == self.round
                        && self.copied_input[at] != self.round
                }
            }
        };
        match range.blocks.clone().find(written) {
            Some(block) => Err(Defect::ReadWhileWritten { buffer, block }),
            None => Ok(()),
        }
    }
}
