//! Complete nodes as fake sysfs trees. PCI addresses and IDs are those of the real machines where
//! public; bridges are invented.

use regatta_model::{Distance, LinkKind, NicKind};

use super::*;
use crate::fake_sysfs::{FakeSysfs, pci_device};
use crate::nic;

const UP: [(&str, &str); 3] = [("type", "1\n"), ("operstate", "up\n"), ("speed", "200000\n")];

/// NUMA nodes of equal size, evenly divided among the packages.
fn numa_topology([nodes, sockets, cpus_per_node]: [usize; 3]) -> (Vec<NumaNode>, Vec<Package>) {
    let cpus = |i: usize, count: usize| CpuSet::range(i * count, (i + 1) * count - 1);
    let node = |i: usize| NumaNode {
        id: i as u32,
        cpus: cpus(i, cpus_per_node),
        memory_bytes: 1 << 36,
        distances: Vec::new(),
    };
    let per_package = nodes * cpus_per_node / sockets;
    let package = |i: usize| Package { id: i as u32, cpus: cpus(i, per_package) };
    ((0..nodes).map(node).collect(), (0..sockets).map(package).collect())
}

/// Scans a node with this number of NUMA nodes, sockets and CPUs per NUMA node.
fn scan(tree: &FakeSysfs, shape: [usize; 3]) -> (GpuScan, Vec<Nic>) {
    let (nodes, packages) = numa_topology(shape);
    scan_root(&tree.root(), &nodes, &packages)
}

fn scan_root(root: &Sysroot, nodes: &[NumaNode], packages: &[Package]) -> (GpuScan, Vec<Nic>) {
    let devices = pci::scan(root);
    let nics = nic::scan(root, &devices);
    (super::scan(root, &devices, &nics, nodes, packages), nics)
}

fn addresses(scan: &GpuScan) -> Vec<&str> {
    scan.gpus.iter().filter_map(|g| g.pci.as_deref()).collect()
}

fn column<T>(scan: &GpuScan, field: impl Fn(&Gpu) -> T) -> Vec<T> {
    scan.gpus.iter().map(field).collect()
}

/// The closest NIC of each GPU and its distance.
fn closest_nics(scan: &GpuScan, nics: &[Nic]) -> Vec<(String, Distance)> {
    let closest = |gpu: &Gpu| {
        let pairs = nics.iter().zip(&gpu.nic_distance);
        pairs.min_by_key(|(_, d)| **d).map(|(n, d)| (n.name.clone(), *d)).unwrap()
    };
    column(scan, closest)
}

const GCDS: [&str; 8] = ["c1", "c6", "c9", "ce", "d1", "d6", "d9", "de"];
const GCD_NODES: [i32; 8] = [3, 3, 1, 1, 0, 0, 2, 2];

/// Pairs of GCDs with the number of links between them.
const XGMI_LINKS: [(usize, usize, u64); 12] = [
    (0, 1, 4),
    (0, 2, 1),
    (0, 6, 2),
    (1, 3, 1),
    (1, 5, 1),
    (2, 3, 4),
    (2, 4, 2),
    (3, 7, 1),
    (4, 5, 4),
    (4, 6, 1),
    (5, 7, 1),
    (6, 7, 4),
];

/// Four CPU nodes (kfd nodes 0 to 3), then eight GCDs, and four Slingshot NICs.
fn lumi() -> FakeSysfs {
    let tree = FakeSysfs::new();
    const KFD: &str = "/sys/class/kfd/kfd/topology/nodes";
    for id in 0..4 {
        tree.file(&format!("{KFD}/{id}/properties"), "cpu_cores_count 32\nsimd_count 0\n");
    }
    for (i, bus) in GCDS.iter().enumerate() {
        let bus_number = u32::from_str_radix(bus, 16).unwrap();
        let host = bus_number & !3;
        let port = bus_number - host;
        let path = format!("pci0000:{host:02x}/0000:{host:02x}:0{port}.1/0000:{bus}:00.0");
        let device = pci_device(&path, 0x038000, amd::VENDOR, 0x7408);
        tree.pci(device.numa(GCD_NODES[i]).driver("amdgpu"));
        let node = format!("{KFD}/{}", 4 + i);
        let text = format!(
            "cpu_cores_count 0\nsimd_count 440\ngfx_target_version 90010\nvendor_id \
             4098\ndevice_id 29704\nlocation_id {}\ndomain 0\ndrm_render_minor {}\nunique_id \
             {}\n",
            bus_number << 8,
            128 + i,
            0x1234 + i
        );
        tree.file(&format!("{node}/properties"), &text);
        let bank = format!("{node}/mem_banks/0/properties");
        tree.file(&bank, "heap_type 1\nsize_in_bytes 68702699520\n");
        // The CPU is linked by Infinity Fabric, too.
        let to_cpu = format!("type 11\nnode_to {}\nweight 15\n", GCD_NODES[i]);
        tree.file(&format!("{node}/io_links/0/properties"), &to_cpu);
        for j in (0..8).filter(|j| *j != i) {
            let is_pair = |l: &&(usize, usize, u64)| (l.0, l.1) == (i.min(j), i.max(j));
            let count = XGMI_LINKS.iter().find(is_pair).map_or(0, |l| l.2);
            let link = format!(
                "type 11\nnode_to {}\nweight {}\nmin_bandwidth 50000\nmax_bandwidth {}\n",
                4 + j,
                if count > 0 { 15 } else { 30 },
                count * 50000
            );
            tree.file(&format!("{node}/io_links/{}/properties", j + 1), &link);
        }
    }
    for (i, (bus, numa)) in [("c5", 3), ("cd", 1), ("d5", 0), ("dd", 2)].into_iter().enumerate() {
        let host = u32::from_str_radix(bus, 16).unwrap() & !3;
        let address = format!("0000:{bus}:00.0");
        let path = format!("pci0000:{host:02x}/0000:{host:02x}:01.1/{address}");
        tree.pci(pci_device(&path, 0x020000, 0x17db, 0x0501).numa(numa).driver("cxi_ss1"));
        tree.net(&format!("hsn{i}"), Some(&address), &UP);
        tree.cxi(&format!("cxi{i}"), &address);
    }
    tree.file("/sys/module/amdgpu/version", "6.3.6\n");
    tree
}

#[test]
fn lumi_node_is_discovered() {
    let tree = lumi();
    tree.file("/sys/bus/pci/devices/0000:c1:00.0/local_cpulist", "48-63,112-127\n");
    tree.file(
        "/sys/bus/pci/devices/0000:de:00.0/product_name",
        "AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2\n",
    );
    let (scan, nics) = scan(&tree, [4, 1, 16]);

    let buses: Vec<String> = GCDS.iter().map(|b| format!("0000:{b}:00.0")).collect();
    assert_eq!(addresses(&scan), buses);
    assert_eq!(column(&scan, |g| g.index), [0, 1, 2, 3, 4, 5, 6, 7]);
    assert_eq!(column(&scan, |g| g.numa.unwrap() as i32), GCD_NODES);
    assert_eq!(column(&scan, |g| g.card), [0, 0, 1, 1, 2, 2, 3, 3]);
    assert_eq!(column(&scan, |g| g.subdevice.unwrap()), [0, 1, 0, 1, 0, 1, 0, 1]);
    let first = &scan.gpus[0];
    assert_eq!((first.name.as_str(), first.memory_bytes), ("AMD gfx90a", Some(68_702_699_520)));
    assert_eq!(first.cpus.to_string(), "48-63,112-127");
    assert_eq!(first.uuid.as_deref(), Some("GPU-0000000000001234"));
    assert_eq!(first.accessible, None, "not tried on a recorded machine");
    assert_eq!(scan.gpus[7].name, "AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2");
    assert_eq!(scan.gpus[7].device_file.as_deref(), Some("/dev/dri/renderD135"));
    assert_eq!(scan.amdgpu_driver.as_deref(), Some("6.3.6"));
    assert!(scan.notes.is_empty(), "{:?}", scan.notes);

    let link = |l: &GpuLink| (l.a as usize, l.b as usize, u64::from(l.count.unwrap()));
    assert_eq!(scan.links.iter().map(link).collect::<Vec<_>>(), XGMI_LINKS);
    assert!(scan.links.iter().all(|l| (l.kind == LinkKind::OnCard) == (l.count == Some(4))));
    assert_eq!(scan.links[0].megabytes_per_second, Some(200_000));

    assert!(nics.iter().all(|n| n.kind == NicKind::Slingshot && n.speed_mbit == Some(200_000)));
    let closest: Vec<String> = closest_nics(&scan, &nics).into_iter().map(|(n, _)| n).collect();
    assert_eq!(closest, ["hsn0", "hsn0", "hsn1", "hsn1", "hsn2", "hsn2", "hsn3", "hsn3"]);
    use Distance::{Numa, Package, Root};
    assert_eq!(scan.gpus[0].nic_distance, [Numa, Package, Package, Package]);
    assert_eq!(scan.gpus[1].nic_distance, [Root, Package, Package, Package]);
}

#[test]
fn gpus_outside_of_the_cgroup_are_noted() {
    let tree = lumi();
    let file = |id: u32| format!("/sys/class/kfd/kfd/topology/nodes/{id}/properties");
    std::fs::remove_file(tree.root().path(&file(5))).unwrap();
    tree.file(&file(7), "");
    let (scan, _) = scan(&tree, [4, 1, 16]);
    assert_eq!(addresses(&scan)[..3], ["0000:c1:00.0", "0000:c9:00.0", "0000:d1:00.0"]);
    // GCDs whose sibling is hidden are on cards of their own.
    assert_eq!(column(&scan, |g| g.card), [0, 1, 2, 2, 3, 3]);
    assert_eq!(scan.gpus[0].subdevice, None);
    assert_eq!(scan.notes.len(), 1);
    assert!(scan.notes[0].contains("2 AMD GPUs") && scan.notes[0].contains("nodes 5, 7"));
}

#[test]
fn amd_gpus_without_kfd_are_listed_with_a_note() {
    let tree = FakeSysfs::new();
    let path = "pci0000:00/0000:00:01.1/0000:03:00.0";
    tree.pci(pci_device(path, 0x120000, amd::VENDOR, 0x74a1).driver("amdgpu"));
    let path = "pci0000:00/0000:00:02.1/0000:04:00.0";
    tree.pci(pci_device(path, 0x120000, amd::VENDOR, 0x74a1));
    tree.drm(0, "0000:03:00.0");
    tree.file("/sys/bus/pci/devices/0000:03:00.0/mem_info_vram_total", "206141652992\n");
    let (scan, _) = scan_root(&tree.root(), &[], &[]);
    assert_eq!(column(&scan, |g| g.name.clone()), ["AMD GPU 74a1"]);
    assert_eq!(scan.gpus[0].memory_bytes, Some(206_141_652_992));
    assert_eq!(scan.gpus[0].device_file.as_deref(), Some("/dev/dri/renderD128"));
    assert!(scan.notes[0].contains("no kfd"));
    assert!(scan.notes[1].contains("0000:04:00.0 is not bound to a driver"), "{:?}", scan.notes);
}

/// Eight H100 in two packages, each with an InfiniBand NIC behind the same switch, and a front-end
/// Ethernet NIC.
fn hgx() -> FakeSysfs {
    let tree = FakeSysfs::new();
    let buses = ["18", "2a", "3a", "5d", "9a", "ab", "ba", "db"];
    for (i, bus) in buses.iter().enumerate() {
        let number = u32::from_str_radix(bus, 16).unwrap();
        let (host, up, down, nic) = (number - 3, number - 2, number - 1, number + 1);
        let switch = format!("pci0000:{host:02x}/0000:{host:02x}:01.0/0000:{up:02x}:00.0");
        let gpu = format!("{switch}/0000:{down:02x}:00.0/0000:{bus}:00.0");
        let numa = (i / 4) as i32;
        tree.pci(pci_device(&gpu, 0x030200, nvidia::VENDOR, 0x2330).numa(numa).driver("nvidia"));
        let address = format!("0000:{nic:02x}:00.0");
        let nic = format!("{switch}/0000:{down:02x}:01.0/{address}");
        tree.pci(pci_device(&nic, 0x020700, 0x15b3, 0x1021).numa(numa).driver("mlx5_core"));
        tree.rdma(&format!("mlx5_{i}"), &address, "InfiniBand", "4: ACTIVE", "400 Gb/sec (4X NDR)");
        let text = format!(
            "Model: \t\t NVIDIA H100 80GB HBM3\nGPU UUID: \t GPU-{i}\nDevice Minor: \t {}\nGPU \
             Excluded:\t No\n",
            7 - i
        );
        tree.file(&format!("/proc/driver/nvidia/gpus/0000:{bus}:00.0/information"), &text);
    }
    tree.pci(pci_device("pci0000:00/0000:00:1c.0/0000:01:00.0", 0x020000, 0x8086, 0x1593).numa(0));
    tree.net("eno1", Some("0000:01:00.0"), &UP);
    let line = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.104.05  Sat Aug 19\n";
    tree.file("/proc/driver/nvidia/version", line);
    tree
}

#[test]
fn dgx_h100_node_is_discovered() {
    let tree = hgx();
    let (scan, nics) = scan(&tree, [2, 2, 56]);
    assert_eq!(addresses(&scan)[..2], ["0000:18:00.0", "0000:2a:00.0"]);
    assert_eq!(scan.gpus.len(), 8);
    assert!(scan.gpus.iter().all(|g| g.name == "NVIDIA H100 80GB HBM3" && g.subdevice.is_none()));
    assert_eq!(column(&scan, |g| g.numa), [0, 0, 0, 0, 1, 1, 1, 1].map(Some));
    // The minor number is the driver's, not the index.
    assert_eq!(scan.gpus[0].device_file.as_deref(), Some("/dev/nvidia7"));
    assert_eq!(scan.gpus[3].uuid.as_deref(), Some("GPU-3"));
    assert_eq!(scan.nvidia_driver.as_deref(), Some("535.104.05"));
    assert!(scan.notes.is_empty(), "{:?}", scan.notes);

    let expected: Vec<_> = (0..8).map(|i| (format!("mlx5_{i}"), Distance::Switch)).collect();
    assert_eq!(closest_nics(&scan, &nics), expected);
    use Distance::{Numa, Remote, Switch};
    let far = [Switch, Numa, Numa, Numa, Remote, Remote, Remote, Remote, Numa];
    assert_eq!(scan.gpus[0].nic_distance, far);
    assert_eq!(nics[8].name, "eno1");
}

#[test]
fn unknown_numa_node_is_ignored() {
    let (scan, _) = scan(&hgx(), [1, 1, 56]);
    assert_eq!(scan.gpus[7].numa, None);
    assert_eq!(scan.gpus[7].nic_distance[0], Distance::Numa, "there is only one NUMA node");
}

/// Six cards of two tiles, in two packages.
fn aurora(write_tiles: impl Fn(&FakeSysfs, u32, &str)) -> FakeSysfs {
    let tree = FakeSysfs::new();
    for (i, bus) in ["18", "42", "6c", "18", "42", "6c"].into_iter().enumerate() {
        let domain = i / 3;
        let host = u32::from_str_radix(bus, 16).unwrap() - 1;
        let address = format!("{domain:04x}:{bus}:00.0");
        let path = format!("pci{domain:04x}:{host:02x}/{domain:04x}:{host:02x}:01.0/{address}");
        let device = pci_device(&path, 0x038000, intel::VENDOR, 0x0bd6);
        tree.pci(device.numa(domain as i32).driver("i915"));
        // The kernel numbers cards in probe order; here reversed.
        let number = 5 - i as u32;
        tree.drm(number, &address);
        write_tiles(&tree, number, &address);
    }
    tree
}

#[test]
fn aurora_node_is_discovered_with_i915_and_xe() {
    let i915 = aurora(|tree, number, _| {
        let card = format!("/sys/class/drm/card{number}");
        tree.dir(&format!("{card}/gt/gt0"));
        tree.dir(&format!("{card}/gt/gt1"));
        tree.dir(&format!("/sys/class/drm/card{number}-DP-1"));
        tree.file(&format!("{card}/lmem_total_bytes"), "137438953472\n");
    });
    let xe = aurora(|tree, _, address| {
        for tile in 0..2 {
            let path = format!("/sys/bus/pci/devices/{address}/tile{tile}");
            tree.file(&format!("{path}/physical_vram_size_bytes"), "68719476736\n");
        }
    });
    for tree in [i915, xe] {
        let (scan, _) = scan(&tree, [2, 2, 52]);
        assert_eq!(scan.gpus.len(), 12);
        let cards = ["0000:6c:00.0", "0000:6c:00.0", "0001:18:00.0", "0001:18:00.0"];
        assert_eq!(addresses(&scan)[4..8], cards);
        assert_eq!(column(&scan, |g| g.card), [0, 0, 1, 1, 2, 2, 3, 3, 4, 4, 5, 5]);
        assert_eq!(column(&scan, |g| g.subdevice.unwrap())[..4], [0, 1, 0, 1]);
        assert!(scan.gpus.iter().all(|g| g.memory_bytes == Some(1 << 36)));
        assert_eq!(scan.gpus[0].name, "Intel Data Center GPU Max 1550");
        assert_eq!(scan.gpus[1].device_file.as_deref(), Some("/dev/dri/renderD133"));
        let pairs: Vec<(u32, u32)> = scan.links.iter().map(|l| (l.a, l.b)).collect();
        assert_eq!(pairs, [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11)]);
        assert!(scan.links.iter().all(|l| l.kind == LinkKind::OnCard));
        assert!(scan.notes.is_empty(), "{:?}", scan.notes);
    }
}

#[test]
fn integrated_gpu_is_not_listed() {
    let tree = FakeSysfs::new();
    tree.pci(pci_device("pci0000:00/0000:00:02.0", 0x030000, intel::VENDOR, 0x7d55).driver("i915"));
    tree.drm(1, "0000:00:02.0");
    // Meteor Lake: the second gt is the media engine on the same tile.
    tree.dir("/sys/class/drm/card1/gt/gt0");
    tree.dir("/sys/class/drm/card1/gt/gt1");
    let wifi = pci_device("pci0000:00/0000:00:14.3", 0x028000, intel::VENDOR, 0x7e40);
    tree.pci(wifi.driver("iwlwifi"));
    tree.net("wlp0s20f3", Some("0000:00:14.3"), &[("type", "1\n"), ("operstate", "up\n")]);
    let (scan, nics) = scan(&tree, [1, 1, 16]);
    assert!(scan.gpus.is_empty());
    assert!(scan.notes[0].contains("0000:00:02.0 is integrated"), "{:?}", scan.notes);
    assert_eq!(scan.notes.len(), 1);
    assert_eq!((nics[0].name.as_str(), nics[0].kind), ("wlp0s20f3", NicKind::Ethernet));
}

#[test]
fn gpus_of_two_vendors_have_distinct_indices() {
    let tree = lumi();
    let path = "pci0000:00/0000:00:01.0/0000:01:00.0";
    tree.pci(pci_device(path, 0x030000, nvidia::VENDOR, 0x1234).driver("nvidia"));
    let (scan, _) = scan(&tree, [4, 1, 16]);
    assert_eq!(column(&scan, |g| g.index), [0, 1, 2, 3, 4, 5, 6, 7, 8]);
    assert_eq!(column(&scan, |g| g.card), [0, 1, 1, 2, 2, 3, 3, 4, 4]);
    assert_eq!((scan.links[0].a, scan.links[0].b), (1, 2));
    assert!(scan.notes[0].contains("two vendors"));
}

#[test]
fn running_node_is_discovered() {
    let (scan, nics) = scan_root(&Sysroot::live(), &[], &[]);
    for (i, gpu) in scan.gpus.iter().enumerate() {
        assert_eq!(gpu.index as usize, i);
        assert_eq!(gpu.nic_distance.len(), nics.len());
    }
    assert!(nics.iter().all(|n| n.name != "lo"));
    println!("{scan:#?}\n{nics:#?}");
}

#[test]
fn inaccessible_gpus_are_dropped_and_the_rest_renumbered() {
    let gpu = |index: u32, open: bool| Gpu {
        accessible: Some(open),
        device_file: Some(format!("/dev/nvidia{index}")),
        ..Gpu::new(index, GpuVendor::Nvidia, "A100")
    };
    let link =
        |a, b| GpuLink { a, b, kind: LinkKind::NvLink, count: Some(4), megabytes_per_second: None };
    let mut scan = GpuScan {
        gpus: vec![gpu(0, false), gpu(1, true), gpu(2, false), gpu(3, true)],
        links: vec![link(0, 1), link(1, 3), link(2, 3)],
        ..GpuScan::default()
    };
    scan.drop_inaccessible();
    let left: Vec<_> = scan.gpus.iter().map(|g| (g.index, g.device_file.as_deref())).collect();
    assert_eq!(left, [(0, Some("/dev/nvidia1")), (1, Some("/dev/nvidia3"))]);
    assert_eq!(scan.links, [link(0, 1)]);
    let note = &scan.notes[0];
    assert!(note.contains("GPU 0 (/dev/nvidia0), GPU 2 (/dev/nvidia2)"), "{note}");
}
