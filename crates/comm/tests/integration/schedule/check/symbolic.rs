//! Symbolic execution of the programs of all ranks.

use super::rank_buffers::{RankBuffers, SymbolicValue};
use super::rank_set::RankSet;
use super::{CheckError, Defect, ScheduledMessage, ScheduledMessages, wrong};
use regatta_comm::CallKind;
use regatta_comm::schedule::BufferKind::{Input, Output, Scratch};
use regatta_comm::schedule::{BlockRange, Program, ProgramStep};

/// Execution state of a rank.
struct SymbolicRank<'a> {
    buffers: RankBuffers,
    program: &'a Program,
    /// This rank as a set, shared because it is used often.
    own: RankSet,
    /// The current round; `None` before the first.
    round: Option<usize>,
    /// Messages of the round that are still pending.
    pending: usize,
    output: Vec<Option<SymbolicValue>>,
    scratch: Vec<Option<SymbolicValue>>,
    /// Barrier only: the ranks known to have entered.
    seen: RankSet,
    /// The same at the beginning of the round, which is what messages of the round carry.
    seen_before: RankSet,
}

/// Execution state of all ranks.
pub(super) struct SymbolicRun<'a> {
    ranks: Vec<SymbolicRank<'a>>,
    messages: &'a ScheduledMessages,
}

impl<'a> SymbolicRun<'a> {
    pub fn new(
        kind: CallKind,
        root: u32,
        programs: &'a [Program],
        messages: &'a ScheduledMessages,
    ) -> Self {
        let ranks = programs.len() as u32;
        let new = |(rank, program): (u32, &'a Program)| {
            let blocks = program.blocks.count(ranks);
            SymbolicRank::new(RankBuffers { kind, ranks, rank, root, blocks }, program)
        };
        Self { ranks: (0..).zip(programs).map(new).collect(), messages }
    }

    /// Runs to completion.
    pub fn all(mut self) -> Result<(), CheckError> {
        let mut ready: Vec<u32> = (0..self.ranks.len() as u32).rev().collect();
        while let Some(rank) = ready.pop() {
            self.enter(rank, &mut ready)?;
        }
        (0..self.ranks.len() as u32).try_for_each(|rank| self.check_finished(rank))?;
        self.ranks.iter().try_for_each(SymbolicRank::check_end)
    }

    /// A rank enters its next round. Messages whose peer is waiting are delivered; ranks without
    /// pending messages become ready.
    fn enter(&mut self, rank: u32, ready: &mut Vec<u32>) -> Result<(), CheckError> {
        let messages = self.messages;
        let me = &mut self.ranks[rank as usize];
        let round = me.round.map_or(0, |round| round + 1);
        me.round = Some(round);
        if round >= me.program.rounds.len() {
            return Ok(());
        }
        me.seen_before = me.seen.clone();
        me.copies(round)?;
        me.pending = messages.of_round(rank, round).count();
        for (_, message) in messages.of_round(rank, round) {
            let other = messages.get(message.peer, message.other);
            if self.ranks[message.peer as usize].round != Some(other.round as usize) {
                continue;
            }
            match message.is_send {
                true => self.deliver(rank, message, message.peer, other)?,
                false => self.deliver(message.peer, other, rank, message)?,
            }
            self.ranks[rank as usize].pending -= 1;
            let peer = &mut self.ranks[message.peer as usize];
            peer.pending -= 1;
            if peer.pending == 0 {
                ready.push(message.peer);
            }
        }
        if self.ranks[rank as usize].pending == 0 {
            ready.push(rank);
        }
        Ok(())
    }

    fn deliver(
        &mut self,
        from: u32,
        sent: ScheduledMessage,
        to: u32,
        got: ScheduledMessage,
    ) -> Result<(), CheckError> {
        let sender = &self.ranks[from as usize];
        let seen_before = sender.seen_before.clone();
        let values = match sent.step(sender.program) {
            ProgramStep::Send { what, .. } => sender.read(what),
            _ => Ok(Vec::new()),
        };
        let values = values.or_else(|p| wrong(from, sent.round as usize, p))?;
        let receiver = &mut self.ranks[to as usize];
        if let ProgramStep::Receive { into, reduce, .. } = got.step(receiver.program) {
            let put = receiver.write(into, values, *reduce);
            put.or_else(|p| wrong(to, got.round as usize, p))?;
        }
        if receiver.buffers.kind == CallKind::Barrier {
            receiver.seen = receiver.seen.union(&seen_before).0;
        }
        Ok(())
    }

    /// Fails if the rank has not finished.
    fn check_finished(&self, rank: u32) -> Result<(), CheckError> {
        let me = &self.ranks[rank as usize];
        let Some(round) = me.round.filter(|&round| round < me.program.rounds.len()) else {
            return Ok(());
        };
        let round_of = |peer: u32| self.ranks[peer as usize].round.unwrap_or(0);
        let waits = |m: &ScheduledMessage| {
            round_of(m.peer) != self.messages.get(m.peer, m.other).round as usize
        };
        match self.messages.of_round(rank, round).map(|(_, m)| m).find(waits) {
            Some(ScheduledMessage { peer, .. }) => {
                wrong(rank, round, Defect::Deadlock { peer, peer_round: round_of(peer) })
            }
            None => Ok(()),
        }
    }
}

impl<'a> SymbolicRank<'a> {
    fn new(buffers: RankBuffers, program: &'a Program) -> Self {
        let own = buffers.own(0).of;
        let empty = || vec![None; buffers.blocks as usize];
        let filled = || (0..buffers.blocks).map(|block| Some(buffers.own(block))).collect();
        let output = if buffers.starts_filled() { filled() } else { empty() };
        let scratch = if program.scratch().is_empty() { Vec::new() } else { empty() };
        let (seen, seen_before) = (own.clone(), own.clone());
        Self { buffers, program, own, round: None, pending: 0, output, scratch, seen, seen_before }
    }

    /// Performs the copies of a round.
    fn copies(&mut self, round: usize) -> Result<(), CheckError> {
        for step in &self.program.rounds[round] {
            if let ProgramStep::Copy { from, to } = step {
                let values = self.read(from);
                let copy_round = values.and_then(|values| self.write(to, values, false));
                copy_round.or_else(|p| wrong(self.buffers.rank, round, p))?;
            }
        }
        Ok(())
    }

    fn read(&self, range: &BlockRange) -> Result<Vec<SymbolicValue>, Defect> {
        let buffer = range.buffer;
        let one = |block: u32| {
            let held = match buffer {
                Input => return self.read_input(block),
                Output => self.output.get(block as usize),
                Scratch => self.scratch.get(block as usize),
            };
            held.cloned().flatten().ok_or(Defect::Uninitialized { buffer, block })
        };
        range.blocks.clone().map(one).collect()
    }

    /// In place, the input is valid until the output block changes.
    fn read_input(&self, block: u32) -> Result<SymbolicValue, Defect> {
        let own = SymbolicValue { block, of: self.own.clone() };
        let overwritten = self.output[block as usize].as_ref().is_some_and(|now| *now != own);
        match overwritten && self.buffers.aliased(block) {
            true => Err(Defect::Overwritten { block }),
            false => Ok(own),
        }
    }

    fn write(
        &mut self,
        range: &BlockRange,
        values: Vec<SymbolicValue>,
        reduce: bool,
    ) -> Result<(), Defect> {
        let buffer = range.buffer;
        for (block, value) in range.blocks.clone().zip(values) {
            if !self.buffers.fits(&value, buffer, block) {
                return Err(Defect::WrongBlock { buffer, block, from_block: value.block });
            }
            let held = match buffer {
                Output => self.output.get_mut(block as usize),
                _ => self.scratch.get_mut(block as usize),
            };
            let Some(held) = held else {
                return Err(Defect::InvalidBlock { buffer, block, used: "written" });
            };
            match held {
                Some(held) if reduce => {
                    let (joined, twice) = held.of.union(&value.of);
                    if let Some(of) = twice {
                        return Err(Defect::DuplicateContribution { buffer, block, of });
                    }
                    held.of = joined;
                }
                None if reduce => return Err(Defect::Uninitialized { buffer, block }),
                _ => *held = Some(value),
            }
        }
        Ok(())
    }

    /// Checks the result, or for a barrier that all ranks were awaited.
    fn check_end(&self) -> Result<(), CheckError> {
        let end = self.program.rounds.len();
        let all = RankSet::range(0..self.buffers.ranks);
        if self.buffers.kind == CallKind::Barrier && self.seen != all {
            let seen = self.seen.to_string();
            return wrong(self.buffers.rank, end, Defect::EarlyBarrierExit { seen });
        }
        for block in self.buffers.blocks(Output) {
            let wanted = self.buffers.result(block);
            let held = self.output[block as usize].as_ref();
            if held != Some(&wanted) {
                let name = |v: &SymbolicValue| format!("block {} of {}", v.block, v.of);
                let holds = held.map_or("nothing".to_owned(), name);
                let problem = Defect::WrongResult { block, holds, wanted: name(&wanted) };
                return wrong(self.buffers.rank, end, problem);
            }
        }
        Ok(())
    }
}
