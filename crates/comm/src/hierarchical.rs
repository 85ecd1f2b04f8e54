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
mod subgroup;
mod two_level;

use std::sync::Arc;

use crate::error::Peer;

use crate::control::wait_graph::WaitEdges;
use crate::engine::{AbortFn, Allocator, BoxEngine, Engine, HasFailedFn, all_gather_words};
use crate::shm::ShmEngine;
use crate::tcp::{TcpEngine, TcpTransport};
use crate::transport::Transport;
use crate::{Call, CommError, Communicator, Result, bootstrap, shm};
use node_layout::NodeLayout;
use shm_socket_names::ShmNaming;
use subgroup::Subgroup;

/// One rank per node, over the network.
type Rail = Subgroup<TcpEngine>;

/// One rank.
struct Hierarchical {
    /// All ranks, over the network.
    world: TcpEngine,
    /// The ranks of this node, if there are several.
    local: Option<Subgroup<ShmEngine>>,
    /// One rank per node: the ranks with this local rank, or the leaders.
    rail: Option<Rail>,
    /// Detects faults of a collective, of which each engine runs only a part.
    fault_channel: TcpTransport,
    layout: NodeLayout,
    shm_naming: ShmNaming,
    /// Aborts every engine.
    abort_engines: Vec<AbortFn>,
    /// Number of collectives started.
    calls: u64,
    failed: Option<CommError>,
}

/// Connects this rank with all others, over the fastest transport to each.
pub fn join(config: bootstrap::BootstrapConfig) -> Result<Communicator> {
    let shm_naming = ShmNaming::new(&config);
    let world = bootstrap::engine(config)?;
    Ok(Communicator::new(Hierarchical::build(world, shm_naming)?))
}

impl Hierarchical {
    /// Adds shared memory and rails to ranks that are connected over the network.
    fn build(mut world: TcpEngine, shm_naming: ShmNaming) -> Result<Box<dyn Engine>> {
        let fault_channel = world.fault_channel();
        let ids =
            all_gather_words(&mut world, [shm_naming.node, shm_socket_names::fresh_comm_id()])?;
        let nodes: Vec<u64> = ids.iter().map(|[node, _]| *node).collect();
        let layout = NodeLayout::new(world.rank(), &nodes);
        // All ranks use the communicator id of rank 0.
        let name = shm_naming.name(ids[0][1], layout.node);
        let cancelled = || fault_channel.known_abort();
        let joined = Self::join_local(&world, &layout, &name, shm_naming.config, &cancelled)
            .and_then(|local| Ok((local, Self::join_rail(&mut world, &layout)?)));
        let (local, rail) = joined.map_err(|error| {
            // Other ranks may wait for this one in an engine that does not detect its failure.
            fault_channel.abort_fn()(&error.to_string());
            fault_channel.known_abort().unwrap_or(error)
        })?;
        let local_abort = local.as_ref().map(|local| local.engine.abort_fn());
        let rail_abort = rail.as_ref().map(|rail| rail.engine.abort_fn());
        let abort_engines: Vec<AbortFn> =
            local_abort.into_iter().chain(rail_abort).chain([world.abort_fn()]).collect();
        let none: WaitEdges = Arc::new(Vec::new);
        let waits = local.as_ref().map_or(none, Subgroup::waits);
        fault_channel.on_abort(abort_all(abort_engines.clone()), waits);
        Ok(Box::new(Self {
            world,
            local,
            rail,
            fault_channel,
            layout,
            shm_naming,
            abort_engines,
            calls: 0,
            failed: None,
        }))
    }

    /// Connects the ranks of this node, if there are several.
    fn join_local(
        world: &TcpEngine,
        layout: &NodeLayout,
        name: &str,
        config: shm::ShmConfig,
        cancelled: &dyn Fn() -> Option<CommError>,
    ) -> Result<Option<Subgroup<ShmEngine>>> {
        if layout.local_ranks.len() == 1 {
            return Ok(None);
        }
        let peers = world.peers();
        let local = layout.local_ranks.iter().map(|&r| peers[r as usize].clone()).collect();
        let rank = layout.local_rank;
        let engine = shm::join_unless_cancelled(name, rank, local, config, cancelled)?;
        Ok(Some(Subgroup { engine, members: layout.local_ranks.clone() }))
    }

    /// Connects one rank per node, if there are several nodes.
    fn join_rail(world: &mut TcpEngine, layout: &NodeLayout) -> Result<Option<Rail>> {
        if layout.nodes == 1 {
            return Ok(None);
        }
        let participates = layout.uniform || layout.local_rank == 0;
        let colour = participates.then_some(layout.local_rank);
        let engine = world.split_off(colour, i64::from(layout.node))?;
        Ok(engine.map(|engine| Subgroup { engine, members: layout.own_rail() }))
    }

    /// Whether collectives run on several engines.
    fn is_composite(&self) -> bool {
        self.layout.nodes > 1 && !self.layout.is_one_rank_per_node()
    }
}

impl Hierarchical {
    /// Runs a collective on all ranks.
    fn run_collective(&mut self, call: Call<'_>) -> Result {
        self.check_not_failed()?;
        self.calls += 1;
        let is_composite = self.is_composite();
        let signature = call.signature(self.layout.ranks());
        let registered = if is_composite { self.fault_channel.begin(signature) } else { Ok(()) };
        let done = registered.and_then(|()| self.two_level(call));
        done.map_err(|error| self.fail(error, &signature.to_string()))?;
        if is_composite {
            self.fault_channel.end();
        }
        Ok(())
    }

    /// Returns the error of an earlier call, if any.
    fn check_not_failed(&self) -> Result {
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Aborts all engines, because ranks would otherwise wait for each other across nodes, and
    /// returns the error that all ranks agree on.
    fn fail(&mut self, error: CommError, operation: &str) -> CommError {
        // A single engine diagnoses its own faults, but it may have been aborted by the fault
        // channel, and a late rank may be waiting in another communicator.
        let is_indirect = matches!(error, CommError::Aborted { .. } | CommError::Timeout { .. });
        let needs_resolve = self.is_composite() || is_indirect;
        let resolved = needs_resolve.then(|| self.fault_channel.resolve(error.clone()));
        let mut error = match (error, resolved) {
            // This rank compared the counts itself and knows best.
            (known @ CommError::CountMismatch { .. }, _) => known,
            (error, resolved) => resolved.unwrap_or(error),
        };
        match &mut error {
            CommError::RankLost { call, .. } | CommError::LinkBroken { call, .. } => {
                operation.clone_into(call);
            }
            CommError::Timeout { call, .. } if call.is_empty() => operation.clone_into(call),
            _ => {}
        }
        if !matches!(error, CommError::InvalidCall { .. }) {
            let why = error.to_string();
            self.abort_engines.iter().for_each(|abort| abort(&why));
            self.failed = Some(error.clone());
        }
        error
    }
}

/// A function that aborts several engines in order.
fn abort_all(engines: Vec<AbortFn>) -> AbortFn {
    Arc::new(move |why| engines.iter().for_each(|abort| abort(why)))
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
        self.check_not_failed()?;
        self.exchange(messages).map_err(|error| self.fail(error, "send and receive"))
    }

    fn split(&mut self, colour: Option<u32>, key: i64) -> Result<Option<BoxEngine>> {
        self.check_not_failed()?;
        let world = self.world.split_off(colour, key).map_err(|error| self.fail(error, "split"))?;
        let Some(world) = world else { return Ok(None) };
        Self::build(world, self.shm_naming.clone()).map(Some)
    }

    fn allocator(&self) -> Allocator {
        self.local.as_ref().map_or_else(Allocator::default, |local| local.engine.allocator())
    }

    fn abort_fn(&self) -> AbortFn {
        // The fault channel first, so that all ranks report the same reason.
        let channel = [self.fault_channel.abort_fn()].into_iter();
        abort_all(channel.chain(self.abort_engines.iter().cloned()).collect())
    }

    fn has_failed_fn(&self) -> HasFailedFn {
        let local = self.local.as_ref().map(|local| local.engine.has_failed_fn());
        let network = [self.fault_channel.has_failed_fn(), self.world.has_failed_fn()];
        let all: Vec<HasFailedFn> = local.into_iter().chain(network).collect();
        Arc::new(move || all.iter().any(|has_failed| has_failed()))
    }
}
