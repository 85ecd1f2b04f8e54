//! Which NIC is nearest to a rank.

use regatta_model::{Distance, Machine, PlacedRank};

/// Gives each rank the nearest interface of the fabric. Where several are equally near, ranks with
/// no choice are served first and the others spread over what is least used.
pub(crate) fn assign(machine: &Machine, ranks: &mut [PlacedRank]) {
    let fabric = machine.fabric();
    let candidates: Vec<usize> = machine
        .nics
        .iter()
        .enumerate()
        .filter(|(_, nic)| fabric.iter().any(|f| std::ptr::eq(*f, *nic)))
        .map(|(i, _)| i)
        .collect();
    let nearest: Vec<(Distance, Vec<usize>)> =
        ranks.iter().map(|rank| nearest(machine, rank, &candidates)).collect();
    let mut used = vec![0u32; machine.nics.len()];
    let mut order: Vec<usize> = (0..ranks.len()).collect();
    order.sort_by_key(|&r| nearest[r].1.len());
    for r in order {
        let (distance, choice) = &nearest[r];
        let Some(&nic) = choice.iter().min_by_key(|&&n| (used[n], n)) else {
            ranks[r].reasons.nic = "no network interface is up".to_owned();
            continue;
        };
        used[nic] += 1;
        ranks[r].nic = Some(machine.nics[nic].name.clone());
        ranks[r].reasons.nic = reason(machine, *distance, choice.len(), candidates.len());
    }
}

fn reason(machine: &Machine, distance: Distance, choices: usize, all: usize) -> String {
    match (all, choices) {
        (1, _) => "the only interface of the fabric".to_owned(),
        (_, 1) => distance.words().to_owned(),
        _ if distance == Distance::Unknown => {
            format!(
                "{} does not say which is nearest; ranks are spread over {choices}",
                machine.host
            )
        }
        _ => format!("one of {choices} {}; ranks are spread over them", distance.words()),
    }
}

/// The smallest distance from a rank to any candidate, and the candidates at that distance.
fn nearest(machine: &Machine, rank: &PlacedRank, candidates: &[usize]) -> (Distance, Vec<usize>) {
    let distances: Vec<(Distance, usize)> =
        candidates.iter().map(|&nic| (distance(machine, rank, nic), nic)).collect();
    let best = distances.iter().map(|(d, _)| *d).min().unwrap_or(Distance::Unknown);
    (best, distances.into_iter().filter(|(d, _)| *d == best).map(|(_, n)| n).collect())
}

/// From a rank's GPU where the description tells, else from its cores.
fn distance(machine: &Machine, rank: &PlacedRank, nic: usize) -> Distance {
    let told = rank
        .gpus
        .iter()
        .filter_map(|&g| machine.gpus.get(g as usize)?.nic_distance.get(nic).copied())
        .min();
    if let Some(distance) = told {
        return distance;
    }
    let Some(numa) = machine.nics[nic].numa else { return Distance::Unknown };
    if rank.numa.contains(&numa) {
        return Distance::Numa;
    }
    let package =
        |numa: u32| machine.cores.iter().find(|c| c.numa == Some(numa)).map(|c| c.package);
    match (rank.numa.first().and_then(|&n| package(n)), package(numa)) {
        (Some(a), Some(b)) if a == b => Distance::Package,
        (Some(_), Some(_)) => Distance::Remote,
        _ => Distance::Unknown,
    }
}
