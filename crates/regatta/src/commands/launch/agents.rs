//! Ranks on the nodes of the job, each with an agent that runs them.

use std::collections::{BTreeSet, HashMap};
use std::ffi::OsString;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use regatta_launch::agent_launcher::command::AgentLauncher;
use regatta_launch::agent_launcher::handle::LauncherHandle;
use regatta_launch::agents::coordinator::Coordinator;
use regatta_launch::agents::message::{NodeLaunch, RankLaunch};
use regatta_launch::job::AttemptOutcome;
use regatta_launch::node_pool::{FailureCause, NodePool, PoolUpdate};
use regatta_launch::process::EnvSetting;
use regatta_launch::run_folder::RunFolder;
use regatta_launch::signals::SignalCatcher;
use regatta_launch::worker_group::WorkerGroup;
use regatta_model::hostlist::short_hostname;
use regatta_model::{Machine, document};
use regatta_place::environment::{EnvVar, Rendezvous};
use regatta_place::rendezvous::{self, Candidate};

use super::LaunchTarget;
use super::bootstrap::{self, ConnectedAgents, TempFile};
use super::rank_specs::{Attempt, LaunchPlan};
use crate::cli::LaunchArgs;
use crate::plan::{Discovery, JobPlan};
use crate::system;

/// Time that the launchers of the agents get to exit.
const EXIT_TIMEOUT: Duration = Duration::from_secs(5);

/// The nodes of the job, with agents.
pub struct AgentTarget<'a> {
    args: &'a LaunchArgs,
    discovery: Discovery,
    run: String,
    /// All nodes, the spares last.
    hosts: Vec<String>,
    node_pool: NodePool,
    launcher: AgentLauncher,
    unset: BTreeSet<String>,
    coordinator: Coordinator,
    launcher_handle: LauncherHandle,
    /// Agents check that they see this file.
    _marker: TempFile,
    /// Number of nodes requested.
    node_count: usize,
    /// Ranks per node in the first attempt.
    ranks_per_node: Option<u32>,
}

impl<'a> AgentTarget<'a> {
    /// Starts agents on all nodes and waits until they connect.
    pub fn connect(
        args: &'a LaunchArgs,
        discovery: Discovery,
        run: &str,
        folder: &RunFolder,
        signals: &mut SignalCatcher,
    ) -> Result<Self> {
        let ConnectedAgents {
            hosts,
            node_pool,
            launcher,
            unset,
            coordinator,
            launcher_handle,
            marker,
        } = bootstrap::start_agents(args, &discovery, run, folder, signals)?;
        let mut target = Self {
            args,
            discovery,
            run: run.to_owned(),
            node_count: hosts.len() - args.spares as usize,
            hosts,
            node_pool,
            launcher,
            unset,
            coordinator,
            launcher_handle,
            _marker: marker,
            ranks_per_node: None,
        };
        target.collect_machines()?;
        Ok(target)
    }

    /// Collects the machine descriptions of the agents. Identical nodes share one.
    fn collect_machines(&mut self) -> Result<()> {
        let (mut machines, mut index, mut known) = (Vec::new(), HashMap::new(), HashMap::new());
        let mut nics = HashMap::new();
        let spares = self.node_pool.spares().iter();
        for &node in self.node_pool.active().iter().chain(spares) {
            let host = &self.hosts[node];
            let machine = self.machine(node).with_context(|| format!("machine of {host}"))?;
            let key = serde_json::to_string(&machine.node_class())?;
            nics.insert(short_hostname(host).to_owned(), machine.nics.clone());
            let position = *known.entry(key).or_insert_with(|| {
                machines.push(machine);
                machines.len() - 1
            });
            index.insert(short_hostname(host).to_owned(), position);
        }
        (self.discovery.machines, self.discovery.machine_index) = (machines, index);
        self.discovery.nics = nics;
        Ok(())
    }

    fn machine(&self, node: usize) -> Result<Machine> {
        let registration =
            self.coordinator.registration(node as u32).context("the agent has not reported")?;
        Ok(document::from_json(&registration.machine)?)
    }

    /// Places the job on the active nodes.
    fn place(&mut self) -> Result<JobPlan> {
        let mut discovery = self.discovery.clone();
        let all = &self.discovery.allocation.nodes;
        discovery.allocation.nodes =
            self.node_pool.active().iter().filter_map(|&n| all.get(n).cloned()).collect();
        let (site, mut job) = discovery.resolve_job(&self.args.source, &self.args.job)?;
        // On fewer nodes the job keeps its ranks per node.
        if self.node_pool.active().len() < self.node_count {
            (job.ranks, job.ranks_per_node) = (None, self.ranks_per_node);
        }
        let plan = discovery.place(site, job)?;
        let most = plan.placement.nodes.iter().map(|n| n.ranks.len() as u32).max();
        self.ranks_per_node = self.ranks_per_node.or(most);
        Ok(plan)
    }

    /// Master address and port: rank 0's node, with the port that its agent has reserved.
    fn rendezvous(&self, plan: &JobPlan) -> Result<Rendezvous> {
        let Some((_, placed, _)) = plan.placement.find_rank(0) else {
            bail!("the job has no rank 0")
        };
        let node = self.hosts.iter().position(|h| *h == placed.host).unwrap_or(0);
        let rank_env = &self.args.rank_env;
        let (address, address_why) = match &rank_env.master_addr {
            Some(address) => (address.clone(), "given by --master-addr".to_owned()),
            None if plan.placement.nodes.len() == 1 => {
                ("127.0.0.1".to_owned(), "the job has one node".to_owned())
            }
            None => {
                let name = placed.host.clone();
                let candidate = Candidate { addresses: system::resolve(&name), name };
                rendezvous::master_address(&self.machine(node)?, true, &[candidate])?
            }
        };
        let reserved = self.coordinator.registration(node as u32).and_then(|h| h.port);
        let (port, port_why) = match (rank_env.master_port, reserved) {
            (Some(port), _) => (port, "given by --master-port".to_owned()),
            (None, Some(port)) => (port, format!("reserved for this job on {}", placed.host)),
            (None, None) => bail!("no free port on {}: pass --master-port", placed.host),
        };
        Ok(Rendezvous { address, address_why, port, port_why })
    }

    /// The ranks of each node.
    fn node_launches(&self, plan: &LaunchPlan, attempt: u32) -> Result<Vec<(u32, NodeLaunch)>> {
        let environment = plan.environment();
        let set = |l: &&EnvVar| -> EnvSetting { (l.variable.clone(), l.value.clone()) };
        let common: Vec<EnvSetting> = environment.common.iter().map(set).collect();
        let folder = std::env::current_dir().context("current directory")?;
        let node_launch = |ranks: &[u32]| {
            let rank_launch = |&rank: &u32| {
                let spec = &plan.ranks[rank as usize].spec;
                let own = environment.ranks.get(&rank).into_iter().flatten();
                RankLaunch {
                    rank,
                    command: (spec.command != self.args.command).then(|| spec.command.clone()),
                    env: own.map(set).collect(),
                    binding: spec.binding.clone(),
                }
            };
            NodeLaunch {
                attempt,
                command: self.args.command.clone(),
                cwd: folder.clone().into(),
                base_env: inherited_env(self.launcher, &self.unset),
                env_remove_prefixes: removed_prefixes(self.launcher),
                common_env: common.clone(),
                input: self.args.rank_input.as_deref().map(<[u8]>::to_vec),
                report_progress: self.args.hang_timeout.is_some(),
                ranks: ranks.iter().map(rank_launch).collect(),
            }
        };
        let position: HashMap<&str, usize> =
            self.hosts.iter().enumerate().map(|(i, h)| (h.as_str(), i)).collect();
        let nodes = plan.job.placement.nodes.iter();
        let found = nodes.filter_map(|n| Some((*position.get(n.host.as_str())?, &n.ranks)));
        Ok(found.map(|(node, ranks)| (node as u32, node_launch(ranks))).collect())
    }
}

/// The variables that ranks inherit from the launcher in addition to the agent's environment. With
/// ssh, which Open MPI uses too, all but those of the host or the login session; otherwise those that
/// were unset for the agent launcher, which forwards all others itself.
fn inherited_env(launcher: AgentLauncher, unset: &BTreeSet<String>) -> Vec<(OsString, OsString)> {
    const HOST_SPECIFIC: [&str; 13] = [
        "HOME", "HOST", "HOSTNAME", "LOGNAME", "MAIL", "OLDPWD", "PWD", "SHELL", "SHLVL", "TERM",
        "TMPDIR", "USER", "_",
    ];
    const HOST_SPECIFIC_PREFIXES: [&str; 4] = ["SSH_", "XDG_", "DBUS_", "DISPLAY"];
    let host_specific = |name: &str| {
        HOST_SPECIFIC.contains(&name) || HOST_SPECIFIC_PREFIXES.iter().any(|p| name.starts_with(p))
    };
    let inherited = |name: &str| match launcher {
        AgentLauncher::Ssh | AgentLauncher::OpenMpi => !host_specific(name),
        _ => unset.contains(name),
    };
    std::env::vars_os().filter(|(name, _)| inherited(&name.to_string_lossy())).collect()
}

/// Prefixes of the agent launcher's variables that ranks must not see: they describe the MPI job of
/// the agents.
fn removed_prefixes(launcher: AgentLauncher) -> Vec<String> {
    let prefixes: &[&str] = match launcher {
        AgentLauncher::Pals | AgentLauncher::Hydra | AgentLauncher::OpenMpi => &[
            "PMI_",
            "PMIX_",
            "OMPI_",
            "PRTE_",
            "HYDI_",
            "MPI_LOCAL",
            "MPIR_CVAR_",
            "PALS_RANKID",
            "PALS_LOCAL_RANKID",
            "PALS_LOCAL_SIZE",
        ],
        AgentLauncher::Flux => &["FLUX_TASK_", "PMI_"],
        AgentLauncher::Srun | AgentLauncher::Ssh => &[],
    };
    prefixes.iter().map(|p| (*p).to_owned()).collect()
}

impl LaunchTarget for AgentTarget<'_> {
    fn plan(&mut self, attempt: u32) -> Result<LaunchPlan> {
        let plan = self.place()?;
        let rendezvous = self.rendezvous(&plan)?;
        LaunchPlan::new(self.args, plan, &rendezvous, Attempt { run: &self.run, number: attempt })
    }

    fn start(&mut self, plan: &LaunchPlan, attempt: u32) -> Result<&mut dyn WorkerGroup> {
        let launches = self.node_launches(plan, attempt)?;
        self.coordinator.start(attempt, launches);
        Ok(&mut self.coordinator)
    }

    fn restart_decision(&mut self, outcome: &AttemptOutcome) -> PoolUpdate {
        let in_use =
            |n: &usize| self.node_pool.active().contains(n) || self.node_pool.spares().contains(n);
        let lost = self.coordinator.missing().into_iter().map(|n| n as usize);
        let lost: Vec<usize> = lost.filter(in_use).collect();
        let failure = outcome.result.failure.as_ref();
        let node = failure.and_then(|f| self.hosts.iter().position(|h| *h == f.host));
        match node {
            _ if !lost.is_empty() => self.node_pool.on_failure(FailureCause::NodesLost(lost)),
            Some(node) => self.node_pool.on_failure(FailureCause::Rank(node)),
            None => self.node_pool.on_failure(FailureCause::Unknown),
        }
    }

    fn hosts(&self) -> &[String] {
        &self.hosts
    }

    fn shutdown(self: Box<Self>) {
        let lost = self.coordinator.missing();
        self.coordinator.shutdown();
        bootstrap::wait_for_exit(self.launcher_handle, &lost, &self.hosts, EXIT_TIMEOUT);
    }
}
