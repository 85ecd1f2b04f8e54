//! libfabric as a [`Network`].

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use regatta_fabric::atexit_guard::enter;
use regatta_wire::clock;

use super::fabric::{Delivery, Fabric, MIN_SLEEP};
use crate::network::{Network, SharedState, SleepSet, UserRecv, UserSend, cancel_deadline};

/// The endpoint of this process, shared by its communicators. Its lock is not held while messages are
/// copied to user memory or reduced.
pub struct FabricNetwork {
    shared: Arc<SharedState>,
    /// `None` after the shutdown.
    fabric: Mutex<Option<Fabric>>,
    /// Why the endpoint failed.
    failure: OnceLock<String>,
}

impl FabricNetwork {
    pub fn new(fabric: Fabric, shared: Arc<SharedState>) -> Self {
        Self { shared, fabric: Mutex::new(Some(fabric)), failure: OnceLock::new() }
    }

    /// Runs `work` on the endpoint, and then without the lock the copies and reductions it has led to.
    /// `None` if the process exits.
    fn with<R>(&self, work: impl FnOnce(&mut Fabric) -> R) -> Option<R> {
        let _guard = enter()?;
        let (result, mut pending) =
            self.locked(|fabric| (work(fabric), fabric.start_deliveries()))?;
        // Completing one may release a message that waited for it.
        while !pending.is_empty() {
            for Delivery { recv, at, source, .. } in &mut pending {
                recv.buffer.write(*at, source.bytes());
            }
            let finished = pending;
            pending = self.locked(|fabric| {
                finished.into_iter().for_each(|delivery| fabric.finish_delivery(delivery));
                fabric.start_deliveries()
            })?;
        }
        Some(result)
    }

    /// Runs `work` under the lock and records what happened.
    fn locked<R>(&self, work: impl FnOnce(&mut Fabric) -> R) -> Option<R> {
        let mut guard = self.fabric.lock().unwrap_or_else(PoisonError::into_inner);
        let fabric = guard.as_mut()?;
        let result = work(fabric);
        if let Some(why) = &fabric.failure {
            self.failure.get_or_init(|| why.clone());
        }
        // Before another thread may cancel the communicator of a completed request.
        self.shared.record(std::mem::take(&mut fabric.report));
        Some(result)
    }
}

impl Network for FabricNetwork {
    fn send(&self, to: u32, message: UserSend) {
        self.with(|fabric| fabric.send(to, message));
        self.shared.rebuild_poll_set();
    }

    fn receive(&self, from: u32, recv: UserRecv) {
        self.with(|fabric| fabric.receive(from, recv));
        self.shared.rebuild_poll_set();
    }

    fn progress(&self) {
        self.with(Fabric::progress);
    }

    fn sleep_set(&self, limit: Duration) -> SleepSet {
        let unlimited = || SleepSet { sockets: Vec::new(), fd: None, limit };
        let sleep = self.with(Fabric::sleep_set).unwrap_or_else(unlimited);
        SleepSet { limit: sleep.limit.min(limit), ..sleep }
    }

    fn cancel(&self, comm_id: u64, is_rank_lost: bool) {
        let until = cancel_deadline(is_rank_lost);
        self.with(|fabric| fabric.cancel(comm_id));
        while self.with(|fabric| fabric.is_released(comm_id, clock::now() >= until)) == Some(false)
        {
            std::thread::sleep(MIN_SLEEP);
        }
    }

    fn close(&self, comm_id: u64) {
        self.with(|fabric| fabric.close(comm_id));
    }

    fn failure(&self) -> Option<String> {
        self.failure.get().cloned()
    }

    fn shutdown(&self) {
        let fabric = self.fabric.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (fabric, enter()) {
            (Some(fabric), Some(_guard)) => fabric.shutdown(),
            (fabric, _) => std::mem::forget(fabric),
        }
    }
}
