//! Ranks per node, and their global ranks.

use regatta_model::units::pluralize;
use regatta_model::{Allocation, Distribution, JobSpec, Machine};

use crate::{PlaceError, Result};

/// Maximum world size. More is a typing error, and the placement would not fit in memory.
const MAX_RANKS: u64 = 16_000_000;
const MAX_RANKS_PER_NODE: u32 = 8192;

/// The default ranks per node: one per GPU (or group of GPUs), else one per NUMA node with usable
/// cores.
pub(crate) fn default_ranks_per_node(machine: &Machine, job: &JobSpec) -> u32 {
    let gpus = machine.visible_gpus().len() as u32;
    if job.use_gpus && gpus > 0 {
        return (gpus / job.gpus_per_rank.unwrap_or(1).max(1)).max(1);
    }
    let usable = machine.usable.process_cpus();
    let nodes = machine.numa.iter().filter(|n| n.cpus.intersects(&usable)).count();
    nodes.max(1) as u32
}

/// Whether each node has one rank that gets all its GPUs and cores, because it starts a worker per
/// GPU itself. A job of a single rank (`-n 1`) is a program for one GPU.
pub(crate) fn is_one_rank_per_node(counts: &[u32], job: &JobSpec) -> bool {
    counts.iter().all(|&ranks| ranks <= 1) && job.gpus_per_rank.is_none() && job.ranks != Some(1)
}

/// The ranks of each node, in allocation order. The user's request takes precedence over the
/// allocation, and that over the default.
pub(crate) fn ranks_per_node(
    allocation: &Allocation,
    job: &JobSpec,
    default: impl Fn(usize) -> u32,
) -> Result<Vec<u32>> {
    let counts = requested(allocation, job, default)?;
    let total: u64 = counts.iter().map(|&n| u64::from(n)).sum();
    if total > MAX_RANKS {
        return Err(PlaceError::Counts(format!("{total} ranks exceed the limit of {MAX_RANKS}")));
    }
    if let Some(max) = counts.iter().max().filter(|&&n| n > MAX_RANKS_PER_NODE) {
        let why = format!("{max} ranks per node exceed the limit of {MAX_RANKS_PER_NODE}");
        return Err(PlaceError::Counts(why));
    }
    Ok(counts)
}

fn requested(
    allocation: &Allocation,
    job: &JobSpec,
    default: impl Fn(usize) -> u32,
) -> Result<Vec<u32>> {
    let nodes = allocation.nodes.len() as u32;
    Ok(match (job.ranks, job.ranks_per_node) {
        (Some(0), _) | (_, Some(0)) => {
            return Err(PlaceError::Counts("a job needs at least one rank".to_owned()));
        }
        (Some(all), Some(each)) if u64::from(all) > u64::from(each) * u64::from(nodes) => {
            return Err(PlaceError::Counts(format!(
                "--ranks {all} exceeds {} x {} per node; use more nodes, or omit --ranks or \
                 --ranks-per-node",
                pluralize(nodes as usize, "node"),
                pluralize(each as usize, "rank")
            )));
        }
        (Some(all), Some(each)) => fill(all, each, nodes),
        (Some(all), None) => spread(all, nodes),
        (None, Some(each)) => vec![each; nodes as usize],
        (None, None) => {
            let nodes = allocation.nodes.iter().enumerate();
            nodes.map(|(i, node)| node.ranks.unwrap_or_else(|| default(i))).collect()
        }
    })
}

/// `each` ranks per node until all are placed.
fn fill(all: u32, each: u32, nodes: u32) -> Vec<u32> {
    (0..nodes).map(|n| all.saturating_sub(n.saturating_mul(each)).min(each)).collect()
}

/// Evenly; the first nodes take the remainder.
fn spread(all: u32, nodes: u32) -> Vec<u32> {
    (0..nodes).map(|n| all / nodes + u32::from(n < all % nodes)).collect()
}

/// The global ranks of each node, by local rank.
pub(crate) fn global_ranks(counts: &[u32], distribution: Distribution) -> Vec<Vec<u32>> {
    match distribution {
        Distribution::Block => {
            let mut next = 0;
            let block = |&count: &u32| {
                let first = next;
                next += count;
                (first..next).collect()
            };
            counts.iter().map(block).collect()
        }
        Distribution::Cyclic => {
            let mut ranks: Vec<Vec<u32>> = vec![Vec::new(); counts.len()];
            let rounds = 0..counts.iter().copied().max().unwrap_or(0);
            let nodes = rounds.flat_map(|r| (0..counts.len()).filter(move |&n| counts[n] > r));
            nodes.zip(0..).for_each(|(node, rank)| ranks[node].push(rank));
            ranks
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remainders_go_to_the_first_nodes() {
        assert_eq!(spread(7, 3), [3, 2, 2]);
        assert_eq!(fill(7, 4, 3), [4, 3, 0]);
    }

    #[test]
    fn cyclic_distribution_is_round_robin() {
        let ranks = |distribution| global_ranks(&[2, 1, 2], distribution);
        assert_eq!(ranks(Distribution::Cyclic), [vec![0, 3], vec![1], vec![2, 4]]);
        assert_eq!(ranks(Distribution::Block), [vec![0, 1], vec![2], vec![3, 4]]);
    }
}
