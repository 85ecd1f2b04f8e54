//! Proof that a schedule is right: everything is done once, in an order that can be done, by ranks
//! that never wait for each other in a circle.
//!
//! It is proved for the least room that a sender may have. A rank's sends leave one after the other,
//! each when the one before it was received, whichever link it took; and a rank that has a send under
//! way on a link waits for it before it begins the next one there. What ends under these conditions
//! ends with more room as well.

use std::collections::{HashMap, HashSet};

use super::{Action, Message, Schedule, ScheduleError, Way, Work, check_sizes};

/// What is wrong with a schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// Sizes that no schedule has.
    #[error(transparent)]
    Sizes(#[from] ScheduleError),
    /// More or fewer ranks than stages.
    #[error("a schedule of {stages} stages has lists of {ranks} ranks")]
    Ranks {
        /// How many lists there are.
        ranks: usize,
        /// How many stages.
        stages: usize,
    },
    /// An action with a chunk that the rank does not have, or a micro-batch that there is not.
    #[error("rank {rank} does {action}, which is not its own or does not exist")]
    Foreign {
        /// The rank.
        rank: usize,
        /// What it does.
        action: Action,
    },
    /// Done before, by itself or as a part of something.
    #[error("rank {rank} does {action} a second time")]
    Twice {
        /// The rank.
        rank: usize,
        /// What it does.
        action: Action,
    },
    /// Never done.
    #[error("rank {rank} never does {action}")]
    Missing {
        /// The rank.
        rank: usize,
        /// What it does not.
        action: Action,
    },
    /// Before what it needs of the same rank.
    #[error("rank {rank} does {action} before {needs}")]
    Early {
        /// The rank.
        rank: usize,
        /// What comes too early.
        action: Action,
        /// What must come before it.
        needs: Action,
    },
    /// Sent in another order than received: a rank would take one message for another.
    #[error(
        "rank {from} sends for chunk {} micro-batch {} where rank {to} receives for {action}",
        sent.chunk, sent.micro
    )]
    Crossed {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// The first message that comes at another time than it is expected.
        sent: Message,
        /// What the receiver would use it for.
        action: Action,
    },
    /// Ranks that wait for each other for ever; the first of them.
    #[error(
        "rank {rank} waits for ever in {action}{}",
        others.iter().map(|(rank, action)| format!(", rank {rank} in {action}")).collect::<String>()
    )]
    Stuck {
        /// The rank.
        rank: usize,
        /// What it cannot begin, or whose message it cannot send.
        action: Action,
        /// The others that wait, and in what.
        others: Vec<(usize, Action)>,
    },
}

/// Whether every rank's part of a schedule is complete and in order, and all of them together come to
/// an end.
pub fn check(schedule: &Schedule) -> Result<(), Fault> {
    order(schedule).map(|_| ())
}

/// An order in which one hand could do all actions of all ranks, each with its rank.
pub(super) fn order(schedule: &Schedule) -> Result<Vec<(usize, Action)>, Fault> {
    let Schedule { stages, chunks, micros, .. } = *schedule;
    check_sizes(stages, chunks, micros)?;
    if schedule.ranks.len() != stages {
        return Err(Fault::Ranks { ranks: schedule.ranks.len(), stages });
    }
    for rank in 0..stages {
        check_once(schedule, rank)?;
        check_needs(schedule, rank)?;
    }
    for sender in 0..stages {
        check_link(schedule, Way::Forward, sender)?;
        check_link(schedule, Way::Backward, sender)?;
    }
    Run::new(schedule).finish()
}

/// Each action of a rank once.
fn check_once(schedule: &Schedule, rank: usize) -> Result<(), Fault> {
    let mut done = HashSet::new();
    for &action in &schedule.ranks[rank] {
        let exists = action.chunk < schedule.parts() && action.micro < schedule.micros;
        if !exists || schedule.stage(action.chunk) != rank {
            return Err(Fault::Foreign { rank, action });
        }
        for part in parts(action) {
            if !done.insert(part) {
                return Err(Fault::Twice { rank, action });
            }
        }
    }
    for chunk in (rank..schedule.parts()).step_by(schedule.stages) {
        for micro in 0..schedule.micros {
            for work in [Work::Forward, Work::Input, Work::Weight] {
                let action = Action { work, chunk, micro };
                if !done.contains(&action) {
                    return Err(Fault::Missing { rank, action });
                }
            }
        }
    }
    Ok(())
}

/// A backward pass is both of its parts.
fn parts(action: Action) -> impl Iterator<Item = Action> {
    let works: &[Work] = match action.work {
        Work::Forward => &[Work::Forward],
        Work::Backward => &[Work::Input, Work::Weight],
        Work::Input => &[Work::Input],
        Work::Weight => &[Work::Weight],
    };
    works.iter().map(move |&work| Action { work, ..action })
}

/// Each action of a rank behind what it needs of the same rank.
fn check_needs(schedule: &Schedule, rank: usize) -> Result<(), Fault> {
    let mut done = HashSet::new();
    for &action in &schedule.ranks[rank] {
        if let Some(needs) = needs(action).find(|needs| !done.contains(needs)) {
            return Err(Fault::Early { rank, action, needs });
        }
        done.extend(parts(action));
    }
    Ok(())
}

/// The activations or gradients of its own micro-batch; and gradients of weights are added up in the
/// order of micro-batches.
fn needs(action: Action) -> impl Iterator<Item = Action> {
    let own = match action.work {
        Work::Forward => None,
        Work::Backward | Work::Input => Some(Action { work: Work::Forward, ..action }),
        Work::Weight => Some(Action { work: Work::Input, ..action }),
    };
    let before = action.micro.checked_sub(1).filter(|_| action.work.ends());
    own.into_iter().chain(before.map(|micro| Action { work: Work::Weight, micro, ..action }))
}

/// What is sent first is received first.
fn check_link(schedule: &Schedule, way: Way, from: usize) -> Result<(), Fault> {
    let to = match way {
        Way::Forward => (from + 1) % schedule.stages,
        Way::Backward => (from + schedule.stages - 1) % schedule.stages,
    };
    let sent = schedule.sent(from).filter(|message| message.way == way);
    let receiver = schedule.ranks[to].iter().filter_map(|action| {
        let message = schedule.receives(*action).filter(|message| message.way == way)?;
        Some((*action, message))
    });
    // All that is sent is received, for every action is there: as many on both sides.
    match sent.zip(receiver).find(|(sent, (_, received))| sent != received) {
        None => Ok(()),
        Some((sent, (action, _))) => Err(Fault::Crossed { from, to, sent, action }),
    }
}

/// All ranks at work, as far as messages let them.
struct Run<'a> {
    schedule: &'a Schedule,
    /// The number of each message among all that its sender sends.
    numbers: HashMap<Message, usize>,
    ranks: Vec<Rank>,
    order: Vec<(usize, Action)>,
}

/// How far a rank is.
#[derive(Clone, Default)]
struct Rank {
    /// Actions that are done and whose message is on its way.
    over: usize,
    /// Whether the action after them is done, too, and only its message is not on its way.
    sending: bool,
    /// Messages that it has begun to send.
    sent: usize,
    /// How many of these were received.
    received: usize,
    /// Of the last ones forward and backward, the numbers.
    last: [Option<usize>; 2],
}

impl<'a> Run<'a> {
    fn new(schedule: &'a Schedule) -> Self {
        let ranks = vec![Rank::default(); schedule.stages];
        let all = (0..schedule.stages).flat_map(|rank| schedule.sent(rank).enumerate());
        let numbers = all.map(|(number, message)| (message, number)).collect();
        Self { schedule, numbers, ranks, order: Vec::new() }
    }

    /// Lets ranks go on until none can.
    fn finish(mut self) -> Result<Vec<(usize, Action)>, Fault> {
        loop {
            let mut moved = false;
            for rank in 0..self.ranks.len() {
                while self.advance(rank) {
                    moved = true;
                }
            }
            if !moved {
                break;
            }
        }
        let waits =
            |rank: usize| Some((rank, *self.schedule.ranks[rank].get(self.ranks[rank].over)?));
        let mut waiting = (0..self.ranks.len()).filter_map(waits);
        match waiting.next() {
            None => Ok(self.order),
            Some((rank, action)) => Err(Fault::Stuck { rank, action, others: waiting.collect() }),
        }
    }

    /// Does the next thing that a rank has to do, if it can.
    fn advance(&mut self, rank: usize) -> bool {
        let Some(&action) = self.schedule.ranks[rank].get(self.ranks[rank].over) else {
            return false;
        };
        match self.ranks[rank].sending {
            false => self.receive_and_do(rank, action),
            true => self.send(rank, action),
        }
    }

    fn receive_and_do(&mut self, rank: usize, action: Action) -> bool {
        if let Some(message) = self.schedule.receives(action) {
            let sender = &mut self.ranks[message.from];
            let number = self.numbers[&message];
            // All before it must have left, and it must be on its way.
            if sender.received != number || sender.sent <= number {
                return false;
            }
            sender.received += 1;
        }
        self.order.push((rank, action));
        self.ranks[rank].sending = true;
        true
    }

    fn send(&mut self, rank: usize, action: Action) -> bool {
        let this = &mut self.ranks[rank];
        if let Some(message) = self.schedule.sends(action) {
            let last = &mut this.last[usize::from(message.way == Way::Backward)];
            if last.is_some_and(|last| last >= this.received) {
                return false;
            }
            *last = Some(this.sent);
            this.sent += 1;
        }
        this.sending = false;
        this.over += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::Kind;
    use super::*;

    fn action(work: Work, chunk: usize, micro: usize) -> Action {
        Action { work, chunk, micro }
    }

    fn two_stages() -> Schedule {
        Schedule::new(Kind::OneFOneB, 2, 1, 2).unwrap()
    }

    #[test]
    fn faults_name_rank_and_action() {
        let mut twice = two_stages();
        twice.ranks[1].push(action(Work::Input, 1, 1));
        let text = check(&twice).unwrap_err().to_string();
        assert_eq!(
            text,
            "rank 1 does the gradient of the input of micro-batch 1 in chunk 1 a second time"
        );

        let mut foreign = two_stages();
        foreign.ranks[1][0].chunk = 0;
        let expected = Fault::Foreign { rank: 1, action: action(Work::Forward, 0, 0) };
        assert_eq!(check(&foreign), Err(expected));

        let mut missing = two_stages();
        missing.ranks[0].pop();
        let expected = Fault::Missing { rank: 0, action: action(Work::Input, 0, 1) };
        assert_eq!(check(&missing), Err(expected));

        let mut ranks = two_stages();
        ranks.ranks.pop();
        assert_eq!(check(&ranks), Err(Fault::Ranks { ranks: 1, stages: 2 }));

        let none = Schedule { micros: 0, ..two_stages() };
        assert!(matches!(check(&none), Err(Fault::Sizes(ScheduleError::None { .. }))));
    }

    #[test]
    fn gradients_before_their_activations_are_early() {
        let mut early = two_stages();
        early.ranks[1].swap(0, 1);
        let (first, needs) = (action(Work::Backward, 1, 0), action(Work::Forward, 1, 0));
        assert_eq!(check(&early), Err(Fault::Early { rank: 1, action: first, needs }));
    }

    #[test]
    fn gradients_of_weights_come_in_the_order_of_micros() {
        let mut swapped = Schedule::new(Kind::ZeroBubble, 2, 1, 2).unwrap();
        let list = &mut swapped.ranks[1];
        let at: Vec<usize> = (0..list.len()).filter(|i| list[*i].work == Work::Weight).collect();
        list.swap(at[0], at[1]);
        // Both inputs first, so that nothing else is wrong.
        list.sort_by_key(|action| action.work == Work::Weight);
        let (first, needs) = (action(Work::Weight, 1, 1), action(Work::Weight, 1, 0));
        assert_eq!(check(&swapped), Err(Fault::Early { rank: 1, action: first, needs }));
    }

    #[test]
    fn another_order_at_the_other_end_is_crossed() {
        let mut crossed = Schedule::new(Kind::GPipe, 2, 1, 2).unwrap();
        crossed.ranks[0].swap(0, 1);
        let sent = Message { way: Way::Forward, from: 0, to: 1, chunk: 1, micro: 1 };
        let action = action(Work::Forward, 1, 0);
        assert_eq!(check(&crossed), Err(Fault::Crossed { from: 0, to: 1, sent, action }));
    }

    #[test]
    fn a_circle_is_found() {
        // The first stage wants the first gradient before it sends what the second wants before it.
        let mut stuck = two_stages();
        stuck.ranks[0] =
            [(Work::Forward, 0), (Work::Backward, 0), (Work::Forward, 1), (Work::Backward, 1)]
                .map(|(work, micro)| action(work, 0, micro))
                .to_vec();
        stuck.ranks[1] =
            [(Work::Forward, 0), (Work::Forward, 1), (Work::Backward, 0), (Work::Backward, 1)]
                .map(|(work, micro)| action(work, 1, micro))
                .to_vec();
        let others = vec![(1, action(Work::Forward, 1, 1))];
        let fault = Fault::Stuck { rank: 0, action: action(Work::Backward, 0, 0), others };
        assert_eq!(check(&stuck), Err(fault.clone()));
        assert!(fault.to_string().starts_with("rank 0 waits for ever in the backward pass"));
    }

    #[test]
    fn what_needs_more_room_than_one_send_a_link_is_refused() {
        // All forward passes on the first stage, and turns on the second: its second gradient waits
        // for the first to be received, and for it the first stage's fourth message.
        let mut stuck = Schedule::new(Kind::OneFOneB, 2, 1, 4).unwrap();
        stuck.ranks[0] = Schedule::new(Kind::GPipe, 2, 1, 4).unwrap().ranks.swap_remove(0);
        let fault = check(&stuck).unwrap_err();
        let others = vec![(1, action(Work::Backward, 1, 1))];
        assert_eq!(fault, Fault::Stuck { rank: 0, action: action(Work::Forward, 0, 3), others });
    }
}
