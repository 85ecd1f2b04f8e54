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

use regatta_wire::secret::Secret;

use crate::error::Peer;

use crate::bootstrap::BootstrapConfig;
use crate::control::CommMonitor;
use crate::engine::{AbortFn, Allocator, BoxEngine, Engine, HasFailedFn, all_gather_words};
use crate::network::{MonitorRole, NetworkEngine};
use crate::shm::ShmEngine;
use crate::transports::Transports;
use crate::{Call, CallKind, CommError, Communicator, Counts, DType, Result, bootstrap, shm};
use node_layout::NodeLayout;
use shm_socket_names::ShmNaming;

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
    shm_naming: ShmNaming,
}

/// Connects this rank with all others, over the fastest transport to each.
pub fn join(config: BootstrapConfig) -> Result<Communicator> {
    join_with(config, shm::ShmConfig::default().chunk_bytes)
}

/// [`join`] with this many bytes of a buffer per slot in shared memory, equal on all ranks.
pub fn join_with(config: BootstrapConfig, chunk_bytes: usize) -> Result<Communicator> {
    let shm_naming = ShmNaming::new(&config, chunk_bytes);
    let world = bootstrap::engine(config)?;
    Ok(Communicator::recorded(Hierarchical::build(world, shm_naming)?))
}

/// Communicators of ranks that are threads of this process, as on one node, for tests.
pub fn world(
    ranks: u32,
    chunk_bytes: usize,
    configure: impl Fn(&mut BootstrapConfig),
) -> Result<Vec<Communicator>> {
    let address = std::net::Ipv4Addr::LOCALHOST;
    let listener = bootstrap::listen((address, 0).into());
    let listener = listener.map_err(|error| CommError::system("listening socket", error))?;
    let port = listener.local_addr().map_err(|e| CommError::system("listening socket", e))?.port();
    let secret = Secret::generate().map_err(|error| CommError::system("job secret", error))?;
    // Isolates the shared memory of worlds that are joined at the same time.
    let node = secret.derive("node").to_hex();
    let configured = |rank: u32, listener| {
        let (master, secret) = (address.to_string(), secret.clone());
        let mut config = BootstrapConfig::new(rank, ranks, &master, port, secret);
        (config.host, config.node, config.listener) =
            ("this node".to_owned(), node.clone(), listener);
        configure(&mut config);
        config
    };
    let mut listener = Some(listener);
    let configs: Vec<BootstrapConfig> =
        (0..ranks).map(|rank| configured(rank, listener.take())).collect();
    std::thread::scope(|scope| {
        let join = |config| scope.spawn(move || join_with(config, chunk_bytes));
        let threads: Vec<_> = configs.into_iter().map(join).collect();
        let panicked = |_| Err(CommError::system("joining", "a thread panicked"));
        threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
    })
}

impl Hierarchical {
    /// Adds shared memory and rails to ranks that are connected over the network.
    fn build(mut world: NetworkEngine, shm_naming: ShmNaming) -> Result<Box<dyn Engine>> {
        let monitor = world.derived_monitor();
        let ids =
            all_gather_words(&mut world, [shm_naming.node, shm_socket_names::fresh_comm_id()])?;
        let nodes: Vec<u64> = ids.iter().map(|[node, _]| *node).collect();
        let layout = NodeLayout::new(world.rank(), &nodes);
        // All ranks use the communicator id of rank 0.
        let name = shm_naming.name(ids[0][1], layout.node);
        let joined = Self::join_local(&monitor, &layout, &name, shm_naming.config)
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
        Ok(Box::new(Self { world, local, rail, monitor, layout, shm_naming }))
    }

    /// Connects the ranks of this node, if there are several.
    fn join_local(
        monitor: &Arc<CommMonitor>,
        layout: &NodeLayout,
        name: &str,
        config: shm::ShmConfig,
    ) -> Result<Option<ShmEngine>> {
        if layout.local_ranks.len() == 1 {
            return Ok(None);
        }
        let members = layout.local_ranks.iter().map(|rank| monitor.members[*rank as usize]);
        let (rank, members) = (layout.local_rank, members.collect());
        shm::join(name, rank, members, monitor, config).map(Some)
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
        Self::build(world, self.shm_naming.clone()).map(Some)
    }

    fn allocator(&self) -> Allocator {
        self.local.as_ref().map_or_else(Allocator::default, ShmEngine::allocator)
    }

    fn abort_fn(&self) -> AbortFn {
        self.monitor.abort_fn()
    }

    fn has_failed_fn(&self) -> HasFailedFn {
        self.monitor.has_failed_fn()
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
