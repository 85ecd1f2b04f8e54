//! Checks each round on its own: valid block ranges and no conflicting accesses.

use std::collections::HashMap;

use super::rank_buffers::RankBuffers;
use super::{CheckError, Defect, wrong};
use regatta_comm::CallKind;
use regatta_comm::schedule::BufferKind::{self, Input, Output};
use regatta_comm::schedule::{BlockRange, Program, ProgramStep, Round};

pub(super) fn check(kind: CallKind, root: u32, programs: &[Program]) -> Result<(), CheckError> {
    let ranks = programs.len() as u32;
    let Some(first) = programs.first() else { return Ok(()) };
    let blocks = first.blocks.count(ranks);
    for (rank, program) in (0..).zip(programs) {
        if program.blocks != first.blocks {
            return wrong(rank, 0, Defect::BlockCountMismatch);
        }
        let buffers = RankBuffers { kind, ranks, rank, root, blocks };
        for (at, round) in program.rounds.iter().enumerate() {
            let one = round.iter().try_for_each(|step| check_step(&buffers, step));
            let conflicts = one.and_then(|()| check_conflicts(&buffers, round));
            conflicts.or_else(|p| wrong(rank, at, p))?;
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
            let block = range.blocks.start;
            return Err(Defect::InvalidBlock { buffer: Input, block, used: "written" });
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
    Err(Defect::InvalidBlock { buffer: range.buffer, block, used })
}

/// Checks that no step of a round accesses a block that another one writes.
fn check_conflicts(buffers: &RankBuffers, round: &Round) -> Result<(), Defect> {
    // The written blocks, and whether they are only copied from the input, a no-op in place.
    let mut written: HashMap<(BufferKind, u32), bool> = HashMap::new();
    for step in round {
        let Some(BlockRange { buffer, blocks }) = step.writes() else { continue };
        let input = BlockRange { buffer: Input, blocks: blocks.clone() };
        let output = BlockRange { buffer: Output, blocks: blocks.clone() };
        let copied_input = *step == ProgramStep::Copy { from: input, to: output };
        for block in blocks.clone() {
            if written.insert((*buffer, block), copied_input).is_some() {
                return Err(Defect::WrittenTwice { buffer: *buffer, block });
            }
        }
    }
    // A reduction reads and writes its destination in one step.
    let reads = round.iter().filter(|step| !matches!(step, ProgramStep::Receive { .. }));
    for BlockRange { buffer, blocks } in reads.filter_map(ProgramStep::reads) {
        let is_written = |block: &u32| match buffer {
            Input => buffers.aliased(*block) && written.get(&(Output, *block)) == Some(&false),
            _ => written.contains_key(&(*buffer, *block)),
        };
        if let Some(block) = blocks.clone().find(is_written) {
            return Err(Defect::ReadWhileWritten { buffer: *buffer, block });
        }
    }
    Ok(())
}
