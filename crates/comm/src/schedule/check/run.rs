//! The programs of all ranks, run together with names for numbers.

use super::room::{Room, Value};
use super::set::Set;
use super::{CheckError, Message, Messages, Problem, wrong};
use crate::Kind;
use crate::schedule::{Piece, Place, Program, Step};

/// A rank that runs.
struct Rank<'a> {
    room: Room,
    program: &'a Program,
    /// This rank as a set, made once because there are many of it.
    own: Set,
    /// The round that it is in; `None` before the first.
    round: Option<usize>,
    /// How many messages of the round are still to go.
    pending: usize,
    output: Vec<Option<Value>>,
    scratch: Vec<Option<Value>>,
    /// In a barrier: of whom it knows that they have come.
    heard: Set,
    /// The same at the beginning of the round, which is what it can tell others in it.
    told: Set,
}

/// All ranks.
pub(super) struct Run<'a> {
    ranks: Vec<Rank<'a>>,
    messages: &'a Messages,
}

impl<'a> Run<'a> {
    pub fn new(kind: Kind, root: u32, programs: &'a [Program], messages: &'a Messages) -> Self {
        let ranks = programs.len() as u32;
        let new = |(rank, program): (usize, &'a Program)| {
            let rank = rank as u32;
            let room = Room { kind, ranks, rank, root, blocks: program.blocks.count(ranks) };
            Rank::new(room, program)
        };
        Self { ranks: programs.iter().enumerate().map(new).collect(), messages }
    }

    /// Runs to the end.
    pub fn all(mut self) -> Result<(), CheckError> {
        let mut ready: Vec<u32> = (0..self.ranks.len() as u32).rev().collect();
        while let Some(rank) = ready.pop() {
            self.enter(rank, &mut ready)?;
        }
        (0..self.ranks.len() as u32).try_for_each(|rank| self.not_stuck(rank))?;
        self.ranks.iter().try_for_each(Rank::check_end)
    }

    /// A rank begins its next round. Messages whose other side waits for them move now; who has no
    /// more to wait for is ready for its next round.
    fn enter(&mut self, rank: u32, ready: &mut Vec<u32>) -> Result<(), CheckError> {
        let messages = self.messages;
        let me = &mut self.ranks[rank as usize];
        let round = me.round.map_or(0, |round| round + 1);
        me.round = Some(round);
        if round >= me.program.rounds.len() {
            return Ok(());
        }
        me.told = me.heard.clone();
        me.copies(round)?;
        me.pending = messages.in_round(rank, round);
        for (_, message) in messages.of_round(rank, round) {
            let other = messages.get(message.peer, message.other);
            if self.ranks[message.peer as usize].round != Some(other.round as usize) {
                continue;
            }
            match message.sends {
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
        sent: Message,
        to: u32,
        got: Message,
    ) -> Result<(), CheckError> {
        let sender = &self.ranks[from as usize];
        let told = sender.told.clone();
        let step = |rank: &Rank<'a>, message: Message| {
            &rank.program.rounds[message.round as usize][message.step as usize]
        };
        let values = match step(sender, sent) {
            Step::Send { what, .. } => sender.read(what),
            _ => Ok(Vec::new()),
        };
        let values = values.or_else(|p| wrong(from, sent.round as usize, p))?;
        let receiver = &mut self.ranks[to as usize];
        if let Step::Receive { into, reduce, .. } = step(receiver, got) {
            let put = receiver.write(into, values, *reduce);
            put.or_else(|p| wrong(to, got.round as usize, p))?;
        }
        if receiver.room.kind == Kind::Barrier {
            receiver.heard = receiver.heard.join(&told).0;
        }
        Ok(())
    }

    /// An error if the rank has not come to its end.
    fn not_stuck(&self, rank: u32) -> Result<(), CheckError> {
        let me = &self.ranks[rank as usize];
        let Some(round) = me.round.filter(|&round| round < me.program.rounds.len()) else {
            return Ok(());
        };
        let there = |peer: u32| self.ranks[peer as usize].round.unwrap_or(0);
        let waits =
            |m: &Message| there(m.peer) != self.messages.get(m.peer, m.other).round as usize;
        match self.messages.of_round(rank, round).map(|(_, m)| m).find(waits) {
            Some(Message { peer, .. }) => {
                wrong(rank, round, Problem::Stuck { peer, there: there(peer) })
            }
            None => Ok(()),
        }
    }
}

impl<'a> Rank<'a> {
    fn new(room: Room, program: &'a Program) -> Self {
        let own = room.own(0).of;
        let empty = || vec![None; room.blocks as usize];
        let mut output = empty();
        if room.starts_filled() {
            output = (0..room.blocks).map(|block| Some(room.own(block))).collect();
        }
        let scratch = if program.scratch().is_empty() { Vec::new() } else { empty() };
        let (heard, told) = (own.clone(), own.clone());
        Self { room, program, own, round: None, pending: 0, output, scratch, heard, told }
    }

    /// Does the copies of a round.
    fn copies(&mut self, round: usize) -> Result<(), CheckError> {
        for step in &self.program.rounds[round] {
            if let Step::Copy { from, to } = step {
                let values = self.read(from);
                let copied = values.and_then(|values| self.write(to, values, false));
                copied.or_else(|p| wrong(self.room.rank, round, p))?;
            }
        }
        Ok(())
    }

    fn read(&self, piece: &Piece) -> Result<Vec<Value>, Problem> {
        let place = piece.place;
        let one = |block: u32| {
            let held = match place {
                Place::Input => return self.read_input(block),
                Place::Output => self.output.get(block as usize),
                Place::Scratch => self.scratch.get(block as usize),
            };
            held.cloned().flatten().ok_or(Problem::Unset { place, block })
        };
        piece.blocks.clone().map(one).collect()
    }

    /// In place the input is as long as the output has not become something else.
    fn read_input(&self, block: u32) -> Result<Value, Problem> {
        let own = Value { block, of: self.own.clone() };
        let over = self.output[block as usize].as_ref().is_some_and(|now| *now != own);
        match over && self.room.aliased(block) {
            true => Err(Problem::Overwritten { block }),
            false => Ok(own),
        }
    }

    fn write(&mut self, piece: &Piece, values: Vec<Value>, reduce: bool) -> Result<(), Problem> {
        let place = piece.place;
        for (block, value) in piece.blocks.clone().zip(values) {
            if !self.room.fits(&value, place, block) {
                return Err(Problem::WrongBlock { place, block, given: value.block });
            }
            let held = match place {
                Place::Output => self.output.get_mut(block as usize),
                _ => self.scratch.get_mut(block as usize),
            };
            let Some(held) = held else {
                return Err(Problem::NoSuchBlock { place, block, used: "written" });
            };
            match held {
                Some(held) if reduce => {
                    let (joined, twice) = held.of.join(&value.of);
                    if let Some(of) = twice {
                        return Err(Problem::CountedTwice { place, block, of });
                    }
                    held.of = joined;
                }
                None if reduce => return Err(Problem::Unset { place, block }),
                _ => *held = Some(value),
            }
        }
        Ok(())
    }

    /// Whether the output is what it should be, and all were waited for.
    fn check_end(&self) -> Result<(), CheckError> {
        let end = self.program.rounds.len();
        let all = Set::run(0..self.room.ranks);
        if self.room.kind == Kind::Barrier && self.heard != all {
            let heard = self.heard.to_string();
            return wrong(self.room.rank, end, Problem::LeavesEarly { heard });
        }
        for block in self.room.blocks(Place::Output) {
            let wanted = self.room.result(block);
            let held = self.output[block as usize].as_ref();
            if held != Some(&wanted) {
                let name = |v: &Value| format!("block {} of {}", v.block, v.of);
                let holds = held.map_or("nothing".to_owned(), name);
                let problem = Problem::WrongResult { block, holds, wanted: name(&wanted) };
                return wrong(self.room.rank, end, problem);
            }
        }
        Ok(())
    }
}
