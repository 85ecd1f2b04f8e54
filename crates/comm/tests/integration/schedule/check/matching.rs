//! Matches sends with receives; messages between two ranks match in order.

use super::{CheckError, Defect, wrong};
use regatta_comm::schedule::{Program, ProgramStep};

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

impl ScheduledMessage {
    /// The step in the program of the message's rank.
    pub fn step<'a>(&self, program: &'a Program) -> &'a ProgramStep {
        &program.rounds[self.round as usize][self.step as usize]
    }
}

/// The sends and receives of each rank, in program order.
pub(in crate::schedule) struct ScheduledMessages(Vec<Vec<ScheduledMessage>>);

impl ScheduledMessages {
    pub fn match_all(programs: &[Program]) -> Result<Self, CheckError> {
        let mut all = Self(programs.iter().map(messages).collect());
        // Sender, receiver and index of all sends and of all receives, in the same order.
        let (mut sends, mut receives) = (Vec::new(), Vec::new());
        for (rank, messages) in (0..).zip(&all.0) {
            for (index, message) in (0..).zip(messages) {
                let ScheduledMessage { peer, round, is_send, .. } = *message;
                if peer as usize >= programs.len() || peer == rank {
                    return wrong(rank, round as usize, Defect::InvalidPeer { peer });
                }
                match is_send {
                    true => sends.push((rank, peer, index)),
                    false => receives.push((peer, rank, index)),
                }
            }
        }
        sends.sort_by_key(|(from, to, _)| (*from, *to));
        receives.sort_by_key(|(from, to, _)| (*from, *to));
        let not_sent = |all: &Self, (from, to, index): (u32, u32, u32)| {
            wrong(to, all.get(to, index).round as usize, Defect::NotSent { from })
        };
        let mut receives = receives.into_iter();
        for (from, to, send) in sends {
            match receives.next() {
                Some((other_from, other_to, receive)) if (other_from, other_to) == (from, to) => {
                    all.0[from as usize][send as usize].other = receive;
                    all.0[to as usize][receive as usize].other = send;
                    all.check_length(programs, from, send)?;
                }
                Some(receive) if (receive.0, receive.1) < (from, to) => {
                    return not_sent(&all, receive);
                }
                _ => {
                    let round = all.get(from, send).round as usize;
                    return wrong(from, round, Defect::NotReceived { to });
                }
            }
        }
        match receives.next() {
            Some(receive) => not_sent(&all, receive),
            None => Ok(all),
        }
    }

    /// The messages of a round with their indices.
    pub fn of_round(
        &self,
        rank: u32,
        round: usize,
    ) -> impl Iterator<Item = (u32, ScheduledMessage)> {
        let messages = &self.0[rank as usize];
        let first = messages.partition_point(|message| (message.round as usize) < round);
        let rest = (first as u32..).zip(messages[first..].iter().copied());
        rest.take_while(move |(_, message)| message.round as usize == round)
    }

    /// A rank's message by index.
    pub fn get(&self, rank: u32, index: u32) -> ScheduledMessage {
        self.0[rank as usize][index as usize]
    }

    /// Number of messages of a rank.
    pub fn count(&self, rank: u32) -> usize {
        self.0[rank as usize].len()
    }

    fn check_length(&self, programs: &[Program], from: u32, index: u32) -> Result<(), CheckError> {
        let send = self.get(from, index);
        let receive = self.get(send.peer, send.other);
        let sent = send.step(&programs[from as usize]).reads();
        let wanted = receive.step(&programs[send.peer as usize]).writes();
        let [sent, wanted] = [sent, wanted].map(|range| range.map_or(0, |r| r.blocks.len()));
        if sent != wanted {
            let problem = Defect::MessageLength { from, sent, wanted };
            return wrong(send.peer, receive.round as usize, problem);
        }
        Ok(())
    }
}

fn messages(program: &Program) -> Vec<ScheduledMessage> {
    let steps = (0..)
        .zip(&program.rounds)
        .flat_map(|(round, steps)| (0..).zip(steps).map(move |(step, what)| (round, step, what)));
    let message = |(round, step, what): (u32, u32, &ProgramStep)| {
        let (peer, is_send) = match what {
            ProgramStep::Send { to, .. } => (*to, true),
            ProgramStep::Receive { from, .. } => (*from, false),
            ProgramStep::Copy { .. } => return None,
        };
        Some(ScheduledMessage { round, step, peer, other: 0, is_send })
    };
    steps.filter_map(message).collect()
}
