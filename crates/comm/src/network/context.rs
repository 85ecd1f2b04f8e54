//! Process-wide state that all communicators of a process share.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use super::{Network, SharedState};
use crate::bootstrap::BootstrapConfig;
use crate::control::{Job, RankInfo};
use crate::schedule::algorithm_table::AlgorithmTable;
use crate::tcp::Sockets;
use crate::transports::NetworkName;

/// The connections and settings of this process.
pub struct NetworkContext {
    pub config: Arc<BootstrapConfig>,
    /// All ranks, and the control plane.
    pub job: Arc<Job>,
    /// The state of all communicators.
    pub shared: Arc<SharedState>,
    /// The data connections over TCP, which are used to agree on a network.
    pub tcp: Arc<Sockets>,
    /// The network in use, and why.
    pub network: OnceLock<(Arc<dyn Network>, NetworkName)>,
    /// The algorithm table shared by all ranks.
    pub algorithms: Arc<AlgorithmTable>,
    /// How long to spin before a thread sleeps.
    pub spin: Duration,
}

impl NetworkContext {
    /// A rank and its host.
    pub fn name_of(&self, rank: u32) -> String {
        match self.job.members.get(rank as usize) {
            Some(member) => format!("rank {rank} on {}", member.host),
            None => format!("rank {rank}"),
        }
    }

    /// The number of this rank among the ranks of its node, and how many these are.
    pub fn local_rank(&self) -> (usize, usize) {
        let (members, own) = (&self.job.members, self.config.rank as usize);
        let node = members.get(own).map(|member| member.node);
        let same_node = |member: &&RankInfo| Some(member.node) == node;
        let before = members.iter().take(own).filter(same_node).count();
        (before, members.iter().filter(same_node).count())
    }
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
