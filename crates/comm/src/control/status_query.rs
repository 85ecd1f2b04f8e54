//! A status query to the ranks of a stalled call, and the diagnosis from their answers. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use super::messages::{Fault, MessageCounts};
use super::wait_graph::{explains_delay, root_causes};
use crate::Signature;

/// A call that timed out.
#[derive(Debug, Clone)]
pub struct StalledCall {
    /// The communicator.
    pub comm_id: u64,
    /// The sequence number of the collective; `None` for a message.
    pub call: Option<u64>,
    /// The ranks that the requester waits for.
    pub awaited: Vec<u32>,
    /// The members of the collective.
    pub members: Vec<u32>,
}

impl StalledCall {
    /// Whether both are the same collective. Messages are never shared between requesters.
    pub fn is_same(&self, other: &Self) -> bool {
        self.comm_id == other.comm_id && self.call == other.call && self.call.is_some()
    }
}

/// The status of a rank in a communicator.
#[derive(Debug, Clone, Default)]
pub struct RankStatus {
    /// The number of calls started.
    pub calls: u64,
    /// The recent calls with their sequence numbers.
    pub recent_calls: Vec<(u64, Signature)>,
    /// The message counts of the current call.
    pub message_counts: MessageCounts,
    /// The ranks it waits for in any communicator, and for how many milliseconds.
    pub waits: Vec<(u32, u64)>,
}

/// A status query in progress.
#[derive(Debug, Clone)]
pub struct StatusQuery {
    /// The ranks that asked for the diagnosis.
    pub requesters: Vec<u32>,
    pub stalled: StalledCall,
    /// The ranks that were queried.
    pub queried: BTreeSet<u32>,
    /// The answers so far.
    pub answers: BTreeMap<u32, RankStatus>,
    /// The deadline for answers.
    pub until: Instant,
    waited_s: u64,
    /// The stuck link found by the previous query.
    previous: Option<StuckLink>,
}

/// A link with messages in flight.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct StuckLink {
    from: u32,
    to: u32,
    /// Messages received over it so far.
    received: u64,
}

/// The result of a status query.
pub enum Diagnosis {
    /// The cause.
    Fault(Fault),
    /// A message may just have been in flight: query again.
    Retry(StatusQuery),
    /// All ranks responded and agree.
    Healthy,
}

impl StatusQuery {
    /// Queries all members of a collective, or the two ranks of a message.
    pub fn new(by: u32, stalled: StalledCall, waited_s: u64, now: Instant) -> Self {
        let mut queried: BTreeSet<u32> = stalled.members.iter().copied().collect();
        queried.extend(&stalled.awaited);
        queried.insert(by);
        let (requesters, answers, previous) = (vec![by], BTreeMap::new(), None);
        Self { requesters, stalled, queried, answers, until: now, waited_s, previous }
    }

    /// The ranks that the missing ranks wait for, directly or indirectly, and that were not queried.
    pub fn unqueried_waits(&self) -> Vec<u32> {
        let known = |rank: &u32| self.queried.contains(rank);
        let suspects = self.missing().into_iter().chain(self.stalled.awaited.iter().copied());
        let mut seen = BTreeSet::new();
        let mut open: Vec<u32> = suspects.collect();
        while let Some(rank) = open.pop() {
            if seen.insert(rank) {
                open.extend(self.waits(rank));
            }
        }
        seen.into_iter().filter(|rank| !known(rank)).collect()
    }

    /// The cause, by priority: ranks that made another call, ranks that have not entered the call or
    /// do not respond, a message that does not arrive, the awaited ranks.
    pub fn diagnose(&self) -> Diagnosis {
        if let Some(mismatch) = self.call_mismatch() {
            return Diagnosis::Fault(mismatch);
        }
        if let Some(timeout) = self.timeout(&self.missing()) {
            return Diagnosis::Fault(timeout);
        }
        match (self.stuck_link(), self.previous) {
            (Some(link), Some(previous)) if link == previous => {
                let why = format!("less than 64 KiB arrived in {} s", self.waited_s);
                return Diagnosis::Fault(Fault::LinkBroken { from: link.from, to: link.to, why });
            }
            (previous @ Some(_), None) => {
                let answers = BTreeMap::new();
                return Diagnosis::Retry(Self { previous, answers, ..self.clone() });
            }
            _ => {}
        }
        self.timeout(&self.stalled.awaited).map_or(Diagnosis::Healthy, Diagnosis::Fault)
    }

    /// The members that have not entered the call or do not respond.
    fn missing(&self) -> Vec<u32> {
        let StalledCall { call: Some(call), members, .. } = &self.stalled else {
            return Vec::new();
        };
        let entered = |rank: &u32| self.answers.get(rank).is_some_and(|a| a.calls >= *call);
        members.iter().copied().filter(|rank| !entered(rank)).collect()
    }

    /// A timeout that names the root causes in the wait graph of the missing ranks.
    fn timeout(&self, missing: &[u32]) -> Option<Fault> {
        let missing = root_causes(missing, |rank| self.waits(rank));
        let (sequence, seconds) = (self.stalled.call.unwrap_or_default(), self.waited_s);
        (!missing.is_empty()).then_some(Fault::Timeout { sequence, seconds, missing })
    }

    /// The ranks that a rank has waited for long enough to explain its delay.
    fn waits(&self, rank: u32) -> Vec<u32> {
        let delay = Duration::from_secs(self.waited_s);
        let long = |(_, ms): &&(u32, u64)| explains_delay(Duration::from_millis(*ms), delay);
        let waits = self.answers.get(&rank).into_iter().flat_map(|status| &status.waits);
        waits.filter(long).map(|(rank, _)| *rank).collect()
    }

    /// The link with the most messages sent and not received, if all ranks have entered the call.
    fn stuck_link(&self) -> Option<StuckLink> {
        let call = self.stalled.call?;
        let count = |counts: &[(u32, u64)], rank: u32| {
            counts.iter().find(|(of, _)| *of == rank).map_or(0, |(_, count)| *count)
        };
        let mut links: Vec<(u64, StuckLink)> = Vec::new();
        for (&to, status) in self.answers.iter().filter(|(_, status)| status.calls == call) {
            for &from in &status.message_counts.awaited {
                let Some(sender) = self.answers.get(&from) else { continue };
                let received = count(&status.message_counts.received, from);
                // A sender in a later call has sent everything.
                let sent = match sender.calls > call {
                    true => received + 1,
                    false => count(&sender.message_counts.sent, to),
                };
                if sent > received {
                    links.push((sent - received, StuckLink { from, to, received }));
                }
            }
        }
        let most_stuck = |(in_flight, link): &(u64, StuckLink)| (*in_flight, !link.from, !link.to);
        links.into_iter().max_by_key(most_stuck).map(|(_, link)| link)
    }

    /// The first call that ranks made differently.
    fn call_mismatch(&self) -> Option<Fault> {
        let mut calls: BTreeMap<u64, Vec<(u32, Signature)>> = BTreeMap::new();
        for (rank, status) in &self.answers {
            for (sequence, call) in &status.recent_calls {
                calls.entry(*sequence).or_default().push((*rank, *call));
            }
        }
        calls.into_iter().find_map(|(sequence, calls)| mismatch(sequence, &calls))
    }
}

/// Whether ranks made different calls with this sequence number.
fn mismatch(sequence: u64, calls: &[(u32, Signature)]) -> Option<Fault> {
    // Almost always they did not; counting is quadratic in the ranks.
    if calls.windows(2).all(|pair| pair[0].1 == pair[1].1) {
        return None;
    }
    let frequency = |one: &Signature| calls.iter().filter(|(_, call)| call == one).count();
    // In a tie, the call of the lowest rank is the majority.
    let majority = calls.iter().rev().max_by_key(|(_, call)| frequency(call)).copied()?;
    let minority = calls.iter().find(|(_, call)| *call != majority.1).copied()?;
    Some(Fault::CallMismatch { sequence, majority, minority })
}
