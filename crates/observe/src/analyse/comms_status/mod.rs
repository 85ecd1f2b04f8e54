//! Which rank keeps a collective or message from completing, from the live status of all ranks.
//!
//! Ranks issue the collectives of a communicator in the same order, so their counts tell who is behind: a
//! rank that has enqueued fewer than the others has not arrived at the collective in which they wait.

mod collective;
mod groups;
mod message;
mod stall;
#[cfg(test)]
mod tests;
mod text;

use std::cmp::Reverse;
use std::collections::BTreeSet;

pub use regatta_events::hang::Role;
use regatta_events::hang::{Wait, roles, wording};
use regatta_events::status::{CurrentOperation, Status};

use groups::{Groups, group};
pub use stall::StallTracker;

/// A job at one instant.
#[derive(Debug, Clone, Copy)]
pub struct JobStatus<'a> {
    /// The host of each rank that was launched.
    pub hosts: &'a [String],
    /// The newest status of each process.
    pub statuses: &'a [Status],
    /// Ranks that have exited.
    pub exited: &'a BTreeSet<u32>,
    /// Operations in flight for a shorter time, in nanoseconds, are ordinary.
    pub min_age: u64,
}

/// An operation that does not complete.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Its relation to the other findings.
    pub role: Role,
    /// The ranks that the others wait for. Empty if the status does not tell.
    pub ranks: BTreeSet<u32>,
    /// For how long, in nanoseconds.
    pub age: u64,
    /// One sentence.
    pub message: String,
}

/// The operations that do not complete, the causes first, then the oldest.
pub fn judge(job: &JobStatus<'_>) -> Vec<Finding> {
    let groups: Groups<'_> = group(job);
    let collectives = groups.all.iter().filter_map(|group| collective::judge(&groups, group));
    let messages = groups.all.iter().flat_map(|group| message::judge(&groups, group));
    let (mut findings, waits): (Vec<Finding>, Vec<Wait>) = collectives.chain(messages).unzip();
    for (finding, role) in findings.iter_mut().zip(roles(&waits)) {
        finding.role = role;
        if role == Role::Cycle && !finding.ranks.is_empty() {
            finding.message += wording::CYCLE;
        }
    }
    findings.sort_by_key(|finding| (finding.role, Reverse(finding.age)));
    findings
}

/// For how long an operation of a status had been in flight when the status was written. That is by the
/// clock of one host, and not long ago: while operations are in flight, a status is written every few
/// seconds.
fn age(status: &Status, operation: &CurrentOperation) -> u64 {
    status.host_time.saturating_sub(operation.enqueued)
}
