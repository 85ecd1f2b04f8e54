//! `regatta agent`: runs the ranks of one node for `regatta launch`, which starts it.

use std::io::Read;
use std::path::Path;

use anyhow::{Context, Result, bail};
use regatta_comm::bootstrap::host_name;
use regatta_discover::allocation::{self, DetectionInputs};
use regatta_discover::{Env, Sysroot};
use regatta_launch::agents::agent;
use regatta_launch::agents::agent::NodeHooks;
use regatta_launch::agents::bootstrap_document::BootstrapDocument;
use regatta_launch::agents::message::Registration;
use regatta_launch::host;
use regatta_launch::killed_agent::KilledAgent;
use regatta_launch::port;
use regatta_launch::reaper::{self, Watchdog};
use regatta_launch::signal_catcher::SignalCatcher;
use regatta_model::hostlist::short_hostname;
use regatta_model::{Allocation, Machine, document};
use regatta_place::{gpu_visibility, rendezvous};

use crate::cli::AgentArgs;
use crate::commands::launch::profile;
use crate::{output, plugins};

/// Maximum size of a boot document, in bytes.
const MAX_BOOT: u64 = 64 << 20;

/// Runs the command.
pub fn run(args: &AgentArgs) -> Result<()> {
    let boot = BootstrapDocument::from_text(&read(&args.boot)?)?;
    let (env, hosts) = (Env::from_process(), boot.hosts()?);
    let node = args.node.map(|node| node as usize);
    let node = node.or_else(|| named_node(&hosts, &host_name(), &env));
    let host = node.and_then(|node| hosts.get(node)).cloned();
    let agent = host.map(|host| KilledAgent { host });
    let (timeout, report) = (boot.timeouts.lost_after, output::error);
    reaper::fork_worker(Watchdog { timeout, report, agent })?;
    let mut signals = SignalCatcher::new()?;
    let mut machine = regatta_discover::discover(&Sysroot::live(), &env);
    let node = match args.node {
        Some(node) if (node as usize) < hosts.len() => node,
        Some(node) => bail!("--node {node} is out of range: the job has {} nodes", hosts.len()),
        None => node_index(&hosts, &machine, &env)?,
    };
    restrict_to_job_gpus(&mut machine, &env);
    machine.host.clone_from(&hosts[node as usize]);
    let ports = rendezvous::fallback_ports(rendezvous::job_port(&boot.run));
    let reserved = port::reserve(ports.skip(8));
    let port = reserved.as_ref().map(|port| port.port());
    let registration = Registration { node, machine: document::to_json_line(&machine)?, port };
    let hooks = NodeHooks {
        resolve: &host::resolve,
        without_run_folder: &profile::record_on_node,
        built_in_file: &plugins::library,
    };
    agent::run(&boot, registration, hooks, &mut signals)
        .with_context(|| format!("agent on {}", machine.host))
}

fn read(path: &Path) -> Result<String> {
    let mut text = String::new();
    if path == Path::new("-") {
        let stdin = std::io::stdin().lock();
        stdin.take(MAX_BOOT).read_to_string(&mut text).context("standard input")?;
    } else {
        let hint = || format!("{}: the run folder must be on a shared file system", path.display());
        let file = std::fs::File::open(path).with_context(hint)?;
        file.take(MAX_BOOT).read_to_string(&mut text).with_context(hint)?;
    }
    Ok(text)
}

/// Index of this node in the job: by host name, else by the rank the launcher gave this agent.
fn node_index(hosts: &[String], machine: &Machine, env: &Env) -> Result<u32> {
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
        _ => bail!(
            "{} is not in the job's node list, and the launcher did not set this agent's rank: list \
             the nodes by their own host names",
            machine.host
        ),
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
