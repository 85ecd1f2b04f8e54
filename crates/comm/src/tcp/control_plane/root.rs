//! The state of rank 0: first the rendezvous, then the fault coordinator.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use regatta_wire::clock;

use crate::tcp::control_messages::{FromRoot, RankInfo};
use crate::tcp::fault_coordinator::{FaultCoordinator, Recipient};
use crate::tcp::rendezvous::{Rendezvous, RendezvousError};

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
    /// The connection of each rank.
    pub(super) conns: BTreeMap<u32, usize>,
    out: Vec<(Option<usize>, FromRoot)>,
    failed: Option<RendezvousError>,
}

impl RootState {
    /// Starts the rendezvous. Its outcome is sent to `result`.
    pub fn new(
        world_size: u32,
        own: RankInfo,
        timeout: Duration,
        algorithms: String,
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
            conns: BTreeMap::new(),
            out: Vec::new(),
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
    pub fn register(&mut self, conn: usize, size: u32, member: RankInfo) -> Result<(), FromRoot> {
        let rank = member.rank;
        if let Some(error) = &self.failed {
            return Err(rejected(error));
        }
        let Some(rendezvous) = &mut self.rendezvous else {
            // This rank has left the job and joins the next one, which rank 0 has not begun.
            if self.coordinator.has_shut_down(rank) || !self.conns.contains_key(&rank) {
                return Err(FromRoot::TryLater);
            }
            let what =
                format!("all ranks are connected already; another rank {rank} tried to join");
            let hint = "give every job its own MASTER_PORT".to_owned();
            return Err(FromRoot::Rejected { what, hint });
        };
        match rendezvous.register(size, member) {
            Ok(()) => {
                self.conns.insert(rank, conn);
                self.complete();
                Ok(())
            }
            Err(error) => {
                let rejected = rejected(&error);
                self.fail(error);
                Err(rejected)
            }
        }
    }

    fn complete(&mut self) {
        let Some(members) = self.rendezvous.as_ref().and_then(Rendezvous::complete) else { return };
        self.rendezvous = None;
        let algorithms = self.algorithms.clone();
        let ready = FromRoot::Ready { members: members.clone(), algorithms };
        self.out.extend(self.conns.values().map(|conn| (Some(*conn), ready.clone())));
        let _ = self.result.send(Ok(members));
    }

    /// Fails the rendezvous and tells all connected ranks.
    fn fail(&mut self, error: RendezvousError) {
        let rejected = rejected(&error);
        self.out.extend(self.conns.values().map(|conn| (Some(*conn), rejected.clone())));
        self.rendezvous = None;
        self.failed = Some(error.clone());
        let _ = self.result.send(Err(error));
    }

    /// A rank's connection ended.
    pub fn connection_closed(&mut self, rank: u32, why: &str) {
        self.conns.remove(&rank);
        if self.rendezvous.is_some() {
            let what = format!("rank {rank} disconnected during the bootstrap: {why}");
            let hint = format!("see the output of rank {rank}");
            self.fail(RendezvousError { what, hint });
        } else {
            self.coordinator.connection_closed(rank, why);
        }
    }

    pub fn record_unauthenticated(&mut self, from: IpAddr, why: &str) {
        if let Some(rendezvous) = &mut self.rendezvous {
            rendezvous.record_unauthenticated(from.to_string(), why);
        }
    }

    pub fn tick(&mut self, now: Instant) {
        if let Some(rendezvous) = self.rendezvous.as_ref().filter(|_| now >= self.deadline) {
            let error = rendezvous.timeout_error(self.timeout.as_secs());
            self.fail(error);
        }
        self.coordinator.tick(now);
    }

    /// Takes the messages to be sent, each with its connection; `None` for rank 0 itself.
    pub fn take_outgoing(&mut self) -> Vec<(Option<usize>, FromRoot)> {
        for (to, message) in self.coordinator.take_outgoing() {
            match to {
                Recipient::Rank(0) => self.out.push((None, message)),
                Recipient::Rank(rank) => {
                    self.out.extend(self.conns.get(&rank).map(|conn| (Some(*conn), message)));
                }
                Recipient::All => {
                    let conns = self.conns.values();
                    self.out.extend(conns.map(|conn| (Some(*conn), message.clone())));
                    self.out.push((None, message));
                }
            }
        }
        std::mem::take(&mut self.out)
    }
}

fn rejected(error: &RendezvousError) -> FromRoot {
    FromRoot::Rejected { what: error.what.clone(), hint: error.hint.clone() }
}
