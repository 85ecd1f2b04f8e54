//! Host-memory communicator for ranks on many nodes: shared memory within a node, the network
//! between nodes.
//!
//! Large reductions are sharded: the ranks of a node reduce-scatter, each all-reduces its shard
//! with the ranks that hold the same shard on the other nodes (its rail), and the node all-gathers.
//! Small reductions, or nodes with different numbers of ranks, go through one leader per node.
//! All-gather and reduce-scatter use rails if all nodes have the same number of ranks, as do small
//! gathers, scatters and all-to-alls; otherwise small gathers and scatters go through the leaders.
//! Everything else uses the network directly. Messages between ranks of a node stay within the
//! node.

mod all_to_all;
mod gather_scatter;
mod node_layout;
mod p2p;
mod rails;
mod shm_socket_names;
mod stage;
mod two_level;

use std::sync::Arc;

use crate::error::Peer;

use crate::bootstrap::BootstrapConfig;
use crate::control::CommMonitor;
use crate::engine::{AbortFn, Allocator, BoxEngine, Engine, all_gather_words};
use crate::network::{MonitorRole, NetworkEngine};
use crate::shm::ShmEngine;
use crate::transports::Transports;
use crate::{Call, CallKind, Communicator, Counts, DType, Result, bootstrap, shm};
use node_layout::NodeLayout;
use shm_socket_names::{fresh_comm_id, socket_name};

/// One rank per node, over the network.
type Rail = NetworkEngine;

/// One rank.
struct Hierarchical {
    /// All ranks, over the network.
    world: NetworkEngine,
    /// The ranks of this node, if there are several.
    local: Option<ShmEngine>,
    /// One rank per node: the ranks with this local rank, or the leaders.
    rail: Option<Rail>,
    /// Decides on the faults of all engines.
    monitor: Arc<CommMonitor>,
    layout: NodeLayout,
    /// Bytes of a buffer per slot in shared memory.
    chunk_bytes: usize,
}

/// Connects this rank with all others, over the fastest transport to each.
pub fn join(config: BootstrapConfig) -> Result<Communicator> {
    join_with(config, shm::CHUNK_BYTES)
}

/// [`join`] with this many bytes of a buffer per slot in shared memory, equal on all ranks.
pub fn join_with(config: BootstrapConfig, chunk_bytes: usize) -> Result<Communicator> {
    let world = bootstrap::engine(config)?;
    Ok(Communicator::recorded(Hierarchical::build(world, chunk_bytes)?))
}

impl Hierarchical {
    /// Adds shared memory and rails to ranks that are connected over the network.
    fn build(mut world: NetworkEngine, chunk_bytes: usize) -> Result<Box<dyn Engine>> {
        let (monitor, config) = (world.derived_monitor(), world.config());
        let ids = all_gather_words(&mut world, [config.node_id(), fresh_comm_id()])?;
        let nodes: Vec<u64> = ids.iter().map(|[node, _]| *node).collect();
        let layout = NodeLayout::new(world.rank(), &nodes);
        // All ranks use the communicator id of rank 0.
        let name = socket_name(&config.secret, ids[0][1], layout.node);
        let joined = Self::join_local(&monitor, &layout, &name, (config, chunk_bytes))
            .and_then(|local| Ok((local, Self::join_rail(&mut world, &layout)?)));
        let (local, mut rail) = joined.map_err(|error| {
            // Other ranks may wait for this one on either.
            world.abort_fn()(&error.to_string());
            monitor.report_and_fail(error)
        })?;
        world.set_monitor(monitor.clone(), MonitorRole::Main);
        if let Some(rail) = &mut rail {
            rail.set_monitor(monitor.clone(), MonitorRole::Part);
        }
        Ok(Box::new(Self { world, local, rail, monitor, layout, chunk_bytes }))
    }

    /// Connects the ranks of this node, if there are several.
    fn join_local(
        monitor: &Arc<CommMonitor>,
        layout: &NodeLayout,
        name: &str,
        (config, chunk_bytes): (Arc<BootstrapConfig>, usize),
    ) -> Result<Option<ShmEngine>> {
        if layout.local_ranks.len() == 1 {
            return Ok(None);
        }
        let members = layout.local_ranks.iter().map(|rank| monitor.members[*rank as usize]);
        let (rank, members) = (layout.local_rank, members.collect());
        shm::join(name, rank, members, monitor, config, chunk_bytes).map(Some)
    }

    /// Connects one rank per node, if there are several nodes.
    fn join_rail(world: &mut NetworkEngine, layout: &NodeLayout) -> Result<Option<Rail>> {
        if layout.nodes == 1 {
            return Ok(None);
        }
        let participates = layout.uniform || layout.local_rank == 0;
        let colour = participates.then_some(layout.local_rank);
        world.split_off(colour, i64::from(layout.node))
    }

    /// Runs a collective on all ranks.
    fn run_collective(&mut self, call: Call<'_>) -> Result {
        self.monitor.check_not_failed()?;
        let signature = call.signature(self.layout.ranks());
        self.monitor.begin(&signature);
        let is_staged = self.layout.nodes > 1 && !self.layout.is_one_rank_per_node();
        let compared = if is_staged { self.world.compare_signatures(signature) } else { Ok(()) };
        let done = compared.and_then(|()| match (&mut self.local, self.layout.nodes) {
            (Some(local), 1) => local.run_collective(call, signature),
            _ => self.two_level(call),
        });
        done.map_err(|error| self.monitor.report_and_fail(error))
    }
}

impl Engine for Hierarchical {
    fn rank(&self) -> u32 {
        self.world.rank()
    }

    fn peers(&self) -> Vec<Peer> {
        self.world.peers()
    }

    fn run(&mut self, call: Call<'_>) -> Result {
        if call.kind.is_p2p() { self.run_p2p(vec![call]) } else { self.run_collective(call) }
    }

    fn run_p2p(&mut self, messages: Vec<Call<'_>>) -> Result {
        self.monitor.check_not_failed()?;
        self.exchange(messages).map_err(|error| self.monitor.report_and_fail(error))
    }

    fn split(&mut self, colour: Option<u32>, key: i64) -> Result<Option<BoxEngine>> {
        self.monitor.check_not_failed()?;
        let args = Call::new(CallKind::AllGather, DType::U8, Counts::Equal(16), &mut []);
        self.monitor.begin(&args.signature(self.layout.ranks()));
        let world = self.world.split_off(colour, key);
        let world = world.map_err(|error| self.monitor.report_and_fail(error))?;
        let Some(world) = world else { return Ok(None) };
        Self::build(world, self.chunk_bytes).map(Some)
    }

    fn allocator(&self) -> Allocator {
        self.local.as_ref().map_or_else(Allocator::default, ShmEngine::allocator)
    }

    fn abort_fn(&self) -> AbortFn {
        self.monitor.abort_fn()
    }

    fn transports(&self) -> Transports {
        let within = self.local.as_ref().map(Engine::transports).unwrap_or_default();
        let between = (self.layout.nodes > 1).then(|| self.world.transports());
        let network = between.and_then(|between| between.network);
        Transports { shared_memory: within.shared_memory, network }
    }

    fn monitor(&self) -> Option<Arc<CommMonitor>> {
        Some(self.monitor.clone())
    }
}
