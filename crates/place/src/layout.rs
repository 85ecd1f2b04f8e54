//! The layout of one node.

use regatta_model::units::pluralize;
use regatta_model::{
    CpuSet, JobSpec, Machine, MemoryBinding, MemoryPolicy, NodeLayout, PlacedRank,
    PlacementReasons, ReservedCores, Warning,
};

use crate::cores::{self, CoreAssignment};
use crate::gpus::{self, GpuAssignment};
use crate::{PlaceError, Result, nic};

/// Places `ranks` ranks on `machine`; with `whole_node` the only rank gets all GPUs and cores.
pub(crate) fn layout(
    machine: &Machine,
    ranks: u32,
    job: &JobSpec,
    whole_node: bool,
) -> Result<(NodeLayout, Vec<Warning>)> {
    let (free, reserved) = cores::free_cores(machine, job);
    if free.is_empty() {
        return Err(no_cores(machine, &reserved));
    }
    // Checked first, because the rest is slow for a huge number of ranks.
    if ranks as usize > free.len() && !job.oversubscribe {
        return Err(PlaceError::TooFewCores {
            host: machine.host.clone(),
            ranks,
            cores_per_rank: job.cores_per_rank,
            cores: free.len() as u32,
        });
    }
    let assignable = free.iter().fold(CpuSet::new(), |all, c| all.union(&c.cpus));

    let whole_node = whole_node && job.use_gpus && machine.visible_gpus().len() > 1;
    let devices = match whole_node {
        true => vec![gpus::assign_all(machine)],
        false => gpus::assign(machine, ranks, job)?,
    };
    let gpu_numa: Vec<_> = match whole_node {
        // The workers of the rank may use NUMA nodes without a GPU, too.
        true => vec![Some(nodes_with_cores(machine)).filter(|nodes| !nodes.is_empty())],
        false => devices.iter().map(|d| gpu_numa_nodes(machine, d)).collect(),
    };
    let affinities = cores::affinities(&free, &gpu_numa);
    let first_gpus: Vec<Option<u32>> = devices.iter().map(|d| d.gpus.first().copied()).collect();
    let assignments = cores::assign(machine, free, &affinities, &first_gpus, job)?;

    let place = |((devices, cores), i)| placed_rank(machine, i, devices, cores, job);
    let mut placed: Vec<_> = devices.into_iter().zip(assignments).zip(0..).map(place).collect();
    nic::assign(machine, &mut placed);

    let used = placed.iter().fold(CpuSet::new(), |all, r| all.union(&r.cpus));
    let name = machine.system.clone().unwrap_or_else(|| machine.host.clone());
    let layout =
        NodeLayout { machine: name, ranks: placed, reserved, idle: assignable.difference(&used) };
    let warnings = warnings(machine, &layout, &gpu_numa, job);
    Ok((layout, warnings))
}

fn no_cores(machine: &Machine, reserved: &CpuSet) -> PlaceError {
    let usable = machine.usable.process_cpus();
    let host = machine.host.clone();
    let (why, hint) = match (machine.cores.is_empty(), usable.is_empty()) {
        (true, _) => ("the machine description lists none".to_owned(), "add its cores to it"),
        (_, true) => ("the cpuset or affinity contains none".to_owned(), "extend the binding"),
        _ => (format!("reserved: {reserved}, usable: {usable}"), "reserve fewer cores"),
    };
    PlaceError::NoCores { host, why, hint: hint.to_owned() }
}

fn nodes_with_cores(machine: &Machine) -> Vec<u32> {
    machine.numa.iter().filter(|n| !n.cpus.is_empty()).map(|n| n.id).collect()
}

/// The NUMA nodes with cores that a rank's GPUs are local to. If there is only one such node, all
/// devices are local to it, regardless of the firmware.
fn gpu_numa_nodes(machine: &Machine, devices: &GpuAssignment) -> Option<Vec<u32>> {
    let with_cores = nodes_with_cores(machine);
    if devices.gpus.is_empty() {
        return None;
    }
    if let [only] = with_cores[..] {
        return Some(vec![only]);
    }
    let numa = |g: &u32| machine.gpus.get(*g as usize)?.numa;
    let mut nodes: Vec<u32> = devices.gpus.iter().filter_map(numa).collect();
    nodes.retain(|n| with_cores.contains(n));
    nodes.sort_unstable();
    nodes.dedup();
    (!nodes.is_empty()).then_some(nodes)
}

fn placed_rank(
    machine: &Machine,
    local_rank: u32,
    devices: GpuAssignment,
    assignment: CoreAssignment,
    job: &JobSpec,
) -> PlacedRank {
    let cpus = assignment.cores.iter().fold(CpuSet::new(), |all, c| all.union(&c.cpus));
    let mut numa: Vec<u32> = assignment.cores.iter().filter_map(|c| c.numa).collect();
    numa.sort_unstable();
    numa.dedup();
    let (memory, memory_reason) = memory(machine, &numa, job);
    PlacedRank {
        local_rank,
        gpus: devices.gpus,
        mask: cpus.to_mask(),
        cpus,
        numa,
        memory,
        nic: None,
        omp_num_threads: (assignment.cores.len() as u32 / devices.workers).max(1),
        visibility: job.visibility,
        reasons: PlacementReasons {
            gpu: devices.reason,
            cpus: assignment.reason,
            memory: memory_reason.to_owned(),
            nic: String::new(),
            threads: match devices.workers {
                1 => "one thread per physical core of the rank".to_owned(),
                workers => format!(
                    "one thread per physical core, divided by the {workers} workers, one per GPU"
                ),
            },
        },
    }
}

/// Memory on the NUMA nodes of the rank's cores, as far as the cgroup allows and they have memory.
/// The memory node of a GPU (GH200) is never among them, because it has no cores.
fn memory(machine: &Machine, numa: &[u32], job: &JobSpec) -> (MemoryPolicy, &'static str) {
    let allowed = |n: &u32| {
        machine.usable.memory_nodes.as_ref().is_none_or(|m| m.contains(*n as usize))
            && machine.numa_node(*n).is_some_and(|node| node.memory_bytes > 0)
    };
    let nodes: Vec<u32> = numa.iter().copied().filter(allowed).collect();
    match job.memory {
        _ if nodes.is_empty() => {
            let why = "kernel default: no NUMA node of its cores is known or allowed";
            (MemoryPolicy::Default, why)
        }
        MemoryBinding::Prefer => {
            (MemoryPolicy::Prefer(nodes), "NUMA nodes of its cores preferred, others when full")
        }
        MemoryBinding::Bind => {
            (MemoryPolicy::Bind(nodes), "NUMA nodes of its cores only, as requested")
        }
        MemoryBinding::Default => {
            (MemoryPolicy::Default, "kernel default (first touch), as requested")
        }
    }
}

fn warnings(
    machine: &Machine,
    layout: &NodeLayout,
    gpu_numa: &[Option<Vec<u32>>],
    job: &JobSpec,
) -> Vec<Warning> {
    let (host, ranks) = (&machine.host, layout.ranks.len());
    let mut warnings = Vec::new();
    warnings.extend(gpus::sharing_warning(machine, ranks as u32, job));
    warnings.extend(gpus::idle_warning(machine, layout, job));
    let idle_cores = machine.cores.iter().filter(|c| c.cpus.intersects(&layout.idle)).count();
    if idle_cores >= ranks {
        let are = if idle_cores == 1 { "is" } else { "are" };
        let cores = format!("{} {are}", pluralize(idle_cores, "core"));
        warnings.push(Warning::new(
            "idle-cores",
            format!("{host}: {cores} unused: {}", layout.idle),
            "use more ranks per node or --cores-per-rank; cores that are not local to \
             a rank's GPU are unused unless requested",
        ));
    }
    let ranks_where = |predicate| ranks_where(layout, gpu_numa, predicate);
    let is_remote = |rank: &PlacedRank, numa: Option<&Vec<u32>>| {
        numa.is_some_and(|nodes| !rank.numa.iter().all(|n| nodes.contains(n)))
    };
    if let Some(ranks) = ranks_where(&is_remote) {
        warnings.push(Warning::new(
            "remote-cores",
            format!("{host}: cores of local ranks {ranks} are not local to their GPU's NUMA node"),
            "the NUMA node has too few free cores: extend the cpuset, reserve fewer cores, or \
             reduce --cores-per-rank",
        ));
    }
    // Virtual machines may not report the locality of GPUs.
    if let Some(ranks) = ranks_where(&|rank, numa| !rank.gpus.is_empty() && numa.is_none()) {
        warnings.push(Warning::new(
            "unknown-numa",
            format!(
                "{host}: the NUMA node of the GPUs of local ranks {ranks} is unknown; their cores \
                 are a guess, in NUMA node order"
            ),
            "pass a description with the correct NUMA nodes with --machine",
        ));
    }
    if let ReservedCores::Cpus(cpus) = &job.reserve
        && !cpus.is_subset(&layout.reserved)
    {
        let missing = cpus.difference(&layout.reserved);
        warnings.push(Warning::new(
            "no-such-cpu",
            format!("{host}: CPU {missing} cannot be reserved: it does not exist"),
            "check --reserve against `regatta map`",
        ));
    }
    if job.reserve == ReservedCores::FirstOfL3 && machine.l3.is_empty() {
        warnings.push(Warning::new(
            "no-l3",
            format!("{host}: the L3 groups are unknown, so no core is reserved"),
            "list the cores: --reserve 0,8",
        ));
    }
    warnings
}

/// The local ranks for which a predicate holds, as a list; `None` if there are none.
fn ranks_where(
    layout: &NodeLayout,
    gpu_numa: &[Option<Vec<u32>>],
    predicate: &dyn Fn(&PlacedRank, Option<&Vec<u32>>) -> bool,
) -> Option<String> {
    let ranks =
        layout.ranks.iter().zip(gpu_numa).filter(|(rank, numa)| predicate(rank, numa.as_ref()));
    let found: Vec<String> = ranks.map(|(rank, _)| rank.local_rank.to_string()).collect();
    (!found.is_empty()).then(|| found.join(","))
}
