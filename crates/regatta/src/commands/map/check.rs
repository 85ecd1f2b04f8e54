//! `regatta map --check`: compares the actual binding of this rank with the plan.

use std::process::ExitCode;

use anyhow::{Result, bail};
use regatta_comm::bootstrap::host_name;
use regatta_model::Machine;
use regatta_model::units::pluralize;
use regatta_place::check::{self, ActualBinding, Mismatch};
use regatta_place::gpu_visibility;
use serde::Serialize;

use crate::cli::{ERROR, FAINT, GOOD, MapArgs};
use crate::output;
use crate::system;
use regatta_launch::discovery::PlacedJob;

#[derive(Serialize)]
struct CheckReport {
    host: String,
    rank: u32,
    local_rank: u32,
    ok: bool,
    actual: ActualBinding,
    differences: Vec<Mismatch>,
}

/// Prints the differences; exits with failure if there are any.
pub fn run(args: &MapArgs, placed: &PlacedJob) -> Result<ExitCode> {
    let host = host_name();
    let me = placed.allocation.this_rank;
    let rank = me.map_or_else(|| rank_of_variables(placed), |me| Ok(me.rank))?;
    let Some((index, node, own)) = placed.placement.find_rank(rank) else {
        let ranks = pluralize(placed.placement.ranks as usize, "rank");
        bail!("{host}: rank {rank} is out of range: the plan has {ranks}");
    };
    let local_rank = me.map_or(own.local_rank, |me| me.local_rank);
    let machine = placed.machine(node);
    let actual = actual(machine, placed);
    let layout = &placed.placement.layouts[node.layout as usize];
    let mut differences = check::compare(machine, layout, local_rank, &actual);
    differences.extend(node_difference(placed, index, rank));
    differences.extend(gpu_cgroup_difference(placed, machine));
    let ok = differences.is_empty();
    let report = CheckReport { host, rank, local_rank, ok, actual, differences };
    output::print_report(args.json, || output::json_line(&report), || text(&report))?;
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The rank by RANK and WORLD_SIZE, if no known launcher set them; 0 without them. The plan does not
/// depend on them, so their size must be the planned one.
fn rank_of_variables(placed: &PlacedJob) -> Result<u32> {
    let number = |name: &str| placed.env.get(name).and_then(|text| text.parse::<u32>().ok());
    let (Some(rank), Some(size)) = (number("RANK"), number("WORLD_SIZE")) else { return Ok(0) };
    let planned = placed.placement.ranks;
    if size != planned {
        let planned = pluralize(planned as usize, "rank");
        bail!(
            "WORLD_SIZE is {size}, but the plan has {planned}: pass -n {size}, and -N for several nodes"
        );
    }
    Ok(rank)
}

/// The actual binding of this process, independent of the machine that the plan is for.
fn actual(machine: &Machine, placed: &PlacedJob) -> ActualBinding {
    // CUDA takes an empty list as "no GPU", not as unset.
    let raw = |name: &str| placed.env.as_map().get(name).cloned();
    let variable = |name: &str| placed.env.get(name).map(str::to_owned);
    let (gpus, gpu_variable) = gpu_visibility::visible_gpus(machine, &raw);
    // Only a live machine shows which GPUs this process can open.
    let live = machine.is_live();
    ActualBinding {
        cpus: regatta_discover::live_affinity().unwrap_or_default(),
        memory: system::memory_policy(),
        gpus: (live || gpu_variable.is_some()).then_some(gpus),
        gpu_variable,
        socket_ifname: variable("NCCL_SOCKET_IFNAME"),
        omp_num_threads: variable("OMP_NUM_THREADS"),
    }
}

/// The launcher may distribute ranks over nodes in another order than the plan assumes.
fn node_difference(placed: &PlacedJob, planned: usize, rank: u32) -> Option<Mismatch> {
    let actual = placed.allocation.this_rank?.node? as usize;
    (actual != planned).then(|| Mismatch {
        resource: "node".to_owned(),
        planned: placed.placement.nodes[planned].host.clone(),
        actual: placed.placement.nodes.get(actual).map_or_else(|| actual.to_string(), |n| n.host.clone()),
        why: format!("the launcher did not distribute the ranks in block order, which puts rank {rank} on another node: with Slurm, pass --distribution=block"),
    })
}

fn gpu_cgroup_difference(placed: &PlacedJob, machine: &Machine) -> Option<Mismatch> {
    let variable = |name: &str| placed.env.as_map().get(name).cloned();
    let warning = gpu_visibility::gpu_cgroup_warning(machine, &placed.allocation, &variable)?;
    Some(Mismatch {
        resource: "gpu-cgroup".to_owned(),
        planned: "every rank can open every GPU of its node".to_owned(),
        actual: warning.message,
        why: warning.hint,
    })
}

/// The lines of one rank, printed with a single write because many ranks print at once.
fn text(CheckReport { host, rank, ok, actual, differences, .. }: &CheckReport) -> String {
    if *ok {
        let cpus = &actual.cpus;
        return format!("{GOOD}ok{GOOD:#}    {host} rank {rank}: cpus {cpus} as planned\n");
    }
    let line = |Mismatch { resource, planned, actual, why }: &Mismatch| {
        format!(
            "{ERROR}fail{ERROR:#}  {host} rank {rank}: {resource}: planned {planned}, actual {actual}\n      {FAINT}{why}{FAINT:#}\n"
        )
    };
    differences.iter().map(line).collect()
}
