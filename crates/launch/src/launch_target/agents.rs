//! Ranks on the nodes of the job, each with an agent that runs them.

use std::collections::HashMap;
use std::time::Duration;

use regatta_model::hostlist::short_hostname;
use regatta_model::{Machine, document};
use regatta_place::environment::Rendezvous;
use regatta_place::rendezvous;

use super::LaunchTarget;
use super::connect::{AgentConnector, ConnectedAgents};
use super::node_launch::node_launches;
use crate::attempt::AttemptSpec;
use crate::config::JobConfig;
use crate::discovery::{Discovery, PlacedJob};
use crate::error::{LaunchError, Result};
use crate::node_pool::NodePool;
use crate::rank_env;
use crate::status::JobObserver;
use crate::worker_group::WorkerGroup;

/// Time that the launchers of the agents get to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The nodes of the job, with agents.
pub(crate) struct AgentTarget<'a> {
    config: &'a JobConfig,
    discovery: Discovery,
    run: &'a str,
    agents: ConnectedAgents,
    /// Number of nodes requested.
    node_count: usize,
    /// Ranks per node in the first attempt.
    ranks_per_node: Option<u32>,
}

impl<'a> AgentTarget<'a> {
    /// Starts agents on all nodes and waits until they connect.
    pub(crate) fn connect(
        connector: AgentConnector<'a, '_>,
        discovery: Discovery,
        pool: &mut NodePool,
    ) -> Result<Self> {
        let (config, run) = (connector.config, connector.run);
        let agents = connector.connect(&discovery, pool)?;
        let node_count = agents.hosts.len() - config.spares as usize;
        let mut target = Self { config, discovery, run, agents, node_count, ranks_per_node: None };
        target.collect_machines(pool)?;
        Ok(target)
    }

    /// Collects the machine descriptions of the agents. Identical nodes share one.
    fn collect_machines(&mut self, pool: &NodePool) -> Result<()> {
        let mut known = HashMap::new();
        self.discovery.machines.clear();
        for &node in pool.active().iter().chain(pool.spares()) {
            let machine = self.machine(node)?;
            let key = serde_json::to_string(&machine.node_class())?;
            let host = short_hostname(&self.agents.hosts[node]).to_owned();
            let Discovery { machines, machine_index, nics, .. } = &mut self.discovery;
            nics.insert(host.clone(), machine.nics.clone());
            let position = *known.entry(key).or_insert_with(|| {
                machines.push(machine);
                machines.len() - 1
            });
            machine_index.insert(host, position);
        }
        Ok(())
    }

    fn machine(&self, node: usize) -> Result<Machine> {
        let host = || self.agents.hosts[node].clone();
        let registration = self.agents.coordinator.registration(node as u32);
        let registration = registration.ok_or_else(|| LaunchError::NoMachine { host: host() })?;
        let machine = document::from_json(&registration.machine);
        machine.map_err(|source| LaunchError::Machine { host: host(), source })
    }

    /// Places the job on these nodes.
    fn place(&mut self, active: &[usize]) -> Result<PlacedJob> {
        let mut discovery = self.discovery.clone();
        let all = &self.discovery.allocation.nodes;
        discovery.allocation.nodes = active.iter().filter_map(|&n| all.get(n).cloned()).collect();
        let (site, mut job) = discovery.resolve_job(&self.config.source, &self.config.placement)?;
        // On fewer nodes the job keeps its ranks per node.
        if active.len() < self.node_count {
            (job.ranks, job.ranks_per_node) = (None, self.ranks_per_node);
        }
        let placed = discovery.place(site, job)?;
        let most = placed.placement.nodes.iter().map(|n| n.ranks.len() as u32).max();
        self.ranks_per_node = self.ranks_per_node.or(most);
        Ok(placed)
    }

    /// Master address and port: rank 0's node, with the port that its agent has reserved.
    fn rendezvous(&self, placed: &PlacedJob) -> Result<Rendezvous> {
        let (_, first, _) = placed.placement.find_rank(0).ok_or(LaunchError::NoRanks)?;
        let host = &first.host;
        let node = self.agents.hosts.iter().position(|h| h == host).unwrap_or(0);
        let address = || match placed.placement.nodes.len() {
            1 => Ok(rank_env::loopback()),
            _ => {
                let candidates = [rank_env::candidate(host.clone())];
                Ok(rendezvous::master_address(&self.machine(node)?, true, &candidates)?)
            }
        };
        let port = || {
            let reserved = self.agents.coordinator.registration(node as u32).and_then(|r| r.port);
            let port = reserved.ok_or_else(|| LaunchError::NoPort { host: host.clone() })?;
            Ok((port, format!("reserved for this job on {host}")))
        };
        rank_env::given_or(&self.config.rank_env, address, port)
    }
}

impl LaunchTarget for AgentTarget<'_> {
    fn plan(&mut self, attempt: u32, nodes: &[usize]) -> Result<AttemptSpec> {
        let placed = self.place(nodes)?;
        let rendezvous = self.rendezvous(&placed)?;
        AttemptSpec::new(self.config, placed, &rendezvous, self.run, attempt)
    }

    fn start(
        &mut self,
        attempt: &AttemptSpec,
        _: &mut dyn JobObserver,
    ) -> Result<&mut dyn WorkerGroup> {
        let launches = node_launches(self.config, attempt, &self.agents)?;
        let coordinator = &mut self.agents.coordinator;
        coordinator.start(attempt.number, launches);
        Ok(coordinator)
    }

    fn poll(&mut self, timeout: Duration) {
        self.agents.coordinator.poll(timeout);
    }

    fn missing(&self) -> Vec<usize> {
        self.agents.missing()
    }

    fn possibly_running(&mut self, lost: &[u32]) -> Vec<usize> {
        self.agents.possibly_running(lost)
    }

    fn shutdown(self: Box<Self>, observer: &mut dyn JobObserver) {
        self.agents.shutdown(EXIT_TIMEOUT, observer);
    }
}
