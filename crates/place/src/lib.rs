//! Pure decisions: from machine, allocation and job to a placement, an environment and the binding
//! options of a launcher, each with its reason. No I/O.

mod addresses;
pub mod binding;
pub mod check;
mod cores;
mod counts;
mod devices;
pub mod environment;
mod layout;
mod nic;
pub mod profile;
pub mod rendezvous;
mod split;
pub mod visible;

use std::collections::HashMap;

use regatta_model::hostlist::short;
use regatta_model::units::count;
use regatta_model::{Allocation, Job, Machine, PlacedNode, Placement, Warning};

pub use layout::layout;

/// Why a job cannot be placed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// There is no machine description to place on.
    #[error("no machine to place on: pass --machine or --system, or run on the node itself")]
    NoMachine,
    /// The allocation has no node, or keeps the names to itself.
    #[error("the allocation names no node")]
    NoNodes,
    /// The description has no usable core.
    #[error("{host}: no usable core ({why}); {hint}")]
    NoCores {
        /// The node.
        host: String,
        /// What took them.
        why: String,
        /// What to do.
        hint: String,
    },
    /// More ranks than cores.
    #[error(
        "{host}: {ranks} ranks need {needed} cores and {cores} are free; \
         ask for fewer ranks, or pass --oversubscribe to let ranks share cores"
    )]
    TooFewCores {
        /// The node.
        host: String,
        /// Ranks on it.
        ranks: u32,
        /// Cores they need together.
        needed: u64,
        /// Cores there are.
        cores: u32,
    },
    /// More GPUs wanted than there are.
    #[error(
        "{host}: {} with {per_rank} GPUs each need {} GPUs and the node has {gpus}; \
         lower --gpus-per-rank or the ranks on a node",
        count(*ranks as usize, "rank"),
        u64::from(*ranks) * u64::from(*per_rank)
    )]
    TooFewGpus {
        /// The node.
        host: String,
        /// Ranks on it.
        ranks: u32,
        /// GPUs wanted for each.
        per_rank: u32,
        /// GPUs there are.
        gpus: u32,
    },
    /// Numbers that do not fit together.
    #[error("{0}")]
    Counts(String),
}

/// Places a job. `machines` describe the nodes: each one the node whose name it carries, the first
/// one also every node that no other describes.
///
/// Local rank *i* gets device *i*, the cores closest to that device, their memory and the nearest
/// NIC. Equal nodes are worked out once.
pub fn place(
    machines: &[Machine],
    allocation: &Allocation,
    job: &Job,
) -> Result<Placement, PlaceError> {
    let by_host: HashMap<&str, usize> =
        machines.iter().enumerate().map(|(i, m)| (short(&m.host), i)).collect();
    place_on(machines, &|host| by_host.get(short(host)).copied().unwrap_or(0), allocation, job)
}

/// As [`place`], with a function that tells which of the machines a host is.
pub fn place_on(
    machines: &[Machine],
    machine_of: &dyn Fn(&str) -> usize,
    allocation: &Allocation,
    job: &Job,
) -> Result<Placement, PlaceError> {
    let first = machines.first().ok_or(PlaceError::NoMachine)?;
    if allocation.nodes.is_empty() {
        return Err(PlaceError::NoNodes);
    }
    let nodes = allocation.nodes.iter();
    let machine_of: Vec<usize> =
        nodes.map(|node| machine_of(&node.host).min(machines.len() - 1)).collect();

    let counts = counts::ranks_per_node(allocation, job, |node| {
        counts::natural(&machines[machine_of[node]], job)
    })?;
    let numbers = counts::numbering(&counts, allocation.distribution);

    let mut placement = Placement {
        ranks: counts.iter().sum(),
        warnings: job_warnings(first, job),
        ..Placement::default()
    };
    let mut known: HashMap<(usize, u32), u32> = HashMap::new();
    for (node, ranks) in numbers.into_iter().enumerate().filter(|(_, ranks)| !ranks.is_empty()) {
        let key = (machine_of[node], counts[node]);
        let layout = match known.get(&key) {
            Some(&layout) => layout,
            None => {
                let (layout, warnings) = layout::layout(&machines[key.0], key.1, job)?;
                placement.layouts.push(layout);
                warnings.into_iter().for_each(|w| add_warning(&mut placement.warnings, w));
                let id = placement.layouts.len() as u32 - 1;
                known.insert(key, id);
                id
            }
        };
        let host = allocation.nodes[node].host.clone();
        placement.nodes.push(PlacedNode { host, layout, ranks });
    }
    let without = counts.iter().filter(|&&n| n == 0).count();
    if without > 0 {
        placement.warnings.push(Warning {
            code: "idle-nodes".to_owned(),
            what: format!("{without} of {} nodes get no rank", counts.len()),
            hint: "ask for fewer nodes, or for more ranks".to_owned(),
        });
    }
    Ok(placement)
}

/// The same warning from two layouts is said once.
fn add_warning(warnings: &mut Vec<Warning>, warning: Warning) {
    if !warnings.contains(&warning) {
        warnings.push(warning);
    }
}

fn job_warnings(machine: &Machine, job: &Job) -> Vec<Warning> {
    devices::visibility_warning(machine, job).into_iter().collect()
}

#[cfg(test)]
mod tests;
