//! Jobs in which a rank stops.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use proptest::prelude::*;
use regatta_events::operation::{Communicator, DataType, OperationKind};
use regatta_events::status::{CommunicatorStatus, CurrentOperation, Status, StatusProcess};

use super::*;

const SECOND: u64 = 1_000_000_000;
/// When the statuses were written, on the clock of the hosts and since 1970.
const WRITTEN: [u64; 2] = [500 * SECOND, 10_000 * SECOND];

fn operation(kind: OperationKind, index: u64, started: bool) -> CurrentOperation {
    let (dtype, enqueued) = (DataType::Bf16, WRITTEN[0] - 65 * SECOND);
    let (count, bytes, peer) = (2 << 20, 4 << 20, None);
    CurrentOperation { index, kind, dtype, peer, count, bytes, enqueued, started }
}

fn all_reduce(index: u64) -> Option<CurrentOperation> {
    Some(operation(OperationKind::AllReduce, index, true))
}

fn message(kind: OperationKind, peer: u32, index: u64) -> Option<CurrentOperation> {
    Some(CurrentOperation { peer: Some(peer), ..operation(kind, index, true) })
}

/// A rank of a communicator that has enqueued, started and completed as many collectives.
fn member(
    (id, name, ranks): (u64, &str, u32),
    rank: u32,
    counts: [u64; 3],
    current: Option<CurrentOperation>,
) -> CommunicatorStatus {
    let [enqueued, started, completed] = counts;
    let communicator =
        Communicator { index: id as u32, id, name: name.to_owned(), ranks, nodes: 1, rank };
    let (messages, messages_completed, message) = (0, 0, None);
    CommunicatorStatus {
        communicator,
        enqueued,
        started,
        completed,
        messages,
        messages_completed,
        current,
        message,
    }
}

fn status(rank: u32, communicators: Vec<CommunicatorStatus>) -> Status {
    let host = format!("n{}", rank / 2);
    let process = StatusProcess { rank: Some(rank), restart: 0, pid: 100 + rank, host };
    let [host_time, realtime] = WRITTEN;
    Status { process, host_time, realtime, ended: false, lost: 0, communicators }
}

/// The findings of operations that have been in flight for 65 s.
fn judged(ranks: u32, statuses: &[Status]) -> Vec<Finding> {
    let hosts: Vec<String> = (0..ranks).map(|rank| format!("n{}", rank / 2)).collect();
    let exited = BTreeSet::new();
    judge(&JobStatus { hosts: &hosts, statuses, exited: &exited, min_age: 10 * SECOND })
}

const WORLD: (u64, &str, u32) = (7, "world", 4);

/// Four ranks, of which rank 3 has a status of its own.
fn world(other: Vec<CommunicatorStatus>) -> Vec<Status> {
    let arrived = |rank| status(rank, vec![member(WORLD, rank, [58, 58, 57], all_reduce(57))]);
    let mut all: Vec<Status> = (0..3).map(arrived).collect();
    all.push(status(3, other));
    all
}

#[track_caller]
fn assert_messages(findings: &[Finding], expected: &[&str]) {
    let messages: Vec<&str> = findings.iter().map(|finding| finding.message.as_str()).collect();
    assert_eq!(messages, expected);
}

#[test]
fn rank_that_did_not_arrive_is_named_with_the_collective() {
    let statuses = world(vec![member(WORLD, 3, [57, 57, 57], None)]);
    let findings = judged(4, &statuses);
    assert_messages(
        &findings,
        &[
            "rank 3 on n1 did not arrive at all-reduce 57 (4 MiB of bf16, communicator world, 4 ranks), \
           which ranks 0-2 entered 65 s ago",
        ],
    );
    assert_eq!(findings[0].ranks, BTreeSet::from([3]));
    assert_eq!(findings[0].age, 65 * SECOND);
}

#[test]
fn rank_without_a_status_or_communicator_did_not_arrive() {
    let mut statuses = world(Vec::new());
    assert!(
        judged(4, &statuses)[0]
            .message
            .starts_with("rank 3 on n1 (no such communicator) did not arrive at all-reduce 57")
    );
    statuses.pop();
    let findings = judged(4, &statuses);
    assert!(findings[0].message.starts_with("rank 3 on n1 (no status: no communicator, or "));
    assert_eq!(findings[0].ranks, BTreeSet::from([3]));
    // With two unknown ranks, nothing tells which one it is.
    assert!(judged(6, &statuses)[0].ranks.is_empty());
}

#[test]
fn rank_that_has_ended_is_said_to_have() {
    let mut statuses = world(vec![member(WORLD, 3, [57, 57, 57], None)]);
    statuses[3].ended = true;
    assert!(judged(4, &statuses)[0].message.ends_with("entered 65 s ago; rank 3 had ended"));
}

#[test]
fn rank_that_is_behind_on_its_gpu_is_named() {
    let enqueued = Some(CurrentOperation { started: false, ..all_reduce(57).unwrap() });
    let statuses = world(vec![member(WORLD, 3, [58, 57, 57], enqueued)]);
    let message = &judged(4, &statuses)[0].message;
    assert!(message.starts_with("rank 3 on n1 has enqueued all-reduce 57"), "{message}");
    assert!(message.ends_with("but not started on its GPU, as ranks 0-2 did"), "{message}");
    // The status of a stopped process is older than what it did.
    let statuses = world(vec![member(WORLD, 3, [57, 57, 56], all_reduce(56))]);
    let findings = judged(4, &statuses);
    assert!(findings[0].message.ends_with("but not completed, as ranks 0-2 did"));
    assert_eq!(findings[0].ranks, BTreeSet::from([3]));
}

#[test]
fn collective_that_all_ranks_entered_names_no_rank() {
    let statuses = world(vec![member(WORLD, 3, [58, 58, 57], all_reduce(57))]);
    let findings = judged(4, &statuses);
    assert!(findings[0].message.contains("all ranks entered all-reduce 57"), "{findings:?}");
    assert!(findings[0].ranks.is_empty());
}

#[test]
fn ranks_that_call_different_collectives_are_named() {
    let other = operation(OperationKind::AllGather, 57, true);
    let statuses = world(vec![member(WORLD, 3, [58, 58, 57], Some(other))]);
    let findings = judged(4, &statuses);
    assert_messages(
        &findings,
        &[
            "collective mismatch in call 57, in flight for 65 s: ranks 0-2 called all-reduce 57 (4 MiB of \
           bf16, communicator world, 4 ranks), rank 3 on n1 called all-gather 57 (4 MiB of bf16, \
           communicator world, 4 ranks); all ranks must issue the same calls in the same order",
        ],
    );
    assert_eq!(findings[0].ranks, BTreeSet::from([3]));
}

#[test]
fn operations_in_flight_for_a_short_time_are_ordinary() {
    let mut statuses = world(vec![member(WORLD, 3, [57, 57, 57], None)]);
    statuses.iter_mut().for_each(|status| status.host_time -= 60 * SECOND);
    assert!(judged(4, &statuses).is_empty());
}

#[test]
fn lost_events_are_mentioned() {
    let mut statuses = world(vec![member(WORLD, 3, [57, 57, 57], None)]);
    statuses[3].lost = 5;
    assert!(judged(4, &statuses)[0].message.contains("events of rank 3 were lost"));
}

#[test]
fn cause_comes_before_its_consequences() {
    // Rank 2 waits for rank 3, and ranks 0 and 1 for rank 2.
    let (first, second) = ((1, "a", 3), (2, "b", 2));
    let mut statuses: Vec<Status> = (0..2)
        .map(|rank| status(rank, vec![member(first, rank, [9, 9, 8], all_reduce(8))]))
        .collect();
    let idle = member(first, 2, [8, 8, 8], None);
    statuses.push(status(2, vec![member(second, 0, [3, 3, 2], all_reduce(2)), idle]));
    statuses.push(status(3, vec![member(second, 1, [2, 2, 2], None)]));
    let findings = judged(4, &statuses);
    let named: Vec<_> = findings.iter().map(|f| (f.role, f.ranks.clone())).collect();
    let expected = [(Role::Cause, BTreeSet::from([3])), (Role::Consequence, BTreeSet::from([2]))];
    assert_eq!(named, expected);
}

#[test]
fn ranks_that_wait_for_each_other_form_a_cycle() {
    let (first, second) = ((1, "a", 2), (2, "b", 2));
    let idle = |communicator, rank| member(communicator, rank, [8, 8, 8], None);
    let busy = |communicator, rank| member(communicator, rank, [9, 9, 8], all_reduce(8));
    let statuses = [
        status(0, vec![busy(first, 0), idle(second, 0)]),
        status(1, vec![idle(first, 1), busy(second, 1)]),
    ];
    let findings = judged(2, &statuses);
    assert_eq!(findings.len(), 2);
    for finding in findings {
        assert_eq!(finding.role, Role::Cycle);
        assert!(finding.message.contains("in different orders"), "{finding:?}");
    }
}

#[test]
fn rank_that_has_not_received_a_message_is_named() {
    let pipeline = (5, "pp", 3);
    let waits = |rank, message| {
        let member = CommunicatorStatus { message, ..member(pipeline, rank, [0; 3], None) };
        status(rank, vec![member])
    };
    let statuses = [
        waits(0, None),
        waits(1, message(OperationKind::Receive, 0, 4)),
        waits(2, message(OperationKind::Receive, 1, 4)),
    ];
    let findings = judged(3, &statuses);
    assert_eq!(findings[0].ranks, BTreeSet::from([0]), "the cause");
    assert_messages(
        &findings[..1],
        &[
            "rank 1 on n0 waits in receive 4 (4 MiB of bf16, communicator pp) since 65 s; rank 0 on n0 \
           has not sent it",
        ],
    );
    assert_eq!(findings[1].role, Role::Consequence);
    let both = [
        waits(0, message(OperationKind::Send, 1, 4)),
        waits(1, message(OperationKind::Receive, 0, 4)),
    ];
    let findings = judged(2, &both);
    assert_eq!(findings.len(), 1);
    assert!(findings[0].message.contains("the transfer is stuck"), "{findings:?}");
}

#[test]
fn ranks_that_the_program_started_have_the_hosts_of_their_statuses() {
    // One launched process per node starts two ranks.
    let statuses = world(vec![member(WORLD, 3, [57, 57, 57], None)]);
    let findings = judged(2, &statuses);
    assert!(findings[0].message.starts_with("rank 3 on n1 did not arrive"), "{findings:?}");
}

#[test]
fn stall_is_the_time_without_progress_while_an_operation_is_in_flight() {
    let (mut tracker, start) = (StallTracker::default(), Instant::now());
    // The ranks write their status all the time, unless it is frozen.
    let mut update = |statuses: &[Status], seconds: u64, written: u64| {
        let mut statuses = statuses.to_vec();
        statuses.iter_mut().for_each(|status| status.host_time += written * SECOND);
        tracker.update(&statuses, start + Duration::from_secs(seconds)).as_secs()
    };
    let waiting = world(vec![member(WORLD, 3, [57, 57, 57], None)]);
    let mut progress = waiting.clone();
    progress[3].communicators[0].enqueued = 58;
    let mut sent = progress.clone();
    sent[3].communicators[0].messages_completed = 1;
    let mut idle = waiting.clone();
    for status in &mut idle {
        (status.communicators[0].current, status.communicators[0].completed) = (None, 58);
    }
    assert_eq!(update(&waiting, 0, 0), 0);
    assert_eq!(update(&waiting, 9, 9), 9);
    assert_eq!(update(&progress, 10, 10), 0);
    assert_eq!(update(&progress, 14, 14), 4);
    assert_eq!(update(&sent, 15, 15), 0, "messages are progress, too");
    assert_eq!(update(&idle, 20, 20), 0, "nothing is in flight");
    assert_eq!(update(&idle, 90, 90), 0);
    assert_eq!(update(&waiting, 100, 100), 0);
    assert_eq!(update(&waiting, 103, 103), 3);
    assert_eq!(update(&waiting, 200, 103), 3, "ranks that cannot write are not hung");
    let mut queued = waiting.clone();
    for status in &mut queued {
        status.communicators[0].current.iter_mut().for_each(|current| current.started = false);
    }
    assert_eq!(update(&queued, 300, 300), 0);
    assert_eq!(update(&queued, 400, 400), 0, "GPUs have other work, or nothing reports it");
    tracker.reset();
    assert_eq!(tracker.update(&waiting, start + Duration::from_secs(510)), Duration::ZERO);
}

/// A job in which all ranks run the same program on their own communicators, up to a rank that stops.
#[derive(Debug)]
struct Simulation {
    /// Members of each communicator.
    groups: Vec<Vec<u32>>,
    /// The communicators of each rank's collectives, in order.
    programs: Vec<Vec<usize>>,
    /// Collectives that each rank has enqueued, and completed in order.
    enqueued: Vec<usize>,
    completed: Vec<usize>,
}

impl Simulation {
    /// `axes` of the program: 0 is the world, 1 the rows, 2 the columns of a mesh.
    fn new(mesh: [u32; 2], axes: &[usize]) -> Self {
        let [rows, columns] = mesh;
        let mut groups = vec![(0..rows * columns).collect::<Vec<u32>>()];
        groups.extend((0..rows).map(|row| (0..columns).map(|c| row * columns + c).collect()));
        groups.extend((0..columns).map(|c| (0..rows).map(|row| row * columns + c).collect()));
        let of_rank = |rank: u32| {
            let [row, column] = [rank / columns, rank % columns];
            let group = |axis: &usize| [0, 1 + row, 1 + rows + column][*axis] as usize;
            axes.iter().map(group).collect()
        };
        let programs: Vec<Vec<usize>> = (0..rows * columns).map(of_rank).collect();
        let zeros = vec![0; programs.len()];
        Self { groups, programs, enqueued: zeros.clone(), completed: zeros }
    }

    /// Runs until nothing changes. Ranks enqueue up to `ahead` collectives before the first is completed;
    /// those of a rank run one after another.
    fn run(&mut self, stopped: u32, at: usize, ahead: usize) {
        loop {
            let before = (self.enqueued.clone(), self.completed.clone());
            for rank in 0..self.programs.len() {
                let end = if rank == stopped as usize { at } else { self.programs[rank].len() };
                let next = (self.enqueued[rank] + 1).min(self.completed[rank] + 1 + ahead).min(end);
                self.enqueued[rank] = self.enqueued[rank].max(next);
            }
            for group in 0..self.groups.len() {
                let members = self.groups[group].clone();
                let runs = |rank: &u32| self.running(*rank) == Some(group);
                if members.iter().all(runs) {
                    members.iter().for_each(|rank| self.completed[*rank as usize] += 1);
                }
            }
            if before == (self.enqueued.clone(), self.completed.clone()) {
                return;
            }
        }
    }

    /// The communicator of the collective that a rank runs.
    fn running(&self, rank: u32) -> Option<usize> {
        let rank = rank as usize;
        let (completed, enqueued) = (self.completed[rank], self.enqueued[rank]);
        (completed < enqueued).then(|| self.programs[rank][completed])
    }

    fn statuses(&self) -> Vec<Status> {
        let of_rank = |rank: u32| {
            let groups = (0..self.groups.len()).filter(|g| self.groups[*g].contains(&rank));
            status(rank, groups.map(|group| self.member(rank, group)).collect())
        };
        (0..self.programs.len() as u32).map(of_rank).collect()
    }

    fn member(&self, rank: u32, group: usize) -> CommunicatorStatus {
        let program = &self.programs[rank as usize];
        let count = |end: usize| program[..end].iter().filter(|g| **g == group).count() as u64;
        let [enqueued, completed] =
            [self.enqueued[rank as usize], self.completed[rank as usize]].map(count);
        let is_running = self.running(rank) == Some(group);
        let started = completed + u64::from(is_running);
        let current = (enqueued > completed)
            .then(|| operation(OperationKind::AllReduce, completed, is_running));
        let members = &self.groups[group];
        let own = members.iter().position(|member| *member == rank).unwrap() as u32;
        let identity = (1 + group as u64, "group", members.len() as u32);
        member(identity, own, [enqueued, started, completed], current)
    }
}

proptest! {
    #[test]
    fn stopped_rank_is_named_and_no_other(
        mesh in [1u32..5, 1u32..5],
        axes in prop::collection::vec(0usize..3, 1..24),
        stopped in any::<prop::sample::Index>(),
        at in any::<prop::sample::Index>(),
        ahead in 0usize..4,
    ) {
        let mut job = Simulation::new(mesh, &axes);
        let ranks = mesh[0] * mesh[1];
        let stopped = stopped.index(ranks as usize) as u32;
        job.run(stopped, at.index(axes.len()), ahead);
        let findings = judged(ranks, &job.statuses());
        let causes: Vec<&Finding> = findings.iter().filter(|f| f.role == Role::Cause).collect();
        let waits = (0..ranks).any(|rank| job.running(rank).is_some());
        prop_assert_eq!(waits, !causes.is_empty(), "{:?}", findings);
        for cause in causes {
            prop_assert_eq!(&cause.ranks, &BTreeSet::from([stopped]), "{:?}", cause);
        }
        prop_assert!(findings.iter().all(|finding| finding.role != Role::Cycle), "{:?}", findings);
    }

    #[test]
    fn any_statuses_are_judged(
        counts in prop::collection::vec(any::<[u8; 6]>(), 0..12),
    ) {
        let one = |(i, bytes): (usize, &[u8; 6])| {
            let [rank, id, enqueued, completed, index, peer] = *bytes;
            let counts = [enqueued, completed, completed].map(u64::from);
            let current = (i % 2 == 0).then(|| all_reduce(index.into()).unwrap());
            let mut member = member((u64::from(id % 3), "x", 3), u32::from(peer % 4), counts, current);
            member.message = message(OperationKind::Send, u32::from(peer % 5), index.into());
            status(u32::from(rank % 5), vec![member])
        };
        let statuses: Vec<Status> = counts.iter().enumerate().map(one).collect();
        judged(4, &statuses);
    }
}
