//! Pure placement decisions: from machine, allocation and job specification to placement,
//! environment and launcher binding options, each with its reason. No I/O.

pub mod batch;
mod bind_address;
pub mod check;
mod core_split;
mod cores;
pub mod environment;
pub mod gpu_visibility;
mod gpus;
pub mod inherited_env;
pub mod launcher_options;
mod layout;
mod nic;
mod rank_counts;
pub mod rendezvous;
pub mod site_profile;

use std::collections::HashMap;

use regatta_model::hostlist::short_hostname;
use regatta_model::units::pluralize;
use regatta_model::{Allocation, JobSpec, Machine, PlacedNode, Placement, Warning};

/// Why a job cannot be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum PlaceError {
    /// No machine description.
    #[error("no machine description: pass --machine or --system, or run on the node itself")]
    NoMachine,
    /// The allocation is empty.
    #[error("the allocation names no node")]
    NoNodes,
    /// No usable core.
    #[error("{host}: no usable core ({why}); {hint}")]
    NoCores { host: String, why: String, hint: String },
    /// More ranks than cores.
    #[error(
        "{host}: {}, but only {cores} are usable; {}",
        need(*ranks, cores_per_rank.unwrap_or(1), "core"),
        match ranks {
            _ if ranks > cores => "use fewer ranks, or pass --oversubscribe",
            1 => "reduce --cores-per-rank",
            _ => "reduce --cores-per-rank, use fewer ranks, or pass --oversubscribe",
        }
    )]
    TooFewCores { host: String, ranks: u32, cores_per_rank: Option<u32>, cores: u32 },
    /// More GPUs requested than available.
    #[error(
        "{host}: {}, but the node has {gpus}; reduce --gpus-per-rank{}",
        need(*ranks, *per_rank, "GPU"),
        if *ranks == 1 { "" } else { " or --ranks-per-node" }
    )]
    TooFewGpus { host: String, ranks: u32, per_rank: u32, gpus: u32 },
    /// Inconsistent rank counts.
    #[error("{0}")]
    Counts(String),
}

/// `4 ranks need 8 cores (--cores-per-rank 2)`.
fn need(ranks: u32, per_rank: u32, what: &str) -> String {
    let total = pluralize(ranks as usize * per_rank as usize, what);
    let text = if ranks == 1 { "1 rank needs".into() } else { format!("{ranks} ranks need") };
    match per_rank {
        1 => format!("{text} {total}"),
        _ => format!("{text} {total} (--{}s-per-rank {per_rank})", what.to_lowercase()),
    }
}

type Result<T, E = PlaceError> = std::result::Result<T, E>;

/// Places a job. Each of `machines` describes the node with its host name; the first one also
/// describes all other nodes.
///
/// Local rank *i* gets device *i*, the cores and memory local to it, and the closest NIC. Identical
/// nodes are computed once.
pub fn place(machines: &[Machine], allocation: &Allocation, job: &JobSpec) -> Result<Placement> {
    let by_host: HashMap<&str, usize> =
        machines.iter().enumerate().map(|(i, m)| (short_hostname(&m.host), i)).collect();
    let machine_of = |host: &str| by_host.get(short_hostname(host)).copied().unwrap_or(0);
    place_on(machines, &machine_of, allocation, job)
}

/// Like [`place`], with a function that maps a host to the index of its machine.
pub fn place_on(
    machines: &[Machine],
    machine_of: &dyn Fn(&str) -> usize,
    allocation: &Allocation,
    job: &JobSpec,
) -> Result<Placement> {
    let first = machines.first().ok_or(PlaceError::NoMachine)?;
    if allocation.nodes.is_empty() {
        return Err(PlaceError::NoNodes);
    }
    let nodes = allocation.nodes.iter();
    let machine_of: Vec<usize> =
        nodes.map(|node| machine_of(&node.host).min(machines.len() - 1)).collect();

    let counts = rank_counts::ranks_per_node(allocation, job, |node| {
        rank_counts::default_ranks_per_node(&machines[machine_of[node]], job)
    })?;
    let global_ranks = rank_counts::global_ranks(&counts, allocation.distribution);
    let whole_node = rank_counts::is_one_rank_per_node(&counts, job);

    let mut placement = Placement {
        ranks: counts.iter().sum(),
        warnings: gpus::visibility_warning(first, job).into_iter().collect(),
        ..Placement::default()
    };
    let mut layout_ids: HashMap<(usize, u32), u32> = HashMap::new();
    for (node, ranks) in global_ranks.into_iter().enumerate().filter(|(_, ranks)| !ranks.is_empty())
    {
        let key = (machine_of[node], counts[node]);
        let layout = match layout_ids.get(&key) {
            Some(&layout) => layout,
            None => {
                let (layout, warnings) = layout::layout(&machines[key.0], key.1, job, whole_node)?;
                placement.layouts.push(layout);
                // Warnings common to several layouts are reported once.
                let is_new = |w: &Warning| !placement.warnings.contains(w);
                placement.warnings.extend(warnings.into_iter().filter(is_new).collect::<Vec<_>>());
                let id = placement.layouts.len() as u32 - 1;
                layout_ids.insert(key, id);
                id
            }
        };
        let host = allocation.nodes[node].host.clone();
        placement.nodes.push(PlacedNode { host, layout, ranks });
    }
    let without = counts.iter().filter(|&&n| n == 0).count();
    if without > 0 {
        placement.warnings.push(Warning::new(
            "idle-nodes",
            format!("{without} of {} nodes have no rank", counts.len()),
            "request fewer nodes or more ranks",
        ));
    }
    Ok(placement)
}

#[cfg(test)]
mod tests;
