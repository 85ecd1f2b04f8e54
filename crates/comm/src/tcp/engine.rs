//! The collective engine over TCP or libfabric.

use std::sync::Arc;
use std::time::Duration;

use crate::comm::split_order;
use crate::error::Peer;
use crate::execute::{self, Planner, Scratch};
use crate::fault_channel::FaultChannel;
use crate::schedule::Algorithm;
use crate::schedule::selection::AlgorithmTable;
use crate::tcp::TcpTransport;
use crate::transport::Transport;
use crate::tune::Tunable;
use crate::worker::{AbortFn, Engine, HasFailedFn, all_gather_bytes, split_p2p};
use crate::{Call, CallKind, CommError};

/// Encoded size of a colour and a key.
const SPLIT_ARGS_BYTES: usize = 16;

/// Runs collectives on a [`TcpTransport`].
pub struct TcpEngine {
    transport: TcpTransport,
    planner: Planner,
    scratch: Scratch,
}

impl TcpEngine {
    /// An engine with the algorithm table of rank 0.
    pub fn new(transport: TcpTransport) -> Self {
        let table = transport.algorithms();
        let planner = Planner::new(table, transport.rank(), &transport.nodes());
        Self { transport, planner, scratch: Scratch::default() }
    }

    /// The network in use: the libfabric provider, or TCP and the reason for it.
    pub fn transport_name(&self) -> &str {
        self.transport.transport_name()
    }

    /// Runs point-to-point messages as [`execute::run_p2p_with`].
    pub(crate) fn run_p2p_with(
        &mut self,
        messages: Vec<Call<'_>>,
        beside: &mut dyn FnMut() -> Result<Duration, CommError>,
    ) -> Result<(), CommError> {
        execute::run_p2p_with(&mut self.transport, messages, beside)
    }

    /// The sub-communicator of a colour, as [`Engine::split`].
    pub(crate) fn split_off(
        &mut self,
        colour: Option<u32>,
        key: i64,
    ) -> Result<Option<Self>, CommError> {
        let args = self.all_gather_split_args(colour, key)?;
        let Some(colour) = colour else { return Ok(None) };
        let ranks = split_order(&args, colour);
        let own = self.transport.rank();
        let rank = ranks.iter().position(|&rank| rank == own).unwrap_or(0) as u32;
        let global = |rank: &u32| self.transport.members().get(*rank as usize).copied();
        let members = ranks.iter().filter_map(global).collect();
        let comm_id = self.transport.split_comm_id(colour);
        let transport = self.transport.subgroup(comm_id, members, rank);
        let mut child = Self::new(transport);
        child.planner.set_table(self.planner.table().clone());
        Ok(Some(child))
    }

    /// The colour and key of every rank.
    fn all_gather_split_args(
        &mut self,
        colour: Option<u32>,
        key: i64,
    ) -> Result<Vec<(Option<u32>, i64)>, CommError> {
        let mut own = [0; SPLIT_ARGS_BYTES];
        own[..8].copy_from_slice(&colour.map_or(-1, i64::from).to_le_bytes());
        own[8..].copy_from_slice(&key.to_le_bytes());
        let all = all_gather_bytes(self, &own)?;
        let word = |bytes: &[u8]| {
            let mut eight = [0; 8];
            eight.copy_from_slice(&bytes[..8]);
            i64::from_le_bytes(eight)
        };
        let args = |bytes: &[u8]| (u32::try_from(word(bytes)).ok(), word(&bytes[8..]));
        Ok(all.chunks_exact(SPLIT_ARGS_BYTES).map(args).collect())
    }
}

impl Engine for TcpEngine {
    fn rank(&self) -> u32 {
        self.transport.rank()
    }

    fn peers(&self) -> Vec<Peer> {
        self.transport.peers()
    }

    fn run(&mut self, call: Call<'_>) -> Result<(), CommError> {
        if matches!(call.kind, CallKind::Send | CallKind::Receive) {
            return execute::run_p2p(&mut self.transport, vec![call]);
        }
        let program = self.planner.plan(&call)?;
        execute::run(&mut self.transport, call, &program, &mut self.scratch)
    }

    fn run_group(&mut self, calls: Vec<Call<'_>>) -> Result<(), CommError> {
        let (messages, collectives) = split_p2p(calls);
        execute::run_p2p(&mut self.transport, messages)?;
        collectives.into_iter().try_for_each(|call| self.run(call))
    }

    fn split(
        &mut self,
        colour: Option<u32>,
        key: i64,
    ) -> Result<Option<Box<dyn Engine>>, CommError> {
        let child = self.split_off(colour, key)?;
        Ok(child.map(|child| Box::new(child) as Box<dyn Engine>))
    }

    fn abort_fn(&self) -> AbortFn {
        Transport::abort_fn(&self.transport)
    }

    fn has_failed_fn(&self) -> HasFailedFn {
        self.transport.has_failed_fn()
    }

    fn fault_channel(&self) -> Option<Box<dyn FaultChannel>> {
        Some(Box::new(self.transport.fault_channel()))
    }
}

impl Tunable for TcpEngine {
    fn run_with(&mut self, call: Call<'_>, algorithm: Algorithm) -> Result<(), CommError> {
        let program = self.planner.plan_with(&call, algorithm)?;
        execute::run(&mut self.transport, call, &program, &mut self.scratch)
    }

    fn nodes(&self) -> &[u32] {
        self.planner.nodes()
    }

    fn set_table(&mut self, table: Arc<AlgorithmTable>) {
        self.planner.set_table(table);
    }
}
