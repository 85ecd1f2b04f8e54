//! The collective engine over TCP or libfabric.

use std::sync::Arc;
use std::time::Duration;

use super::{MonitorRole, NetworkTransport};
use crate::bootstrap::BootstrapConfig;
use crate::comm::split_order;
use crate::error::Peer;
use crate::execute::{self, Planner, Scratch, segment_bytes};

use crate::control::CommMonitor;
use crate::engine::{AbortFn, BoxEngine, Engine, all_gather_split_args};
use crate::schedule::Algorithm;
use crate::transport::Transport;
use crate::transports::{NetworkName, Transports};
use crate::{Call, Result, Signature};

/// Runs collectives on a `NetworkTransport`.
pub struct NetworkEngine {
    transport: NetworkTransport,
    pub(crate) planner: Planner,
    scratch: Scratch,
}

impl NetworkEngine {
    /// An engine with the algorithm table of rank 0.
    pub fn new(transport: NetworkTransport) -> Self {
        let table = transport.context.algorithms.clone();
        let planner = Planner::new(table, transport.rank(), &transport.nodes());
        Self { transport, planner, scratch: Scratch::default() }
    }

    /// The configuration of this rank.
    pub(crate) fn config(&self) -> Arc<BootstrapConfig> {
        self.transport.context.config.clone()
    }

    /// The monitor of a communicator with the same members that runs on several transports.
    pub(crate) fn derived_monitor(&self) -> Arc<CommMonitor> {
        self.transport.derived_monitor()
    }

    /// Makes this one of several engines of a communicator.
    pub(crate) fn set_monitor(&mut self, monitor: Arc<CommMonitor>, role: MonitorRole) {
        self.transport.set_monitor(monitor, role);
    }

    /// In debug mode, compares the signatures of all ranks before a collective in stages, of which
    /// each engine sees only one.
    pub(crate) fn compare_signatures(&mut self, signature: Signature) -> Result {
        if self.transport.context.config.debug {
            self.transport.begin(signature)?;
            self.transport.end();
        }
        Ok(())
    }

    /// Runs a collective with this algorithm instead of the table's choice. All ranks must select the
    /// same one.
    pub fn run_with(&mut self, call: Call<'_>, algorithm: Algorithm) -> Result {
        let program = self.planner.plan_with(&call, algorithm)?;
        let segment = segment_bytes(self.transport.ranks());
        execute::run(&mut self.transport, call, &program, &mut self.scratch, segment)
    }

    /// Runs point-to-point messages as [`execute::run_p2p_with`].
    pub(crate) fn run_p2p_with(
        &mut self,
        messages: Vec<Call<'_>>,
        progress_other: &mut dyn FnMut() -> Result<Duration>,
    ) -> Result {
        execute::run_p2p_with(&mut self.transport, messages, progress_other)
    }

    /// The sub-communicator of a colour, as [`Engine::split`].
    pub(crate) fn split_off(&mut self, colour: Option<u32>, key: i64) -> Result<Option<Self>> {
        let args = all_gather_split_args(self, colour, key)?;
        let Some(colour) = colour else { return Ok(None) };
        let global = |rank: u32| self.transport.members.get(rank as usize).copied();
        let members = split_order(&args, colour).into_iter().filter_map(global).collect();
        let comm_id = self.transport.derived_comm_id(colour.into());
        let (context, network) = (self.transport.context.clone(), self.transport.network.clone());
        let mut child = Self::new(NetworkTransport::new(context, network, comm_id, members));
        child.planner.table = self.planner.table.clone();
        Ok(Some(child))
    }
}

impl Engine for NetworkEngine {
    fn rank(&self) -> u32 {
        self.transport.rank()
    }

    fn peers(&self) -> Vec<Peer> {
        self.transport.peers()
    }

    fn run(&mut self, call: Call<'_>) -> Result {
        if call.kind.is_p2p() {
            return self.run_p2p(vec![call]);
        }
        let program = self.planner.plan(&call)?;
        let segment = segment_bytes(self.transport.ranks());
        execute::run(&mut self.transport, call, &program, &mut self.scratch, segment)
    }

    fn run_p2p(&mut self, messages: Vec<Call<'_>>) -> Result {
        execute::run_p2p(&mut self.transport, messages)
    }

    fn split(&mut self, colour: Option<u32>, key: i64) -> Result<Option<BoxEngine>> {
        let child = self.split_off(colour, key)?;
        Ok(child.map(|child| Box::new(child) as BoxEngine))
    }

    fn abort_fn(&self) -> AbortFn {
        Transport::abort_fn(&self.transport)
    }

    /// The libfabric provider, or TCP and the reason for it.
    fn transports(&self) -> Transports {
        let selected = self.transport.context.network.get().map(|(_, name)| name.clone());
        let network = Some(selected.unwrap_or(NetworkName::Tcp(None)));
        Transports { shared_memory: None, network }
    }

    fn monitor(&self) -> Option<Arc<CommMonitor>> {
        Some(self.transport.monitor.clone())
    }
}
