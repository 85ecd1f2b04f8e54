//! The state of rank 0: first the rendezvous, then the fault coordinator.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use regatta_wire::clock;
use regatta_wire::reactor::{ConnId, Refusal};

use super::table_server::TableServer;
use crate::control::coordinator::{FaultCoordinator, Recipient};
use crate::control::messages::{FromRoot, RankInfo, RendezvousError, encode};
use crate::control::rendezvous::Rendezvous;
use crate::control::world_table::{WorldTable, children};

/// Time after the deadline of the rendezvous in which all ranks must have the world table.
const TABLE_SLACK: Duration = Duration::from_secs(10);

/// A message of rank 0, encoded once for all its recipients.
pub struct Outgoing {
    /// The connections of the recipients.
    pub conns: Vec<ConnId>,
    pub frame: Arc<[u8]>,
    /// The message, if rank 0 handles it as well.
    pub own: Option<FromRoot>,
}

impl Outgoing {
    fn to_others(conns: Vec<ConnId>, message: &FromRoot) -> Self {
        Self { conns, frame: encode(message).into(), own: None }
    }
}

/// The world table on rank 0.
enum TableState {
    /// To be served to this many ranks, if they ask.
    New(Arc<[u8]>, u32),
    /// Served, or not known yet.
    Current,
    /// All ranks have it.
    Done,
}

/// The outcome of the rendezvous.
pub type RendezvousResult = Result<Vec<RankInfo>, RendezvousError>;

/// The control-plane state of rank 0.
pub struct RootState {
    pub coordinator: FaultCoordinator,
    rendezvous: Option<Rendezvous>,
    deadline: Instant,
    timeout: Duration,
    result: Sender<RendezvousResult>,
    /// The algorithm table for all ranks, as a JSON document.
    algorithms: String,
    /// The fan-out of the tree along which the ranks receive the world table. At 10,000 ranks the
    /// table has hundreds of kilobytes: rank 0 alone would encrypt and send gigabytes.
    fanout: u32,
    /// While ranks receive the table from other ranks.
    distribution: Option<Distribution>,
    /// The connection of each rank.
    pub(super) conns: BTreeMap<u32, ConnId>,
    out: Vec<Outgoing>,
    /// The encoded [`FromRoot::Ready`], while ranks receive it from other ranks.
    table: TableState,
    failed: Option<RendezvousError>,
}

/// The distribution of the world table. Rank 0 does not exit before all ranks have it, because it
/// serves those whose parent has exited or cannot be reached.
struct Distribution {
    members: Vec<RankInfo>,
    /// The ranks that have not reported the table.
    awaited: BTreeSet<u32>,
}

impl RootState {
    /// Starts the rendezvous. Its outcome is sent to `result`.
    pub fn new(
        world_size: u32,
        own: RankInfo,
        timeout: Duration,
        algorithms: String,
        fanout: u32,
        result: Sender<RendezvousResult>,
    ) -> Self {
        let mut rendezvous = Rendezvous::new(world_size);
        let registered = rendezvous.register(world_size, own);
        let mut root = Self {
            coordinator: FaultCoordinator::default(),
            rendezvous: Some(rendezvous),
            deadline: clock::now() + timeout,
            timeout,
            result,
            algorithms,
            fanout,
            distribution: None,
            conns: BTreeMap::new(),
            out: Vec::new(),
            table: TableState::Current,
            failed: None,
        };
        match registered {
            Ok(()) => root.complete(),
            Err(error) => root.fail(error),
        }
        root
    }

    pub fn has_failed(&self) -> bool {
        self.failed.is_some()
    }

    /// Registers a rank, or returns the message that rejects it.
    pub fn register(&mut self, conn: ConnId, size: u32, member: RankInfo) -> Result<(), FromRoot> {
        let rank = member.rank;
        if let Some(error) = &self.failed {
            return Err(FromRoot::Rejected(error.clone()));
        }
        let Some(rendezvous) = &mut self.rendezvous else {
            // This rank has left the job and joins the next one, which rank 0 has not begun.
            if self.coordinator.has_shut_down(rank) || !self.conns.contains_key(&rank) {
                return Err(FromRoot::TryLater);
            }
            let what =
                format!("all ranks are connected already; another rank {rank} tried to join");
            let hint = "give every job its own MASTER_PORT".to_owned();
            return Err(FromRoot::Rejected(RendezvousError { what, hint }));
        };
        match rendezvous.register(size, member) {
            Ok(()) => {
                self.conns.insert(rank, conn);
                self.complete();
                Ok(())
            }
            Err(error) => {
                let rejected = FromRoot::Rejected(error.clone());
                self.fail(error);
                Err(rejected)
            }
        }
    }

    /// Once all ranks are registered, tells each from which rank it gets the world table.
    fn complete(&mut self) {
        let Some(members) = self.rendezvous.as_mut().and_then(Rendezvous::complete) else { return };
        self.rendezvous = None;
        let algorithms = std::mem::take(&mut self.algorithms);
        let (table, fanout) = (WorldTable::new(&members), self.fanout);
        let ready: Arc<[u8]> = encode(&FromRoot::Ready { table, algorithms, fanout }).into();
        let world_size = members.len() as u32;
        for (parent, children) in tree(world_size, self.fanout) {
            let frame = match parent {
                0 => ready.clone(),
                _ => encode(&FromRoot::ReadyAt(members[parent as usize].clone())).into(),
            };
            let conns = children.filter_map(|rank| self.conns.get(&rank).copied()).collect();
            self.out.push(Outgoing { conns, frame, own: None });
        }
        self.table = TableState::New(ready, world_size);
        // Rank 0 has sent the table to its children on their connections.
        let awaited = (self.fanout.saturating_add(1)..world_size).collect();
        self.distribution = Some(Distribution { members, awaited });
        self.finish_distribution();
    }

    /// A rank has the world table, or has exited regularly.
    pub fn has_table(&mut self, rank: u32) {
        if let Some(distribution) = &mut self.distribution {
            distribution.awaited.remove(&rank);
        }
        self.finish_distribution();
    }

    fn finish_distribution(&mut self) {
        let is_done = |distribution: &mut Distribution| distribution.awaited.is_empty();
        if let Some(Distribution { members, .. }) = self.distribution.take_if(is_done) {
            let _ = self.result.send(Ok(members));
            self.table = TableState::Done;
        }
    }

    /// Passes a new table on, and frees one that all ranks have.
    pub fn update_table(&mut self, tables: &mut TableServer) {
        match std::mem::replace(&mut self.table, TableState::Current) {
            TableState::New(table, requests) => tables.set(table, requests),
            TableState::Current => {}
            TableState::Done => tables.clear(),
        }
    }

    /// Ends the bootstrap of rank 0 with an error while other ranks receive the world table.
    fn fail_distribution(&mut self, error: impl FnOnce(&Distribution) -> RendezvousError) {
        if let Some(distribution) = self.distribution.take() {
            let _ = self.result.send(Err(error(&distribution)));
        }
    }

    /// Fails the rendezvous and tells all connected ranks.
    fn fail(&mut self, error: RendezvousError) {
        let conns = self.conns.values().copied().collect();
        self.out.push(Outgoing::to_others(conns, &FromRoot::Rejected(error.clone())));
        self.rendezvous = None;
        self.failed = Some(error.clone());
        let _ = self.result.send(Err(error));
    }

    /// A rank's connection ended.
    pub fn connection_closed(&mut self, rank: u32, why: &str) {
        self.conns.remove(&rank);
        if self.rendezvous.is_some() {
            self.fail(disconnected(rank, why));
        } else {
            match self.coordinator.has_shut_down(rank) {
                true => self.has_table(rank),
                false => self.fail_distribution(|_| disconnected(rank, why)),
            }
            self.coordinator.connection_closed(rank, why);
        }
    }

    pub fn tick(&mut self, now: Instant, refusals: &[Refusal]) {
        if let Some(rendezvous) = self.rendezvous.as_ref().filter(|_| now >= self.deadline) {
            let error = rendezvous.timeout_error(self.timeout.as_secs(), refusals);
            self.fail(error);
        }
        if now >= self.deadline + TABLE_SLACK {
            self.fail_distribution(|distribution| {
                let missing = distribution.awaited.len();
                let first = distribution.awaited.first().copied().unwrap_or_default();
                let what = format!(
                    "{missing} ranks did not receive the addresses of all ranks: rank {first}"
                );
                RendezvousError { what, hint: format!("see the output of rank {first}") }
            });
        }
        self.coordinator.tick(now);
    }

    /// Takes the messages to be sent.
    pub fn take_outgoing(&mut self) -> Vec<Outgoing> {
        for (to, message) in self.coordinator.take_outgoing() {
            let (conns, own) = match to {
                Recipient::Rank(0) => (Vec::new(), true),
                Recipient::Rank(rank) => {
                    (self.conns.get(&rank).copied().into_iter().collect(), false)
                }
                Recipient::All => (self.conns.values().copied().collect(), true),
            };
            let others = Outgoing::to_others(conns, &message);
            self.out.push(Outgoing { own: own.then_some(message), ..others });
        }
        std::mem::take(&mut self.out)
    }
}

/// The error of a rank that exits in the bootstrap, and the hint.
fn disconnected(rank: u32, why: &str) -> RendezvousError {
    let what = format!("rank {rank} disconnected during the bootstrap: {why}");
    RendezvousError { what, hint: format!("see the output of rank {rank}") }
}

/// The inner ranks of the tree with their children. Those of rank 0 come first.
fn tree(world_size: u32, fanout: u32) -> impl Iterator<Item = (u32, std::ops::Range<u32>)> {
    let inner = (0..world_size).map(move |parent| (parent, children(parent, world_size, fanout)));
    inner.take_while(|(_, children)| !children.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_rank_but_the_root_has_one_parent_with_a_lower_rank() {
        for (world_size, fanout) in
            [(1, 16), (2, 16), (17, 16), (18, 16), (274, 16), (9, 1), (10_000, 256)]
        {
            let mut next = 1;
            for (parent, children) in tree(world_size, fanout) {
                assert_eq!(children.start, next);
                assert!(parent < children.start && children.len() <= fanout as usize);
                next = children.end;
            }
            assert_eq!(next, world_size, "{world_size} ranks");
        }
    }
}
