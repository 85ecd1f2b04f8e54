//! Process-wide state that all communicators of a process share.

use std::net::IpAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use regatta_wire::secret::Secret;

use super::{Network, SharedState};
use crate::control::{Job, RankInfo};
use crate::schedule::algorithm_table::AlgorithmTable;
use crate::tcp::Sockets;

/// The connections and settings of this process.
pub struct NetworkContext {
    /// The global rank.
    pub rank: u32,
    /// All ranks, in order.
    pub members: Arc<[RankInfo]>,
    /// The state of all communicators.
    pub shared: Arc<SharedState>,
    /// The data connections over TCP, which are used to agree on a network.
    pub tcp: Arc<Sockets>,
    /// The network in use, and why.
    pub network: OnceLock<(Arc<dyn Network>, String)>,
    /// The control plane.
    pub job: Arc<Job>,
    /// The algorithm table shared by all ranks.
    pub algorithms: Arc<AlgorithmTable>,
    /// The local addresses to bind connections to.
    pub bind: Vec<IpAddr>,
    /// The job's secret.
    pub secret: Secret,
    /// The heartbeat timeout.
    pub lost_after: Duration,
    /// The timeout of a collective.
    pub desync_after: Duration,
    /// Whether ranks compare call signatures before data moves.
    pub debug: bool,
    /// How long to spin before a thread sleeps.
    pub spin: Duration,
}

/// Announces a regular exit. The control-plane thread of rank 0 stays until all ranks have exited,
/// but data connections close.
impl Drop for NetworkContext {
    fn drop(&mut self) {
        if let Some((network, _)) = self.network.get() {
            network.shutdown();
        }
        self.job.control.shutdown();
        self.tcp.close_all();
    }
}
