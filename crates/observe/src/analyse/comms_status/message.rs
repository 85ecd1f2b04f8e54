//! Judges the messages of a communicator.

use std::collections::BTreeSet;

use regatta_events::hang::wording::{self, PeerState};
use regatta_events::hang::{Role, Wait};
use regatta_events::operation::OperationKind;
use regatta_events::status::CurrentOperation;

use super::groups::{Groups, Member};
use super::text::{describe, seconds};
use super::{Finding, age};

/// Each rank's oldest message in flight, if it has been for long. A message whose peer has it in flight,
/// too, is reported once, by its sender.
pub(super) fn judge<'a>(
    groups: &'a Groups<'a>,
    group: &'a [Member<'a>],
) -> impl Iterator<Item = (Finding, Wait)> {
    group.iter().filter_map(move |member| {
        let message = member.status.message.as_ref()?;
        let is_old = age(member.process, message) >= groups.job.min_age;
        is_old.then(|| finding(groups, group, member, message))?
    })
}

fn finding(
    groups: &Groups<'_>,
    group: &[Member<'_>],
    member: &Member<'_>,
    message: &CurrentOperation,
) -> Option<(Finding, Wait)> {
    let is_send = message.kind == OperationKind::Send;
    let peer = group.iter().find(|it| message.peer == Some(it.status.communicator.rank));
    let own = member.status.communicator.rank;
    // Whether the peer's oldest message is the other end of this one.
    let is_counterpart = |theirs: &CurrentOperation| {
        theirs.peer == Some(own) && theirs.kind != message.kind && theirs.index == message.index
    };
    let state = match peer.map(|peer| (peer, peer.status.message.as_ref())) {
        None => PeerState::NoStatus,
        Some((_, Some(theirs))) if is_counterpart(theirs) => PeerState::Posted,
        Some((peer, Some(theirs))) => {
            PeerState::WaitsIn(describe(theirs, &peer.status.communicator))
        }
        Some((peer, _)) if groups.has_ended(peer.rank) => PeerState::Ended,
        Some(_) => PeerState::NotPosted,
    };
    if state == PeerState::Posted && !is_send {
        return None;
    }
    let own = BTreeSet::from([member.rank]);
    let peer = BTreeSet::from_iter(peer.map(|peer| peer.rank));
    let (ranks, waiting) = match state {
        PeerState::Posted => (BTreeSet::new(), &own | &peer),
        _ => (peer.clone(), own.clone()),
    };
    let (age, what) =
        (age(member.process, message), describe(message, &member.status.communicator));
    let [own, peer] = [own, peer].map(|ranks| groups.with_hosts(&ranks));
    let message = wording::message(&own, (&what, is_send), seconds(age), (&peer, &state));
    let wait = Wait { waiting, blocked_by: ranks.clone() };
    Some((Finding { role: Role::Cause, ranks, age, message }, wait))
}
