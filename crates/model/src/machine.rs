//! What one node is made of.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use crate::{CpuSet, Document};

/// One node's hardware and the state of it that matters to a job.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// The node's name.
    pub host: String,
    /// Where the description comes from: `live`, `dump:FILE`, `tree:DIR`, `hwloc:FILE`,
    /// `system:lumi-g`.
    pub source: String,
    /// The built-in system this is, if it was asked for by name.
    pub system: Option<String>,
    /// The processor's name.
    pub cpu_model: Option<String>,
    /// Sockets.
    pub packages: Vec<Package>,
    /// Memory nodes, those without CPUs included.
    pub numa: Vec<NumaNode>,
    /// Groups of cores that share a last-level cache.
    pub l3: Vec<L3Group>,
    /// Physical cores in the order of their first CPU.
    pub cores: Vec<Core>,
    /// What of it a process here may use.
    pub usable: Usable,
    /// The PCI devices and bridges.
    pub pci: Vec<PciDevice>,
    /// GPUs (or GCDs, tiles) in the order of the vendor's runtime.
    pub gpus: Vec<Gpu>,
    /// Direct links between GPUs.
    pub gpu_links: Vec<GpuLink>,
    /// Network interfaces.
    pub nics: Vec<Nic>,
    /// Limits and surroundings.
    pub os: Os,
    /// Versions of what was found installed.
    pub software: Software,
    /// What could not be read, and why.
    pub notes: Vec<String>,
}

/// A socket.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Package {
    /// The kernel's number.
    pub id: u32,
    /// Its CPUs.
    pub cpus: CpuSet,
}

/// A memory node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NumaNode {
    /// The kernel's number.
    pub id: u32,
    /// Its CPUs; none for memory of a GPU or high-bandwidth memory beside a socket.
    pub cpus: CpuSet,
    /// Its memory.
    pub memory_bytes: u64,
    /// The kernel's distances to all nodes, in the order of the nodes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<u32>,
}

/// Cores that share a last-level cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct L3Group {
    /// Position in [`Machine::l3`].
    pub id: u32,
    /// Its CPUs.
    pub cpus: CpuSet,
    /// The cache's size.
    pub size_bytes: Option<u64>,
}

/// A physical core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Core {
    /// Its hardware threads.
    pub cpus: CpuSet,
    /// Its socket's number.
    pub package: u32,
    /// Its memory node's number.
    pub numa: Option<u32>,
    /// Its L3 group's number.
    pub l3: Option<u32>,
}

/// What a process may use, from the widest to the narrowest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Usable {
    /// CPUs that are switched on.
    pub online: CpuSet,
    /// What the cgroup's cpuset leaves, if it restricts.
    pub cgroup: Option<CpuSet>,
    /// What the describing process was bound to.
    pub affinity: Option<CpuSet>,
    /// Memory nodes the cgroup allows, if it restricts.
    pub memory_nodes: Option<CpuSet>,
    /// The GPUs the job was left, in the order in which programs see them, if not all: a scheduler
    /// without device cgroups says so by a variable.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Vec<u32>>,
}

impl Usable {
    /// The CPUs that the job's ranks on this node may use together: what is online and in the
    /// cgroup. One rank's own binding does not narrow it.
    pub fn by_job(&self) -> CpuSet {
        match &self.cgroup {
            Some(cgroup) => self.online.intersection(cgroup),
            None => self.online.clone(),
        }
    }

    /// The CPUs that the describing process and its children may use.
    pub fn by_process(&self) -> CpuSet {
        match &self.affinity {
            Some(affinity) => self.by_job().intersection(affinity),
            None => self.by_job(),
        }
    }
}

/// A PCI device or bridge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PciDevice {
    /// `0000:c1:00.0`.
    pub address: String,
    /// The bridges from the root to it, outermost first: `["pci0000:c0", "0000:c0:01.1"]`.
    pub path: Vec<String>,
    /// The 24-bit class, `0x030200`.
    pub class: u32,
    /// Vendor number.
    pub vendor: u16,
    /// Device number.
    pub device: u16,
    /// Memory node, if the firmware says.
    pub numa: Option<u32>,
}

/// Who makes a GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GpuVendor {
    /// NVIDIA: CUDA.
    Nvidia,
    /// AMD: ROCm.
    Amd,
    /// Intel: Level Zero.
    Intel,
}

/// What the vendor's runtime shows as one device: a GPU, a GCD of an MI250X, a tile of a PVC.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// The runtime's number, from 0.
    pub index: u32,
    /// Who makes it.
    pub vendor: GpuVendor,
    /// `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// Its PCI address; tiles of one card share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// The memory node it hangs on.
    pub numa: Option<u32>,
    /// The CPUs the system calls local to it; empty when it does not say.
    #[serde(default)]
    pub cpus: CpuSet,
    /// Its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// The card it is part of: GCDs and tiles of one card have the same number.
    pub card: u32,
    /// Which GCD or tile of the card it is, if the card has several.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub part: Option<u32>,
    /// The vendor's unique name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The device file a process needs: `/dev/nvidia0`, `/dev/dri/renderD128`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_file: Option<String>,
    /// Whether this process may open it; `None` when that was not tried.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accessible: Option<bool>,
    /// Whether it is cut into MIG instances.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mig: bool,
    /// How far each NIC of [`Machine::nics`] is, in their order.
    #[serde(default)]
    pub nic_distance: Vec<Distance>,
}

impl Gpu {
    /// A GPU of which nothing else is known: a card of its own.
    pub fn new(index: u32, vendor: GpuVendor, name: &str) -> Self {
        Self {
            index,
            vendor,
            name: name.to_owned(),
            pci: None,
            numa: None,
            cpus: CpuSet::new(),
            memory_bytes: None,
            card: index,
            part: None,
            uuid: None,
            device_file: None,
            accessible: None,
            mig: false,
            nic_distance: Vec::new(),
        }
    }
}

/// How far two devices are apart, nearest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distance {
    /// Below one PCIe switch, or one attached to the other.
    Switch,
    /// Below one PCI root.
    Root,
    /// On one memory node.
    Numa,
    /// In one socket.
    Package,
    /// Across sockets.
    Remote,
    /// The system does not say.
    Unknown,
}

impl Distance {
    /// The distance in words, to follow "its NIC is".
    pub fn words(self) -> &'static str {
        match self {
            Distance::Switch => "attached to it or behind the same PCIe switch",
            Distance::Root => "below the same PCI root",
            Distance::Numa => "on the same NUMA node",
            Distance::Package => "in the same socket",
            Distance::Remote => "in another socket",
            Distance::Unknown => "at an unknown distance",
        }
    }
}

/// What kind of link joins two GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// NVIDIA NVLink, direct or through NVSwitch.
    NvLink,
    /// AMD Infinity Fabric.
    Xgmi,
    /// Intel Xe Link.
    XeLink,
    /// Between the tiles or GCDs of one card.
    OnCard,
}

/// A direct link between two GPUs, `a < b`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuLink {
    /// One GPU's index.
    pub a: u32,
    /// The other's.
    pub b: u32,
    /// What joins them.
    pub kind: LinkKind,
    /// How many parallel links, if the system tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Peak bandwidth of all of them in one direction, if the system tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub megabytes_per_second: Option<u64>,
}

/// What kind of network an interface is on, best for training first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NicKind {
    /// HPE Slingshot (cxi).
    Slingshot,
    /// InfiniBand.
    InfiniBand,
    /// Ethernet with RDMA.
    Roce,
    /// Ethernet.
    Ethernet,
    /// No hardware behind it: veth, bridge, tunnel.
    Virtual,
}

/// Whether a link carries traffic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkState {
    /// It does.
    Up,
    /// It does not.
    Down,
    /// The system does not say.
    Unknown,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Nic {
    /// The network device's name (`hsn0`), else the fabric device's.
    pub name: String,
    /// What network it is on.
    pub kind: NicKind,
    /// The RDMA device's name: `cxi0`, `mlx5_0`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fabric_device: Option<String>,
    /// Its PCI address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// The memory node it hangs on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub numa: Option<u32>,
    /// Its speed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub speed_mbit: Option<u64>,
    /// Whether the link is up.
    pub state: LinkState,
    /// Its addresses.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub addresses: Vec<NicAddress>,
}

impl Nic {
    /// An interface that is up and of which nothing else is known.
    pub fn new(name: &str, kind: NicKind) -> Self {
        Self {
            name: name.to_owned(),
            kind,
            fabric_device: None,
            pci: None,
            numa: None,
            speed_mbit: None,
            state: LinkState::Up,
            addresses: Vec::new(),
        }
    }
}

/// An address and how many leading bits of it name the network.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct NicAddress {
    /// The address.
    pub address: IpAddr,
    /// The length of the network prefix.
    pub prefix: u8,
}

impl NicAddress {
    /// Whether `other` is on the same network.
    pub fn reaches(&self, other: IpAddr) -> bool {
        let top = |bits: u128, width: u8| match width.checked_sub(self.prefix) {
            Some(shift) if u32::from(shift) < 128 => bits >> shift,
            Some(_) => 0,
            None => bits,
        };
        match (self.address, other) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                top(u32::from(a).into(), 32) == top(u32::from(b).into(), 32)
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => top(a.into(), 128) == top(b.into(), 128),
            _ => false,
        }
    }
}

/// Limits and surroundings of the describing process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Os {
    /// The kernel's release.
    pub kernel: Option<String>,
    /// The DNS domains of the node: from its own name and the resolver's search list.
    pub domains: Vec<String>,
    /// The container runtime this process is inside of, if any.
    pub container: Option<String>,
    /// How much memory may be locked, for RDMA; `None` is unlimited or unknown.
    pub memlock_bytes: Option<u64>,
    /// Whether `memlock_bytes` was read at all.
    pub memlock_known: bool,
    /// The size of /dev/shm.
    pub shm_bytes: Option<u64>,
    /// Huge pages set aside, by page size.
    pub hugepages: Vec<HugePages>,
}

/// Huge pages of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HugePages {
    /// The size of a page.
    pub page_bytes: u64,
    /// How many are set aside.
    pub total: u64,
    /// How many of them are free.
    pub free: u64,
}

/// Versions of what was found.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Software {
    /// The NVIDIA kernel driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvidia_driver: Option<String>,
    /// The newest CUDA the driver supports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_driver: Option<String>,
    /// The amdgpu kernel driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub amdgpu_driver: Option<String>,
    /// ROCm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rocm: Option<String>,
    /// NCCL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nccl: Option<String>,
    /// RCCL.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub rccl: Option<String>,
    /// libfabric.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub libfabric: Option<String>,
    /// The NCCL or RCCL network plug-in: its path.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_plugin: Option<String>,
}

impl Machine {
    /// The memory node with this number.
    pub fn numa_node(&self, id: u32) -> Option<&NumaNode> {
        self.numa.iter().find(|n| n.id == id)
    }

    /// The interfaces of the best kind that is up: the fabric. Ethernet only if there is nothing
    /// better, and virtual ones only if there is nothing else.
    pub fn fabric(&self) -> Vec<&Nic> {
        best_of(self.nics.iter().filter(|n| n.state != LinkState::Down).collect())
    }

    /// Whether it was found by looking, just now.
    pub fn is_live(&self) -> bool {
        self.source == LIVE
    }

    /// The machine without what makes it this one and no other: machines that are alike get ranks
    /// in the same way. Memory is counted in GiB, for no two nodes have the same to the byte.
    pub fn kind(&self) -> Self {
        const GIB: u64 = 1 << 30;
        let mut kind = Self { host: String::new(), notes: Vec::new(), ..self.clone() };
        kind.gpus.iter_mut().for_each(|gpu| gpu.uuid = None);
        kind.nics.iter_mut().for_each(|nic| nic.addresses.clear());
        kind.os.hugepages.iter_mut().for_each(|pages| pages.free = 0);
        kind.os.shm_bytes = kind.os.shm_bytes.map(|bytes| bytes / GIB);
        kind.numa.iter_mut().for_each(|node| node.memory_bytes /= GIB);
        kind
    }

    /// The GPUs that a job's programs see, in their order: a program's device *i* is the *i*-th.
    pub fn visible_gpus(&self) -> Vec<u32> {
        match &self.usable.gpus {
            Some(gpus) => gpus.clone(),
            None => self.gpus.iter().map(|g| g.index).collect(),
        }
    }

    /// Threads of a core, at most.
    pub fn threads_per_core(&self) -> usize {
        self.cores.iter().map(|c| c.cpus.len()).max().unwrap_or(1)
    }
}

/// A link that much slower than the fastest of its kind is there for another purpose: a management
/// network of Ethernet beside a fabric of Ethernet.
const SLOW: u64 = 5;

/// Those of the best kind, without the slow ones among them.
pub fn best_of(mut nics: Vec<&Nic>) -> Vec<&Nic> {
    let best = nics.iter().map(|n| n.kind).min();
    nics.retain(|n| Some(n.kind) == best);
    let fastest = nics.iter().filter_map(|n| n.speed_mbit).max().unwrap_or(0);
    nics.retain(|n| n.speed_mbit.is_none_or(|own| own >= fastest / SLOW));
    nics
}

/// The source of a machine that was found by looking.
pub const LIVE: &str = "live";

/// More devices than any node has; a file that claims more is refused.
const MAX_DEVICES: usize = 4096;

impl Document for Machine {
    const KIND: &'static str = "machine";
    const VERSION: u32 = 1;

    fn fault(&self) -> Option<String> {
        self.count_fault().or_else(|| self.core_fault()).or_else(|| self.gpu_fault())
    }
}

impl Machine {
    fn count_fault(&self) -> Option<String> {
        let most = self.gpus.len().max(self.nics.len()).max(self.numa.len());
        (most > MAX_DEVICES).then(|| format!("{most} devices of one kind in one node"))
    }

    fn core_fault(&self) -> Option<String> {
        let mut seen = CpuSet::new();
        for (i, core) in self.cores.iter().enumerate() {
            if core.cpus.is_empty() {
                return Some(format!("core {i} has no CPU"));
            }
            if core.cpus.intersects(&seen) {
                return Some(format!("CPU {} is in two cores", core.cpus.intersection(&seen)));
            }
            if core.numa.is_some_and(|n| self.numa_node(n).is_none()) {
                return Some(format!("core {i} is on a NUMA node that is not listed"));
            }
            if core.l3.is_some_and(|l| !self.l3.iter().any(|g| g.id == l)) {
                return Some(format!("core {i} is in an L3 group that is not listed"));
            }
            seen = seen.union(&core.cpus);
        }
        None
    }

    fn gpu_fault(&self) -> Option<String> {
        for (i, gpu) in self.gpus.iter().enumerate() {
            if gpu.index as usize != i {
                return Some(format!("GPU {} stands at position {i}", gpu.index));
            }
            if gpu.numa.is_some_and(|n| self.numa_node(n).is_none()) {
                return Some(format!("GPU {i} is on a NUMA node that is not listed"));
            }
            if !gpu.nic_distance.is_empty() && gpu.nic_distance.len() != self.nics.len() {
                return Some(format!("GPU {i} gives distances to another number of NICs"));
            }
        }
        let count = self.gpus.len() as u32;
        if let Some(gpu) = self.usable.gpus.iter().flatten().find(|g| **g >= count) {
            return Some(format!("GPU {gpu} of {count} is said to be usable"));
        }
        let bad = self.gpu_links.iter().find(|l| l.a >= l.b || l.b >= count)?;
        Some(format!("a link joins GPU {} and GPU {} of {count}", bad.a, bad.b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn networks_are_compared_by_prefix() {
        let hsn = NicAddress { address: "10.253.6.67".parse().unwrap(), prefix: 16 };
        assert!(hsn.reaches("10.253.2.12".parse().unwrap()));
        assert!(!hsn.reaches("10.120.116.65".parse().unwrap()));
        assert!(!hsn.reaches("fe80::1".parse().unwrap()));
        let any = NicAddress { address: "::1".parse().unwrap(), prefix: 0 };
        assert!(any.reaches("fe80::1".parse().unwrap()));
    }

    #[test]
    fn contradictions_are_named() {
        let core =
            |cpus: &str| Core { cpus: cpus.parse().unwrap(), package: 0, numa: None, l3: None };
        let machine = Machine { cores: vec![core("0-1"), core("1-2")], ..Machine::default() };
        assert_eq!(machine.fault().unwrap(), "CPU 1 is in two cores");
    }
}
