//! Rank 0 decides on the cause of a fault, so all ranks report the same one. No I/O; time is an
//! argument.

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::time::{Duration, Instant};

use super::messages::{CommClosed, ConnFailure, Fault, FromRoot, StalledCall, ToRoot};
use super::status_query::{Diagnosis, StatusQuery};

/// The time a rank's control-plane thread has to answer.
pub const ANSWER_TIMEOUT: Duration = Duration::from_secs(2);

/// A peer whose connection breaks is probably dead, but it may have exited because a third rank
/// died. This is the time in which the root cause becomes known.
const REPORT_DELAY: Duration = Duration::from_millis(200);

/// A message that is still in flight after this time is stuck.
const RETRY_DELAY: Duration = Duration::from_secs(1);

/// Number of finished communicators for which late reports are ignored.
const MAX_FINISHED: usize = 1024;

/// The recipient of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Recipient {
    Rank(u32),
    /// All ranks, including rank 0.
    All,
}

/// The state of all ranks, as known to rank 0.
#[derive(Debug, Default)]
pub struct FaultCoordinator {
    /// The ranks that closed each communicator.
    closed: HashMap<u64, BTreeMap<u32, CommClosed>>,
    /// Ranks that exited regularly, with the last fault announced before that.
    shut_down: HashMap<u32, Option<Fault>>,
    lost: HashSet<u32>,
    last_fault: Option<Fault>,
    /// Aborted communicators.
    aborted: HashSet<u64>,
    /// The communicators that all their members have closed, the last of many.
    finished: VecDeque<u64>,
    /// Connection failures to be examined after [`REPORT_DELAY`].
    conn_reports: Vec<(Instant, ConnReport)>,
    /// Status queries to apparently dead ranks. If the rank answers, only the link is broken.
    probes: BTreeMap<u64, (Instant, ConnReport)>,
    queries: BTreeMap<u64, StatusQuery>,
    /// Queries to be repeated.
    retries: Vec<(Instant, StatusQuery)>,
    next: u64,
    out: Vec<(Recipient, FromRoot)>,
}

/// A failed connection, and the rank that reported it.
type ConnReport = (u32, ConnFailure);

/// Takes the entries whose time has come.
fn take_due<T>(queue: &mut Vec<(Instant, T)>, now: Instant) -> Vec<T> {
    queue.extract_if(.., |(at, _)| *at <= now).map(|(_, due)| due).collect()
}

impl FaultCoordinator {
    /// Takes the messages to be sent.
    pub fn take_outgoing(&mut self) -> Vec<(Recipient, FromRoot)> {
        std::mem::take(&mut self.out)
    }

    /// Whether a rank exited regularly.
    pub fn has_shut_down(&self, rank: u32) -> bool {
        self.shut_down.contains_key(&rank)
    }

    /// Handles a message from a rank.
    pub fn handle(&mut self, from: u32, message: ToRoot, now: Instant) {
        match message {
            ToRoot::ConnFailed(failure) => {
                self.conn_reports.push((now + REPORT_DELAY, (from, failure)));
            }
            ToRoot::Query { stalled, timeout_s } => self.query(from, stalled, timeout_s, now),
            ToRoot::Status { query, status } => {
                if let Some((_, report)) = self.probes.remove(&query) {
                    self.link_broken(report);
                } else if let Some(open) = self.queries.get_mut(&query) {
                    open.answers.insert(from, status);
                    self.extend_query(query, now);
                }
            }
            ToRoot::Abort { comm_id, fault } => self.abort_comm(comm_id, fault),
            // Handled by the state of the bootstrap.
            ToRoot::HasTable => {}
            ToRoot::Closed(closed) => self.comm_closed(from, closed),
            ToRoot::Shutdown => {
                self.shut_down.insert(from, self.last_fault.clone());
                // After the exit of rank 0 no rank can query any more.
                if from == 0 {
                    let own = self.closed.values().filter_map(|closed| closed.get(&0));
                    let announce = |closed: &CommClosed| {
                        (Recipient::All, FromRoot::Closed { rank: 0, closed: closed.clone() })
                    };
                    self.out.extend(own.map(announce));
                    self.out.push((Recipient::All, FromRoot::Shutdown));
                }
            }
        }
    }

    /// A rank closed a communicator. When all members have, no rank asks about it any more.
    fn comm_closed(&mut self, rank: u32, closed: CommClosed) {
        let (comm_id, size) = (closed.comm_id, closed.size as usize);
        let closed_by = self.closed.entry(comm_id).or_default();
        closed_by.insert(rank, closed);
        if closed_by.len() >= size {
            self.closed.remove(&comm_id);
            self.aborted.remove(&comm_id);
            self.finished.truncate(MAX_FINISHED - 1);
            self.finished.push_front(comm_id);
        }
    }

    /// A rank's control connection ended.
    pub fn connection_closed(&mut self, rank: u32, why: &str) {
        if !self.shut_down.contains_key(&rank) && self.lost.insert(rank) {
            self.broadcast_fault(None, Fault::Lost { rank, why: why.to_owned() });
            // The loss explains what its communicators report, and nothing else.
            self.conn_reports.retain(|(_, (_, failure))| !failure.members.contains(&rank));
            self.probes.retain(|_, (_, (_, failure))| !failure.members.contains(&rank));
        }
    }

    /// Advances the time.
    pub fn tick(&mut self, now: Instant) {
        let due = take_due(&mut self.conn_reports, now);
        due.into_iter().for_each(|report| self.probe(report, now));
        let silent = self.probes.iter().filter(|(_, (until, _))| *until <= now).map(|(id, _)| *id);
        for id in silent.collect::<Vec<_>>() {
            if let Some((_, (_, failure))) = self.probes.remove(&id) {
                self.connection_closed(failure.rank, &failure.why);
            }
        }
        let expired = self.queries.iter().filter(|(_, q)| q.until <= now).map(|(id, _)| *id);
        for id in expired.collect::<Vec<_>>() {
            self.conclude_query(id, now);
        }
        let due = take_due(&mut self.retries, now);
        due.into_iter().for_each(|query| self.start_query(query, now));
    }

    /// Finds out whether the peer of a broken connection exited, died or is alive.
    fn probe(&mut self, report: ConnReport, now: Instant) {
        let (by, ConnFailure { comm_id, rank, .. }) = report;
        if let Some(fault) = self.exited_before_joining(comm_id, rank) {
            return self.abort_comm(comm_id, fault);
        }
        if self.shut_down.contains_key(&rank) {
            let closed = self.closed.values().filter_map(|closed| closed.get(&rank)).cloned();
            let announce = |closed| (Recipient::Rank(by), FromRoot::Closed { rank, closed });
            self.out.extend(closed.map(announce));
            return;
        }
        self.next += 1;
        self.query_status(self.next, 0, [rank]);
        self.probes.insert(self.next, (now + ANSWER_TIMEOUT, report));
    }

    /// Both ranks are alive, but the link between them is broken.
    fn link_broken(&mut self, (by, failure): ConnReport) {
        let ConnFailure { rank, sending, why, .. } = failure;
        let (from, to) = if sending { (by, rank) } else { (rank, by) };
        self.broadcast_fault(None, Fault::LinkBroken { from, to, why });
    }

    /// The cause, if a rank exited without ever entering a communicator.
    fn exited_before_joining(&self, comm_id: u64, rank: u32) -> Option<Fault> {
        let before = self.shut_down.get(&rank)?;
        if self.closed.get(&comm_id).is_some_and(|closed| closed.contains_key(&rank)) {
            return None;
        }
        let exited = |why: &str| Fault::Aborted { rank, why: why.to_owned() };
        Some(match before {
            None => exited("it exited"),
            // The sequence number is that of another communicator.
            Some(fault @ Fault::CallMismatch { .. }) => exited(&fault.to_string()),
            Some(fault) => fault.clone(),
        })
    }

    fn broadcast_fault(&mut self, comm_id: Option<u64>, fault: Fault) {
        self.last_fault = Some(fault.clone());
        self.out.push((Recipient::All, FromRoot::Abort { comm_id, fault }));
    }

    /// Aborts a communicator once. Later reports, also after all members have closed it, have no
    /// effect.
    fn abort_comm(&mut self, comm_id: u64, fault: Fault) {
        if !self.finished.contains(&comm_id) && self.aborted.insert(comm_id) {
            self.broadcast_fault(Some(comm_id), fault);
        }
    }

    fn query(&mut self, by: u32, stalled: StalledCall, timeout_s: Option<u64>, now: Instant) {
        // A rank that closed the communicator before this call never enters it.
        let departed = |(rank, closed): &(&u32, &CommClosed)| match stalled.call {
            Some(call) => closed.calls < call,
            None => stalled.awaited.contains(rank),
        };
        let closed = self.closed.get(&stalled.comm_id).into_iter().flatten().find(departed);
        if let Some((rank, closed)) = closed {
            let message = FromRoot::Closed { rank: *rank, closed: closed.clone() };
            self.out.push((Recipient::Rank(by), message));
            return;
        }
        let comm_id = stalled.comm_id;
        let exited = |rank: &u32| self.exited_before_joining(comm_id, *rank);
        if let Some(fault) = stalled.awaited.iter().find_map(exited) {
            return self.abort_comm(comm_id, fault);
        }
        let Some(waited_s) = timeout_s else { return };
        let retries = self.retries.iter_mut().map(|(_, query)| query);
        let mut open = self.queries.values_mut().chain(retries);
        match open.find(|open| open.stalled.is_same(&stalled)) {
            Some(open) => {
                open.requesters.push(by);
                open.stalled.awaited.extend(&stalled.awaited);
            }
            None => self.start_query(StatusQuery::new(by, stalled, waited_s, now), now),
        }
    }

    fn start_query(&mut self, mut open: StatusQuery, now: Instant) {
        self.next += 1;
        self.query_status(self.next, open.stalled.comm_id, open.queried.iter().copied());
        open.until = now + ANSWER_TIMEOUT;
        self.queries.insert(self.next, open);
    }

    /// Once all answers are in, queries the ranks that the queried ones wait for.
    fn extend_query(&mut self, id: u64, now: Instant) {
        let Some(open) = self.queries.get_mut(&id) else { return };
        if open.answers.len() < open.queried.len() {
            return;
        }
        let more = open.unqueried_waits();
        if more.is_empty() {
            return self.conclude_query(id, now);
        }
        let comm_id = open.stalled.comm_id;
        open.queried.extend(&more);
        self.query_status(id, comm_id, more);
    }

    fn query_status(&mut self, query: u64, comm_id: u64, ranks: impl IntoIterator<Item = u32>) {
        let message = FromRoot::QueryStatus { query, comm_id };
        self.out.extend(ranks.into_iter().map(|rank| (Recipient::Rank(rank), message.clone())));
    }

    fn conclude_query(&mut self, id: u64, now: Instant) {
        let Some(query) = self.queries.remove(&id) else { return };
        let comm_id = query.stalled.comm_id;
        match query.diagnose() {
            Diagnosis::Fault(fault) => self.abort_comm(comm_id, fault),
            Diagnosis::Retry(query) => self.retries.push((now + RETRY_DELAY, query)),
            Diagnosis::Healthy => {
                let clear = FromRoot::Clear { comm_id };
                let send = |by: &u32| (Recipient::Rank(*by), clear.clone());
                self.out.extend(query.requesters.iter().map(send));
            }
        }
    }
}
