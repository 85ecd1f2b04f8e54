//! The process of an agent: which node it is on, and what it registers.

use regatta_discover::allocation::{self, AllocationError, DetectionInputs};
use regatta_discover::{Env, Sysroot};
use regatta_model::hostlist::short_hostname;
use regatta_model::{Allocation, Machine, document};
use regatta_place::{gpu_visibility, rendezvous};

use super::agent::{self, AgentError, NodeHooks};
use super::bootstrap_document::{BootstrapDocument, BootstrapError};
use super::message::Registration;
use crate::killed_agent::KilledAgent;
use crate::reaper::{self, ReaperError, Watchdog};
use crate::signal_catcher::{SignalCatcher, SignalError};
use crate::{host, port};

/// Ports that agents try to listen on, which are not reserved for the job.
const AGENT_PORTS: usize = 8;

/// Why the process of an agent failed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum NodeError {
    #[error(transparent)]
    Bootstrap(#[from] BootstrapError),
    #[error(transparent)]
    Reaper(#[from] ReaperError),
    #[error(transparent)]
    Signals(#[from] SignalError),
    #[error(transparent)]
    Allocation(#[from] AllocationError),
    #[error(transparent)]
    Json(#[from] serde_json::Error),
    #[error("agent on {host}")]
    Agent { host: String, source: AgentError },
    #[error("--node {node} is out of range: the job has {nodes} nodes")]
    OutOfRange { node: u32, nodes: usize },
    #[error(
        "{host} is not in the job's node list, and the launcher did not set this agent's rank: list the \
         nodes by their own host names"
    )]
    Unknown { host: String },
}

/// Runs the agent of this node until the job is finished. `node` is its index in the job, if the launcher
/// names it; `report` tells the user that the process was killed.
pub fn run(
    boot: &BootstrapDocument,
    node: Option<u32>,
    report: fn(&str),
    hooks: NodeHooks<'_>,
) -> Result<(), NodeError> {
    let (env, hosts) = (Env::from_process(), boot.hosts()?);
    let named = || named_node(&hosts, &host::name(), &env);
    let host = node.map(|node| node as usize).or_else(named).and_then(|node| hosts.get(node));
    let agent = host.map(|host| KilledAgent { host: host.clone() });
    reaper::fork_worker(Watchdog { timeout: boot.timeouts.lost_after, report, agent })?;
    let mut signals = SignalCatcher::new()?;
    let mut machine = regatta_discover::discover(&Sysroot::live(), &env);
    let node = match node {
        Some(node) if (node as usize) < hosts.len() => node,
        Some(node) => return Err(NodeError::OutOfRange { node, nodes: hosts.len() }),
        None => node_index(&hosts, &machine, &env)?,
    };
    restrict_to_job_gpus(&mut machine, &env);
    machine.host.clone_from(&hosts[node as usize]);
    let ports = rendezvous::fallback_ports(rendezvous::job_port(&boot.run));
    let reserved = port::reserve(ports.skip(AGENT_PORTS));
    let port = reserved.as_ref().map(|port| port.port());
    let registration = Registration { node, machine: document::to_json_line(&machine)?, port };
    let ended = agent::run(boot, registration, hooks, &mut signals);
    ended.map_err(|source| NodeError::Agent { host: machine.host, source })
}

/// Index of this node in the job: by host name, else by the rank the launcher gave this agent.
fn node_index(hosts: &[String], machine: &Machine, env: &Env) -> Result<u32, NodeError> {
    if let Some(node) = named_node(hosts, &machine.host, env) {
        return Ok(node as u32);
    }
    let allocation = allocation::detect(&DetectionInputs {
        env,
        root: &Sysroot::live(),
        host: &machine.host,
        hostfile: None,
        flux_hosts: &|| None,
    })?;
    match allocation.this_rank {
        Some(me) if (me.rank as usize) < hosts.len() => Ok(me.rank),
        _ => Err(NodeError::Unknown { host: machine.host.clone() }),
    }
}

/// Index of this node in the job by its host name.
fn named_node(hosts: &[String], own: &str, env: &Env) -> Option<usize> {
    let named = |name: &str| hosts.iter().position(|h| short_hostname(h) == short_hostname(name));
    [env.get("SLURMD_NODENAME"), Some(own)].into_iter().flatten().find_map(named)
}

/// Schedulers without device cgroups name the job's GPUs in a variable.
fn restrict_to_job_gpus(machine: &mut Machine, env: &Env) {
    let allocation = Allocation { this_rank: None, ..Allocation::single_node(&machine.host) };
    let variable = |name: &str| env.as_map().get(name).cloned();
    let job_gpus = gpu_visibility::job_gpus(machine, &allocation, &variable);
    machine.usable.gpus = job_gpus.map(|job| job.gpus);
}
