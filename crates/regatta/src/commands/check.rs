//! `regatta map --check`: does this rank have what the plan says?

use std::process::ExitCode;

use anyhow::{Result, bail};
use regatta_model::Machine;
use regatta_place::check::{self, Actual, Difference};
use regatta_place::visible;
use serde::Serialize;

use crate::cli::{ERROR, FAINT, GOOD, MapArgs};
use crate::output;
use crate::plan::Plan;
use crate::system;

#[derive(Serialize)]
struct Report<'a> {
    host: &'a str,
    rank: u32,
    local_rank: u32,
    ok: bool,
    actual: &'a Actual,
    differences: &'a [Difference],
}

/// Compares, reports and fails if anything differs.
pub fn run(args: &MapArgs, plan: &Plan) -> Result<ExitCode> {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let (rank, local_rank) = plan.allocation.me.map_or((0, 0), |me| (me.rank, me.local_rank));
    let Some((node, _, _)) = plan.placement.find(rank) else {
        bail!("{host}: this is rank {rank}, and the plan has {} ranks", plan.placement.ranks);
    };
    let machine = plan.machine(&plan.placement.nodes[node]);
    let actual = actual(machine, plan);
    let layout = &plan.placement.layouts[plan.placement.nodes[node].layout as usize];
    let mut differences = check::compare(machine, layout, local_rank, &actual);
    differences.extend(elsewhere(plan, node, rank));
    differences.extend(cgroup(plan, machine));
    let ok = differences.is_empty();
    if args.json {
        let report = Report {
            host: &host,
            rank,
            local_rank,
            ok,
            actual: &actual,
            differences: &differences,
        };
        output::print(&format!("{}\n", serde_json::to_string(&report)?))?;
    } else {
        output::print(&text(&host, rank, &actual, &differences))?;
    }
    Ok(if ok { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// What this process really has, whatever machine the plan is for.
fn actual(machine: &Machine, plan: &Plan) -> Actual {
    // To CUDA an empty list is a list: no GPU at all.
    let raw = |name: &str| plan.env.all().get(name).cloned();
    let variable = |name: &str| plan.env.get(name).map(str::to_owned);
    let (gpus, gpu_variable) = visible::visible_gpus(machine, &raw);
    // A machine of another source says nothing of what this process can open.
    let live = machine.is_live();
    Actual {
        cpus: regatta_discover::live_affinity().unwrap_or_default(),
        memory: system::memory_policy(),
        gpus: (live || gpu_variable.is_some()).then_some(gpus),
        gpu_variable,
        socket_ifname: variable("NCCL_SOCKET_IFNAME"),
        omp_num_threads: variable("OMP_NUM_THREADS"),
    }
}

/// The launcher may deal ranks to nodes in another order than the plan assumes.
fn elsewhere(plan: &Plan, planned: usize, rank: u32) -> Option<Difference> {
    let real = plan.allocation.me?.node? as usize;
    (real != planned).then(|| Difference {
        what: "node".to_owned(),
        planned: plan.placement.nodes[planned].host.clone(),
        actual: plan.placement.nodes.get(real).map_or_else(|| real.to_string(), |n| n.host.clone()),
        why: format!("the launcher dealt rank {rank} to another node than block order does: with Slurm, pass --distribution=block"),
    })
}

fn cgroup(plan: &Plan, machine: &Machine) -> Option<Difference> {
    let variable = |name: &str| plan.env.all().get(name).cloned();
    let warning = visible::gpu_cgroup_warning(machine, &plan.allocation, &variable)?;
    Some(Difference {
        what: "gpu-cgroup".to_owned(),
        planned: "every rank can open every GPU of its node".to_owned(),
        actual: warning.what,
        why: warning.hint,
    })
}

/// One rank's lines, to be printed in one piece, since many ranks print at once.
fn text(host: &str, rank: u32, actual: &Actual, differences: &[Difference]) -> String {
    let mut text = String::new();
    if differences.is_empty() {
        text.push_str(&format!(
            "{GOOD}ok{GOOD:#}    {host} rank {rank}: cpus {} as planned\n",
            actual.cpus
        ));
    }
    for d in differences {
        text.push_str(&format!(
            "{ERROR}wrong{ERROR:#} {host} rank {rank}: {}: planned {}, is {}\n      {FAINT}{}{FAINT:#}\n",
            d.what, d.planned, d.actual, d.why
        ));
    }
    text
}
