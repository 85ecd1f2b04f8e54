//! Which rank gets which cores: those of its GPU's NUMA node, shared fairly with the ranks whose
//! GPUs hang there too.

use std::collections::BTreeMap;

use regatta_model::units::count;
use regatta_model::{CpuSet, Job, Machine, Reserve, SmtUse};

use crate::PlaceError;
use crate::split::{Cut, FreeCore, split};

/// The NUMA nodes whose cores are close to a rank. `None` stands for cores of no known node.
pub(crate) type Home = Vec<Option<u32>>;

/// A rank's cores and why.
#[derive(Debug, Clone)]
pub(crate) struct Share {
    pub cores: Vec<FreeCore>,
    pub reason: String,
}

/// The cores that may be handed out, in CPU order, and the CPUs kept back.
pub(crate) fn free_cores(machine: &Machine, job: &Job) -> (Vec<FreeCore>, CpuSet) {
    let usable = machine.usable.by_process();
    let kept = reserved(machine, &job.reserve);
    let mut free: Vec<FreeCore> = Vec::new();
    for core in &machine.cores {
        let cpus = core.cpus.intersection(&usable);
        if cpus.is_empty() || core.cpus.intersects(&kept) {
            continue;
        }
        let cpus = match job.smt {
            SmtUse::All => cpus,
            SmtUse::One => cpus.iter().take(1).collect(),
        };
        free.push(FreeCore { cpus, numa: core.numa, l3: core.l3 });
    }
    free.sort_by_key(|c| c.cpus.first());
    (free, kept)
}

/// The CPUs of reserved cores, all threads of each.
fn reserved(machine: &Machine, reserve: &Reserve) -> CpuSet {
    let cores: Vec<&CpuSet> = match reserve {
        Reserve::None => Vec::new(),
        Reserve::Cpus(cpus) => {
            machine.cores.iter().map(|c| &c.cpus).filter(|c| c.intersects(cpus)).collect()
        }
        Reserve::FirstOfL3 => machine
            .l3
            .iter()
            .filter_map(|group| {
                let inside = machine.cores.iter().map(|c| &c.cpus);
                inside.filter(|c| c.intersects(&group.cpus)).min_by_key(|c| c.first())
            })
            .collect(),
    };
    cores.into_iter().fold(CpuSet::new(), |all, c| all.union(c))
}

/// Where each rank belongs, given the NUMA nodes of its GPUs (`None`: a GPU of unknown place, or
/// no GPU). Ranks that belong nowhere in particular are dealt to the nodes in proportion to their
/// free cores.
pub(crate) fn homes(free: &[FreeCore], wishes: &[Option<Vec<u32>>]) -> Vec<Home> {
    let mut per_node: BTreeMap<Option<u32>, usize> = BTreeMap::new();
    for core in free {
        *per_node.entry(core.numa).or_default() += 1;
    }
    let nodes: Vec<(Option<u32>, usize)> = per_node.into_iter().collect();
    if wishes.iter().all(Option::is_none) {
        return deal(&nodes, wishes.len());
    }
    let everywhere: Home = nodes.iter().map(|(n, _)| *n).collect();
    let home = |wish: &Option<Vec<u32>>| match wish {
        Some(numa) => numa.iter().map(|&n| Some(n)).collect(),
        None => everywhere.clone(),
    };
    wishes.iter().map(home).collect()
}

fn deal(nodes: &[(Option<u32>, usize)], ranks: usize) -> Vec<Home> {
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
    let homes = nodes.iter().zip(quota);
    homes.flat_map(|((node, _), n)| std::iter::repeat_n(vec![*node], n)).collect()
}

/// Hands out the cores. Ranks with one home share it, in the order of `devices`, so that ranks of
/// one GPU are neighbours, and neighbours of the L3 group that may be nearest to it; homes that overlap in part share so that no
/// rank takes more than an equal part of their union; ranks whose home has too few cores take the
/// nearest free ones elsewhere.
pub(crate) fn assign(
    machine: &Machine,
    free: Vec<FreeCore>,
    homes: &[Home],
    devices: &[Option<u32>],
    job: &Job,
) -> Result<Vec<Share>, PlaceError> {
    let all = free.clone();
    let mut rest = free;
    let mut shares: Vec<Option<Share>> = vec![None; homes.len()];
    let groups = groups(&rest, homes, devices);
    // Ranks whose home is full or outside of the cpuset need a part of what the others have.
    let room = |home: &Home| all.iter().filter(|c| home.contains(&c.numa)).count();
    let crowded = groups.iter().any(|(home, ranks, _)| room(home) < ranks.len());
    let fair = if crowded { equal_part(&all, homes) } else { usize::MAX };
    for (home, ranks, most) in groups {
        let inside: Vec<FreeCore> =
            rest.iter().filter(|c| home.contains(&c.numa)).cloned().collect();
        let want = job.cores_per_rank.map_or(1, |n| n.max(1) as usize);
        let fitting = ranks.len().min(inside.len() / want);
        if fitting == 0 {
            continue;
        }
        let most = job.cores_per_rank.map_or(most.min(fair), |n| n.max(1) as usize);
        let (cut, how) = split(&inside, fitting, most);
        for (&rank, cores) in ranks.iter().zip(cut).filter(|(_, cores)| cores.len() >= want) {
            rest.retain(|c| !cores.contains(c));
            let reason = local_reason(&home, ranks.len(), cores.len(), how);
            shares[rank] = Some(Share { cores, reason });
        }
    }
    spill(machine, &all, rest, homes, &mut shares, job)?;
    Ok(shares.into_iter().flatten().collect())
}

/// The distinct homes with their ranks and the most cores a rank of it may take, narrow homes
/// first, so that a rank with little choice is served before one with much.
fn groups(
    free: &[FreeCore],
    homes: &[Home],
    devices: &[Option<u32>],
) -> Vec<(Home, Vec<usize>, usize)> {
    let mut distinct: BTreeMap<&Home, Vec<usize>> = BTreeMap::new();
    for (rank, home) in homes.iter().enumerate() {
        distinct.entry(home).or_default().push(rank);
    }
    distinct.values_mut().for_each(|ranks| ranks.sort_by_key(|&rank| devices[rank]));
    let mut groups: Vec<(Home, Vec<usize>, usize)> = distinct
        .iter()
        .map(|(home, ranks)| {
            let rivals: Vec<&&Home> = distinct
                .keys()
                .filter(|other| other != &home && other.iter().any(|n| home.contains(n)))
                .collect();
            let most = if rivals.is_empty() { usize::MAX } else { equal_part(free, homes) };
            ((*home).clone(), ranks.clone(), most)
        })
        .collect();
    groups.sort_by_key(|(home, ranks, _)| (home.len(), ranks[0]));
    groups
}

fn equal_part(free: &[FreeCore], homes: &[Home]) -> usize {
    (free.len() / homes.len()).max(1)
}

fn local_reason(home: &Home, ranks: usize, cores: usize, how: Cut) -> String {
    let place = spell(home);
    let cores = count(cores, "core");
    match how {
        Cut::Whole => format!("{cores} of {place}, which no other rank needs"),
        Cut::WholeL3 => format!("{cores} of {place} in whole L3 groups; {ranks} ranks share it"),
        Cut::InsideL3 => {
            format!("{cores} of {place} inside one L3 group; {ranks} ranks share it equally")
        }
        Cut::Consecutive => {
            format!("{cores} of {place}, consecutive; {ranks} ranks share it equally")
        }
    }
}

fn spell(home: &Home) -> String {
    let known: Vec<String> = home.iter().flatten().map(u32::to_string).collect();
    match known.len() {
        0 => "the node".to_owned(),
        1 => format!("NUMA node {}", known[0]),
        _ => format!("NUMA nodes {}", known.join(",")),
    }
}

/// Serves the ranks whose home had no room: from what is left elsewhere, nearest first, or, if the
/// user allows it, by sharing cores.
fn spill(
    machine: &Machine,
    all: &[FreeCore],
    mut rest: Vec<FreeCore>,
    homes: &[Home],
    shares: &mut [Option<Share>],
    job: &Job,
) -> Result<(), PlaceError> {
    let waiting: Vec<usize> = (0..homes.len()).filter(|&r| shares[r].is_none()).collect();
    if waiting.is_empty() {
        return Ok(());
    }
    let want = job.cores_per_rank.map_or_else(
        || (rest.len() / waiting.len()).min(equal_part(all, homes)).max(1),
        |n| n.max(1) as usize,
    );
    if rest.len() / want < waiting.len() && !job.oversubscribe {
        return Err(PlaceError::TooFewCores {
            host: machine.host.clone(),
            ranks: homes.len() as u32,
            needed: (want as u64).saturating_mul(homes.len() as u64),
            cores: all.len() as u32,
        });
    }
    for (turn, rank) in waiting.into_iter().enumerate() {
        let oversubscribed = rest.len() < want;
        let pool = if oversubscribed { all } else { &rest };
        let mut near: Vec<FreeCore> = pool.to_vec();
        near.sort_by_key(|c| (distance(machine, &homes[rank], c.numa), c.cpus.first()));
        let start = if oversubscribed { turn.wrapping_mul(want) % near.len().max(1) } else { 0 };
        let cores: Vec<FreeCore> =
            near.iter().cycle().skip(start).take(want.min(near.len())).cloned().collect();
        rest.retain(|c| !cores.contains(c));
        let place = spell(&homes[rank]);
        let reason = match oversubscribed {
            true => format!(
                "{} shared with other ranks: there are more ranks than cores",
                count(cores.len(), "core")
            ),
            false => format!(
                "{} nearest to {place}, which has no room for it",
                count(cores.len(), "core")
            ),
        };
        shares[rank] = Some(Share { cores, reason });
    }
    Ok(())
}

/// The kernel's distance from a home to a NUMA node; far when it does not say.
fn distance(machine: &Machine, home: &Home, to: Option<u32>) -> u32 {
    if home.contains(&to) {
        return 0;
    }
    let position = machine.numa.iter().position(|n| Some(n.id) == to);
    home.iter()
        .flatten()
        .filter_map(|&from| machine.numa_node(from)?.distances.get(position?).copied())
        .min()
        .unwrap_or(u32::MAX)
}
