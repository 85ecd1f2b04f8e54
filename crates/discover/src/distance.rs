//! How far two devices are apart, from where they hang.

use regatta_model::{Distance, Gpu, Nic, NumaNode, Package, PciDevice};

use crate::pci;

/// How far each NIC is from a GPU.
pub(crate) fn to_nics(
    gpu: &Gpu,
    devices: &[PciDevice],
    nics: &[Nic],
    nodes: &[NumaNode],
    packages: &[Package],
) -> Vec<Distance> {
    let spot = |address: &Option<String>, numa| Spot {
        device: address.as_deref().and_then(|a| pci::find(devices, a)),
        numa,
    };
    let here = spot(&gpu.pci, gpu.numa);
    nics.iter().map(|nic| distance(here, spot(&nic.pci, nic.numa), nodes, packages)).collect()
}

/// Where a device hangs, as far as the system says.
#[derive(Clone, Copy)]
struct Spot<'a> {
    /// Its PCI device.
    device: Option<&'a PciDevice>,
    /// Its memory node.
    numa: Option<u32>,
}

/// The distance of two devices: by the PCI tree where they share a part of it, else by memory
/// node and socket.
fn distance(a: Spot<'_>, b: Spot<'_>, nodes: &[NumaNode], packages: &[Package]) -> Distance {
    by_tree(a.device, b.device).unwrap_or_else(|| by_memory(a.numa, b.numa, nodes, packages))
}

/// What two devices share in the PCI tree. The chain of a device is its host bridge
/// (`pci0000:c0`), the root port, the ports of any switches, and itself. Two chains with the same
/// host bridge and the same next part meet in a bridge below the host bridge: traffic between them
/// turns around in a switch and need not enter the host. That next part is a root port which both
/// are behind, or one of the two devices itself when the other is attached to it. Devices that
/// share only the host bridge meet in the host.
fn by_tree(a: Option<&PciDevice>, b: Option<&PciDevice>) -> Option<Distance> {
    let (a, b) = (a?, b?);
    if a.address == b.address {
        return Some(Distance::Switch);
    }
    // A path can be missing in a recorded tree whose links were not kept.
    if a.path.is_empty() || b.path.is_empty() {
        return None;
    }
    let chain = |d: &PciDevice| d.path.iter().chain([&d.address]).cloned().collect::<Vec<_>>();
    let shared = chain(a).iter().zip(&chain(b)).take_while(|(x, y)| x == y).count();
    match shared {
        0 => None,
        1 => Some(Distance::Root),
        _ => Some(Distance::Switch),
    }
}

fn by_memory(a: Option<u32>, b: Option<u32>, nodes: &[NumaNode], packages: &[Package]) -> Distance {
    // Firmware of machines with one node often names no node for a device; there is no other.
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
    let sockets = |id: u32| -> Vec<u32> {
        let node = nodes.iter().find(|n| n.id == id);
        let on = |p: &&Package| node.is_some_and(|n| n.cpus.intersects(&p.cpus));
        packages.iter().filter(on).map(|p| p.id).collect()
    };
    let (a, b) = (sockets(a), sockets(b));
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

    /// Two sockets with two nodes each, and a memory node without CPUs.
    fn two_sockets() -> (Vec<NumaNode>, Vec<Package>) {
        let nodes =
            vec![node(0, "0-7"), node(1, "8-15"), node(2, "16-23"), node(3, "24-31"), node(4, "")];
        let package = |id: u32, cpus: &str| Package { id, cpus: cpus.parse().unwrap() };
        (nodes, vec![package(0, "0-15"), package(1, "16-31")])
    }

    fn between(a: &PciDevice, b: &PciDevice) -> Distance {
        let (nodes, packages) = two_sockets();
        let spot = |d| Spot { device: Some(d), numa: d.numa };
        assert_eq!(
            distance(spot(a), spot(b), &nodes, &packages),
            distance(spot(b), spot(a), &nodes, &packages)
        );
        distance(spot(a), spot(b), &nodes, &packages)
    }

    #[test]
    fn nearest_first() {
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
        assert_eq!(
            between(&gpu, &at("pci0000:37/0000:37:01.0/0000:38:00.0", 1)),
            Distance::Package
        );
        assert_eq!(between(&gpu, &at("pci0000:b7/0000:b7:01.0/0000:b8:00.0", 2)), Distance::Remote);
        assert_eq!(between(&gpu, &at("pci0000:b7/0000:b8:00.0", 4)), Distance::Unknown);
        assert_eq!(between(&gpu, &device("pci0000:b7/0000:b8:00.0", None)), Distance::Unknown);
    }

    #[test]
    fn missing_facts_count_only_where_there_is_a_choice() {
        let (nodes, packages) = two_sockets();
        let nowhere = Spot { device: None, numa: None };
        let on = |numa| Spot { device: None, numa: Some(numa) };
        assert_eq!(distance(nowhere, on(1), &nodes, &packages), Distance::Unknown);
        assert_eq!(distance(nowhere, nowhere, &nodes[..1], &packages[..1]), Distance::Numa);
        assert_eq!(distance(nowhere, on(1), &nodes[..2], &packages[..1]), Distance::Package);
        assert_eq!(distance(on(0), on(3), &nodes, &[]), Distance::Unknown);
    }

    proptest! {
        #[test]
        fn it_is_symmetric(a in 0usize..6, b in 0usize..6, m in 0u32..6, n in 0u32..6) {
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
