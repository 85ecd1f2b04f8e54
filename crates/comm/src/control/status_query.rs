//! A status query to the ranks of a stalled call, and the diagnosis from their answers. No I/O.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use regatta_events::hang::{Cause, Stage, explains_delay, judge, reachable, root_causes, wording};

use super::messages::{Fault, RankStatus, StalledCall};
use crate::Signature;

impl StalledCall {
    /// Whether both are the same collective. Messages are never shared between requesters.
    pub fn is_same(&self, other: &Self) -> bool {
        self.comm_id == other.comm_id && self.call == other.call && self.call.is_some()
    }
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
        let suspects = match self.cause() {
            Cause::Behind(ranks, _) => ranks,
            _ => self.stalled.awaited.clone(),
        };
        let found = reachable(suspects, |rank| self.waits(rank));
        found.into_keys().filter(|rank| !self.queried.contains(rank)).collect()
    }

    /// The cause, by priority: ranks that made another call, ranks that have not entered the call or
    /// do not respond, a message that does not arrive, the awaited ranks.
    pub fn diagnose(&self) -> Diagnosis {
        match (self.cause(), self.stuck_link(), self.previous) {
            (Cause::Mismatch { sequence, majority, minority }, ..) => {
                Diagnosis::Fault(Fault::CallMismatch { sequence, majority, minority })
            }
            (Cause::Behind(ranks, _), ..) => self.timeout(ranks),
            (_, Some(link), Some(previous)) if link == previous => {
                let why = wording::slow_link(self.waited_s);
                Diagnosis::Fault(Fault::LinkBroken { from: link.from, to: link.to, why })
            }
            (_, previous @ Some(_), None) => {
                let answers = BTreeMap::new();
                Diagnosis::Retry(Self { previous, answers, ..self.clone() })
            }
            _ if self.stalled.awaited.is_empty() => Diagnosis::Healthy,
            _ => self.timeout(self.stalled.awaited.clone()),
        }
    }

    /// What the calls of the ranks tell. A member that does not respond has not entered the call.
    fn cause(&self) -> Cause<Signature> {
        let mut calls: BTreeMap<u64, Vec<(u32, Signature)>> = BTreeMap::new();
        for (rank, status) in &self.answers {
            for (sequence, call) in &status.recent_calls {
                calls.entry(*sequence).or_default().push((*rank, *call));
            }
        }
        let StalledCall { call, members, .. } = &self.stalled;
        let stage = |rank: &u32| match self.answers.get(rank) {
            Some(status) if Some(status.calls) >= *call => (*rank, Stage::Enqueued),
            _ => (*rank, Stage::NotEntered),
        };
        let stages = members.iter().map(stage).collect();
        judge(&calls, &stages, PartialEq::eq)
    }

    /// A timeout that names the root causes in the wait graph of these ranks.
    fn timeout(&self, ranks: BTreeSet<u32>) -> Diagnosis {
        let missing = root_causes(ranks, |rank| self.waits(rank));
        let (sequence, seconds) = (self.stalled.call.unwrap_or_default(), self.waited_s);
        Diagnosis::Fault(Fault::Timeout { sequence, seconds, missing })
    }

    /// The ranks that a rank has waited for long enough to explain its delay.
    fn waits(&self, rank: u32) -> BTreeSet<u32> {
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
}
