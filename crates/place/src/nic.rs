//! Which NIC is nearest to a rank.

use regatta_model::machine::best_of;
use regatta_model::{Distance, LinkState, Machine, Nic, PlacedRank};

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

/// Interfaces that only this node's containers and guests are behind.
const INNER: [&str; 4] = ["docker", "virbr", "veth", "br-"];

/// The interfaces for TCP: the best kind among those that have an address. The fabric may have none,
/// as InfiniBand without IP, or the ports of a bond, which leave it to the bond. Where no address
/// is known at all, the fabric's.
pub(crate) fn sockets(machine: &Machine) -> Vec<&Nic> {
    let usable = |n: &&Nic| {
        n.state != LinkState::Down
            && !n.addresses.is_empty()
            && !INNER.iter().any(|inner| n.name.starts_with(inner))
    };
    let addressed: Vec<&Nic> = machine.nics.iter().filter(usable).collect();
    if addressed.is_empty() {
        // A device past the network stack is no interface to it.
        let has_interface = |n: &&Nic| n.fabric_device.as_deref() != Some(n.name.as_str());
        return machine.fabric().into_iter().filter(has_interface).collect();
    }
    best_of(addressed)
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

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_model::NicKind;
    use regatta_model::machine::NicAddress;

    fn nic(name: &str, kind: NicKind, address: &str) -> Nic {
        let address = address.parse().ok().map(|address| NicAddress { address, prefix: 24 });
        Nic { addresses: address.into_iter().collect(), ..Nic::new(name, kind) }
    }

    fn names(nics: &[Nic]) -> Vec<String> {
        let machine = Machine { nics: nics.to_vec(), ..Machine::default() };
        sockets(&machine).iter().map(|n| n.name.clone()).collect()
    }

    #[test]
    fn tcp_needs_an_address() {
        let ib = |address| nic("ib0", NicKind::InfiniBand, address);
        let eth = nic("eth0", NicKind::Ethernet, "10.0.0.1");
        assert_eq!(names(&[ib("10.1.0.1"), eth.clone()]), ["ib0"]);
        assert_eq!(names(&[ib(""), eth]), ["eth0"]);
        assert_eq!(names(&[ib(""), nic("eth0", NicKind::Ethernet, "")]), ["ib0"], "none is known");
        let bare = Nic { fabric_device: Some("ib0".to_owned()), ..ib("") };
        assert!(names(&[bare]).is_empty(), "no network device");
        let bond = [
            nic("eno1", NicKind::Ethernet, ""),
            nic("bond0", NicKind::Virtual, "10.0.0.1"),
            nic("docker0", NicKind::Virtual, "172.17.0.1"),
        ];
        assert_eq!(names(&bond), ["bond0"]);
    }

    #[test]
    fn a_slow_link_is_no_fabric() {
        let eth = |name: &str, gigabits: Option<u64>| Nic {
            speed_mbit: gigabits.map(|g| g * 1000),
            ..nic(name, NicKind::Ethernet, "10.0.0.1")
        };
        assert_eq!(names(&[eth("eno1", Some(1)), eth("ens3", Some(100))]), ["ens3"]);
        let alike = [eth("ens3", Some(200)), eth("ens4", Some(100)), eth("ens5", None)];
        assert_eq!(names(&alike), ["ens3", "ens4", "ens5"]);
        let ib = Nic { speed_mbit: Some(40_000), ..nic("ib0", NicKind::InfiniBand, "10.1.0.1") };
        assert_eq!(names(&[ib, eth("ens3", Some(400))]), ["ib0"], "the kind counts first");
    }
}
