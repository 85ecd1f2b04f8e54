//! Machines and layouts for the tests.

use regatta_model::{
    Core, CpuSet, Distance, Gpu, GpuLink, GpuVendor, GpuVisibility, L3Group, LinkKind, LinkState,
    Machine, MemoryPolicy, Nic, NicKind, NodeLayout, NumaNode, Package, PlacedRank,
    PlacementReasons, UsableResources,
};

/// Sockets, NUMA nodes per socket, L3 caches per NUMA node, cores per L3 cache, threads per core.
pub type CpuCounts = (usize, usize, usize, usize, usize);

/// A machine without devices, all CPUs usable.
pub fn machine(host: &str, counts: CpuCounts, node_gib: u64) -> Machine {
    let (sockets, nodes, groups, cores, threads) = counts;
    let total = sockets * nodes * groups * cores;
    let core = |i: usize| {
        let numa = i / (cores * groups);
        Core {
            cpus: (0..threads).map(|t| i + t * total).collect(),
            package: (numa / nodes) as u32,
            numa: Some(numa as u32),
            l3: Some((i / cores) as u32),
        }
    };
    // The CPUs of `count` consecutive cores.
    let cpus = |id: u32, count: usize| {
        let first = id as usize * count;
        (0..threads).flat_map(|t| (first..first + count).map(move |i| i + t * total)).collect()
    };
    let package = |id| Package { id, cpus: cpus(id, nodes * groups * cores) };
    let numa = |id| numa_node(id, cpus(id, groups * cores), node_gib);
    let l3 = |id| L3Group { id, cpus: cpus(id, cores), size_bytes: Some(32 << 20) };
    Machine {
        host: host.to_owned(),
        source: "test".to_owned(),
        cores: (0..total).map(core).collect(),
        packages: (0..sockets as u32).map(package).collect(),
        numa: (0..(sockets * nodes) as u32).map(numa).collect(),
        l3: (0..(sockets * nodes * groups) as u32).map(l3).collect(),
        usable: UsableResources {
            online: CpuSet::range(0, total * threads - 1),
            ..UsableResources::default()
        },
        ..Machine::default()
    }
}

fn numa_node(id: u32, cpus: CpuSet, gib: u64) -> NumaNode {
    NumaNode { id, cpus, memory_bytes: gib << 30, distances: Vec::new() }
}

/// Adds a GPU.
pub fn add_gpu(machine: &mut Machine, name: &str, pci: &str, numa: Option<u32>, gib: u64) {
    let index = machine.gpus.len() as u32;
    machine.gpus.push(Gpu {
        pci: Some(pci.to_owned()),
        numa,
        memory_bytes: Some(gib << 30),
        nic_distance: vec![Distance::Unknown; machine.nics.len()],
        ..Gpu::new(index, GpuVendor::Nvidia, name)
    });
}

/// Adds a NIC.
pub fn add_nic(machine: &mut Machine, name: &str, kind: NicKind, numa: Option<u32>, gbit: u64) {
    machine.nics.push(Nic {
        name: name.to_owned(),
        kind,
        fabric_device: None,
        pci: None,
        numa,
        speed_mbit: (gbit > 0).then_some(gbit * 1000),
        state: LinkState::Up,
        addresses: Vec::new(),
    });
}

/// A link between two GPUs.
pub fn link(a: u32, b: u32, kind: LinkKind, count: u32) -> GpuLink {
    GpuLink { a, b, kind, count: Some(count), megabytes_per_second: None }
}

/// A local rank with these CPUs, GPU and NIC.
pub fn rank(local_rank: u32, cpus: CpuSet, gpu: Option<u32>, nic: Option<&str>) -> PlacedRank {
    PlacedRank {
        local_rank,
        gpus: gpu.into_iter().collect(),
        mask: cpus.to_mask(),
        omp_num_threads: cpus.len() as u32,
        cpus,
        numa: Vec::new(),
        memory: MemoryPolicy::Default,
        nic: nic.map(str::to_owned),
        visibility: GpuVisibility::All,
        reasons: PlacementReasons {
            gpu: format!("local rank {local_rank} takes device {local_rank}"),
            cpus: "these cores are nearest to it".to_owned(),
            ..PlacementReasons::default()
        },
    }
}

/// A layout in which all other CPUs are idle.
pub fn layout(machine: &Machine, ranks: Vec<PlacedRank>, reserved: &str) -> NodeLayout {
    let reserved: CpuSet = reserved.parse().unwrap();
    let taken = ranks.iter().fold(reserved.clone(), |s, r| s.union(&r.cpus));
    let idle = machine.usable.job_cpus().difference(&taken);
    NodeLayout { machine: machine.host.clone(), ranks, reserved, idle }
}

fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// Eight GCDs, not in the order of the cores; the first core of each L3 reserved.
pub fn lumi() -> (Machine, NodeLayout) {
    let mut m = machine("nid005001", (1, 4, 2, 8, 2), 128);
    m.cpu_model = Some("AMD EPYC 7A53 64-Core Processor".to_owned());
    for (i, numa) in [3, 1, 0, 2].into_iter().enumerate() {
        add_nic(&mut m, &format!("hsn{i}"), NicKind::Slingshot, Some(numa), 200);
    }
    let pci = ["c1", "c6", "c9", "ce", "d1", "d6", "d9", "de"];
    for (i, bus) in pci.into_iter().enumerate() {
        let numa = Some([3, 1, 0, 2][i / 2]);
        add_gpu(&mut m, "AMD Instinct MI250X", &format!("0000:{bus}:00.0"), numa, 64);
    }
    for (a, b) in [(0, 1), (2, 3), (4, 5), (6, 7)] {
        m.gpu_links.push(link(a, b, LinkKind::OnCard, 4));
    }
    for (a, b) in [(0, 2), (0, 6), (1, 3), (1, 5), (2, 4), (3, 7), (4, 6), (5, 7)] {
        m.gpu_links.push(link(a, b, LinkKind::Xgmi, 1));
    }
    let sets = ["49-55", "57-63", "17-23", "25-31", "1-7", "9-15", "33-39", "41-47"];
    let ranks = sets.iter().enumerate().map(|(i, set)| {
        let nic = format!("hsn{}", i / 2);
        let memory = MemoryPolicy::Prefer(vec![[3, 1, 0, 2][i / 2]]);
        PlacedRank { memory, ..rank(i as u32, cpus(set), Some(i as u32), Some(&nic)) }
    });
    let layout = layout(&m, ranks.collect(), "0,8,16,24,32,40,48,56,64,72,80,88,96,104,112,120");
    (m, layout)
}

/// A virtual machine: two cores, one NIC of unknown locality.
pub fn vm() -> (Machine, NodeLayout) {
    let mut m = machine("vm", (1, 1, 1, 2, 1), 8);
    add_nic(&mut m, "eth0", NicKind::Ethernet, None, 0);
    add_nic(&mut m, "docker0", NicKind::Virtual, None, 0);
    let layout = layout(&m, vec![rank(0, cpus("0-1"), None, Some("eth0"))], "");
    (m, layout)
}

/// Four GH200: 72 cores per L3, GPU memory in NUMA nodes without cores.
pub fn gh200() -> (Machine, NodeLayout) {
    let mut m = machine("nid007777", (4, 1, 1, 72, 1), 120);
    for i in 0..4 {
        add_nic(&mut m, &format!("hsn{i}"), NicKind::Slingshot, Some(i), 200);
        let pci = format!("00{i}9:01:00.0");
        add_gpu(&mut m, "NVIDIA GH200 120GB", &pci, Some(i), 96);
        m.numa.push(numa_node(4 + 8 * i, CpuSet::new(), 96));
    }
    for (a, b) in [(0, 1), (0, 2), (0, 3), (1, 2), (1, 3), (2, 3)] {
        m.gpu_links.push(link(a, b, LinkKind::NvLink, 6));
    }
    let ranks = (0..4u32).map(|i| {
        let first = 72 * i as usize;
        rank(i, CpuSet::range(first, first + 71), Some(i), Some(&format!("hsn{i}")))
    });
    let layout = layout(&m, ranks.collect(), "");
    (m, layout)
}

/// Two sockets of 52 cores, twelve tiles, eight NICs, one rank per tile.
pub fn aurora() -> (Machine, NodeLayout) {
    let mut m = machine("x4102c5s2b0n0", (2, 1, 1, 52, 2), 512);
    m.cpu_model = Some("Intel(R) Xeon(R) CPU Max 9470C".to_owned());
    for i in 0..8 {
        add_nic(&mut m, &format!("hsn{i}"), NicKind::Slingshot, Some(i / 4), 200);
    }
    m.nics[7].state = LinkState::Down;
    for i in 0..12 {
        let pci = format!("0000:{:02x}:00.0", 0x18 + i / 2 * 0x10);
        add_gpu(&mut m, "Intel(R) Data Center GPU Max 1550", &pci, Some(i / 6), 64);
    }
    for (a, b) in [(0, 1), (2, 3), (4, 5), (6, 7), (8, 9), (10, 11)] {
        m.gpu_links.push(link(a, b, LinkKind::OnCard, 1));
    }
    let ranks = (0..12u32).map(|i| {
        let first = 1 + 8 * i as usize + if i < 6 { 0 } else { 4 };
        let nic = format!("hsn{}", [0, 1, 2, 3, 0, 1, 4, 5, 6, 4, 5, 6][i as usize]);
        rank(i, CpuSet::range(first, first + 7), Some(i), Some(&nic))
    });
    let layout = layout(&m, ranks.collect(), "0,52,104,156");
    (m, layout)
}

/// Two sockets of 56 cores, eight GPUs; the job's cpuset covers a quarter of the CPUs, and ranks share
/// GPUs and cores.
pub fn part_of_dgx() -> (Machine, NodeLayout) {
    let mut m = machine("dgx-01", (2, 1, 1, 56, 2), 1024);
    for i in 0..8 {
        add_nic(&mut m, &format!("mlx5_{i}"), NicKind::InfiniBand, Some(i / 4), 400);
        let pci = format!("0000:{:02x}:00.0", 0x1b + 0x11 * i);
        add_gpu(&mut m, "NVIDIA H100 80GB HBM3", &pci, Some(i / 4), 80);
    }
    for a in 0..8 {
        m.gpu_links.extend((a + 1..8).map(|b| link(a, b, LinkKind::NvLink, 18)));
    }
    m.usable.cgroup = Some(cpus("0-27,112-139"));
    let ranks = (0..4u32).map(|i| {
        let set = ["0-13", "0-13", "14-20", "18-26"][i as usize];
        rank(i, cpus(set), Some(i / 2), Some(&format!("mlx5_{}", i / 2)))
    });
    let layout = layout(&m, ranks.collect(), "");
    (m, layout)
}
