//! Facts of simulated healthy nodes: a node of a built-in system with the small differences that
//! identical nodes have. Tests and benchmarks include this file as a module. No I/O.

use std::net::{IpAddr, Ipv4Addr};

use regatta_doctor::facts::{
    DeviceFile, DeviceNeed, DeviceState, DirectoryUse, FileSystem, GpuHealth, JobFacts, NetPlugin,
    NicHealth, NodeFacts, OsFacts, Peer, PeerToPeer, Rate, RateTest,
};
use regatta_doctor::peers::schedule;
use regatta_model::machine::NicAddress;
use regatta_model::{GpuVendor, Machine, NicKind, PciDevice, Scheduler};

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// The facts of a job on `nodes` healthy nodes of a system. The seed determines the differences
/// between the nodes.
pub fn healthy_job(system: &Machine, nodes: u32, seed: u64) -> JobFacts {
    let mut random = Random(seed);
    JobFacts {
        scheduler: Some(Scheduler::Slurm),
        site: system.system.clone(),
        expected: system.system.is_some().then(|| system.clone()),
        nodes: (0..nodes).map(|node| healthy_node(system, node, nodes, &mut random)).collect(),
        missing: Vec::new(),
    }
}

/// The generator SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, limit: u64) -> u64 {
        self.next() % limit
    }

    /// `value`, less up to this share.
    fn less(&mut self, value: f64, share: f64) -> f64 {
        value * (1.0 - share * (self.below(1 << 20) as f64 / (1 << 20) as f64))
    }

    fn less_bytes(&mut self, value: u64, share: f64) -> u64 {
        self.less(value as f64, share) as u64
    }
}

fn host(node: u32) -> String {
    format!("nid{node:06}")
}

fn address(node: u32, nic: usize) -> IpAddr {
    let [_, high, middle, low] = node.to_be_bytes();
    Ipv4Addr::new(10, (nic as u8) << 4 | high, middle, low).into()
}

fn healthy_node(system: &Machine, node: u32, nodes: u32, random: &mut Random) -> NodeFacts {
    let machine = machine(system, node, random);
    NodeFacts {
        host: host(node),
        gpus: machine.gpus.iter().map(|gpu| gpu_health(gpu.vendor, gpu.index, random)).collect(),
        peer_to_peer: PeerToPeer {
            gpus_on_node: Some(machine.gpus.len() as u32),
            gpu_binding: None,
            iommu: Some("identity".to_owned()),
        },
        nics: machine.nics.iter().map(|nic| nic_health(&nic.name, nic.kind, random)).collect(),
        file_systems: file_systems(random),
        os: os(&machine, random),
        device_files: device_files(&machine),
        net_plugin: Some(net_plugin(&machine)),
        leftovers: Vec::new(),
        rates: rates(&machine, random),
        peers: peers(&machine, node, nodes, random),
        notes: Vec::new(),
        machine,
    }
}

fn machine(system: &Machine, node: u32, random: &mut Random) -> Machine {
    let mut machine = Machine { host: host(node), ..system.clone() };
    for gpu in &mut machine.gpus {
        let bus = gpu.index + 1;
        gpu.pci = Some(format!("0000:{bus:02x}:00.0"));
        gpu.uuid = Some(format!("GPU-{:016x}", random.next()));
        gpu.accessible = Some(true);
        gpu.device_file = Some(match gpu.vendor {
            GpuVendor::Nvidia => format!("/dev/nvidia{}", gpu.index),
            GpuVendor::Amd | GpuVendor::Intel => format!("/dev/dri/renderD{}", 128 + gpu.index),
        });
    }
    let device = |address: &String| PciDevice {
        address: address.clone(),
        path: vec!["pci0000:00".to_owned()],
        class: 0x030200,
        vendor: 0x10de,
        device: 0x2330,
        numa: Some(0),
    };
    machine.pci = machine.gpus.iter().filter_map(|gpu| gpu.pci.as_ref()).map(device).collect();
    for (index, nic) in machine.nics.iter_mut().enumerate() {
        nic.addresses = vec![NicAddress { address: address(node, index), prefix: 12 }];
    }
    machine.os.kernel = Some("5.14.21-150500.55.49_13.0.57-cray_shasta_c".to_owned());
    machine.os.memlock_known = true;
    machine.software.libfabric = Some("1.22.0".to_owned());
    machine.software.net_plugin = Some(PLUGIN.to_owned());
    match machine.gpus.first().map(|gpu| gpu.vendor) {
        Some(GpuVendor::Nvidia) => {
            machine.software.nvidia_driver = Some("570.124.06".to_owned());
            machine.software.nccl = Some("2.28.9".to_owned());
        }
        _ => {
            machine.software.amdgpu_driver = Some("6.10.5".to_owned());
            machine.software.rocm = Some("6.3.4".to_owned());
            machine.software.rccl = Some("2.21.5".to_owned());
        }
    }
    machine
}

const PLUGIN: &str = "/opt/aws-ofi-nccl/lib/libnccl-net.so";

fn net_plugin(machine: &Machine) -> NetPlugin {
    NetPlugin {
        path: machine.software.net_plugin.clone().unwrap_or_default(),
        digest: Some("5d0c98a1f3b2e471".to_owned()),
        net_versions: vec![6, 7, 8, 9, 10],
        collnet_versions: Vec::new(),
        other_interfaces: vec!["tuner v3".to_owned()],
        load_error: None,
    }
}

fn gpu_health(vendor: GpuVendor, index: u32, random: &mut Random) -> GpuHealth {
    let is_nvidia = vendor == GpuVendor::Nvidia;
    GpuHealth {
        index,
        ecc_enabled: is_nvidia.then_some(true),
        uncorrectable_errors: Some(0),
        lifetime_uncorrectable_errors: is_nvidia.then(|| random.below(3)),
        remapped_rows: Some(random.below(3) as u32),
        remap_pending: Some(false),
        remap_failed: Some(false),
        temperature: Some(28 + random.below(30) as u32),
        power_limit: Some(700),
        default_power_limit: Some(700),
        // Idle GPUs reduce the speed of the link.
        pcie_generation: Some((1 + random.below(5) as u32, 5)),
        pcie_width: Some((16, 16)),
        active_links: is_nvidia.then_some(18),
        memory_used: Some(random.below(700) * MIB),
        compute_mode: is_nvidia.then(|| "default".to_owned()),
        ..GpuHealth::default()
    }
}

fn nic_health(name: &str, kind: NicKind, random: &mut Random) -> NicHealth {
    let mtu = if kind == NicKind::InfiniBand { 4092 } else { 9000 };
    let errors = [("link_downed", 1 + random.below(4)), ("symbol_error", random.below(60))];
    let named = errors.map(|(counter, count)| (counter.to_owned(), count));
    let new = random.below(5);
    NicHealth {
        name: name.to_owned(),
        mtu: Some(mtu),
        pcie_speed: Some((32.0, 32.0)),
        pcie_width: Some((16, 16)),
        errors: named.into_iter().filter(|(_, count)| *count > 0).collect(),
        new_errors: (new > 0).then(|| ("symbol_error".to_owned(), new)).into_iter().collect(),
    }
}

fn file_systems(random: &mut Random) -> Vec<FileSystem> {
    let mut system = |path: &str, used_for, kind: &str, total: u64, rate: f64| FileSystem {
        path: path.to_owned(),
        used_for,
        kind: Some(kind.to_owned()),
        free_bytes: Some(random.less_bytes(total, 0.8)),
        total_bytes: Some(total),
        free_inodes: Some(random.less_bytes(1 << 30, 0.5)),
        total_inodes: Some(1 << 30),
        write_rate: Some(random.less(rate, 0.7)),
        sync_seconds: Some(random.less(0.05, 0.9)),
        error: None,
        timed_out: false,
    };
    vec![
        system("/scratch/project/run", DirectoryUse::Work, "lustre", 1 << 50, 1.5e9),
        system("/tmp", DirectoryUse::Temporary, "tmpfs", 64 * GIB, 3e9),
    ]
}

fn os(machine: &Machine, random: &mut Random) -> OsFacts {
    let memory: u64 =
        machine.numa.iter().filter(|n| !n.cpus.is_empty()).map(|n| n.memory_bytes).sum();
    // The kernel keeps a part that depends on the firmware.
    let total = random.less_bytes(memory / 100 * 98, 0.001);
    OsFacts {
        open_files: Some((1024, 524_288)),
        max_processes: Some(random.less_bytes(4_000_000, 0.01)),
        memlock: Some(u64::MAX),
        shm_total: Some(total / 2),
        shm_free: Some(random.less_bytes(total / 2, 0.05)),
        memory_total: Some(total),
        memory_available: Some(random.less_bytes(total, 0.1)),
        memory_errors: Some(0),
        busy_cpus: Some(random.less(0.01, 1.0)),
        cpu_governor: Some("performance".to_owned()),
        uptime: Some(random.below(10_000_000)),
        ..OsFacts::default()
    }
}

fn device_files(machine: &Machine) -> Vec<DeviceFile> {
    let file = |name: &str, needed_by: &str, need| DeviceFile {
        name: name.to_owned(),
        needed_by: needed_by.to_owned(),
        need,
        state: DeviceState::Usable,
    };
    let mut files = Vec::new();
    match machine.gpus.first().map(|gpu| gpu.vendor) {
        Some(GpuVendor::Nvidia) => {
            files.push(file("/dev/nvidiactl", "NVIDIA GPUs", DeviceNeed::Required));
            files.push(file("/dev/gdrdrv", "GDRCopy", DeviceNeed::Optional));
        }
        Some(GpuVendor::Amd) => files.push(file("/dev/kfd", "ROCm", DeviceNeed::Required)),
        _ => {}
    }
    for gpu in &machine.gpus {
        let name = gpu.device_file.as_deref().unwrap_or_default();
        files.push(file(name, &format!("GPU {}", gpu.index), DeviceNeed::Required));
    }
    for (index, nic) in machine.nics.iter().enumerate() {
        let name = match nic.kind {
            NicKind::Slingshot => format!("/dev/cxi{index}"),
            _ => format!("/dev/infiniband/uverbs{index}"),
        };
        files.push(file(&name, &nic.name, DeviceNeed::Required));
    }
    files
}

fn rates(machine: &Machine, random: &mut Random) -> Vec<Rate> {
    let mut rate = |test, gpu, value: f64| {
        let best = random.less(value, 0.03);
        Rate { test, gpu, best, sustained: random.less(best, 0.03) }
    };
    let mut rates = vec![rate(RateTest::Gemm, None, 3e12), rate(RateTest::Copy, None, 3e11)];
    for gpu in &machine.gpus {
        let gpu = Some(gpu.index);
        rates.push(rate(RateTest::Gemm, gpu, 6e14));
        rates.push(rate(RateTest::Copy, gpu, 2.5e12));
        rates.push(rate(RateTest::HostToDevice, gpu, 5e10));
        rates.push(rate(RateTest::DeviceToHost, gpu, 5e10));
    }
    rates
}

/// The scheduled connections over every NIC.
fn peers(machine: &Machine, node: u32, nodes: u32, random: &mut Random) -> Vec<Peer> {
    let mut peers = Vec::new();
    let (own, count) = (node as usize, nodes as usize);
    for target in schedule::targets(own, count) {
        let other = target as u32;
        let has_bandwidth = schedule::measures_bandwidth(own, target, count);
        for (index, nic) in machine.nics.iter().enumerate() {
            peers.push(Peer {
                node: other,
                host: host(other),
                nic: nic.name.clone(),
                address: address(other, index),
                round_trip: Some(random.less(4e-5, 0.5)),
                clock_offset: Some(random.less(4e-5, 1.0)),
                bandwidth: has_bandwidth
                    .then(|| (random.less(2.3e10, 0.05), random.less(2.3e10, 0.05))),
                error: None,
            });
        }
    }
    peers
}
