//! Core assignment: each rank is bound to cores of its GPU's NUMA node, shared equally with the
//! other ranks whose GPUs are local to it.

use std::collections::BTreeMap;

use regatta_model::units::pluralize;
use regatta_model::{CpuSet, JobSpec, L3Group, Machine, ReservedCores, SmtPolicy};

use crate::core_split::{FreeCore, Granularity, split};
use crate::{PlaceError, Result};

/// The NUMA nodes whose cores a rank should get. `None` stands for cores of no known node.
pub(crate) type NumaAffinity = Vec<Option<u32>>;

/// The cores of a rank, with the reason.
#[derive(Debug, Clone)]
pub(crate) struct CoreAssignment {
    pub cores: Vec<FreeCore>,
    pub reason: String,
}

/// The assignable cores in CPU order, and the reserved CPUs.
pub(crate) fn free_cores(machine: &Machine, job: &JobSpec) -> (Vec<FreeCore>, CpuSet) {
    let usable = machine.usable.process_cpus();
    let reserved = reserved_cpus(machine, &job.reserve);
    let mut free: Vec<FreeCore> = Vec::new();
    for core in &machine.cores {
        let cpus = core.cpus.intersection(&usable);
        if cpus.is_empty() || core.cpus.intersects(&reserved) {
            continue;
        }
        let cpus = match job.smt {
            SmtPolicy::All => cpus,
            SmtPolicy::One => cpus.iter().take(1).collect(),
        };
        free.push(FreeCore { cpus, numa: core.numa, l3: core.l3 });
    }
    free.sort_by_key(|c| c.cpus.first());
    (free, reserved)
}

/// The CPUs of reserved cores, including all SMT siblings.
fn reserved_cpus(machine: &Machine, reserve: &ReservedCores) -> CpuSet {
    let cores_with = |cpus: &CpuSet| {
        let cores = machine.cores.iter().map(|c| &c.cpus);
        cores.filter(|c| c.intersects(cpus)).collect::<Vec<_>>()
    };
    let first = |group: &L3Group| cores_with(&group.cpus).into_iter().min_by_key(|c| c.first());
    let cores = match reserve {
        ReservedCores::None => Vec::new(),
        ReservedCores::Cpus(cpus) => cores_with(cpus),
        ReservedCores::FirstOfL3 => machine.l3.iter().filter_map(first).collect(),
    };
    cores.into_iter().fold(CpuSet::new(), |all, c| all.union(c))
}

/// The NUMA affinity of each rank, given the NUMA nodes of its GPUs (`None`: no GPU, or a GPU of
/// unknown locality). If no rank has GPU locality, the ranks are distributed over the NUMA nodes in
/// proportion to their free cores.
pub(crate) fn affinities(free: &[FreeCore], gpu_numa: &[Option<Vec<u32>>]) -> Vec<NumaAffinity> {
    let mut cores_per_node: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    for core in free {
        *cores_per_node.entry(core.numa).or_default() += 1;
    }
    let nodes: Vec<(Option<u32>, usize)> = cores_per_node.into_iter().collect();
    if gpu_numa.iter().all(Option::is_none) {
        return distribute_ranks(&nodes, gpu_numa.len());
    }
    let any_node: NumaAffinity = nodes.iter().map(|(n, _)| *n).collect();
    let affinity = |numa: &Option<Vec<u32>>| match numa {
        Some(numa) => numa.iter().map(|&n| Some(n)).collect(),
        None => any_node.clone(),
    };
    gpu_numa.iter().map(affinity).collect()
}

fn distribute_ranks(nodes: &[(Option<u32>, usize)], ranks: usize) -> Vec<NumaAffinity> {
    if ranks <= nodes.len() {
        let slice = |i: usize| &nodes[i * nodes.len() / ranks..(i + 1) * nodes.len() / ranks];
        return (0..ranks).map(|i| slice(i).iter().map(|(n, _)| *n).collect()).collect();
    }
    let total: usize = nodes.iter().map(|(_, cores)| cores).sum();
    let mut quota: Vec<usize> = nodes.iter().map(|(_, c)| ranks * c / total.max(1)).collect();
    let mut by_remainder: Vec<usize> = (0..nodes.len()).collect();
    by_remainder.sort_by_key(|&i| std::cmp::Reverse(ranks * nodes[i].1 % total.max(1)));
    let missing = ranks - quota.iter().sum::<usize>();
    by_remainder.into_iter().cycle().take(missing).for_each(|i| quota[i] += 1);
    let quotas = nodes.iter().zip(quota);
    quotas.flat_map(|((node, _), n)| std::iter::repeat_n(vec![*node], n)).collect()
}

/// Assigns the cores. Ranks with the same NUMA affinity share its cores in the order of `devices`,
/// because ranks of one GPU should be adjacent and in the L3 group that may be closest to it. Ranks
/// with partly overlapping affinities get at most an equal share. Ranks whose NUMA nodes have too
/// few cores get the closest free cores of other nodes.
pub(crate) fn assign(
    machine: &Machine,
    free: Vec<FreeCore>,
    affinities: &[NumaAffinity],
    devices: &[Option<u32>],
    job: &JobSpec,
) -> Result<Vec<CoreAssignment>> {
    let (all, mut rest) = (free.clone(), free);
    let mut assigned: Vec<Option<CoreAssignment>> = vec![None; affinities.len()];
    let groups = affinity_groups(&rest, affinities, devices);
    // Ranks whose NUMA nodes are full or outside of the cpuset need a part of the others' cores.
    let is_short = |group: &AffinityGroup| {
        all.iter().filter(|c| group.affinity.contains(&c.numa)).count() < group.ranks.len()
    };
    let short = groups.iter().any(is_short);
    let max_fair = if short { fair_share(&all, affinities) } else { usize::MAX };
    for AffinityGroup { affinity, ranks, max_cores } in groups {
        let local: Vec<_> = rest.iter().filter(|c| affinity.contains(&c.numa)).cloned().collect();
        let min_cores = job.cores_per_rank.map_or(1, |n| n.max(1) as usize);
        let fitting = ranks.len().min(local.len() / min_cores);
        if fitting == 0 {
            continue;
        }
        let max_cores = job.cores_per_rank.map_or(max_cores.min(max_fair), |n| n.max(1) as usize);
        let (shares, granularity) = split(&local, fitting, max_cores);
        let served = ranks.iter().zip(shares).filter(|(_, cores)| cores.len() >= min_cores);
        for (&rank, cores) in served {
            rest.retain(|c| !cores.contains(c));
            let reason = local_reason(&affinity, ranks.len(), cores.len(), granularity);
            assigned[rank] = Some(CoreAssignment { cores, reason });
        }
    }
    assign_remote(machine, &all, rest, affinities, &mut assigned, job)?;
    Ok(assigned.into_iter().flatten().collect())
}

/// Ranks with the same NUMA affinity.
struct AffinityGroup {
    affinity: NumaAffinity,
    ranks: Vec<usize>,
    /// Maximum cores per rank.
    max_cores: usize,
}

/// The groups, those with the fewest NUMA nodes first, because they have the least choice.
fn affinity_groups(
    free: &[FreeCore],
    affinities: &[NumaAffinity],
    devices: &[Option<u32>],
) -> Vec<AffinityGroup> {
    let mut distinct: BTreeMap<&NumaAffinity, Vec<usize>> = BTreeMap::new();
    for (rank, affinity) in affinities.iter().enumerate() {
        distinct.entry(affinity).or_default().push(rank);
    }
    distinct.values_mut().for_each(|ranks| ranks.sort_by_key(|&rank| devices[rank]));
    let group = |(affinity, ranks): (&&NumaAffinity, &Vec<usize>)| {
        let mut others = distinct.keys().filter(|other| *other != affinity);
        let overlaps = others.any(|other| other.iter().any(|n| affinity.contains(n)));
        let max_cores = if overlaps { fair_share(free, affinities) } else { usize::MAX };
        AffinityGroup { affinity: (*affinity).clone(), ranks: ranks.clone(), max_cores }
    };
    let mut groups: Vec<AffinityGroup> = distinct.iter().map(group).collect();
    groups.sort_by_key(|g| (g.affinity.len(), g.ranks[0]));
    groups
}

fn fair_share(free: &[FreeCore], affinities: &[NumaAffinity]) -> usize {
    (free.len() / affinities.len()).max(1)
}

fn local_reason(affinity: &NumaAffinity, ranks: usize, cores: usize, by: Granularity) -> String {
    let cores = format!("{} of {}", pluralize(cores, "core"), format_numa_nodes(affinity));
    match by {
        Granularity::All => format!("{cores}, exclusive to this rank"),
        Granularity::WholeL3 => format!("{cores} in whole L3 groups; {ranks} ranks share it"),
        Granularity::WithinL3 => {
            format!("{cores} within one L3 group; {ranks} ranks share it equally")
        }
        Granularity::Contiguous => format!("{cores}, contiguous; {ranks} ranks share it equally"),
    }
}

fn format_numa_nodes(affinity: &NumaAffinity) -> String {
    let known: Vec<String> = affinity.iter().flatten().map(u32::to_string).collect();
    match known.len() {
        0 => "the node".to_owned(),
        1 => format!("NUMA node {}", known[0]),
        _ => format!("NUMA nodes {}", known.join(",")),
    }
}

/// Serves the ranks without local cores: from the remaining cores, closest first, or, with
/// oversubscription, by sharing cores.
fn assign_remote(
    machine: &Machine,
    all: &[FreeCore],
    mut rest: Vec<FreeCore>,
    affinities: &[NumaAffinity],
    assigned: &mut [Option<CoreAssignment>],
    job: &JobSpec,
) -> Result<()> {
    let pending: Vec<usize> = (0..affinities.len()).filter(|&r| assigned[r].is_none()).collect();
    if pending.is_empty() {
        return Ok(());
    }
    let per_rank = job.cores_per_rank.map_or_else(
        || (rest.len() / pending.len()).min(fair_share(all, affinities)).max(1),
        |n| n.max(1) as usize,
    );
    if rest.len() / per_rank < pending.len() && !job.oversubscribe {
        return Err(PlaceError::TooFewCores {
            host: machine.host.clone(),
            ranks: affinities.len() as u32,
            cores_per_rank: job.cores_per_rank,
            cores: all.len() as u32,
        });
    }
    for (i, rank) in pending.into_iter().enumerate() {
        let oversubscribed = rest.len() < per_rank;
        let mut closest: Vec<FreeCore> = if oversubscribed { all } else { &rest }.to_vec();
        closest.sort_by_key(|c| (distance(machine, &affinities[rank], c.numa), c.cpus.first()));
        let len = closest.len();
        let start = if oversubscribed { i.wrapping_mul(per_rank) % len.max(1) } else { 0 };
        let cores: Vec<FreeCore> =
            closest.into_iter().cycle().skip(start).take(per_rank.min(len)).collect();
        rest.retain(|c| !cores.contains(c));
        let (count, numa) = (pluralize(cores.len(), "core"), format_numa_nodes(&affinities[rank]));
        let reason = match oversubscribed {
            true => format!("{count} shared with other ranks: there are more ranks than cores"),
            false => format!("{count} closest to {numa}, which has too few free cores"),
        };
        assigned[rank] = Some(CoreAssignment { cores, reason });
    }
    Ok(())
}

/// The kernel's distance from any of these NUMA nodes to another; the maximum if unknown.
fn distance(machine: &Machine, from: &NumaAffinity, to: Option<u32>) -> u32 {
    if from.contains(&to) {
        return 0;
    }
    let index = machine.numa.iter().position(|n| Some(n.id) == to);
    from.iter()
        .flatten()
        .filter_map(|&node| machine.numa_node(node)?.distances.get(index?).copied())
        .min()
        .unwrap_or(u32::MAX)
}
