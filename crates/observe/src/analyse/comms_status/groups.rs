//! The communicators of a job, each with the status of its ranks.

use std::collections::{BTreeMap, BTreeSet};

use regatta_events::status::{CommunicatorStatus, Status};

use super::{JobStatus, age};

/// All communicators.
#[derive(Debug)]
pub(super) struct Groups<'a> {
    pub job: &'a JobStatus<'a>,
    pub all: Vec<Vec<Member<'a>>>,
    /// Ranks with a status.
    pub known: BTreeMap<u32, &'a str>,
    /// Ranks with an operation in flight that is not ordinary.
    pub waiting: BTreeSet<u32>,
    /// Ranks whose processes have ended their recording.
    pub ended: BTreeSet<u32>,
    /// Whether ranks are those of the launcher: programs such as torchrun start ranks of their own.
    pub are_launched: bool,
}

/// A rank of a communicator.
#[derive(Debug, Clone, Copy)]
pub(super) struct Member<'a> {
    /// Rank of the job.
    pub rank: u32,
    pub process: &'a Status,
    pub status: &'a CommunicatorStatus,
}

/// What identifies a communicator: its ID, or its name and size if that is unknown.
pub(super) type Key<'a> = (u64, &'a str, u32);

pub(super) fn key(status: &CommunicatorStatus) -> Key<'_> {
    let communicator = &status.communicator;
    match communicator.id {
        0 => (0, &communicator.name, communicator.ranks),
        id => (id, "", 0),
    }
}

/// The job rank of a process. A program that does not know it is named by its rank in a communicator of
/// all ranks.
fn rank_of(job: &JobStatus<'_>, process: &Status, status: &CommunicatorStatus) -> Option<u32> {
    let of_all = status.communicator.ranks as usize == job.hosts.len();
    process.process.rank.or_else(|| of_all.then_some(status.communicator.rank))
}

pub(super) fn group<'a>(job: &'a JobStatus<'a>) -> Groups<'a> {
    let mut all: BTreeMap<Key<'a>, Vec<Member<'a>>> = BTreeMap::new();
    let mut known = BTreeMap::new();
    let (mut running, mut waiting) = (BTreeSet::new(), BTreeSet::new());
    for process in job.statuses {
        let rank = process.process.rank;
        known.extend(rank.map(|rank| (rank, process.process.host.as_str())));
        running.extend(rank.filter(|_| !process.ended));
        for status in &process.communicators {
            let Some(rank) = rank_of(job, process, status) else { continue };
            known.entry(rank).or_insert(&process.process.host);
            let mut in_flight = [status.current, status.message].into_iter().flatten();
            waiting.extend(in_flight.any(|it| age(process, &it) >= job.min_age).then_some(rank));
            all.entry(key(status)).or_default().push(Member { rank, process, status });
        }
    }
    let are_launched = known.keys().all(|rank| (*rank as usize) < job.hosts.len());
    let ended = known.keys().copied().filter(|rank| !running.contains(rank)).collect();
    let all = all.into_values().collect();
    Groups { job, all, known, waiting, ended, are_launched }
}

impl Groups<'_> {
    /// Whether a rank's process has ended.
    pub fn has_ended(&self, rank: u32) -> bool {
        self.job.exited.contains(&rank) && self.are_launched || self.ended.contains(&rank)
    }

    /// The host of a rank.
    pub fn host(&self, rank: u32) -> Option<&str> {
        let launched = || self.job.hosts.get(rank as usize).map(String::as_str);
        self.known.get(&rank).copied().or_else(launched)
    }

    /// Members of a communicator that no status lists, as job ranks if they can be told: those that
    /// have no status, or all that are not members.
    pub fn absent(&self, group: &[Member<'_>]) -> Absent {
        let size = group.iter().map(|member| member.status.communicator.ranks).max();
        let count = (size.unwrap_or(0) as usize).saturating_sub(group.len());
        let members: BTreeSet<u32> = group.iter().map(|member| member.rank).collect();
        if count == 0 || !self.are_launched {
            return Absent { count, ranks: BTreeSet::new() };
        }
        let others = (0..self.job.hosts.len() as u32).filter(|rank| !members.contains(rank));
        let others: BTreeSet<u32> = others.collect();
        let is_silent = |rank: &&u32| !self.known.contains_key(*rank);
        let silent: BTreeSet<u32> = others.iter().filter(is_silent).copied().collect();
        let ranks = [others, silent].into_iter().find(|ranks| ranks.len() == count);
        Absent { count, ranks: ranks.unwrap_or_default() }
    }
}

/// Ranks of a communicator without a status.
#[derive(Debug, Default)]
pub(super) struct Absent {
    pub count: usize,
    /// Their job ranks; empty if they cannot be told.
    pub ranks: BTreeSet<u32>,
}
