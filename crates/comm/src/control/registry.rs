//! What rank 0 has announced to this process, by communicator.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use super::messages::{CommClosed, Fault, FromRoot, RankStatus, ToRoot};
use super::monitor::CommMonitor;

/// Number of announcements that are kept for communicators that this rank has not opened. Those that
/// it has closed, or is no member of, are among them, so the oldest are dropped.
const MAX_EARLY: usize = 4096;

/// The communicators of this process.
pub struct CommRegistry {
    comms: Mutex<Comms>,
    /// Wakes threads that wait for messages.
    wake: Box<dyn Fn() + Send + Sync>,
}

#[derive(Default)]
struct Comms {
    open: HashMap<u64, Weak<CommMonitor>>,
    /// Faults of the whole job.
    faults: Vec<Fault>,
    lost: HashSet<u32>,
    early: VecDeque<(u64, Announcement)>,
}

/// What rank 0 announces about one communicator.
#[derive(Debug, Clone)]
pub enum Announcement {
    /// Its fault.
    Fault(Fault),
    /// A rank closed it.
    Closed(u32, CommClosed),
}

impl Comms {
    fn announce(&mut self, comm_id: u64, announcement: Announcement) {
        match self.open.get(&comm_id).and_then(Weak::upgrade) {
            Some(monitor) => monitor.announce(announcement),
            None => {
                self.early.push_back((comm_id, announcement));
                if self.early.len() > MAX_EARLY {
                    self.early.pop_front();
                }
            }
        }
    }
}

impl CommRegistry {
    /// An empty registry. `wake` wakes all threads that wait for messages.
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> Self {
        Self { comms: Mutex::default(), wake: Box::new(wake) }
    }

    fn lock(&self) -> MutexGuard<'_, Comms> {
        self.comms.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a communicator, with what was announced about it before.
    pub(super) fn open(&self, monitor: &Arc<CommMonitor>) {
        let mut comms = self.lock();
        comms.open.insert(monitor.comm_id, Arc::downgrade(monitor));
        let concerning = comms.faults.iter().filter(|fault| fault.concerns(&monitor.members));
        concerning.for_each(|fault| monitor.announce(Announcement::Fault(fault.clone())));
        comms.early.retain(|(comm_id, announcement)| {
            let is_own = *comm_id == monitor.comm_id;
            if is_own {
                monitor.announce(announcement.clone());
            }
            !is_own
        });
    }

    pub(super) fn close(&self, comm_id: u64) {
        self.lock().open.remove(&comm_id);
    }

    /// Applies a message from rank 0 and returns the answer, if it asks for one.
    pub fn apply(&self, message: FromRoot) -> Option<ToRoot> {
        match message {
            FromRoot::QueryStatus { query, comm_id } => return Some(self.status(query, comm_id)),
            FromRoot::Abort { comm_id, fault } => self.abort(comm_id, fault),
            FromRoot::Clear { comm_id } => {
                if let Some(monitor) = self.get(comm_id) {
                    monitor.clear();
                }
            }
            FromRoot::Closed { rank, closed } => {
                self.lock().announce(closed.comm_id, Announcement::Closed(rank, closed));
            }
            FromRoot::Ready { .. }
            | FromRoot::ReadyAt(_)
            | FromRoot::Rejected(_)
            | FromRoot::TryLater
            | FromRoot::Shutdown => return None,
        }
        (self.wake)();
        None
    }

    /// Aborts one communicator, or every communicator that the fault concerns.
    pub fn abort(&self, comm_id: Option<u64>, fault: Fault) {
        let mut comms = self.lock();
        if let Fault::Lost { rank, .. } = fault {
            comms.lost.insert(rank);
        }
        match comm_id {
            Some(comm_id) => comms.announce(comm_id, Announcement::Fault(fault)),
            None => {
                let open = comms.open.values().filter_map(Weak::upgrade);
                let concerned = open.filter(|monitor| fault.concerns(&monitor.members));
                concerned.for_each(|monitor| {
                    monitor.announce(Announcement::Fault(fault.clone()));
                });
                comms.faults.push(fault);
            }
        }
        drop(comms);
        (self.wake)();
    }

    /// Whether a rank is known to be lost.
    pub fn is_lost(&self, rank: u32) -> bool {
        self.lock().lost.contains(&rank)
    }

    /// Whether any rank is known to be lost.
    pub fn is_any_lost(&self) -> bool {
        !self.lock().lost.is_empty()
    }

    /// The first fault of the whole job.
    pub fn job_fault(&self) -> Option<Fault> {
        self.lock().faults.first().cloned()
    }

    fn get(&self, comm_id: u64) -> Option<Arc<CommMonitor>> {
        self.lock().open.get(&comm_id).and_then(Weak::upgrade)
    }

    /// The status of this rank in a communicator, and its waits in all of them.
    fn status(&self, query: u64, comm_id: u64) -> ToRoot {
        let comms = self.lock();
        let open: Vec<Arc<CommMonitor>> = comms.open.values().filter_map(Weak::upgrade).collect();
        drop(comms);
        let millis = |(rank, waited): (u32, Duration)| (rank, waited.as_millis() as u64);
        let waits = open.iter().flat_map(|monitor| monitor.waits()).map(millis).collect();
        let of = open.iter().find(|monitor| monitor.comm_id == comm_id);
        let status = of.map_or_else(RankStatus::default, |monitor| monitor.status());
        ToRoot::Status { query, status: RankStatus { waits, ..status } }
    }
}
