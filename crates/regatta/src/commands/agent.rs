//! `regatta agent`: runs the ranks of one node for a `regatta launch` elsewhere. Started by it, not
//! by people.

use std::io::Read;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use regatta_discover::allocation::{self, Sources};
use regatta_discover::{Env, Root};
use regatta_launch::fleet::agent;
use regatta_launch::fleet::boot::Boot;
use regatta_launch::fleet::message::Hello;
use regatta_launch::signals::Caught;
use regatta_launch::{port, warden};
use regatta_model::hostlist::short;
use regatta_model::{Machine, document};
use regatta_place::{rendezvous, visible};

use crate::cli::AgentArgs;
use crate::system;

/// A boot document is never longer.
const MOST: u64 = 64 << 20;

/// Runs the command.
pub fn run(args: &AgentArgs) -> Result<ExitCode> {
    let boot = Boot::from_text(&read(&args.boot)?)?;
    warden::guard()?;
    let mut signals = Caught::new()?;
    let env = Env::of_process();
    let mut machine = regatta_discover::discover(&Root::live(), &env);
    let hosts = boot.hosts()?;
    let node = match args.node {
        Some(node) if (node as usize) < hosts.len() => node,
        Some(node) => bail!("--node {node}, but the job has {} nodes", hosts.len()),
        None => which(&hosts, &machine, &env)?,
    };
    leave_gpus_of_others(&mut machine, &env)?;
    machine.host = hosts[node as usize].clone();
    let kept = port::reserve(rendezvous::ports_from(rendezvous::port(&boot.run)).skip(8));
    let hello = Hello {
        node,
        machine: document::to_json_line(&machine)?,
        port: kept.as_ref().map(|kept| kept.port()),
    };
    agent::run(&boot, hello, &system::resolve, &mut signals)
        .with_context(|| format!("agent on {}", hosts[node as usize]))?;
    Ok(ExitCode::SUCCESS)
}

fn read(path: &std::path::Path) -> Result<String> {
    let mut text = String::new();
    if path == std::path::Path::new("-") {
        std::io::stdin().lock().take(MOST).read_to_string(&mut text).context("standard input")?;
    } else {
        let hint =
            || format!("{}: the run folder must be on a file system of all nodes", path.display());
        let file = std::fs::File::open(path).with_context(hint)?;
        file.take(MOST).read_to_string(&mut text).with_context(hint)?;
    }
    Ok(text)
}

/// Which of the job's nodes this is: by name, or else as whoever started us counts.
fn which(hosts: &[String], machine: &Machine, env: &Env) -> Result<u32> {
    let names = [env.get("SLURMD_NODENAME"), Some(machine.host.as_str())];
    let named = |name: &str| hosts.iter().position(|h| short(h) == short(name));
    if let Some(node) = names.into_iter().flatten().find_map(named) {
        return Ok(node as u32);
    }
    let found = detect(env, machine)?;
    match found.me {
        Some(me) if (me.rank as usize) < hosts.len() => Ok(me.rank),
        _ => bail!(
            "{} is none of the job's nodes, and whoever started this agent does not tell which it \
             is: give hosts by the names they have themselves",
            machine.host
        ),
    }
}

fn detect(env: &Env, machine: &Machine) -> Result<regatta_model::Allocation> {
    Ok(allocation::detect(&Sources {
        env,
        root: &Root::live(),
        host: &machine.host,
        hostfile: None,
        flux_hosts: &|| None,
    })?)
}

/// A scheduler without device cgroups tells by a variable which GPUs are the job's.
fn leave_gpus_of_others(machine: &mut Machine, env: &Env) -> Result<()> {
    let mut allocation = regatta_model::Allocation::alone(&machine.host);
    allocation.me = None;
    let variable = |name: &str| env.all().get(name).cloned();
    let left = visible::left_to_job(machine, &allocation, &variable);
    machine.usable.gpus = left.map(|left| left.gpus);
    Ok(())
}
