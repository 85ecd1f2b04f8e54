//! Topologies written by lstopo (`small-vm`, `synthetic-*`), and handwritten excerpts in its
//! format.

use regatta_discover::hwloc::parse;
use regatta_model::{CpuSet, Distance, GpuVendor, LinkKind, LinkState, Machine, NicKind};

/// The name that the boards of LUMI, Frontier and Tioga report.
const BOARD: &str = "AMD INSTINCT MI200 (MCM) OAM LC MBA HPE C2";

fn fixture(name: &str) -> String {
    let path = format!("{}/tests/fixtures/hwloc/{name}.xml", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn machine(name: &str) -> Machine {
    parse(&fixture(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn set(list: &str) -> CpuSet {
    list.parse().unwrap_or_else(|error| panic!("{list}: {error}"))
}

#[test]
fn small_virtual_machine_is_parsed() {
    let m = machine("small-vm");
    assert_eq!((m.host.as_str(), m.source.as_str()), ("node1", "hwloc"));
    assert_eq!(m.cpu_model.as_deref(), Some("AMD EPYC"));
    assert_eq!(m.os.kernel.as_deref(), Some("6.12.0"));
    assert_eq!(m.packages.len(), 1);
    assert_eq!((m.numa[0].cpus.clone(), m.numa[0].memory_bytes), (set("0-1"), 5_865_959_424));
    assert_eq!(m.l3.len(), 1);
    assert_eq!(m.l3[0].size_bytes, Some(33_554_432));
    assert_eq!(m.cores.len(), 2);
    assert_eq!(m.usable.job_cpus(), set("0-1"));
    assert_eq!(m.usable.cgroup, None);
    assert_eq!(m.pci[1].path, ["pci0000:00"]);
    assert_eq!((m.pci[1].class, m.pci[1].vendor, m.pci[1].device), (0x020000, 0x1af4, 0x1041));
    let nic = &m.nics[0];
    assert_eq!((nic.name.as_str(), nic.kind, nic.numa), ("eth0", NicKind::Ethernet, Some(0)));
    assert_eq!(nic.pci.as_deref(), Some("0000:00:03.0"));
    assert!(m.gpus.is_empty() && m.notes.is_empty());
}

#[test]
fn synthetic_machine_with_four_numa_nodes_is_parsed() {
    let m = machine("synthetic-4-numa");
    assert_eq!((m.packages.len(), m.numa.len(), m.l3.len(), m.cores.len()), (1, 4, 8, 64));
    assert_eq!(m.usable.online.len(), 128);
    assert_eq!(m.threads_per_core(), 2);
    // Above 64 CPUs the bitmaps have empty words.
    assert_eq!(m.numa[3].cpus, set("96-127"));
    assert_eq!(m.l3[7].cpus, set("112-127"));
    let last = &m.cores[63];
    assert_eq!((last.cpus.clone(), last.numa, last.l3), (set("126-127"), Some(3), Some(7)));
}

#[test]
fn cpu_numbers_are_os_indices_and_cores_are_sorted() {
    let m = machine("synthetic-interleaved");
    let packages: Vec<String> = m.packages.iter().map(|p| p.cpus.to_string()).collect();
    assert_eq!(packages, ["0,2,4,6,8,10", "1,3,5,7,9,11"]);
    assert_eq!(m.cores[1].package, 1);
    assert!(m.cores.is_sorted_by_key(|c| c.cpus.first()));
    assert!(m.l3.is_empty() && m.cores.iter().all(|c| c.l3.is_none()));
}

#[test]
fn pus_without_cores_and_packages_become_cores_of_one_package() {
    let m = machine("synthetic-cpus-only");
    assert_eq!(m.cores.len(), 4);
    assert_eq!(m.packages.len(), 1);
    assert_eq!(m.packages[0].cpus, set("0-3"));
}

#[test]
fn mi250x_gcds_are_in_runtime_order() {
    let m = machine("four-mi250x");
    assert_eq!(m.os.domains, ["cluster.example"]);
    let addresses: Vec<&str> = m.gpus.iter().filter_map(|g| g.pci.as_deref()).collect();
    let order = ["c1", "c6", "c9", "ce", "d1", "d6", "d9", "de"].map(|b| format!("0000:{b}:00.0"));
    assert_eq!(addresses, order);
    let numa: Vec<_> = m.gpus.iter().filter_map(|g| g.numa).collect();
    assert_eq!(numa, [3, 3, 1, 1, 0, 0, 2, 2]);
    assert_eq!(m.gpus[0].cpus, set("12-15"));
    let cards: Vec<_> = m.gpus.iter().map(|g| (g.card, g.subdevice)).collect();
    assert_eq!(cards[..3], [(0, Some(0)), (0, Some(1)), (1, Some(0))]);
    let first = &m.gpus[0];
    assert_eq!((first.vendor, first.name.as_str()), (GpuVendor::Amd, BOARD));
    assert_eq!(first.memory_bytes, Some(67_092_480 << 10));
    assert_eq!(first.device_file.as_deref(), Some("/dev/dri/renderD128"));
    assert_eq!(first.uuid.as_deref(), Some("0000000000000000"));
    // Version 2 lists NUMA nodes in its own order.
    assert_eq!(m.numa[0].distances, [10, 12, 12, 13]);
    assert_eq!(m.numa[1].distances, [12, 10, 12, 12]);
}

#[test]
fn slingshot_nics_have_distances() {
    let m = machine("four-mi250x");
    let names: Vec<_> =
        m.nics.iter().map(|n| (n.name.as_str(), n.fabric_device.as_deref())).collect();
    assert_eq!(names[..2], [("hsn0", Some("cxi0")), ("hsn1", Some("cxi1"))]);
    assert!(m.nics.iter().all(|n| n.kind == NicKind::Slingshot));
    use Distance::{Package, Switch};
    assert_eq!(m.gpus[1].nic_distance, [Switch, Package, Package, Package]);
    assert_eq!(m.gpus[0].nic_distance[0], Distance::Root);
    let device = m.pci.iter().find(|d| d.address == "0000:c7:00.0").unwrap();
    assert_eq!(device.path, ["pci0000:c0", "0000:c0:03.1"]);
    let bridge = m.pci.iter().find(|d| d.address == "0000:c0:03.1").unwrap();
    assert_eq!((bridge.path.as_slice(), bridge.class), (&["pci0000:c0".to_owned()][..], 0x060400));
}

#[test]
fn xgmi_and_on_card_links_are_distinguished() {
    let m = machine("four-mi250x");
    let link = |a: u32, b: u32| {
        let link = m.gpu_links.iter().find(|l| (l.a, l.b) == (a, b));
        link.map(|l| (l.kind, l.megabytes_per_second.unwrap()))
    };
    assert_eq!(link(0, 1), Some((LinkKind::OnCard, 200_000)));
    assert_eq!(link(0, 2), Some((LinkKind::Xgmi, 50_000)));
    assert_eq!(link(0, 3), None);
    assert_eq!(m.gpu_links.len(), 4 + 12);
}

#[test]
fn h100_gpus_are_in_cuda_order_in_format_3() {
    let m = machine("four-h100-format-3");
    assert_eq!((m.host.as_str(), m.os.kernel.as_deref()), ("node2", Some("5.15.0")));
    // CUDA's order, not NVML's, with attributes of both.
    let uuids: Vec<_> = m.gpus.iter().filter_map(|g| g.uuid.as_deref()?.chars().last()).collect();
    assert_eq!(uuids, ['3', '2', '1', '0']);
    let numa: Vec<_> = m.gpus.iter().filter_map(|g| g.numa).collect();
    assert_eq!(numa, [1, 1, 0, 0]);
    assert_eq!(m.gpus[0].memory_bytes, Some(83_010_560 << 10));
    assert_eq!(m.gpus[0].name, "NVIDIA H100 80GB HBM3");
    let cards: Vec<_> = m.gpus.iter().map(|g| (g.card, g.subdevice)).collect();
    assert_eq!(cards, [(0, None), (1, None), (2, None), (3, None)]);
    assert_eq!(m.gpu_links.len(), 6, "all pairs through the NVSwitches");
    let nv_link = (LinkKind::NvLink, Some(450_000));
    assert!(m.gpu_links.iter().all(|l| (l.kind, l.megabytes_per_second) == nv_link));
}

#[test]
fn gpu_memory_has_no_cpus_and_allowed_sets_apply() {
    let m = machine("four-h100-format-3");
    let nodes: Vec<_> = m.numa.iter().map(|n| (n.id, n.cpus.to_string())).collect();
    let expected = [(0, "0-3,8-11"), (1, "4-7,12-15"), (2, ""), (3, "")];
    assert_eq!(nodes, expected.map(|(id, cpus)| (id, cpus.to_owned())));
    assert_eq!(m.usable.online, set("0-15"));
    assert_eq!(m.usable.job_cpus(), set("1-7,9-15"));
    assert_eq!(m.usable.memory_nodes, Some(set("0-1")));
    assert_eq!(m.numa[0].distances, [10, 21, 80, 90]);
}

#[test]
fn infiniband_and_roce_ports_have_a_state() {
    let m = machine("four-h100-format-3");
    let nics: Vec<_> = m.nics.iter().map(|n| (n.name.as_str(), n.kind, n.state)).collect();
    let expected = [
        ("enp0s0", NicKind::Roce, LinkState::Up),
        ("enp1s0", NicKind::Roce, LinkState::Down),
        ("ib0", NicKind::InfiniBand, LinkState::Up),
        ("ib1", NicKind::InfiniBand, LinkState::Down),
    ];
    assert_eq!(nics, expected);
    // GPU 3 is the first of package 0, and ib0 is behind its switch.
    let of_gpu = &m.gpus[3].nic_distance;
    assert_eq!(*of_gpu, [Distance::Numa, Distance::Remote, Distance::Switch, Distance::Remote]);
}

#[test]
fn tiles_are_gpus_and_integrated_gpus_are_not() {
    let m = machine("two-pvc");
    let parts: Vec<_> = m.gpus.iter().map(|g| (g.index, g.card, g.subdevice)).collect();
    assert_eq!(parts, [(0, 0, Some(0)), (1, 0, Some(1)), (2, 1, Some(0)), (3, 1, Some(1))]);
    assert_eq!(m.gpus[1].memory_bytes, Some(64 << 30));
    assert_eq!(m.gpus[1].uuid.as_deref(), Some("0001"));
    assert_eq!(m.gpus[3].name, "Intel(R) Data Center GPU Max 1550");
    assert_eq!(m.gpus[3].cpus, set("4-7"));
    assert!(m.notes.is_empty(), "{:?}", m.notes);
    assert_eq!((m.nics[0].name.as_str(), m.nics[0].kind), ("br0", NicKind::Virtual));
    assert_eq!(m.gpus[0].nic_distance, [Distance::Unknown]);
}

#[test]
fn hwloc_1_is_parsed_and_vga_chips_are_not_gpus() {
    let m = machine("two-mi50-format-1");
    assert_eq!((m.packages.len(), m.l3.len(), m.cores.len()), (2, 2, 4));
    let nodes: Vec<_> = m.numa.iter().map(|n| (n.id, n.cpus.to_string(), n.memory_bytes)).collect();
    assert_eq!(nodes[1], (1, "2-3".to_owned(), 34_359_738_368));
    assert_eq!(m.numa[0].distances, [10, 32]);
    assert_eq!(m.cores[2].numa, Some(1));
    assert_eq!(m.cpu_model.as_deref(), Some("AMD EPYC 7401 24-Core Processor"));
    // The display chips of the boards, ASPEED's AST2500 and ATI's ES1000, compute nothing.
    let gpus: Vec<_> = m.gpus.iter().map(|g| (g.pci.as_deref().unwrap(), g.numa)).collect();
    assert_eq!(gpus, [("0000:13:00.0", Some(0)), ("0000:23:00.0", Some(1))]);
    assert_eq!(m.gpus[0].device_file.as_deref(), Some("/dev/dri/renderD128"));
    let nic = &m.nics[0];
    assert_eq!((nic.name.as_str(), nic.kind), ("hsi0", NicKind::InfiniBand));
    assert_eq!((nic.state, nic.fabric_device.as_deref()), (LinkState::Up, Some("mlx5_0")));
}

#[test]
fn machine_without_host_name_has_the_name_of_its_file() {
    let path = format!("{}/tests/fixtures/hwloc/two-mi50-format-1.xml", env!("CARGO_MANIFEST_DIR"));
    let machine = regatta_discover::load(path.as_ref()).unwrap();
    assert_eq!(machine.host, "two-mi50-format-1");
}

#[test]
fn slingshot_is_recognised_by_its_vendor() {
    // Tioga's interfaces have other names than those of LUMI, and its file lists no cxi devices.
    let text = fixture("four-mi250x").replace("name=\"hsn", "name=\"hsi");
    let text: Vec<&str> = text.lines().filter(|line| !line.contains("name=\"cxi")).collect();
    let m = parse(&text.join("\n")).unwrap();
    let kinds: Vec<_> = m.nics.iter().map(|n| (n.name.as_str(), n.kind)).collect();
    assert!(kinds.contains(&("hsi0", NicKind::Slingshot)), "{kinds:?}");
    assert!(kinds.iter().all(|(_, kind)| *kind == NicKind::Slingshot), "{kinds:?}");
}

#[test]
fn efa_is_not_roce() {
    // A g4dn.metal instance: EFA has an RDMA device and no network interface.
    let efa = "<object type=\"PCIDev\" gp_index=\"376\" pci_busid=\"0000:c5:00.0\" \
         pci_type=\"0200 [1d0f:efa0] [1d0f:efa0] 00\" pci_link_speed=\"15.753846\">\
         <object type=\"OSDev\" gp_index=\"419\" name=\"rdmap197s0\" osdev_type=\"3\"/></object>";
    let text = fixture("small-vm");
    let (start, end) = text.split_at(text.rfind("<object type=\"PCIDev\"").unwrap());
    let m = parse(&format!("{start}{efa}{end}")).unwrap();
    let kinds: Vec<_> = m.nics.iter().map(|n| (n.name.as_str(), n.kind)).collect();
    assert_eq!(kinds, [("eth0", NicKind::Ethernet), ("rdmap197s0", NicKind::Efa)]);
}

#[test]
fn gpus_without_a_runtime_are_in_pci_order() {
    let text = fixture("four-h100-format-3")
        .replace("name=\"cuda", "name=\"x")
        .replace("name=\"nvml", "name=\"y");
    let m = parse(&text).unwrap();
    let addresses: Vec<_> = m.gpus.iter().filter_map(|g| g.pci.as_deref()).collect();
    assert_eq!(addresses, ["0000:18:00.0", "0000:38:00.0", "0000:58:00.0", "0000:78:00.0"]);
    assert!(m.notes.is_empty());
}
