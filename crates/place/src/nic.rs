//! NIC assignment.

use regatta_model::machine::best_nics;
use regatta_model::{Distance, LinkState, Machine, Nic, PlacedRank};

/// Assigns each rank the closest fabric interface. If several are equally close, ranks without a
/// choice are served first and the others take the least used one.
pub(crate) fn assign(machine: &Machine, ranks: &mut [PlacedRank]) {
    let fabric = machine.fabric_nics();
    let candidates: Vec<usize> = machine
        .nics
        .iter()
        .enumerate()
        .filter(|(_, nic)| fabric.iter().any(|f| std::ptr::eq(*f, *nic)))
        .map(|(i, _)| i)
        .collect();
    let closest: Vec<(Distance, Vec<usize>)> =
        ranks.iter().map(|rank| closest_nics(machine, rank, &candidates)).collect();
    let mut used = vec![0u32; machine.nics.len()];
    let mut order: Vec<usize> = (0..ranks.len()).collect();
    order.sort_by_key(|&r| closest[r].1.len());
    for r in order {
        let (distance, choice) = &closest[r];
        let Some(&nic) = choice.iter().min_by_key(|&&n| (used[n], n)) else {
            ranks[r].reasons.nic = "no network interface is up".to_owned();
            continue;
        };
        used[nic] += 1;
        ranks[r].nic = Some(machine.nics[nic].name.clone());
        ranks[r].reasons.nic = reason(machine, *distance, choice.len(), candidates.len());
    }
}

/// Name prefixes of interfaces internal to the node (containers and guests).
const NODE_INTERNAL_PREFIXES: [&str; 4] = ["docker", "virbr", "veth", "br-"];

/// The interfaces for TCP: the best kind among those with an IP address. The fabric may have none,
/// such as InfiniBand without IPoIB, or the ports of a bond. If no address is known, the fabric's
/// interfaces.
pub(crate) fn socket_interfaces(machine: &Machine) -> Vec<&Nic> {
    let usable = |n: &&Nic| {
        n.state != LinkState::Down
            && !n.addresses.is_empty()
            && !NODE_INTERNAL_PREFIXES.iter().any(|prefix| n.name.starts_with(prefix))
    };
    let addressed: Vec<&Nic> = machine.nics.iter().filter(usable).collect();
    if addressed.is_empty() {
        // A fabric device without network device has no interface.
        let has_interface = |n: &&Nic| n.fabric_device.as_deref() != Some(n.name.as_str());
        return machine.fabric_nics().into_iter().filter(has_interface).collect();
    }
    best_nics(addressed)
}

fn reason(machine: &Machine, distance: Distance, choices: usize, all: usize) -> String {
    match (all, choices) {
        (1, _) => "the only fabric interface".to_owned(),
        (_, 1) => distance.description().to_owned(),
        _ if distance == Distance::Unknown => {
            format!(
                "{} reports no distances; ranks are spread over {choices} interfaces",
                machine.host
            )
        }
        _ => format!("one of {choices} {}; ranks are spread over them", distance.description()),
    }
}

/// The minimum distance from a rank to any candidate, and the candidates at that distance.
fn closest_nics(
    machine: &Machine,
    rank: &PlacedRank,
    candidates: &[usize],
) -> (Distance, Vec<usize>) {
    let distances: Vec<(Distance, usize)> =
        candidates.iter().map(|&nic| (distance(machine, rank, nic), nic)).collect();
    let best = distances.iter().map(|(d, _)| *d).min().unwrap_or(Distance::Unknown);
    (best, distances.into_iter().filter(|(d, _)| *d == best).map(|(_, n)| n).collect())
}

/// From the rank's GPU if its distances are known, else from its cores.
fn distance(machine: &Machine, rank: &PlacedRank, nic: usize) -> Distance {
    let gpu_distance = rank
        .gpus
        .iter()
        .filter_map(|&g| machine.gpus.get(g as usize)?.nic_distance.get(nic).copied())
        .min();
    if let Some(distance) = gpu_distance {
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
        socket_interfaces(&machine).iter().map(|n| n.name.clone()).collect()
    }

    #[test]
    fn socket_interfaces_need_an_address() {
        let ib = |address| nic("ib0", NicKind::InfiniBand, address);
        let eth = nic("eth0", NicKind::Ethernet, "10.0.0.1");
        assert_eq!(names(&[ib("10.1.0.1"), eth.clone()]), ["ib0"]);
        assert_eq!(names(&[ib(""), eth]), ["eth0"]);
        assert_eq!(
            names(&[ib(""), nic("eth0", NicKind::Ethernet, "")]),
            ["ib0"],
            "no address is known"
        );
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
    fn slow_links_are_not_socket_interfaces() {
        let eth = |name: &str, gigabits: Option<u64>| Nic {
            speed_mbit: gigabits.map(|g| g * 1000),
            ..nic(name, NicKind::Ethernet, "10.0.0.1")
        };
        assert_eq!(names(&[eth("eno1", Some(1)), eth("ens3", Some(100))]), ["ens3"]);
        let alike = [eth("ens3", Some(200)), eth("ens4", Some(100)), eth("ens5", None)];
        assert_eq!(names(&alike), ["ens3", "ens4", "ens5"]);
        let ib = Nic { speed_mbit: Some(40_000), ..nic("ib0", NicKind::InfiniBand, "10.1.0.1") };
        assert_eq!(
            names(&[ib, eth("ens3", Some(400))]),
            ["ib0"],
            "kind takes precedence over speed"
        );
    }
}
