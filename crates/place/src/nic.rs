//! NIC assignment.

use regatta_model::machine::best_nics;
use regatta_model::{Distance, LinkState, Machine, Nic, PlacedRank};

/// Assigns each rank the closest fabric interface. If several are equally close, ranks without a
/// choice are served first and the others take the least used one.
pub(crate) fn assign(machine: &Machine, ranks: &mut [PlacedRank]) {
    let fabric = machine.fabric_nics();
    let is_fabric = |&i: &usize| fabric.iter().any(|f| std::ptr::eq(*f, &machine.nics[i]));
    let candidates: Vec<usize> = (0..machine.nics.len()).filter(is_fabric).collect();
    let closest: Vec<_> = ranks.iter().map(|rank| closest(machine, rank, &candidates)).collect();
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
    let host = &machine.host;
    match (all, choices) {
        (1, _) => "the only fabric interface".to_owned(),
        (_, 1) => distance.description().to_owned(),
        _ if distance == Distance::Unknown => {
            format!("{host} reports no distances; ranks are spread over {choices} interfaces")
        }
        _ => format!("one of {choices} {}; ranks are spread over them", distance.description()),
    }
}

/// The minimum distance from a rank to any candidate, and the candidates at that distance.
fn closest(machine: &Machine, rank: &PlacedRank, candidates: &[usize]) -> (Distance, Vec<usize>) {
    let distance = |&nic: &usize| distance(machine, rank, nic);
    let best = candidates.iter().map(distance).min().unwrap_or(Distance::Unknown);
    (best, candidates.iter().copied().filter(|nic| distance(nic) == best).collect())
}

/// From the rank's GPU if its distances are known, else from its cores.
fn distance(machine: &Machine, rank: &PlacedRank, nic: usize) -> Distance {
    let from_gpu = |&g: &u32| machine.gpus.get(g as usize)?.nic_distance.get(nic).copied();
    if let Some(distance) = rank.gpus.iter().filter_map(from_gpu).min() {
        return distance;
    }
    let Some(numa) = machine.nics[nic].numa else { return Distance::Unknown };
    if rank.numa.contains(&numa) {
        return Distance::Numa;
    }
    let package = |id: u32| machine.cores.iter().find(|c| c.numa == Some(id)).map(|c| c.package);
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
        let eth = |address| nic("eth0", NicKind::Ethernet, address);
        assert_eq!(names(&[ib("10.1.0.1"), eth("10.0.0.1")]), ["ib0"]);
        assert_eq!(names(&[ib(""), eth("10.0.0.1")]), ["eth0"]);
        assert_eq!(names(&[ib(""), eth("")]), ["ib0"], "no address is known");
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
        let at = |nic: Nic, gigabits: u64| Nic { speed_mbit: Some(gigabits * 1000), ..nic };
        let eth = |name: &str| nic(name, NicKind::Ethernet, "10.0.0.1");
        assert_eq!(names(&[at(eth("eno1"), 1), at(eth("ens3"), 100)]), ["ens3"]);
        let alike = [at(eth("ens3"), 200), at(eth("ens4"), 100), eth("ens5")];
        assert_eq!(names(&alike), ["ens3", "ens4", "ens5"]);
        let mixed = [at(nic("ib0", NicKind::InfiniBand, "10.1.0.1"), 40), at(eth("ens3"), 400)];
        assert_eq!(names(&mixed), ["ib0"], "kind takes precedence over speed");
    }
}
