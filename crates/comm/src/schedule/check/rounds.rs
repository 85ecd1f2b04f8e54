//! What can be said of each round by itself: whether its pieces are there, and whether its steps
//! leave each other alone.

use super::room::Room;
use super::{CheckError, Problem, wrong};
use crate::Kind;
use crate::schedule::{Piece, Place, Program, Round, Step};

pub(super) fn check(kind: Kind, root: u32, programs: &[Program]) -> Result<(), CheckError> {
    let ranks = programs.len() as u32;
    let Some(first) = programs.first() else { return Ok(()) };
    let blocks = first.blocks.count(ranks);
    let mut marks = Marks::new(blocks as usize);
    for (rank, program) in programs.iter().enumerate() {
        let rank = rank as u32;
        if program.blocks != first.blocks {
            return wrong(rank, 0, Problem::OtherBlocks);
        }
        let room = Room { kind, ranks, rank, root, blocks };
        for (at, round) in program.rounds.iter().enumerate() {
            let one = round.iter().try_for_each(|step| step_fits(&room, step));
            one.and_then(|()| marks.check(&room, round)).or_else(|p| wrong(rank, at, p))?;
        }
    }
    Ok(())
}

/// Whether its peer and its pieces are there.
fn step_fits(room: &Room, step: &Step) -> Result<(), Problem> {
    if let Step::Send { to: peer, .. } | Step::Receive { from: peer, .. } = step
        && (*peer >= room.ranks || *peer == room.rank)
    {
        return Err(Problem::NoSuchPeer { peer: *peer });
    }
    if let Step::Copy { from, to } = step
        && from.blocks.len() != to.blocks.len()
    {
        return Err(Problem::CopyLength { from: from.blocks.len(), to: to.blocks.len() });
    }
    if let Some(piece) = step.writes() {
        if piece.place == Place::Input && !piece.blocks.is_empty() {
            return Err(missing(piece.place, piece.blocks.start, "written"));
        }
        piece_fits(room, piece, "written")?;
    }
    step.reads().map_or(Ok(()), |piece| piece_fits(room, piece, "read"))
}

fn piece_fits(room: &Room, piece: &Piece, used: &'static str) -> Result<(), Problem> {
    let (there, blocks) = (room.blocks(piece.place), &piece.blocks);
    if blocks.is_empty() || (there.start <= blocks.start && blocks.end <= there.end) {
        return Ok(());
    }
    let block = if there.contains(&blocks.start) { there.end } else { blocks.start };
    Err(missing(piece.place, block, used))
}

fn missing(place: Place, block: u32, used: &'static str) -> Problem {
    Problem::NoSuchBlock { place, block, used }
}

/// For each block of output and scratch room, in which round it was last written. Rounds of all
/// ranks are numbered through, so that nothing needs to be wiped.
struct Marks {
    round: u64,
    output: Vec<u64>,
    scratch: Vec<u64>,
    /// The same for blocks of the output that are only copied from the input, which is nothing to
    /// do in place.
    taken_over: Vec<u64>,
}

impl Marks {
    fn new(blocks: usize) -> Self {
        let none = || vec![0; blocks];
        Self { round: 0, output: none(), scratch: none(), taken_over: none() }
    }

    fn check(&mut self, room: &Room, round: &Round) -> Result<(), Problem> {
        self.round += 1;
        round.iter().try_for_each(|step| self.write(step))?;
        // What is reduced into is read and written by the same step: its own affair.
        let reads = round.iter().filter(|step| !matches!(step, Step::Receive { .. }));
        reads.filter_map(Step::reads).try_for_each(|piece| self.read(room, piece))
    }

    fn write(&mut self, step: &Step) -> Result<(), Problem> {
        let Some(Piece { place, blocks }) = step.writes() else { return Ok(()) };
        let marks = if *place == Place::Output { &mut self.output } else { &mut self.scratch };
        for block in blocks.clone() {
            if std::mem::replace(&mut marks[block as usize], self.round) == self.round {
                return Err(Problem::WrittenTwice { place: *place, block });
            }
        }
        if let Step::Copy { from, to } = step
            && (from.place, to.place) == (Place::Input, Place::Output)
            && from.blocks == to.blocks
        {
            blocks.clone().for_each(|block| self.taken_over[block as usize] = self.round);
        }
        Ok(())
    }

    fn read(&self, room: &Room, piece: &Piece) -> Result<(), Problem> {
        let place = piece.place;
        let written = |block: &u32| {
            let at = *block as usize;
            match place {
                Place::Output => self.output[at] == self.round,
                Place::Scratch => self.scratch[at] == self.round,
                Place::Input => {
                    room.aliased(*block)
                        && self.output[at] == self.round
                        && self.taken_over[at] != self.round
                }
            }
        };
        match piece.blocks.clone().find(written) {
            Some(block) => Err(Problem::ReadWhileWritten { place, block }),
            None => Ok(()),
        }
    }
}
