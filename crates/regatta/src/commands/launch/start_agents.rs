//! Starts agents on the job's nodes and waits until they have connected.

use std::collections::{BTreeSet, HashSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use regatta_launch::agent_launcher::command::{AgentLauncher, LaunchCommand, LaunchSpec};
use regatta_launch::agent_launcher::handle::LauncherHandle;
use regatta_launch::agent_launcher::slurm_gres::{self, Gres};
use regatta_launch::agents::bootstrap_document::{BootstrapDocument, BootstrapParams, JobTimeouts};
use regatta_launch::agents::coordinator::Coordinator;
use regatta_launch::agents::killed_line;
use regatta_launch::config::JobConfig;
use regatta_launch::node_pool::{NodePool, PoolUpdate};
use regatta_launch::reaper;
use regatta_launch::run_folder::RunFolder;
use regatta_launch::signals::SignalCatcher;
use regatta_model::hostlist;
use regatta_model::result::RankExit;
use regatta_model::units::pluralize;
use regatta_place::batch::BatchScheduler;
use regatta_place::launcher_options::{LauncherSyntax, RequiredOption};
use regatta_place::rendezvous;
use regatta_wire::clock;
use regatta_wire::secret::Secret;

use super::report;
use crate::cli::FAINT;
use crate::discovery::Discovery;
use crate::shell::quote_words;
use crate::{env, output, system};

/// Delay before the first progress message while waiting for agents.
const PROGRESS_DELAY: Duration = Duration::from_secs(2);
/// Interval between progress messages.
const PROGRESS_INTERVAL: Duration = Duration::from_secs(10);
/// Ports that agents try to listen on.
const PORTS: usize = 8;

/// Time for agents to exit on their own: longer than they wait for each other.
const AGENT_EXIT_TIMEOUT: Duration = Duration::from_secs(3);

/// Nodes whose agents have connected.
pub struct ConnectedAgents {
    /// All nodes, the spares last.
    pub hosts: Vec<String>,
    pub node_pool: NodePool,
    pub launcher: AgentLauncher,
    /// Variables that were unset for the agent launcher, and are therefore missing in the agents.
    pub unset: BTreeSet<String>,
    pub coordinator: Coordinator,
    launcher_handle: LauncherHandle,
    /// Nodes whose agents have exited, as known from their launchers.
    ended: BTreeSet<usize>,
    /// By this file agents recognise the shared run folder.
    _marker: TempFile,
}

impl ConnectedAgents {
    /// Those of `nodes` on which a process of the agent may still run: all but those whose agent
    /// launcher has exited with the status of the agent, and those whose agent was killed and has
    /// reported that nothing is left.
    pub fn possibly_running(&mut self, nodes: &[u32]) -> Vec<usize> {
        for (range, status) in self.launcher_handle.take_exited() {
            // ssh exits with 255 if it lost the connection.
            let ended = status.code().is_some_and(|code| code != 255);
            self.ended.extend(range.filter(|_| ended));
        }
        let is_reported = |node: usize| {
            let report = killed_line(&self.hosts[node]);
            self.launcher_handle.output_tail(node).iter().any(|line| line.contains(&report))
        };
        let nodes = nodes.iter().map(|&node| node as usize);
        nodes.filter(|node| !self.ended.contains(node) && !is_reported(*node)).collect()
    }

    /// Ends the agents and waits until they have exited. Names the nodes for which that is not
    /// certain.
    pub fn shutdown(self, grace: Duration) {
        reaper::suspend_heartbeats();
        let lost = self.coordinator.missing();
        self.coordinator.shutdown();
        let killed = self.launcher_handle.shutdown(&lost, AGENT_EXIT_TIMEOUT, grace);
        if !killed.is_empty() {
            output::note(&format!(
                "the command that started the agents on {} did not exit with the job and was \
                 killed; check for leftover `regatta agent` processes there",
                names(&self.hosts, killed)
            ));
        }
    }
}

/// A signal arrived before any rank ran.
#[derive(Debug, thiserror::Error)]
#[error("interrupted by {0} while starting agents")]
pub struct Interrupted(pub RankExit);

/// A file that is removed on drop.
struct TempFile(PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl TempFile {
    /// Creates a file that only this user can read.
    fn create(path: PathBuf, text: &str) -> Result<Self> {
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        let written = file.and_then(|mut file| file.write_all(text.as_bytes()));
        written.with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }
}

/// The commands that would start the agents, for `--dry-run`.
pub fn describe(config: &JobConfig, discovery: &Discovery) -> Result<String> {
    let hosts = hosts(discovery)?;
    let launcher = launcher(config, discovery)?;
    note_unmet_options(config, launcher, discovery)?;
    let boot = (!launcher.bootstraps_via_stdin()).then(|| PathBuf::from("RUN-FOLDER/boot"));
    let commands = commands(config, launcher, discovery, &hosts, boot.as_deref())?;
    let line = |LaunchCommand { program, args, .. }: &LaunchCommand| {
        format!("agent command  {}\n", quote_words(std::iter::once(program).chain(args)))
    };
    let required = step_options(config, launcher, discovery)?;
    Ok(commands.iter().map(line).chain(required.iter().map(describe_option)).collect())
}

/// The options that the site requires of the agents' step in a job on a described machine, for
/// `--dry-run`.
pub fn describe_elsewhere(config: &JobConfig, discovery: &Discovery) -> Result<String> {
    let (site, _) = discovery.resolve_job(&config.source, &config.placement)?;
    let is_slurm = site.profile.batch.scheduler == Some(BatchScheduler::Slurm);
    let options = match config.agents.launcher.map_or(is_slurm, |own| own == AgentLauncher::Srun) {
        true => required_options(config, discovery, LauncherSyntax::Srun)?,
        false => Vec::new(),
    };
    Ok(options.iter().map(describe_option).collect())
}

fn describe_option(RequiredOption { option, why }: &RequiredOption) -> String {
    format!("option of the agents' srun  {option}  {FAINT}{why}{FAINT:#}\n")
}

/// Starts agents on all nodes and waits until they connect. Nodes whose agent does not connect are
/// replaced by spares or dropped, if allowed.
pub fn start(
    config: &JobConfig,
    discovery: &Discovery,
    run: &str,
    folder: &RunFolder,
    signals: &mut SignalCatcher,
) -> Result<ConnectedAgents> {
    let hosts = hosts(discovery)?;
    let node_pool = super::node_pool(config, discovery)?;
    let launcher = launcher(config, discovery)?;
    note_unmet_options(config, launcher, discovery)?;
    let timeouts = JobTimeouts {
        grace: config.grace(),
        join: config.agents.start_timeout,
        lost_after: config.heartbeat_timeout,
    };
    let secret = Secret::generate().context("generate the job's secret")?;
    let coordinator = Coordinator::listen(&hosts, secret.clone(), timeouts);
    let coordinator = coordinator.context("listen for agents")?;
    let path = std::path::absolute(folder.path()).context("path of the run folder")?;
    let marker = TempFile::create(path.join(format!("log/.{run}")), "")?;
    let root = addresses(discovery).into_iter();
    let boot = BootstrapDocument::new(BootstrapParams {
        run,
        secret: &secret,
        hosts: &hosts,
        fan_out: config.agents.fan_out,
        timeouts,
        root: root.map(|address| SocketAddr::new(address, coordinator.port())).collect(),
        ports: rendezvous::fallback_ports(rendezvous::job_port(run)).take(PORTS).collect(),
        marker: marker.0.clone(),
    });
    let boot = boot.to_text()?;
    let file = match launcher.bootstraps_via_stdin() {
        true => None,
        false => Some(TempFile::create(path.join("boot"), &boot)?),
    };
    let file_path = file.as_ref().map(|f| f.0.as_path());
    let commands = commands(config, launcher, discovery, &hosts, file_path)?;
    let unset = commands.iter().flat_map(|command| command.env_remove.clone()).collect();
    let hostfiles = commands.iter().filter_map(|command| command.hostfile.as_ref());
    let _hostfiles: Vec<TempFile> = hostfiles.map(|(path, _)| TempFile(path.clone())).collect();
    let launcher_handle = LauncherHandle::spawn(commands, &boot, &hosts)?;
    let _marker = marker;
    let mut agents = ConnectedAgents {
        hosts,
        node_pool,
        launcher,
        unset,
        coordinator,
        launcher_handle,
        ended: BTreeSet::new(),
        _marker,
    };
    let connected = wait_for_agents(&mut agents, timeouts.join, signals);
    match connected.and_then(|()| replace_missing(&mut agents, timeouts.join)) {
        Ok(()) => Ok(agents),
        Err(error) => {
            agents.shutdown(Duration::from_secs(1));
            Err(error)
        }
    }
}

/// The names of these nodes as a host list.
fn names(hosts: &[String], nodes: impl IntoIterator<Item = usize>) -> String {
    let names: Vec<&str> = nodes.into_iter().map(|node| hosts[node].as_str()).collect();
    hostlist::compress(&names)
}

fn hosts(discovery: &Discovery) -> Result<Vec<String>> {
    if !discovery.allocation.all_hosts_known() {
        bail!("the host names of the job's nodes are unknown: pass --hostfile");
    }
    Ok(discovery.allocation.nodes.iter().map(|n| n.host.clone()).collect())
}

fn launcher(config: &JobConfig, discovery: &Discovery) -> Result<AgentLauncher> {
    let scheduler = discovery.allocation.scheduler;
    let default = || AgentLauncher::for_scheduler(scheduler, system::mpiexec_version);
    Ok(config.agents.launcher.map_or_else(default, Ok)?)
}

fn commands(
    config: &JobConfig,
    launcher: AgentLauncher,
    discovery: &Discovery,
    hosts: &[String],
    boot_file: Option<&Path>,
) -> Result<Vec<LaunchCommand>> {
    let own = std::env::current_exe().context("path of this program")?;
    let program = config.agents.program.as_deref().unwrap_or(&own);
    let ssh = config.agents.ssh.as_deref().unwrap_or_default();
    let ssh = shlex::split(ssh).with_context(|| format!("--ssh {ssh}: unclosed quote"))?;
    let job = discovery.env.get("SLURM_JOB_ID").filter(|_| launcher == AgentLauncher::Srun);
    let job = job.and_then(system::slurm_job);
    let gres = job.map_or(Gres::Inherited, |job| slurm_gres::full_node_gres(&job, hosts));
    let required = step_options(config, launcher, discovery)?.into_iter().map(|r| r.option);
    // The user's options last: srun uses the last of several values.
    let options: Vec<String> = required.chain(config.agents.options.iter().cloned()).collect();
    let spec = LaunchSpec {
        hosts,
        program,
        bootstrap_file: boot_file,
        ssh: &ssh,
        options: &options,
        gres: &gres,
    };
    Ok(launcher.commands(&spec)?)
}

/// The options that the site's settings require of the step of the agents: an allocation may be
/// without them, as from a plain `salloc`. Only srun's, which are about the NICs of the step.
fn step_options(
    config: &JobConfig,
    launcher: AgentLauncher,
    discovery: &Discovery,
) -> Result<Vec<RequiredOption>> {
    match launcher {
        AgentLauncher::Srun => required_options(config, discovery, LauncherSyntax::Srun),
        _ => Ok(Vec::new()),
    }
}

fn required_options(
    config: &JobConfig,
    discovery: &Discovery,
    launcher: LauncherSyntax,
) -> Result<Vec<RequiredOption>> {
    let (site, _) = discovery.resolve_job(&config.source, &config.placement)?;
    Ok(env::agent_step_options(discovery, &site.profile, &config.rank_env, launcher))
}

/// Notes the options of PALS that settings need, which are for MPI processes: ranks of agents are
/// none. Ranks of regatta's own commands do not use the settings.
fn note_unmet_options(
    config: &JobConfig,
    launcher: AgentLauncher,
    discovery: &Discovery,
) -> Result<()> {
    if launcher != AgentLauncher::Pals || config.workload.own_ranks().is_some() {
        return Ok(());
    }
    for RequiredOption { option, why } in required_options(config, discovery, LauncherSyntax::Pals)?
    {
        output::note(&format!(
            "ranks started by agents have no {option} of mpiexec: {} Start them by `mpiexec \
             $(regatta map --format pals) regatta launch`, as `regatta submit` does",
            why
        ));
    }
    Ok(())
}

/// The addresses by which nodes may reach this host, that of the high-speed network first.
fn addresses(discovery: &Discovery) -> Vec<IpAddr> {
    let machine = &discovery.machines[0];
    let own = rendezvous::master_address(machine, true, &[]).ok();
    let fabric = own.and_then(|(address, _)| address.parse().ok());
    let others = machine.nics.iter().flat_map(|nic| nic.addresses.iter().map(|a| a.address));
    let others = others.filter(|a| !a.is_loopback() && !is_link_local(a));
    let all = fabric.into_iter().chain(others).chain(system::resolve(&machine.host));
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

/// Waits until all agents have connected, the launchers of the missing ones have exited, or the time
/// limit has passed.
fn wait_for_agents(
    agents: &mut ConnectedAgents,
    limit: Duration,
    signals: &mut SignalCatcher,
) -> Result<()> {
    let ConnectedAgents { hosts, coordinator, launcher_handle, .. } = agents;
    let start = clock::now();
    let mut last_message = start + PROGRESS_DELAY - PROGRESS_INTERVAL;
    let mut launcher_exited = vec![false; hosts.len()];
    loop {
        let missing = coordinator.missing();
        if missing.iter().all(|&n| launcher_exited[n as usize]) || clock::elapsed(start) >= limit {
            return Ok(());
        }
        if let Some(signal) = signals.termination() {
            return Err(Interrupted(RankExit::Signal(signal)).into());
        }
        coordinator.poll(Duration::from_millis(50));
        for (range, _) in launcher_handle.take_exited() {
            launcher_exited[range].fill(true);
        }
        if clock::elapsed(last_message) >= PROGRESS_INTERVAL {
            last_message = clock::now();
            let (count, all) = (missing.len(), pluralize(hosts.len(), "node"));
            let names = names(hosts, missing.into_iter().map(|n| n as usize));
            let text = format!("waiting for agents on {count} of {all}: {names}");
            output::eprint(&format!("{FAINT}{text}{FAINT:#}\n"));
        }
    }
}

/// Replaces or drops nodes without an agent; fails with the output of their launchers otherwise.
fn replace_missing(agents: &mut ConnectedAgents, limit: Duration) -> Result<()> {
    let ConnectedAgents { hosts, node_pool, launcher, coordinator, launcher_handle, .. } = agents;
    let missing: Vec<usize> = coordinator.missing().into_iter().map(|n| n as usize).collect();
    if missing.is_empty() {
        return Ok(());
    }
    // One launcher may serve many hosts.
    let mut seen = HashSet::new();
    let output = missing.iter().flat_map(|&n| launcher_handle.output_tail(n));
    let output: Vec<String> = output.filter(|line| seen.insert(line.clone())).take(20).collect();
    let cause = match output.is_empty() {
        true => format!(
            "timed out after {} s: check that the nodes can reach this host over TCP, or raise \
             --start-timeout",
            limit.as_secs()
        ),
        false => format!("{launcher} reported: {}", output.join(" | ")),
    };
    let decision = node_pool.on_missing(&missing, &format!("its agent did not connect: {cause}"));
    let PoolUpdate::GiveUp(_) = decision else {
        report::print_restart_decision(&decision, hosts);
        return Ok(());
    };
    let is_ssh = *launcher == AgentLauncher::Ssh;
    let hint = if is_ssh { "; check that `ssh HOST true` works without a prompt" } else { "" };
    bail!("cannot start agents on {}: {cause}{hint}", names(hosts, missing))
}
