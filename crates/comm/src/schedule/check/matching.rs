//! Matches sends with receives; messages between two ranks match in order.

use std::vec::IntoIter;

use super::{CheckError, Defect, wrong};
use crate::schedule::{Program, ProgramStep};

/// A send or a receive.
#[derive(Debug, Clone, Copy)]
pub(in crate::schedule) struct ScheduledMessage {
    /// Round in the rank's program.
    pub round: u32,
    /// Step in the round.
    pub step: u32,
    /// The other rank.
    pub peer: u32,
    /// Index of the matching message of the peer.
    pub other: u32,
    pub is_send: bool,
}

/// The sends and receives of all ranks, in program order.
pub(in crate::schedule) struct ScheduledMessages {
    of: Vec<Vec<ScheduledMessage>>,
    /// Index of the first message of each round, plus the total.
    starts: Vec<Vec<u32>>,
}

impl ScheduledMessages {
    /// Matches all messages. Receives are sorted by sender, and senders are visited in rank order.
    pub fn match_all(programs: &[Program]) -> Result<Self, CheckError> {
        let mut all = Self { of: Vec::new(), starts: Vec::new() };
        programs.iter().for_each(|program| all.collect(program));
        let mut receives: Vec<_> = all.of.iter().map(|m| by_sender(m).into_iter()).collect();
        for rank in 0..programs.len() as u32 {
            for index in 0..all.count(rank) as u32 {
                let ScheduledMessage { peer, is_send, round, .. } = all.get(rank, index);
                let Some(theirs) = receives.get_mut(peer as usize).filter(|_| peer != rank) else {
                    return wrong(rank, round as usize, Defect::InvalidPeer { peer });
                };
                if !is_send {
                    continue;
                }
                match theirs.next().map(|other| (other, all.get(peer, other))) {
                    Some((other, message)) if message.peer == rank => {
                        all.link(programs, (rank, index), (peer, other))?;
                    }
                    Some((_, message)) if message.peer < rank => return not_sent(peer, message),
                    _ => return wrong(rank, round as usize, Defect::NotReceived { to: peer }),
                }
            }
        }
        all.all_matched(receives)?;
        Ok(all)
    }

    fn all_matched(&self, receives: Vec<IntoIter<u32>>) -> Result<(), CheckError> {
        for (rank, mut left) in receives.into_iter().enumerate() {
            if let Some(index) = left.next() {
                return not_sent(rank as u32, self.get(rank as u32, index));
            }
        }
        Ok(())
    }

    /// The messages of a round with their indices.
    pub fn of_round(
        &self,
        rank: u32,
        round: usize,
    ) -> impl Iterator<Item = (u32, ScheduledMessage)> {
        let starts = &self.starts[rank as usize];
        let indices = starts[round]..starts[round + 1];
        indices.map(move |index| (index, self.get(rank, index)))
    }

    /// Number of messages in a round.
    pub fn in_round(&self, rank: u32, round: usize) -> usize {
        let starts = &self.starts[rank as usize];
        (starts[round + 1] - starts[round]) as usize
    }

    /// A rank's message by index.
    pub fn get(&self, rank: u32, index: u32) -> ScheduledMessage {
        self.of[rank as usize][index as usize]
    }

    /// Number of messages of a rank.
    pub fn count(&self, rank: u32) -> usize {
        self.of[rank as usize].len()
    }

    fn collect(&mut self, program: &Program) {
        let mut messages = Vec::new();
        let mut starts = vec![0];
        for (round, steps) in program.rounds.iter().enumerate() {
            for (step, what) in steps.iter().enumerate() {
                let (peer, is_send) = match what {
                    ProgramStep::Send { to, .. } => (*to, true),
                    ProgramStep::Receive { from, .. } => (*from, false),
                    ProgramStep::Copy { .. } => continue,
                };
                let (round, step) = (round as u32, step as u32);
                messages.push(ScheduledMessage { round, step, peer, other: 0, is_send });
            }
            starts.push(messages.len() as u32);
        }
        self.of.push(messages);
        self.starts.push(starts);
    }

    /// Links a send and a receive, each given as rank and index.
    fn link(
        &mut self,
        programs: &[Program],
        send: (u32, u32),
        receive: (u32, u32),
    ) -> Result<(), CheckError> {
        self.of[send.0 as usize][send.1 as usize].other = receive.1;
        self.of[receive.0 as usize][receive.1 as usize].other = send.1;
        self.same_length(programs, send.0, send.1)
    }

    fn same_length(&self, programs: &[Program], rank: u32, index: u32) -> Result<(), CheckError> {
        let send = self.get(rank, index);
        let receive = self.get(send.peer, send.other);
        let step = |rank: u32, m: ScheduledMessage| {
            &programs[rank as usize].rounds[m.round as usize][m.step as usize]
        };
        let sent = step(rank, send).reads().map_or(0, |range| range.blocks.len());
        let wanted = step(send.peer, receive).writes().map_or(0, |range| range.blocks.len());
        if sent != wanted {
            let problem = Defect::MessageLength { from: rank, sent, wanted };
            return wrong(send.peer, receive.round as usize, problem);
        }
        Ok(())
    }
}

/// Indices of the receives, sorted by sender; order per sender is kept.
fn by_sender(messages: &[ScheduledMessage]) -> Vec<u32> {
    let indices = 0..messages.len() as u32;
    let mut indices: Vec<u32> = indices.filter(|&n| !messages[n as usize].is_send).collect();
    indices.sort_by_key(|&index| messages[index as usize].peer);
    indices
}

fn not_sent<T>(rank: u32, message: ScheduledMessage) -> Result<T, CheckError> {
    wrong(rank, message.round as usize, Defect::NotSent { from: message.peer })
}
