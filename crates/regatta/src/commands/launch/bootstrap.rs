//! Starts agents on the job's nodes and waits until they have connected.

use std::collections::{BTreeSet, HashSet};
use std::fs::OpenOptions;
use std::io::Write;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use regatta_launch::agent_launcher::command::{AgentLauncher, LaunchCommand, LaunchSpec};
use regatta_launch::agent_launcher::handle::LauncherHandle;
use regatta_launch::agent_launcher::slurm_gres::{self, Gres};
use regatta_launch::agents::bootstrap_document::{BootstrapDocument, BootstrapParams, JobTimeouts};
use regatta_launch::agents::coordinator::Coordinator;
use regatta_launch::node_pool::{NodePool, PoolUpdate};
use regatta_launch::run_folder::RunFolder;
use regatta_launch::signals::SignalCatcher;
use regatta_model::hostlist;
use regatta_model::result::RankExit;
use regatta_model::units::pluralize;
use regatta_place::rendezvous;
use regatta_wire::secret::Secret;

use super::report;
use crate::cli::{FAINT, LaunchArgs};
use crate::plan::Discovery;
use crate::shell::quote;
use crate::{output, system};

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
    pub hosts: Vec<String>,
    pub node_pool: NodePool,
    pub launcher: AgentLauncher,
    /// Variables that were unset for the agent launcher, and are therefore missing in the agents.
    pub unset: BTreeSet<String>,
    pub coordinator: Coordinator,
    pub launcher_handle: LauncherHandle,
    /// By this file agents recognise the shared run folder.
    pub marker: TempFile,
}

/// A signal arrived before any rank ran.
#[derive(Debug, thiserror::Error)]
#[error("interrupted by {0} while starting agents")]
pub struct Interrupted(pub RankExit);

/// A file that is removed on drop.
pub struct TempFile(PathBuf);

impl Drop for TempFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl TempFile {
    /// Creates a file that only this user can read.
    fn create(path: PathBuf, text: &str) -> Result<Self> {
        let open = || OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path);
        open()
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .with_context(|| path.display().to_string())?;
        Ok(Self(path))
    }
}

/// The commands that would start the agents, for `--dry-run`.
pub fn describe(args: &LaunchArgs, discovery: &Discovery) -> Result<String> {
    let hosts = hosts(discovery)?;
    let launcher = launcher(args, discovery)?;
    let boot = (!launcher.bootstraps_via_stdin()).then(|| PathBuf::from("RUN-FOLDER/boot"));
    let mut text = String::new();
    for command in commands(args, launcher, discovery, &hosts, boot.as_deref())? {
        let words = std::iter::once(&command.program).chain(&command.args);
        let words: Vec<String> = words.map(|w| quote(&w.to_string_lossy())).collect();
        text.push_str(&format!("agent command  {}\n", words.join(" ")));
    }
    Ok(text)
}

/// Starts agents on all nodes and waits until they connect. Nodes whose agent does not connect are
/// replaced by spares or dropped, if allowed.
pub fn start_agents(
    args: &LaunchArgs,
    discovery: &Discovery,
    run: &str,
    folder: &RunFolder,
    signals: &mut SignalCatcher,
) -> Result<ConnectedAgents> {
    let hosts = hosts(discovery)?;
    let mut node_pool =
        NodePool::new(hosts.len(), args.spares as usize, args.min_nodes.map(|n| n as usize))?;
    let launcher = launcher(args, discovery)?;
    let times = times(args);
    let secret = Secret::generate().context("generate the job's secret")?;
    let mut coordinator =
        Coordinator::listen(&hosts, secret.clone(), times).context("listen for agents")?;
    let path = std::path::absolute(folder.path()).context("path of the run folder")?;
    let marker = TempFile::create(path.join(format!("log/.{run}")), "")?;
    let root =
        addresses(discovery).into_iter().map(|a| SocketAddr::new(a, coordinator.port())).collect();
    let ports = rendezvous::fallback_ports(rendezvous::job_port(run)).take(PORTS).collect();
    let boot = BootstrapDocument::new(BootstrapParams {
        run,
        secret: &secret,
        hosts: &hosts,
        fan_out: args.fan_out,
        timeouts: times,
        root,
        ports,
        marker: marker.0.clone(),
    });
    let boot = boot.to_text()?;
    let file = match launcher.bootstraps_via_stdin() {
        true => None,
        false => Some(TempFile::create(path.join("boot"), &boot)?),
    };
    let file_path = file.as_ref().map(|f| f.0.as_path());
    let commands = commands(args, launcher, discovery, &hosts, file_path)?;
    let unset = commands.iter().flat_map(|i| i.env_remove.clone()).collect();
    let hostfiles = commands.iter().filter_map(|i| i.hostfile.as_ref());
    let _hostfiles: Vec<TempFile> = hostfiles.map(|(path, _)| TempFile(path.clone())).collect();
    let mut launcher_handle = LauncherHandle::spawn(commands, &boot, &hosts)?;
    let connected =
        wait_for_agents(&mut coordinator, &mut launcher_handle, &hosts, times.join, signals)
            .and_then(|()| {
                let launcher = (launcher, &launcher_handle);
                replace_missing(&coordinator, launcher, &mut node_pool, &hosts, times.join)
            });
    if let Err(error) = connected {
        let lost = coordinator.missing();
        coordinator.shutdown();
        wait_for_exit(launcher_handle, &lost, &hosts, Duration::from_secs(1));
        return Err(error);
    }
    Ok(ConnectedAgents { hosts, node_pool, launcher, unset, coordinator, launcher_handle, marker })
}

/// Waits until the agents have exited, and names the nodes for which that is not certain.
pub fn wait_for_exit(
    launcher_handle: LauncherHandle,
    lost: &[u32],
    hosts: &[String],
    grace: Duration,
) {
    let killed = launcher_handle.shutdown(lost, AGENT_EXIT_TIMEOUT, grace);
    if !killed.is_empty() {
        let names: Vec<&str> = killed.iter().map(|&node| hosts[node].as_str()).collect();
        output::note(&format!(
            "the command that started the agents on {} did not exit with the job and was killed; \
             check for leftover `regatta agent` processes there",
            hostlist::compress(&names)
        ));
    }
}

fn times(args: &LaunchArgs) -> JobTimeouts {
    JobTimeouts {
        grace: Duration::from_secs(args.grace),
        join: Duration::from_secs(args.start_timeout),
        lost_after: Duration::from_secs(args.heartbeat_timeout),
    }
}

fn hosts(discovery: &Discovery) -> Result<Vec<String>> {
    if !discovery.allocation.all_hosts_known() {
        bail!("the host names of the job's nodes are unknown: pass --hostfile");
    }
    Ok(discovery.allocation.nodes.iter().map(|n| n.host.clone()).collect())
}

fn launcher(args: &LaunchArgs, discovery: &Discovery) -> Result<AgentLauncher> {
    if let Some(name) = args.launcher {
        return Ok(name.into());
    }
    Ok(AgentLauncher::for_scheduler(discovery.allocation.scheduler, system::mpiexec_version)?)
}

fn commands(
    args: &LaunchArgs,
    launcher: AgentLauncher,
    discovery: &Discovery,
    hosts: &[String],
    boot_file: Option<&Path>,
) -> Result<Vec<LaunchCommand>> {
    let own = std::env::current_exe().context("path of this program")?;
    let program = args.agent.as_deref().unwrap_or(&own);
    let ssh: Vec<String> = match &args.ssh {
        Some(text) => {
            shlex::split(text).with_context(|| format!("--ssh {text}: unclosed quote"))?
        }
        None => Vec::new(),
    };
    let job = discovery.env.get("SLURM_JOB_ID").filter(|_| launcher == AgentLauncher::Srun);
    let job = job.and_then(system::slurm_job);
    let gres = job.map_or(Gres::Inherited, |job| slurm_gres::full_node_gres(&job, hosts));
    let agents = LaunchSpec { hosts, program, bootstrap_file: boot_file, ssh: &ssh, gres: &gres };
    Ok(launcher.commands(&agents)?)
}

/// The addresses by which nodes may reach this host, that of the high-speed network first.
fn addresses(discovery: &Discovery) -> Vec<IpAddr> {
    let machine = &discovery.machines[0];
    let own = rendezvous::master_address(machine, true, &[]).ok();
    let fabric = own.and_then(|(address, _)| address.parse().ok());
    let others = machine.nics.iter().flat_map(|nic| nic.addresses.iter().map(|a| a.address));
    let others = others.filter(|a| !a.is_loopback() && !is_link_local(a));
    let mut all: Vec<IpAddr> = Vec::new();
    for address in fabric.into_iter().chain(others).chain(system::resolve(&machine.host)) {
        if !all.contains(&address) {
            all.push(address);
        }
    }
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
    coordinator: &mut Coordinator,
    launcher_handle: &mut LauncherHandle,
    hosts: &[String],
    limit: Duration,
    signals: &mut SignalCatcher,
) -> Result<()> {
    let start = Instant::now();
    let mut last_message = start + PROGRESS_DELAY - PROGRESS_INTERVAL;
    let mut launcher_exited = vec![false; hosts.len()];
    loop {
        let missing = coordinator.missing();
        if missing.iter().all(|&n| launcher_exited[n as usize]) || start.elapsed() >= limit {
            return Ok(());
        }
        if let Some(signal) = signals.termination() {
            return Err(Interrupted(RankExit::Signal(signal)).into());
        }
        coordinator.poll(Duration::from_millis(50));
        for (range, _) in launcher_handle.take_exited() {
            launcher_exited[range].fill(true);
        }
        if last_message.elapsed() >= PROGRESS_INTERVAL {
            last_message = Instant::now();
            let names: Vec<&str> = missing.iter().map(|&n| hosts[n as usize].as_str()).collect();
            let (missing, all) = (names.len(), pluralize(hosts.len(), "node"));
            let names = hostlist::compress(&names);
            output::eprint(&format!(
                "{FAINT}waiting for agents on {missing} of {all}: {names}{FAINT:#}\n"
            ));
        }
    }
}

/// Replaces or drops nodes without an agent; fails with the output of their launchers otherwise.
fn replace_missing(
    coordinator: &Coordinator,
    (launcher, launcher_handle): (AgentLauncher, &LauncherHandle),
    node_pool: &mut NodePool,
    hosts: &[String],
    limit: Duration,
) -> Result<()> {
    let missing: Vec<usize> = coordinator.missing().into_iter().map(|n| n as usize).collect();
    if missing.is_empty() {
        return Ok(());
    }
    let decision = node_pool.on_missing(&missing, "its agent never connected");
    let PoolUpdate::GiveUp(_) = decision else {
        report::print_restart_decision(&decision, hosts);
        return Ok(());
    };
    let names: Vec<&str> = missing.iter().map(|&n| hosts[n].as_str()).collect();
    let mut output: Vec<String> =
        missing.iter().flat_map(|&n| launcher_handle.output_tail(n)).collect();
    // One launcher may serve many hosts.
    let mut seen = HashSet::new();
    output.retain(|line| seen.insert(line.clone()));
    output.truncate(20);
    let cause = match output.is_empty() {
        true => format!(
            "timed out after {} s: check that the nodes can reach this host over TCP, or raise \
             --start-timeout",
            limit.as_secs()
        ),
        false => format!("{launcher} reported: {}", output.join(" | ")),
    };
    let is_ssh = launcher == AgentLauncher::Ssh;
    let hint = if is_ssh { "; check that `ssh HOST true` works without a prompt" } else { "" };
    bail!("cannot start agents on {}: {cause}{hint}", hostlist::compress(&names))
}
