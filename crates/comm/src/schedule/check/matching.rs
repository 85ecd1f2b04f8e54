//! Which send belongs to which receive: between two ranks, the first to the first.

use std::vec::IntoIter;

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
    /// Finds the other side of each: a receiver's messages are looked through by sender, in the
    /// order in which the senders come here.
    pub fn match_all(programs: &[Program]) -> Result<Self, CheckError> {
        let mut all = Self { of: Vec::new(), starts: Vec::new() };
        programs.iter().for_each(|program| all.collect(program));
        let mut receives: Vec<_> = all.of.iter().map(|m| by_sender(m).into_iter()).collect();
        for rank in 0..programs.len() as u32 {
            for number in 0..all.count(rank) as u32 {
                let Message { peer, sends, round, .. } = all.get(rank, number);
                let Some(theirs) = receives.get_mut(peer as usize).filter(|_| peer != rank) else {
                    return wrong(rank, round as usize, Problem::NoSuchPeer { peer });
                };
                if !sends {
                    continue;
                }
                let next = theirs.next().map(|other| (other, all.get(peer, other)));
                match next {
                    Some((other, message)) if message.peer == rank => {
                        all.join(programs, (rank, number), (peer, other))?;
                    }
                    Some((_, message)) if message.peer < rank => {
                        return not_sent(peer, message);
                    }
                    _ => return wrong(rank, round as usize, Problem::NotReceived { to: peer }),
                }
            }
        }
        all.nothing_left(receives)?;
        Ok(all)
    }

    fn nothing_left(&self, receives: Vec<IntoIter<u32>>) -> Result<(), CheckError> {
        for (rank, mut left) in receives.into_iter().enumerate() {
            if let Some(number) = left.next() {
                return not_sent(rank as u32, self.get(rank as u32, number));
            }
        }
        Ok(())
    }

    /// The messages of a round, each with its number.
    pub fn of_round(&self, rank: u32, round: usize) -> impl Iterator<Item = (u32, Message)> {
        let starts = &self.starts[rank as usize];
        let numbers = starts[round]..starts[round + 1];
        numbers.map(move |number| (number, self.get(rank, number)))
    }

    /// How many messages a round has.
    pub fn in_round(&self, rank: u32, round: usize) -> usize {
        let starts = &self.starts[rank as usize];
        (starts[round + 1] - starts[round]) as usize
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

    /// Makes a send and a receive, each a rank and a number, one message.
    fn join(
        &mut self,
        programs: &[Program],
        send: (u32, u32),
        receive: (u32, u32),
    ) -> Result<(), CheckError> {
        self.of[send.0 as usize][send.1 as usize].other = receive.1;
        self.of[receive.0 as usize][receive.1 as usize].other = send.1;
        self.same_length(programs, send.0, send.1)
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

/// The numbers of the receives, by sender; of one sender in their order.
fn by_sender(messages: &[Message]) -> Vec<u32> {
    let numbers = 0..messages.len() as u32;
    let mut numbers: Vec<u32> = numbers.filter(|&n| !messages[n as usize].sends).collect();
    numbers.sort_by_key(|&number| messages[number as usize].peer);
    numbers
}

fn not_sent<T>(rank: u32, message: Message) -> Result<T, CheckError> {
    wrong(rank, message.round as usize, Problem::NotSent { from: message.peer })
}
