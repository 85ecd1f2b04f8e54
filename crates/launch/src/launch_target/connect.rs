//! Starts agents on the job's nodes and waits until they have connected.

use std::collections::{BTreeSet, HashSet};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use regatta_model::hostlist;
use regatta_model::result::RankExit;
use regatta_model::run_folder::{BOOTSTRAP, LOG, marker_name};
use regatta_place::rendezvous;
use regatta_wire::clock;
use regatta_wire::secret::Secret;

use super::agent_commands::AgentCommands;
use super::temp_file::TempFile;
use crate::agent_launcher::command::AgentLauncher;
use crate::agent_launcher::handle::{LOGIN_TIMEOUT, LauncherHandle};
use crate::agents::bootstrap_document::{self, BootstrapDocument, JobTimeouts};
use crate::agents::coordinator::Coordinator;
use crate::config::JobConfig;
use crate::discovery::Discovery;
use crate::error::{Interrupted, LaunchError, Result};
use crate::job_host::JobHost;
use crate::node_pool::{NodePool, PoolUpdate};
use crate::status::{JobObserver, JobStatus};
use crate::{host, reaper};

/// Delay before the first progress message while waiting for agents.
const PROGRESS_DELAY: Duration = Duration::from_secs(2);
/// Interval between progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// Ports that agents try to listen on.
const PORTS: usize = 8;
/// Time for agents to exit on their own: longer than they wait for each other.
const AGENT_EXIT_TIMEOUT: Duration = Duration::from_secs(3);
/// Most lines of the agents' launchers in an error.
const MAX_OUTPUT: usize = 20;

/// Starts the agents of a job.
pub(crate) struct AgentConnector<'a, 'b> {
    pub(crate) config: &'a JobConfig,
    /// ID of the run.
    pub(crate) run: &'a str,
    /// Absolute path of the run folder.
    pub(crate) folder: &'b Path,
    pub(crate) host: &'b mut dyn JobHost,
    pub(crate) observer: &'b mut dyn JobObserver,
}

/// Nodes whose agents have connected.
pub(super) struct ConnectedAgents {
    /// All nodes, the spares last.
    pub(super) hosts: Vec<String>,
    pub(super) launcher: AgentLauncher,
    /// Variables that were unset for the agent launcher, and are therefore missing in the agents.
    pub(super) unset: BTreeSet<String>,
    pub(super) coordinator: Coordinator,
    launcher_handle: LauncherHandle,
    /// Nodes whose agents have ended, as known from their launchers.
    ended: BTreeSet<usize>,
    /// By this file agents recognise the shared run folder.
    _marker: TempFile,
}

impl ConnectedAgents {
    /// Nodes without a connected agent.
    pub(super) fn missing(&self) -> Vec<usize> {
        self.coordinator.missing().into_iter().map(|node| node as usize).collect()
    }

    /// Those of `nodes` on which a process of the agent may still run: all but those whose agent
    /// launcher has exited with the status of the agent, and those whose agent was killed and has
    /// reported that nothing is left.
    pub(super) fn possibly_running(&mut self, nodes: &[u32]) -> Vec<usize> {
        for (range, status) in self.launcher_handle.take_exited() {
            // ssh exits with 255 if it lost the connection.
            let ended = status.code().is_some_and(|code| code != 255);
            self.ended.extend(range.filter(|_| ended));
        }
        for end in self.launcher_handle.take_killed() {
            self.ended.extend(self.hosts.iter().position(|host| *host == end.host));
        }
        let nodes = nodes.iter().map(|&node| node as usize);
        nodes.filter(|node| !self.ended.contains(node)).collect()
    }

    /// Ends the agents and waits until they have exited. Names the nodes for which that is not
    /// certain.
    pub(super) fn shutdown(self, grace: Duration, observer: &mut dyn JobObserver) {
        reaper::suspend_heartbeats();
        let lost = self.coordinator.missing();
        self.coordinator.shutdown();
        let killed = self.launcher_handle.shutdown(&lost, AGENT_EXIT_TIMEOUT, grace);
        if !killed.is_empty() {
            observer.on_status(&JobStatus::AgentsKilled { hosts: names(&self.hosts, &killed) });
        }
    }
}

impl AgentConnector<'_, '_> {
    /// Starts agents on all nodes and waits until they connect. Nodes whose agent does not connect are
    /// replaced by spares or dropped, if allowed.
    pub(super) fn connect(
        mut self,
        discovery: &Discovery,
        pool: &mut NodePool,
    ) -> Result<ConnectedAgents> {
        // The files are kept until all agents have read them.
        let (mut agents, _files) = self.start(discovery)?;
        let connected = self.wait(&mut agents);
        match connected.and_then(|()| self.replace_missing(&agents, pool)) {
            Ok(()) => Ok(agents),
            Err(error) => {
                agents.shutdown(Duration::from_secs(1), self.observer);
                Err(error)
            }
        }
    }

    fn start(&mut self, discovery: &Discovery) -> Result<(ConnectedAgents, Vec<TempFile>)> {
        let (config, run) = (self.config, self.run);
        let agents = AgentCommands::new(config, discovery)?;
        agents.notes.iter().for_each(|note| self.observer.on_status(&JobStatus::Note(note)));
        let timeouts = JobTimeouts {
            grace: config.grace(),
            join: config.agents.start_timeout,
            lost_after: config.heartbeat_timeout,
        };
        let secret = Secret::generate().map_err(LaunchError::io("generate the job's secret"))?;
        let coordinator = Coordinator::listen(&agents.hosts, secret.clone(), timeouts);
        let coordinator = coordinator.map_err(LaunchError::io("listen for agents"))?;
        let marker = TempFile::create(self.folder.join(LOG).join(marker_name(run)), "")?;
        let root = addresses(discovery).into_iter();
        let bootstrap = BootstrapDocument {
            version: bootstrap_document::VERSION,
            run: run.to_owned(),
            secret: secret.to_hex(),
            hosts: hostlist::compress(&agents.hosts),
            fan_out: config.agents.fan_out,
            timeouts,
            root: root.map(|address| SocketAddr::new(address, coordinator.port())).collect(),
            ports: rendezvous::fallback_ports(rendezvous::job_port(run)).take(PORTS).collect(),
            marker: marker.0.clone().into(),
        };
        let bootstrap = bootstrap.to_text()?;
        let mut files = match agents.launcher.bootstraps_via_stdin() {
            true => Vec::new(),
            false => vec![TempFile::create(self.folder.join(BOOTSTRAP), &bootstrap)?],
        };
        let commands = agents.commands(files.first().map(|f| f.0.as_path()))?;
        let unset = commands.iter().flat_map(|command| command.env_remove.clone()).collect();
        let hostfiles = commands.iter().filter_map(|command| command.hostfile.as_ref());
        files.extend(hostfiles.map(|(path, _)| TempFile(path.clone())));
        let launcher_handle =
            LauncherHandle::spawn(commands, &bootstrap, &agents.hosts, LOGIN_TIMEOUT)?;
        let AgentCommands { hosts, launcher, .. } = agents;
        let ended = BTreeSet::new();
        let _marker = marker;
        let agents = ConnectedAgents {
            hosts,
            launcher,
            unset,
            coordinator,
            launcher_handle,
            ended,
            _marker,
        };
        Ok((agents, files))
    }

    /// Waits until all agents have connected, the launchers of the missing ones have exited, or the time
    /// limit has passed.
    fn wait(&mut self, agents: &mut ConnectedAgents) -> Result<()> {
        let limit = self.config.agents.start_timeout;
        let start = clock::now();
        let mut last_message = start + PROGRESS_DELAY - PROGRESS_INTERVAL;
        let mut launcher_exited = vec![false; agents.hosts.len()];
        loop {
            let missing = agents.missing();
            if missing.iter().all(|&n| launcher_exited[n]) || clock::elapsed(start) >= limit {
                return Ok(());
            }
            if let Some(signal) = self.host.termination() {
                return Err(Interrupted(RankExit::Signal(signal)).into());
            }
            agents.coordinator.poll(Duration::from_millis(50));
            for (range, _) in agents.launcher_handle.take_exited() {
                launcher_exited[range].fill(true);
            }
            if clock::elapsed(last_message) >= PROGRESS_INTERVAL {
                last_message = clock::now();
                let missing = names(&agents.hosts, &missing);
                let nodes = agents.hosts.len();
                self.observer.on_status(&JobStatus::WaitingForAgents { missing, nodes });
            }
        }
    }

    /// Replaces or drops nodes without an agent; fails with the output of their launchers otherwise.
    fn replace_missing(&mut self, agents: &ConnectedAgents, pool: &mut NodePool) -> Result<()> {
        let ConnectedAgents { hosts, launcher, launcher_handle, .. } = agents;
        let missing = agents.missing();
        if missing.is_empty() {
            return Ok(());
        }
        // One launcher may serve many hosts.
        let mut seen = HashSet::new();
        let output = missing.iter().flat_map(|&n| launcher_handle.output_tail(n));
        let output = output.filter(|line| seen.insert(line.clone()));
        let output: Vec<String> = output.take(MAX_OUTPUT).collect();
        let cause = match output.is_empty() {
            true => format!(
                "timed out after {} s: check that the nodes can reach this host over TCP, or raise \
                 --start-timeout",
                self.config.agents.start_timeout.as_secs()
            ),
            false => format!("{launcher} reported: {}", output.join(" | ")),
        };
        let update = pool.exclude(&missing, &format!("its agent did not connect: {cause}"));
        if !matches!(update, PoolUpdate::GiveUp(_)) {
            self.observer.on_status(&JobStatus::NodesChanged { update: &update, hosts });
            return Ok(());
        }
        let is_ssh = *launcher == AgentLauncher::Ssh;
        let hint = if is_ssh { "; check that `ssh HOST true` works without a prompt" } else { "" };
        let hosts = hostlist::compress(&names(hosts, &missing));
        Err(LaunchError::Agents { hosts, cause, hint })
    }
}

/// The names of these nodes.
fn names<'a>(hosts: &'a [String], nodes: &[usize]) -> Vec<&'a str> {
    nodes.iter().map(|&node| hosts[node].as_str()).collect()
}

/// The addresses by which nodes may reach this host, that of the high-speed network first.
fn addresses(discovery: &Discovery) -> Vec<IpAddr> {
    let machine = &discovery.machines[0];
    let own = rendezvous::master_address(machine, true, &[]).ok();
    let fabric = own.and_then(|(address, _)| address.parse().ok());
    let others = machine.nics.iter().flat_map(|nic| nic.addresses.iter().map(|a| a.address));
    let others = others.filter(|a| !a.is_loopback() && !is_link_local(a));
    let all = fabric.into_iter().chain(others).chain(host::resolve(&machine.host));
    let mut seen = HashSet::new();
    let mut all: Vec<IpAddr> = all.filter(|address| seen.insert(*address)).collect();
    all.sort_by_key(|a| a.is_ipv6());
    if all.is_empty() {
        all.push(Ipv4Addr::LOCALHOST.into());
    }
    all
}

/// Link-local addresses are valid only together with an interface.
fn is_link_local(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => v4.is_link_local(),
        IpAddr::V6(v6) => v6.is_unicast_link_local(),
    }
}
