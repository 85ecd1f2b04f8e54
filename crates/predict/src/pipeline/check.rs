//! Verifies a schedule: every pass is there once and after its dependencies, messages match on both ends,
//! and no set of ranks deadlocks.
//!
//! Deadlock freedom is shown for minimal buffering: a rank's sends complete in order, each when the
//! previous one was received, and a link holds one send at a time. A schedule that completes under these
//! conditions completes with more buffering, too.

use std::collections::{HashMap, HashSet};

use super::Computation::{Backward, BackwardInput, BackwardWeight, Forward};
use super::{Action, Direction, Message, Schedule, ScheduleError, check_sizes};

/// A defect of a schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum ScheduleFault {
    /// Invalid sizes.
    #[error(transparent)]
    Sizes(#[from] ScheduleError),
    /// The number of action lists is not the number of stages.
    #[error("a schedule of {stages} stages has action lists for {ranks} ranks")]
    Ranks { ranks: usize, stages: usize },
    /// An action on a chunk of another rank, or on a micro-batch out of range.
    #[error("rank {rank} schedules {action}, which is out of range or belongs to another rank")]
    Foreign { rank: usize, action: Action },
    /// An action repeated, alone or as part of a full backward.
    #[error("rank {rank} schedules {action} twice")]
    Duplicate { rank: usize, action: Action },
    /// An action that is missing.
    #[error("rank {rank} does not schedule {action}")]
    Missing { rank: usize, action: Action },
    /// An action before one of the same rank that it depends on.
    #[error("rank {rank} schedules {action} before {dependency}")]
    OutOfOrder { rank: usize, action: Action, dependency: Action },
    /// Messages sent in another order than received.
    #[error(
        "rank {from} sends chunk {} micro-batch {} where rank {to} expects the input of {action}",
        sent.chunk, sent.micro_batch
    )]
    MessageOrder { from: usize, to: usize, sent: Message, action: Action },
    /// Ranks that deadlock.
    #[error(
        "deadlock: rank {rank} is blocked in {action}{}",
        others.iter().map(|(rank, action)| format!(", rank {rank} in {action}")).collect::<String>()
    )]
    Deadlock { rank: usize, action: Action, others: Vec<(usize, Action)> },
}

/// Verifies a schedule.
pub fn check(schedule: &Schedule) -> Result<(), ScheduleFault> {
    order(schedule).map(|_| ())
}

/// Verifies a schedule and returns a sequential order of all actions with their ranks.
pub(super) fn order(schedule: &Schedule) -> Result<Vec<(usize, Action)>, ScheduleFault> {
    let Schedule { stages, chunks, micro_batches, .. } = *schedule;
    check_sizes(stages, chunks, micro_batches)?;
    if schedule.ranks.len() != stages {
        return Err(ScheduleFault::Ranks { ranks: schedule.ranks.len(), stages });
    }
    for rank in 0..stages {
        check_once(schedule, rank)?;
        check_dependencies(schedule, rank)?;
    }
    for sender in 0..stages {
        check_link(schedule, Direction::Forward, sender)?;
        check_link(schedule, Direction::Backward, sender)?;
    }
    Execution::new(schedule).finish()
}

/// Every action of a rank occurs once.
fn check_once(schedule: &Schedule, rank: usize) -> Result<(), ScheduleFault> {
    let mut done = HashSet::new();
    for &action in &schedule.ranks[rank] {
        let Action { chunk, micro_batch, .. } = action;
        let exists = chunk < schedule.num_chunks() && micro_batch < schedule.micro_batches;
        if !exists || schedule.stage(chunk) != rank {
            return Err(ScheduleFault::Foreign { rank, action });
        }
        if !components(action).all(|component| done.insert(component)) {
            return Err(ScheduleFault::Duplicate { rank, action });
        }
    }
    for chunk in (rank..schedule.num_chunks()).step_by(schedule.stages) {
        for micro_batch in 0..schedule.micro_batches {
            for computation in [Forward, BackwardInput, BackwardWeight] {
                let action = Action { computation, chunk, micro_batch };
                if !done.contains(&action) {
                    return Err(ScheduleFault::Missing { rank, action });
                }
            }
        }
    }
    Ok(())
}

/// A full backward counts as input and weight gradients.
fn components(action: Action) -> impl Iterator<Item = Action> {
    let (first, second) = match action.computation {
        Backward => (BackwardInput, Some(BackwardWeight)),
        other => (other, None),
    };
    let action = move |computation| Action { computation, ..action };
    std::iter::once(first).chain(second).map(action)
}

/// Every action of a rank comes after its dependencies on the same rank.
fn check_dependencies(schedule: &Schedule, rank: usize) -> Result<(), ScheduleFault> {
    let mut done = HashSet::new();
    for &action in &schedule.ranks[rank] {
        if let Some(dependency) = dependencies(action).find(|action| !done.contains(action)) {
            return Err(ScheduleFault::OutOfOrder { rank, action, dependency });
        }
        done.extend(components(action));
    }
    Ok(())
}

/// The activations or gradients of the same micro-batch; weight gradients are accumulated in micro-batch
/// order.
fn dependencies(action: Action) -> impl Iterator<Item = Action> {
    let own = match action.computation {
        Forward => None,
        Backward | BackwardInput => Some(Forward),
        BackwardWeight => Some(BackwardInput),
    };
    let own = own.map(|computation| Action { computation, ..action });
    let before = Action { computation: BackwardWeight, ..action };
    let accumulates = action.micro_batch > 0 && action.computation.computes_weight_grads();
    let before = accumulates.then(|| Action { micro_batch: action.micro_batch - 1, ..before });
    own.into_iter().chain(before)
}

/// Messages of a link are received in the order in which they are sent.
fn check_link(schedule: &Schedule, direction: Direction, from: usize) -> Result<(), ScheduleFault> {
    let to = match direction {
        Direction::Forward => (from + 1) % schedule.stages,
        Direction::Backward => (from + schedule.stages - 1) % schedule.stages,
    };
    let sent = schedule.sent(from).filter(|message| message.direction == direction);
    let receiver = schedule.ranks[to].iter().filter_map(|action| {
        let message = schedule.receives(*action)?;
        (message.direction == direction).then_some((*action, message))
    });
    // Both sides have the same number of messages because every action is there.
    match sent.zip(receiver).find(|(sent, (_, received))| sent != received) {
        None => Ok(()),
        Some((sent, (action, _))) => Err(ScheduleFault::MessageOrder { from, to, sent, action }),
    }
}

/// Executes all ranks as far as their messages allow.
struct Execution<'a> {
    schedule: &'a Schedule,
    /// The sequence number of each message at its sender.
    sequence: HashMap<Message, usize>,
    ranks: Vec<RankProgress>,
    order: Vec<(usize, Action)>,
}

/// The progress of a rank.
#[derive(Clone, Default)]
struct RankProgress {
    /// Actions done, their message sent.
    done: usize,
    /// Whether the next action is done but its message is not sent.
    sending: bool,
    /// Messages sent.
    sent: usize,
    /// Messages received by their peers.
    received: usize,
    /// Sequence number of the last message per direction.
    last: [Option<usize>; 2],
}

impl<'a> Execution<'a> {
    fn new(schedule: &'a Schedule) -> Self {
        let ranks = vec![RankProgress::default(); schedule.stages];
        let all = (0..schedule.stages).flat_map(|rank| schedule.sent(rank).enumerate());
        let sequence = all.map(|(number, message)| (message, number)).collect();
        Self { schedule, sequence, ranks, order: Vec::new() }
    }

    /// Advances ranks until none can make progress.
    fn finish(mut self) -> Result<Vec<(usize, Action)>, ScheduleFault> {
        loop {
            let mut progressed = false;
            for rank in 0..self.ranks.len() {
                while self.advance(rank) {
                    progressed = true;
                }
            }
            if !progressed {
                break;
            }
        }
        let blocked_in =
            |rank: usize| Some((rank, *self.schedule.ranks[rank].get(self.ranks[rank].done)?));
        let mut blocked = (0..self.ranks.len()).filter_map(blocked_in);
        match blocked.next() {
            None => Ok(self.order),
            Some((rank, action)) => {
                Err(ScheduleFault::Deadlock { rank, action, others: blocked.collect() })
            }
        }
    }

    /// Executes the next receive-and-compute or send of a rank, if it is not blocked.
    fn advance(&mut self, rank: usize) -> bool {
        let Some(&action) = self.schedule.ranks[rank].get(self.ranks[rank].done) else {
            return false;
        };
        match self.ranks[rank].sending {
            false => self.receive_and_compute(rank, action),
            true => self.send(rank, action),
        }
    }

    fn receive_and_compute(&mut self, rank: usize, action: Action) -> bool {
        if let Some(message) = self.schedule.receives(action) {
            let sender = &mut self.ranks[message.from];
            let number = self.sequence[&message];
            // It must be sent, and all earlier messages of the sender received.
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
            let last = &mut this.last[usize::from(message.direction == Direction::Backward)];
            if last.is_some_and(|last| last >= this.received) {
                return false;
            }
            *last = Some(this.sent);
            this.sent += 1;
        }
        this.sending = false;
        this.done += 1;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::super::Computation;
    use super::super::ScheduleKind::{self, GPipe, OneFOneB, ZeroBubble};
    use super::*;

    fn action(computation: Computation, chunk: usize, micro_batch: usize) -> Action {
        Action { computation, chunk, micro_batch }
    }

    /// The fault of a schedule of two stages and two micro-batches after a change of its actions.
    fn fault(kind: ScheduleKind, change: impl FnOnce(&mut Vec<Vec<Action>>)) -> ScheduleFault {
        let mut schedule = Schedule::new(kind, 2, 1, 2).unwrap();
        change(&mut schedule.ranks);
        check(&schedule).unwrap_err()
    }

    #[test]
    fn faults_name_rank_and_action() {
        let twice = fault(OneFOneB, |ranks| ranks[1].push(action(BackwardInput, 1, 1)));
        let expected = "rank 1 schedules backward-input of micro-batch 1 in chunk 1 twice";
        assert_eq!(twice.to_string(), expected);
        let expected = ScheduleFault::Foreign { rank: 1, action: action(Forward, 0, 0) };
        assert_eq!(fault(OneFOneB, |ranks| ranks[1][0].chunk = 0), expected);
        let expected = ScheduleFault::Missing { rank: 0, action: action(BackwardInput, 0, 1) };
        assert_eq!(fault(OneFOneB, |ranks| ranks[0].truncate(3)), expected);
        let expected = ScheduleFault::Ranks { ranks: 1, stages: 2 };
        assert_eq!(fault(OneFOneB, |ranks| ranks.truncate(1)), expected);
        let zero = Schedule { micro_batches: 0, ..Schedule::new(OneFOneB, 2, 1, 2).unwrap() };
        assert!(matches!(check(&zero), Err(ScheduleFault::Sizes(ScheduleError::Zero { .. }))));
    }

    #[test]
    fn backward_before_forward_is_out_of_order() {
        let (first, dependency) = (action(Backward, 1, 0), action(Forward, 1, 0));
        let expected = ScheduleFault::OutOfOrder { rank: 1, action: first, dependency };
        assert_eq!(fault(OneFOneB, |ranks| ranks[1].swap(0, 1)), expected);
    }

    #[test]
    fn weight_gradients_must_be_in_micro_batch_order() {
        let swapped = fault(ZeroBubble, |ranks| {
            // Both input gradients first, so that this is the only fault.
            ranks[1].sort_by_key(|action| action.computation == BackwardWeight);
            ranks[1].swap(4, 5);
        });
        let (first, dependency) = (action(BackwardWeight, 1, 1), action(BackwardWeight, 1, 0));
        assert_eq!(swapped, ScheduleFault::OutOfOrder { rank: 1, action: first, dependency });
    }

    #[test]
    fn mismatched_message_order_is_refused() {
        let direction = Direction::Forward;
        let sent = Message { direction, from: 0, to: 1, chunk: 1, micro_batch: 1 };
        let action = action(Forward, 1, 0);
        let expected = ScheduleFault::MessageOrder { from: 0, to: 1, sent, action };
        assert_eq!(fault(GPipe, |ranks| ranks[0].swap(0, 1)), expected);
    }

    #[test]
    fn circular_waits_are_reported_as_deadlock() {
        // Stage 0 waits for a gradient before it sends what stage 1 needs to compute it.
        let stuck = fault(OneFOneB, |ranks| {
            let passes = [(Forward, 0), (Backward, 0), (Forward, 1), (Backward, 1)];
            ranks[0] = passes.map(|(pass, micro_batch)| action(pass, 0, micro_batch)).to_vec();
            let passes = [(Forward, 0), (Forward, 1), (Backward, 0), (Backward, 1)];
            ranks[1] = passes.map(|(pass, micro_batch)| action(pass, 1, micro_batch)).to_vec();
        });
        assert!(stuck.to_string().starts_with("deadlock: rank 0 is blocked in backward of"));
        let (first, others) = (action(Backward, 0, 0), vec![(1, action(Forward, 1, 1))]);
        assert_eq!(stuck, ScheduleFault::Deadlock { rank: 0, action: first, others });
    }

    #[test]
    fn schedules_that_need_more_than_one_buffered_send_per_link_are_refused() {
        // GPipe on stage 0 and 1F1B on stage 1: the second gradient of stage 1 waits for its first to be
        // received, which waits for the fourth message of stage 0.
        let mut stuck = Schedule::new(OneFOneB, 2, 1, 4).unwrap();
        stuck.ranks[0] = Schedule::new(GPipe, 2, 1, 4).unwrap().ranks.swap_remove(0);
        let (first, others) = (action(Forward, 0, 3), vec![(1, action(Backward, 1, 1))]);
        let expected = ScheduleFault::Deadlock { rank: 0, action: first, others };
        assert_eq!(check(&stuck), Err(expected));
    }
}
