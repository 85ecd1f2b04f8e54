//! Callbacks invoked when a communicator aborts, for threads that wait outside the data plane.

use std::sync::{MutexGuard, PoisonError};
use std::time::Duration;

use regatta_wire::clock;

use super::SharedDataPlane;
use crate::control::Fault;
use crate::control::wait_graph::WaitEdges;
use crate::engine::AbortFn;

/// A callback for the abort of a communicator.
pub struct AbortCallback {
    pub comm_id: u64,
    pub members: Vec<u32>,
    pub abort: AbortFn,
    /// Ranks that sub-communicators wait for, by their rank in this communicator.
    pub waits: WaitEdges,
}

impl SharedDataPlane {
    /// Aborts one communicator, or every communicator that the fault concerns.
    pub fn abort(&self, comm_id: Option<u64>, fault: Fault) {
        let why = fault.to_string();
        let callbacks = self.abort_callbacks();
        let concerned = |callback: &&AbortCallback| match comm_id {
            Some(comm_id) => callback.comm_id == comm_id,
            None => fault.concerns(&callback.members),
        };
        let aborts: Vec<AbortFn> =
            callbacks.iter().filter(concerned).map(|callback| callback.abort.clone()).collect();
        drop(callbacks);
        match comm_id {
            Some(of) => self.publish_for(of, |faults| faults.faults.push((comm_id, fault))),
            None => self.publish(|plane| plane.fault_state.faults.push((None, fault))),
        }
        aborts.iter().for_each(|abort| abort(&why));
    }

    /// The global ranks this rank waits for in any communicator, and for how long.
    pub fn waits(&self) -> Vec<(u32, Duration)> {
        let global_waits = |callback: &AbortCallback| {
            let global = |(rank, waited): (u32, Duration)| {
                Some((*callback.members.get(rank as usize)?, waited))
            };
            (callback.waits)().into_iter().filter_map(global).collect::<Vec<_>>()
        };
        let mut all: Vec<_> = self.abort_callbacks().iter().flat_map(global_waits).collect();
        all.extend(self.lock().comms.waits(clock::now()));
        all
    }

    pub fn abort_callbacks(&self) -> MutexGuard<'_, Vec<AbortCallback>> {
        self.abort_callbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
