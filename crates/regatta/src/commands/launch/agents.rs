//! Ranks on the nodes of the job, each with an agent that runs them.

use std::collections::HashMap;
use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use regatta_launch::agent_launcher::command::AgentLauncher;
use regatta_launch::agents::message::{NodeLaunch, RankLaunch};
use regatta_launch::config::{JobConfig, OwnRanks};
use regatta_launch::job::AttemptOutcome;
use regatta_launch::node_pool::{FailureCause, PoolUpdate};
use regatta_launch::process::EnvSetting;
use regatta_launch::run_folder::RunFolder;
use regatta_launch::signals::SignalCatcher;
use regatta_launch::worker_group::WorkerGroup;
use regatta_model::hostlist::short_hostname;
use regatta_model::{Machine, PlacedNode, document};
use regatta_place::environment::Rendezvous;
use regatta_place::rendezvous;

use super::LaunchTarget;
use super::rank_specs::{Attempt, AttemptSpec, setting};
use super::start_agents::{self, ConnectedAgents};
use crate::discovery::{Discovery, PlacedJob};
use crate::env;

/// Time that the launchers of the agents get to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The nodes of the job, with agents.
pub struct AgentTarget<'a> {
    config: &'a JobConfig,
    discovery: Discovery,
    run: String,
    agents: ConnectedAgents,
    /// Number of nodes requested.
    node_count: usize,
    /// Ranks per node in the first attempt.
    ranks_per_node: Option<u32>,
}

impl<'a> AgentTarget<'a> {
    /// Starts agents on all nodes and waits until they connect.
    pub fn connect(
        config: &'a JobConfig,
        discovery: Discovery,
        run: &str,
        folder: &RunFolder,
        signals: &mut SignalCatcher,
    ) -> Result<Self> {
        let agents = start_agents::start(config, &discovery, run, folder, signals)?;
        let (run, node_count) = (run.to_owned(), agents.hosts.len() - config.spares as usize);
        let mut target = Self { config, discovery, run, agents, node_count, ranks_per_node: None };
        target.collect_machines()?;
        Ok(target)
    }

    /// Collects the machine descriptions of the agents. Identical nodes share one.
    fn collect_machines(&mut self) -> Result<()> {
        let mut known = HashMap::new();
        self.discovery.machines.clear();
        let pool = &self.agents.node_pool;
        for &node in pool.active().iter().chain(pool.spares()) {
            let host = &self.agents.hosts[node];
            let machine = self.machine(node).with_context(|| format!("machine of {host}"))?;
            let key = serde_json::to_string(&machine.node_class())?;
            let host = short_hostname(host).to_owned();
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
        let registration = self.agents.coordinator.registration(node as u32);
        Ok(document::from_json(&registration.context("the agent has not reported")?.machine)?)
    }

    /// Places the job on the active nodes.
    fn place(&mut self) -> Result<PlacedJob> {
        let mut discovery = self.discovery.clone();
        let (all, active) = (&self.discovery.allocation.nodes, self.agents.node_pool.active());
        discovery.allocation.nodes = active.iter().filter_map(|&n| all.get(n).cloned()).collect();
        let (site, mut job) = discovery.resolve_job(&self.config.source, &self.config.placement)?;
        // On fewer nodes the job keeps its ranks per node.
        if active.len() < self.node_count {
            (job.ranks, job.ranks_per_node) = (None, self.ranks_per_node);
        }
        let plan = discovery.place(site, job)?;
        let most = plan.placement.nodes.iter().map(|n| n.ranks.len() as u32).max();
        self.ranks_per_node = self.ranks_per_node.or(most);
        Ok(plan)
    }

    /// Master address and port: rank 0's node, with the port that its agent has reserved.
    fn rendezvous(&self, plan: &PlacedJob) -> Result<Rendezvous> {
        let Some((_, placed, _)) = plan.placement.find_rank(0) else {
            bail!("the job has no rank 0")
        };
        let host = &placed.host;
        let node = self.agents.hosts.iter().position(|h| h == host).unwrap_or(0);
        let rank_env = &self.config.rank_env;
        let (address, address_why) = match &rank_env.master_addr {
            Some(address) => (address.clone(), "given by --master-addr".to_owned()),
            None if plan.placement.nodes.len() == 1 => env::loopback(),
            None => {
                let candidates = [env::candidate(host.clone())];
                rendezvous::master_address(&self.machine(node)?, true, &candidates)?
            }
        };
        let reserved = self.agents.coordinator.registration(node as u32).and_then(|r| r.port);
        let (port, port_why) = match (rank_env.master_port, reserved) {
            (Some(port), _) => (port, "given by --master-port".to_owned()),
            (None, Some(port)) => (port, format!("reserved for this job on {host}")),
            (None, None) => bail!("no free port on {host}: pass --master-port"),
        };
        Ok(Rendezvous { address, address_why, port, port_why })
    }

    /// The ranks of each node.
    fn node_launches(&self, plan: &AttemptSpec, attempt: u32) -> Result<Vec<(u32, NodeLaunch)>> {
        let environment = plan.environment();
        let common: Vec<EnvSetting> = environment.common.iter().map(|&v| setting(v)).collect();
        let workload = &self.config.workload;
        let cwd = match workload.own_ranks() {
            Some(OwnRanks { dir: Some(dir), .. }) => dir.clone(),
            _ => std::env::current_dir().context("current directory")?,
        };
        let rank_launch = |&rank: &u32| {
            let spec = &plan.ranks[rank as usize].spec;
            let own = environment.ranks.get(&rank).into_iter().flatten();
            RankLaunch {
                rank,
                command: (spec.command != workload.command()).then(|| spec.command.clone()),
                env: own.map(|&variable| setting(variable)).collect(),
                binding: spec.binding.clone(),
            }
        };
        // All ranks have the same.
        let input = plan.ranks.first().and_then(|rank| rank.spec.input.as_deref());
        let node_launch = |ranks: &[u32]| NodeLaunch {
            attempt,
            command: workload.command().to_vec(),
            cwd: cwd.clone().into(),
            base_env: self.inherited_env(),
            env_remove_prefixes: removed_prefixes(self.agents.launcher),
            common_env: common.clone(),
            files: plan.files.clone(),
            cache_dir: plan.cache_dir.clone(),
            input: input.map(<[u8]>::to_vec),
            needs_secret: workload.needs_secret(),
            report_progress: self.config.hang_timeout.is_some(),
            ranks: ranks.iter().map(rank_launch).collect(),
        };
        let hosts = self.agents.hosts.iter().map(String::as_str);
        let index: HashMap<&str, u32> = hosts.zip(0..).collect();
        let nodes = plan.job.placement.nodes.iter();
        let launch = |n: &PlacedNode| Some((*index.get(n.host.as_str())?, node_launch(&n.ranks)));
        Ok(nodes.filter_map(launch).collect())
    }

    /// The variables that ranks inherit from the launcher in addition to the agent's environment.
    /// With ssh, which Open MPI uses too, all but those of the host or the login session; otherwise
    /// those that were unset for the agent launcher, which forwards all others itself.
    fn inherited_env(&self) -> Vec<(OsString, OsString)> {
        const HOST_SPECIFIC: [&str; 13] = [
            "HOME", "HOST", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL",
            "TERM", "TMPDIR", "USER", "_",
        ];
        const PREFIXES: [&str; 4] = ["SSH_", "XDG_", "DBUS_", "DISPLAY"];
        let inherited = |name: &str| match self.agents.launcher {
            AgentLauncher::Ssh | AgentLauncher::OpenMpi => {
                !HOST_SPECIFIC.contains(&name) && !PREFIXES.iter().any(|p| name.starts_with(p))
            }
            _ => self.agents.unset.contains(name),
        };
        std::env::vars_os().filter(|(name, _)| inherited(&name.to_string_lossy())).collect()
    }
}

/// Prefixes of the agent launcher's variables that ranks must not see: they describe the MPI job of
/// the agents.
fn removed_prefixes(launcher: AgentLauncher) -> Vec<String> {
    let prefixes = match launcher {
        AgentLauncher::Pals | AgentLauncher::Hydra | AgentLauncher::OpenMpi => {
            "PMI_ PMIX_ OMPI_ PRTE_ HYDI_ MPI_LOCAL MPIR_CVAR_ PALS_RANKID PALS_LOCAL_RANKID \
             PALS_LOCAL_SIZE"
        }
        AgentLauncher::Flux => "FLUX_TASK_ PMI_",
        AgentLauncher::Srun | AgentLauncher::Ssh => "",
    };
    prefixes.split_whitespace().map(str::to_owned).collect()
}

impl LaunchTarget for AgentTarget<'_> {
    fn plan(&mut self, attempt: u32) -> Result<AttemptSpec> {
        let plan = self.place()?;
        let rendezvous = self.rendezvous(&plan)?;
        AttemptSpec::new(
            self.config,
            plan,
            &rendezvous,
            Attempt { run: &self.run, number: attempt },
        )
    }

    fn start(&mut self, plan: &AttemptSpec, attempt: u32) -> Result<&mut dyn WorkerGroup> {
        let launches = self.node_launches(plan, attempt)?;
        self.agents.coordinator.start(attempt, launches);
        Ok(&mut self.agents.coordinator)
    }

    fn restart_decision(&mut self, outcome: &AttemptOutcome) -> PoolUpdate {
        let ConnectedAgents { hosts, node_pool: pool, coordinator, .. } = &mut self.agents;
        let in_use = |n: &usize| pool.active().contains(n) || pool.spares().contains(n);
        let lost = coordinator.missing().into_iter().map(|n| n as usize);
        let lost: Vec<usize> = lost.filter(in_use).collect();
        let failure = outcome.result.failure.as_ref();
        let node = failure.and_then(|f| hosts.iter().position(|h| *h == f.host));
        pool.on_failure(match node {
            _ if !lost.is_empty() => FailureCause::NodesLost(lost),
            Some(node) => FailureCause::Rank(node),
            None => FailureCause::Unknown,
        })
    }

    fn poll(&mut self, timeout: Duration) {
        self.agents.coordinator.poll(timeout);
    }

    fn possibly_running(&mut self, outcome: &AttemptOutcome) -> Vec<usize> {
        self.agents.possibly_running(&outcome.lost_nodes)
    }

    fn hosts(&self) -> &[String] {
        &self.agents.hosts
    }

    fn excluded(&self) -> Vec<(String, String)> {
        let excluded = self.agents.node_pool.excluded().iter();
        excluded.map(|(node, why)| (self.agents.hosts[*node].clone(), why.clone())).collect()
    }

    fn shutdown(self: Box<Self>) {
        self.agents.shutdown(EXIT_TIMEOUT);
    }
}
