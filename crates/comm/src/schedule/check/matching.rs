//! Which send belongs to which receive: between two ranks, the first to the first.

use super::{CheckError, Problem, wrong};
use crate::schedule::{Program, Step};

/// A send or a receive.
#[derive(Debug, Clone, Copy)]
pub(in crate::schedule) struct Message {
    /// In which round of the rank's program.
    pub round: u32,
    /// Which step of it.
    pub step: u32,
    /// The other rank.
    pub peer: u32,
    /// Which of the other rank's messages it is.
    pub other: u32,
    /// Whether it is a send.
    pub sends: bool,
}

/// The sends and receives of all ranks, in the order of their programs.
pub(in crate::schedule) struct Messages {
    of: Vec<Vec<Message>>,
    /// Where the messages of each round begin; one more at the end.
    starts: Vec<Vec<u32>>,
}

impl Messages {
    /// Finds the other side of each.
    pub fn match_all(programs: &[Program]) -> Result<Self, CheckError> {
        let mut all = Self { of: Vec::new(), starts: Vec::new() };
        programs.iter().for_each(|program| all.collect(program));
        let sends: Vec<Vec<u32>> = all.of.iter().map(|m| by_peer(m, true)).collect();
        let receives: Vec<Vec<u32>> = all.of.iter().map(|m| by_peer(m, false)).collect();
        for rank in 0..programs.len() as u32 {
            all.join(programs, rank, &sends[rank as usize], &receives)?;
            all.all_sent(rank, &receives[rank as usize], &sends)?;
        }
        Ok(all)
    }

    /// The messages of a round, each with its number.
    pub fn of_round(&self, rank: u32, round: usize) -> impl Iterator<Item = (u32, Message)> {
        let starts = &self.starts[rank as usize];
        let numbers = starts[round]..starts[round + 1];
        numbers.map(move |number| (number, self.get(rank, number)))
    }

    /// A rank's message of this number.
    pub fn get(&self, rank: u32, number: u32) -> Message {
        self.of[rank as usize][number as usize]
    }

    /// How many messages a rank sends and receives.
    pub fn count(&self, rank: u32) -> usize {
        self.of[rank as usize].len()
    }

    fn collect(&mut self, program: &Program) {
        let mut messages = Vec::new();
        let mut starts = vec![0];
        for (round, steps) in program.rounds.iter().enumerate() {
            for (step, what) in steps.iter().enumerate() {
                let (peer, sends) = match what {
                    Step::Send { to, .. } => (*to, true),
                    Step::Receive { from, .. } => (*from, false),
                    Step::Copy { .. } => continue,
                };
                let (round, step) = (round as u32, step as u32);
                messages.push(Message { round, step, peer, other: 0, sends });
            }
            starts.push(messages.len() as u32);
        }
        self.of.push(messages);
        self.starts.push(starts);
    }

    /// Gives every send of a rank its receive.
    fn join(
        &mut self,
        programs: &[Program],
        rank: u32,
        sends: &[u32],
        receives: &[Vec<u32>],
    ) -> Result<(), CheckError> {
        let mut rest = sends;
        while let Some(&first) = rest.first() {
            let peer = self.get(rank, first).peer;
            let (to_peer, others) = rest.split_at(self.run_length(rank, rest));
            rest = others;
            let theirs = self.from(peer, rank, &receives[peer as usize]);
            for (at, &number) in to_peer.iter().enumerate() {
                let Some(&other) = theirs.get(at) else {
                    let round = self.get(rank, number).round as usize;
                    return wrong(rank, round, Problem::NotReceived { to: peer });
                };
                self.of[rank as usize][number as usize].other = other;
                self.of[peer as usize][other as usize].other = number;
                self.same_length(programs, rank, number)?;
            }
        }
        Ok(())
    }

    /// Whether everything that a rank receives is sent.
    fn all_sent(&self, rank: u32, receives: &[u32], sends: &[Vec<u32>]) -> Result<(), CheckError> {
        let mut rest = receives;
        while let Some(&first) = rest.first() {
            let peer = self.get(rank, first).peer;
            let (from_peer, others) = rest.split_at(self.run_length(rank, rest));
            rest = others;
            let theirs = self.from(peer, rank, &sends[peer as usize]);
            if let Some(&number) = from_peer.get(theirs.len()) {
                let round = self.get(rank, number).round as usize;
                return wrong(rank, round, Problem::NotSent { from: peer });
            }
        }
        Ok(())
    }

    /// How many of the first have the same peer.
    fn run_length(&self, rank: u32, numbers: &[u32]) -> usize {
        let peer = |number: &u32| self.get(rank, *number).peer;
        let first = numbers.first().map(peer);
        numbers.iter().take_while(|number| Some(peer(number)) == first).count()
    }

    /// Those of a rank's messages, sorted by peer, that have this peer.
    fn from<'a>(&self, rank: u32, peer: u32, numbers: &'a [u32]) -> &'a [u32] {
        let start = numbers.partition_point(|&number| self.get(rank, number).peer < peer);
        let numbers = &numbers[start..];
        let end = numbers.partition_point(|&number| self.get(rank, number).peer <= peer);
        &numbers[..end]
    }

    fn same_length(&self, programs: &[Program], rank: u32, number: u32) -> Result<(), CheckError> {
        let send = self.get(rank, number);
        let receive = self.get(send.peer, send.other);
        let step = |rank: u32, m: Message| {
            &programs[rank as usize].rounds[m.round as usize][m.step as usize]
        };
        let sent = step(rank, send).reads().map_or(0, |piece| piece.blocks.len());
        let wanted = step(send.peer, receive).writes().map_or(0, |piece| piece.blocks.len());
        if sent != wanted {
            let problem = Problem::MessageLength { from: rank, sent, wanted };
            return wrong(send.peer, receive.round as usize, problem);
        }
        Ok(())
    }
}

/// The numbers of the sends, or the receives, by peer; of one peer in their order.
fn by_peer(messages: &[Message], sends: bool) -> Vec<u32> {
    let numbers = 0..messages.len() as u32;
    let mut numbers: Vec<u32> = numbers.filter(|&n| messages[n as usize].sends == sends).collect();
    numbers.sort_by_key(|&number| messages[number as usize].peer);
    numbers
}
