//! Judges the messages of a communicator.

use std::collections::BTreeSet;

use regatta_events::operation::OperationKind;
use regatta_events::status::CurrentOperation;

use super::groups::{Group, Groups, Member};
use super::text::{Names, describe_message, seconds};
use super::{Finding, JobStatus, Role, age};

/// Each rank's oldest message in flight, if it has been for long. A message whose peer has it in flight,
/// too, is reported once, by its sender.
pub(super) fn judge<'a>(
    job: &'a JobStatus<'a>,
    groups: &'a Groups<'a>,
    group: &'a Group<'a>,
) -> impl Iterator<Item = Finding> {
    group.members.iter().filter_map(move |member| {
        let message = member.status.message.as_ref()?;
        let oldest = age(member.process, message);
        (oldest >= job.min_age).then(|| finding(job, groups, group, member, message, oldest))?
    })
}

fn finding(
    job: &JobStatus<'_>,
    groups: &Groups<'_>,
    group: &Group<'_>,
    member: &Member<'_>,
    message: &CurrentOperation,
    age: u64,
) -> Option<Finding> {
    let names = Names { job, groups };
    let own = BTreeSet::from([member.rank]);
    let what = describe_message(message, &member.status.communicator);
    let waits = format!("{} waits in {what} since {}", names.with_hosts(&own), seconds(age));
    let peer = message.peer.and_then(|peer| group.job_rank(peer));
    let Some(peer) = peer else {
        let message = format!("{waits}; the peer has no status");
        let ranks = BTreeSet::new();
        return Some(waiting_for(ranks, own, age, message));
    };
    let other = group.members.iter().find(|other| other.rank == peer)?;
    let theirs = other.status.message.as_ref();
    if theirs.is_some_and(|theirs| is_counterpart(message, member, theirs)) {
        let text =
            format!("{waits}; its peer, rank {peer}, has posted it, too: the transfer is stuck");
        let is_sender = message.kind == OperationKind::Send;
        let both = BTreeSet::from([member.rank, peer]);
        return is_sender.then(|| waiting_for(BTreeSet::new(), both, age, text));
    }
    let ranks = BTreeSet::from([peer]);
    let verb = if message.kind == OperationKind::Send { "received" } else { "sent" };
    let host = names.with_hosts(&ranks);
    let state = match theirs {
        Some(theirs) => {
            let theirs = describe_message(theirs, &other.status.communicator);
            format!("itself waits in {theirs}")
        }
        None if groups.has_ended(job, peer) => format!("has ended and not {verb} it"),
        None => format!("has not {verb} it"),
    };
    let message = format!("{waits}; {host} {state}");
    Some(waiting_for(ranks, own, age, message))
}

fn waiting_for(ranks: BTreeSet<u32>, waiting: BTreeSet<u32>, age: u64, message: String) -> Finding {
    Finding { role: Role::Cause, blocked_by: ranks.clone(), ranks, waiting, age, message }
}

/// Whether the peer's oldest message is the other end of this one.
fn is_counterpart(
    message: &CurrentOperation,
    member: &Member<'_>,
    theirs: &CurrentOperation,
) -> bool {
    let own = member.status.communicator.rank;
    theirs.peer == Some(own) && theirs.kind != message.kind && theirs.index == message.index
}
