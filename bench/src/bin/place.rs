//! Placement of 10,000 nodes with 8 GPUs each, serialised to JSON on one core: with identical
//! nodes, as on real machines, and with every node described separately.
//!
//! Peers: `scontrol show hostnames`, which scripts run just for the host list, and serialising the
//! same JSON from an existing value tree.

use std::process::{Command, Stdio};

use anyhow::{Context, Result};
use regatta_benchmarks::{RunTimes, measure, report};
use regatta_model::{
    AllocatedNode, Allocation, JobSpec, Machine, ReservedCores, SmtPolicy, document,
};

const NODES: usize = 10_000;

fn main() -> Result<()> {
    let machine = regatta_discover::systems::system("lumi-g").context("lumi-g")?;
    let mut allocation = Allocation::single_node("node1");
    let node = |i| AllocatedNode { host: format!("node{i}"), ranks: None };
    allocation.nodes = (1..=NODES).map(node).collect();
    let (reserve, smt) = (ReservedCores::FirstOfL3, SmtPolicy::One);
    let job = JobSpec { reserve, smt, ..JobSpec::default() };

    let work = || place(std::slice::from_ref(&machine), &allocation, &job);
    let text = work()?;
    println!("{NODES} nodes, {} ranks, {} bytes of JSON", NODES * machine.gpus.len(), text.len());
    let ours = measure(work);
    let peer = scontrol().map(|times| ("scontrol show hostnames", times));
    report("equal nodes", ours, peer.as_slice())?;

    let described = |i| Machine { host: format!("node{i}"), ..machine.clone() };
    let machines: Vec<Machine> = (1..=NODES).map(described).collect();
    let work = || place(&machines, &allocation, &job);
    let text = work()?;
    println!("{} bytes of JSON", text.len());
    let tree: serde_json::Value = serde_json::from_str(&text)?;
    let peer = measure(|| serde_json::to_string(&tree));
    report("every node described", measure(work), &[("serialising the value tree", peer)])
}

fn place(machines: &[Machine], allocation: &Allocation, job: &JobSpec) -> Result<String> {
    let placement = regatta_place::place(machines, allocation, job)?;
    Ok(document::to_json_line(&placement)?)
}

/// Slurm's expansion of the same host list, if Slurm is installed. It needs a configuration file.
fn scontrol() -> Option<RunTimes> {
    let conf = std::env::temp_dir().join(format!("regatta-bench-{}.conf", std::process::id()));
    std::fs::write(&conf, "ClusterName=bench\nSlurmctldHost=localhost\nNodeName=x\n").ok()?;
    let mut command = Command::new("scontrol");
    command.args(["show", "hostnames", &format!("node[1-{NODES}]")]);
    command.env("SLURM_CONF", &conf).stdout(Stdio::null()).stderr(Stdio::null());
    let works = command.status().is_ok_and(|s| s.success());
    let times = works.then(|| measure(|| command.status()));
    let _ = std::fs::remove_file(&conf);
    times
}
