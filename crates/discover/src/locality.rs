//! Topological distance between devices.

use regatta_model::{Distance, Gpu, Nic, NumaNode, Package, PciDevice};

use crate::pci;

/// The distance of each NIC from a GPU.
pub(crate) fn nic_distances(
    gpu: &Gpu,
    devices: &[PciDevice],
    nics: &[Nic],
    nodes: &[NumaNode],
    packages: &[Package],
) -> Vec<Distance> {
    let location = |address: &Option<String>, numa| Location {
        device: address.as_deref().and_then(|a| pci::find(devices, a)),
        numa,
    };
    let of_gpu = location(&gpu.pci, gpu.numa);
    nics.iter().map(|nic| distance(of_gpu, location(&nic.pci, nic.numa), nodes, packages)).collect()
}

/// The location of a device, as far as it is known.
#[derive(Clone, Copy)]
struct Location<'a> {
    device: Option<&'a PciDevice>,
    /// Its NUMA node.
    numa: Option<u32>,
}

/// By the PCI hierarchy if the devices share a part of it, else by NUMA node and package.
fn distance(a: Location, b: Location, nodes: &[NumaNode], packages: &[Package]) -> Distance {
    let by_numa = || numa_distance(a.numa, b.numa, nodes, packages);
    pci_distance(a.device, b.device).unwrap_or_else(by_numa)
}

/// The distance in the PCI hierarchy. The chain of a device is its host bridge (`pci0000:c0`), the
/// root port, the ports of any switches, and the device itself. Two chains with the same host
/// bridge and the same next component share a bridge below the host bridge: peer-to-peer traffic
/// stays in a switch. That component is a common root port, or one of the two devices if the other
/// is attached to it. Devices that share only the host bridge communicate through the host.
fn pci_distance(a: Option<&PciDevice>, b: Option<&PciDevice>) -> Option<Distance> {
    let (a, b) = (a?, b?);
    if a.address == b.address {
        return Some(Distance::Switch);
    }
    // Recorded trees without symbolic links have no paths.
    if a.path.is_empty() || b.path.is_empty() {
        return None;
    }
    let (chain_a, chain_b) = (a.path.iter().chain([&a.address]), b.path.iter().chain([&b.address]));
    match chain_a.zip(chain_b).take_while(|(x, y)| x == y).count() {
        0 => None,
        1 => Some(Distance::Root),
        _ => Some(Distance::Switch),
    }
}

fn numa_distance(
    a: Option<u32>,
    b: Option<u32>,
    nodes: &[NumaNode],
    packages: &[Package],
) -> Distance {
    // Firmware of machines with one NUMA node often reports no node for devices.
    let only = match nodes {
        [node] => Some(node.id),
        _ => None,
    };
    let (Some(a), Some(b)) = (a.or(only), b.or(only)) else {
        return if packages.len() == 1 { Distance::Package } else { Distance::Unknown };
    };
    if a == b {
        return Distance::Numa;
    }
    let packages_of = |id: u32| -> Vec<u32> {
        let node = nodes.iter().find(|n| n.id == id);
        let on = |p: &&Package| node.is_some_and(|n| n.cpus.intersects(&p.cpus));
        packages.iter().filter(on).map(|p| p.id).collect()
    };
    let (a, b) = (packages_of(a), packages_of(b));
    if packages.len() == 1 || a.iter().any(|p| b.contains(p)) {
        Distance::Package
    } else if a.is_empty() || b.is_empty() {
        Distance::Unknown
    } else {
        Distance::Remote
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn device(path: &str, numa: Option<u32>) -> PciDevice {
        let mut path: Vec<String> = path.split('/').map(str::to_owned).collect();
        let address = path.pop().unwrap();
        PciDevice { address, path, class: 0, vendor: 0, device: 0, numa }
    }

    fn node(id: u32, cpus: &str) -> NumaNode {
        NumaNode { id, cpus: cpus.parse().unwrap(), memory_bytes: 0, distances: Vec::new() }
    }

    /// Two packages with two NUMA nodes each, and a NUMA node without CPUs.
    fn two_packages() -> (Vec<NumaNode>, Vec<Package>) {
        let nodes =
            vec![node(0, "0-7"), node(1, "8-15"), node(2, "16-23"), node(3, "24-31"), node(4, "")];
        let package = |id: u32, cpus: &str| Package { id, cpus: cpus.parse().unwrap() };
        (nodes, vec![package(0, "0-15"), package(1, "16-31")])
    }

    fn between(a: &PciDevice, b: &PciDevice) -> Distance {
        let (nodes, packages) = two_packages();
        let location = |d| Location { device: Some(d), numa: d.numa };
        let distance = |a, b| distance(location(a), location(b), &nodes, &packages);
        assert_eq!(distance(a, b), distance(b, a));
        distance(a, b)
    }

    #[test]
    fn distance_follows_pci_then_numa_then_package() {
        let at = |path: &str, numa| device(path, Some(numa));
        let gpu = at("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:02.0/0000:19:00.0", 0);
        let beside = at("pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0/0000:18:00.0", 0);
        assert_eq!(between(&gpu, &beside), Distance::Switch);
        let above = at("pci0000:15/0000:15:01.0/0000:16:00.0", 0);
        assert_eq!(between(&gpu, &above), Distance::Switch, "one attached to the other");
        let other_port = at("pci0000:15/0000:15:02.0/0000:20:00.0", 0);
        assert_eq!(between(&gpu, &other_port), Distance::Root);
        assert_eq!(between(&gpu, &at("pci0000:15/0000:15:00.1", 0)), Distance::Root);
        assert_eq!(between(&gpu, &at("pci0000:00/0000:00:1f.6", 0)), Distance::Numa);
        let other_numa = at("pci0000:37/0000:37:01.0/0000:38:00.0", 1);
        assert_eq!(between(&gpu, &other_numa), Distance::Package);
        assert_eq!(between(&gpu, &at("pci0000:b7/0000:b7:01.0/0000:b8:00.0", 2)), Distance::Remote);
        assert_eq!(between(&gpu, &at("pci0000:b7/0000:b8:00.0", 4)), Distance::Unknown);
        assert_eq!(between(&gpu, &device("pci0000:b7/0000:b8:00.0", None)), Distance::Unknown);
    }

    #[test]
    fn unknown_numa_nodes_matter_only_with_several() {
        let (nodes, packages) = two_packages();
        let unknown = Location { device: None, numa: None };
        let on = |numa| Location { device: None, numa: Some(numa) };
        assert_eq!(distance(unknown, on(1), &nodes, &packages), Distance::Unknown);
        assert_eq!(distance(unknown, unknown, &nodes[..1], &packages[..1]), Distance::Numa);
        assert_eq!(distance(unknown, on(1), &nodes[..2], &packages[..1]), Distance::Package);
        assert_eq!(distance(on(0), on(3), &nodes, &[]), Distance::Unknown);
    }

    proptest! {
        #[test]
        fn distance_is_symmetric(a in 0usize..6, b in 0usize..6, m in 0u32..6, n in 0u32..6) {
            let paths = [
                "pci0000:15/0000:15:01.0/0000:16:00.0",
                "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.0",
                "pci0000:15/0000:15:01.0/0000:16:00.0/0000:17:00.1",
                "pci0000:15/0000:15:02.0",
                "pci0000:37/0000:37:01.0",
                "0000:99:00.0",
            ];
            between(&device(paths[a], Some(m)), &device(paths[b], Some(n)));
        }
    }
}
