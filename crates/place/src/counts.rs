//! How many ranks each node gets, and their numbers.

use regatta_model::{Allocation, Distribution, Job, Machine};

use crate::PlaceError;

/// More ranks than any job has: beyond it is a typing error, and the placement would not fit in
/// memory.
const MAX_RANKS: u64 = 16_000_000;
/// More ranks than a node has processes to spare.
const MAX_RANKS_PER_NODE: u32 = 8192;

/// The ranks a node takes when nobody says: one for each GPU (or group of GPUs), else one for each
/// NUMA node that has usable cores.
pub(crate) fn natural(machine: &Machine, job: &Job) -> u32 {
    let gpus = machine.visible_gpus().len() as u32;
    if job.use_gpus && gpus > 0 {
        return (gpus / job.gpus_per_rank.max(1)).max(1);
    }
    let usable = machine.usable.by_process();
    let nodes = machine.numa.iter().filter(|n| n.cpus.intersects(&usable)).count();
    nodes.max(1) as u32
}

/// The ranks of each node, in the order of the allocation's nodes. What the user asks for wins over
/// what the allocation says, and that over `natural`.
pub(crate) fn ranks_per_node(
    allocation: &Allocation,
    job: &Job,
    natural: impl Fn(usize) -> u32,
) -> Result<Vec<u32>, PlaceError> {
    let counts = wanted(allocation, job, natural)?;
    let total: u64 = counts.iter().map(|&n| u64::from(n)).sum();
    if total > MAX_RANKS {
        return Err(PlaceError::Counts(format!(
            "{total} ranks are more than any job has; at most {MAX_RANKS} are placed"
        )));
    }
    if let Some(most) = counts.iter().max().filter(|&&n| n > MAX_RANKS_PER_NODE) {
        return Err(PlaceError::Counts(format!(
            "{most} ranks on one node are more than any node runs; at most {MAX_RANKS_PER_NODE} \
             are placed"
        )));
    }
    Ok(counts)
}

fn wanted(
    allocation: &Allocation,
    job: &Job,
    natural: impl Fn(usize) -> u32,
) -> Result<Vec<u32>, PlaceError> {
    let nodes = allocation.nodes.len() as u32;
    match (job.ranks, job.ranks_per_node) {
        (Some(0), _) | (_, Some(0)) => {
            Err(PlaceError::Counts("a job needs at least one rank".to_owned()))
        }
        (Some(all), Some(each)) if u64::from(all) > u64::from(each) * u64::from(nodes) => {
            Err(PlaceError::Counts(format!(
                "{all} ranks do not fit on {nodes} nodes with {each} ranks each; \
                 ask for more nodes, or leave --ranks or --ranks-per-node out"
            )))
        }
        (Some(all), Some(each)) => Ok(fill(all, each, nodes)),
        (Some(all), None) => Ok(spread(all, nodes)),
        (None, Some(each)) => Ok(vec![each; nodes as usize]),
        (None, None) => Ok(allocation
            .nodes
            .iter()
            .enumerate()
            .map(|(i, node)| node.ranks.unwrap_or_else(|| natural(i)))
            .collect()),
    }
}

/// `each` ranks a node until they run out.
fn fill(all: u32, each: u32, nodes: u32) -> Vec<u32> {
    (0..nodes).map(|n| all.saturating_sub(n.saturating_mul(each)).min(each)).collect()
}

/// As even as it goes, the first nodes taking one more.
fn spread(all: u32, nodes: u32) -> Vec<u32> {
    (0..nodes).map(|n| all / nodes + u32::from(n < all % nodes)).collect()
}

/// The job-wide numbers of each node's ranks, in the order of local ranks.
pub(crate) fn numbering(counts: &[u32], distribution: Distribution) -> Vec<Vec<u32>> {
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
            let mut numbers: Vec<Vec<u32>> = vec![Vec::new(); counts.len()];
            let mut next = 0;
            for round in 0..counts.iter().copied().max().unwrap_or(0) {
                for (node, _) in counts.iter().enumerate().filter(|&(_, &c)| c > round) {
                    numbers[node].push(next);
                    next += 1;
                }
            }
            numbers
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn uneven_counts_are_dealt_evenly() {
        assert_eq!(spread(7, 3), [3, 2, 2]);
        assert_eq!(fill(7, 4, 3), [4, 3, 0]);
    }

    #[test]
    fn cyclic_goes_round_the_nodes() {
        assert_eq!(numbering(&[2, 1, 2], Distribution::Cyclic), [vec![0, 3], vec![1], vec![2, 4]]);
        assert_eq!(numbering(&[2, 1, 2], Distribution::Block), [vec![0, 1], vec![2], vec![3, 4]]);
    }
}
