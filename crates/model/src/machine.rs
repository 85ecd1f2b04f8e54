//! The machine: hardware topology, limits and software of one node.

use std::collections::BTreeSet;

use serde::{Deserialize, Serialize};

use crate::CpuSet;

mod consistency;
mod nic;

pub use nic::{LinkState, Nic, NicAddress, NicKind, best_nics};

/// The hardware topology and job-relevant state of one node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Machine {
    /// Host name.
    pub host: String,
    /// Origin of the description: `live`, `dump:FILE`, `tree:DIR`, `hwloc:FILE`, `system:lumi-g`.
    pub source: String,
    /// Name of the built-in system, if it was selected by name.
    pub system: Option<String>,
    /// CPU model.
    pub cpu_model: Option<String>,
    /// Packages (sockets).
    pub packages: Vec<Package>,
    /// NUMA nodes, including those without CPUs.
    pub numa: Vec<NumaNode>,
    /// Groups of cores that share an L3 cache.
    pub l3: Vec<L3Group>,
    /// Physical cores, ordered by their first CPU.
    pub cores: Vec<Core>,
    /// Resources that a process on the node may use.
    pub usable: UsableResources,
    /// PCI devices and bridges.
    pub pci: Vec<PciDevice>,
    /// GPUs, GCDs or tiles, in the order of the vendor's runtime.
    pub gpus: Vec<Gpu>,
    /// Direct links between GPUs.
    pub gpu_links: Vec<GpuLink>,
    /// Network interfaces.
    pub nics: Vec<Nic>,
    /// Operating-system limits and settings.
    pub os: Os,
    /// Versions of installed software.
    pub software: Software,
    /// Devices and files that could not be read, with the reason.
    pub notes: Vec<String>,
}

/// A package (socket).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Package {
    /// Kernel ID.
    pub id: u32,
    /// Its CPUs.
    pub cpus: CpuSet,
}

/// A NUMA node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct NumaNode {
    /// Kernel ID.
    pub id: u32,
    /// Its CPUs; empty for GPU memory and for HBM next to a socket.
    pub cpus: CpuSet,
    /// Memory size.
    pub memory_bytes: u64,
    /// Kernel distances to all NUMA nodes, in their order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub distances: Vec<u32>,
}

/// Cores that share an L3 cache.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct L3Group {
    /// Index in [`Machine::l3`].
    pub id: u32,
    /// Its CPUs.
    pub cpus: CpuSet,
    /// Cache size.
    pub size_bytes: Option<u64>,
}

/// A physical core.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Core {
    /// Its hardware threads.
    pub cpus: CpuSet,
    /// ID of its package.
    pub package: u32,
    /// ID of its NUMA node.
    pub numa: Option<u32>,
    /// ID of its L3 group.
    pub l3: Option<u32>,
}

/// Resources that a process may use, from the widest set to the narrowest.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct UsableResources {
    /// Online CPUs.
    pub online: CpuSet,
    /// The cgroup's cpuset, if it restricts the CPUs.
    pub cgroup: Option<CpuSet>,
    /// CPU affinity of the discovering process, if it restricts the CPUs.
    pub affinity: Option<CpuSet>,
    /// NUMA nodes allowed by the cgroup, if it restricts them.
    pub memory_nodes: Option<CpuSet>,
    /// The GPUs of the job in program order, if not all: schedulers without device cgroups
    /// restrict them by a variable such as `CUDA_VISIBLE_DEVICES`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Vec<u32>>,
}

impl UsableResources {
    /// The CPUs available to all ranks of the job on this node: online and in the cgroup. The
    /// affinity of a single rank does not restrict them.
    pub fn job_cpus(&self) -> CpuSet {
        match &self.cgroup {
            Some(cgroup) => self.online.intersection(cgroup),
            None => self.online.clone(),
        }
    }

    /// The CPUs available to the discovering process and its children.
    pub fn process_cpus(&self) -> CpuSet {
        match &self.affinity {
            Some(affinity) => self.job_cpus().intersection(affinity),
            None => self.job_cpus(),
        }
    }
}

/// A PCI device or bridge.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PciDevice {
    /// `0000:c1:00.0`.
    pub address: String,
    /// The bridges above it, root first: `["pci0000:c0", "0000:c0:01.1"]`.
    pub path: Vec<String>,
    /// 24-bit class code, `0x030200`.
    pub class: u32,
    /// Vendor ID.
    pub vendor: u16,
    /// Device ID.
    pub device: u16,
    /// NUMA node, if the firmware reports it.
    pub numa: Option<u32>,
}

/// GPU vendor.
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

/// One device of the vendor's runtime: a GPU, a GCD of an MI250X, a tile of a Ponte Vecchio.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Gpu {
    /// Runtime index, from 0.
    pub index: u32,
    /// Vendor.
    pub vendor: GpuVendor,
    /// Model: `NVIDIA H100 80GB HBM3`.
    pub name: String,
    /// PCI address; the tiles of a card share it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pci: Option<String>,
    /// The NUMA node it is local to.
    pub numa: Option<u32>,
    /// Its local CPUs (`local_cpulist`); empty if unknown.
    #[serde(default)]
    pub cpus: CpuSet,
    /// Memory size.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Card index, shared by the GCDs or tiles of a card.
    pub card: u32,
    /// Index of the GCD or tile on its card, if the card has several.
    #[serde(alias = "part", default, skip_serializing_if = "Option::is_none")]
    pub subdevice: Option<u32>,
    /// The vendor's UUID.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uuid: Option<String>,
    /// The device file a process needs: `/dev/nvidia0`, `/dev/dri/renderD128`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub device_file: Option<String>,
    /// Whether the discovering process can open the device file; `None` if untested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub accessible: Option<bool>,
    /// Whether MIG mode is enabled.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub mig: bool,
    /// Topological distance to each NIC of [`Machine::nics`], in their order.
    #[serde(default)]
    pub nic_distance: Vec<Distance>,
}

impl Gpu {
    /// A GPU on its own card, with everything else unknown.
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
            subdevice: None,
            uuid: None,
            device_file: None,
            accessible: None,
            mig: false,
            nic_distance: Vec::new(),
        }
    }
}

/// Topological distance between two devices, closest first. `nvidia-smi topo` calls the levels
/// PIX/PXB, PHB, NODE and SYS.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Distance {
    /// Below a common PCIe switch, or one attached to the other.
    Switch,
    /// Below a common PCI host bridge.
    Root,
    /// On the same NUMA node.
    Numa,
    /// In the same package.
    Package,
    /// In different packages.
    Remote,
    /// Not reported by the system.
    Unknown,
}

impl Distance {
    /// Description relative to the other device, as the predicate of "the NIC is ...".
    pub fn description(self) -> &'static str {
        match self {
            Distance::Switch => "attached to the GPU or behind the same PCIe switch",
            Distance::Root => "below the same PCI host bridge",
            Distance::Numa => "on the same NUMA node",
            Distance::Package => "in the same socket",
            Distance::Remote => "in another socket",
            Distance::Unknown => "at an unknown distance",
        }
    }
}

/// Type of a link between GPUs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LinkKind {
    /// NVIDIA NVLink, direct or through NVSwitch.
    NvLink,
    /// AMD Infinity Fabric.
    Xgmi,
    /// Intel Xe Link.
    XeLink,
    /// On-card link between tiles or GCDs.
    OnCard,
}

/// A direct link between two GPUs, `a < b`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GpuLink {
    /// Index of one GPU.
    pub a: u32,
    /// Index of the other GPU.
    pub b: u32,
    /// Link type.
    pub kind: LinkKind,
    /// Number of parallel links, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<u32>,
    /// Aggregate peak bandwidth in one direction, if known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub megabytes_per_second: Option<u64>,
}

/// Limits and settings of the discovering process.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Os {
    /// Kernel release.
    pub kernel: Option<String>,
    /// DNS domains of the node: from its host name and the resolver's search list.
    pub domains: Vec<String>,
    /// The container runtime, if the process runs in a container.
    pub container: Option<String>,
    /// `RLIMIT_MEMLOCK`, which RDMA needs; `None` is unlimited or unknown.
    pub memlock_bytes: Option<u64>,
    /// Whether the limit is known.
    pub memlock_known: bool,
    /// Size of /dev/shm.
    pub shm_bytes: Option<u64>,
    /// Huge page pools, by page size.
    pub hugepages: Vec<HugePages>,
}

/// The pool of huge pages of one size.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HugePages {
    /// Page size.
    pub page_bytes: u64,
    /// Pages in the pool.
    pub total: u64,
    /// Free pages.
    pub free: u64,
}

/// Versions of installed software.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Software {
    /// NVIDIA kernel driver.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub nvidia_driver: Option<String>,
    /// Newest CUDA version that the driver supports.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cuda_driver: Option<String>,
    /// amdgpu kernel driver.
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
    /// Path of the NCCL or RCCL network plug-in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub net_plugin: Option<String>,
}

impl Machine {
    /// The NUMA node with this ID.
    pub fn numa_node(&self, id: u32) -> Option<&NumaNode> {
        self.numa.iter().find(|n| n.id == id)
    }

    /// The fabric: the interfaces of the best kind that is up. Ethernet only if there is nothing
    /// better, virtual interfaces only if there is nothing else.
    pub fn fabric_nics(&self) -> Vec<&Nic> {
        best_nics(self.nics.iter().filter(|n| n.state != LinkState::Down).collect())
    }

    /// Whether it was discovered on the running node.
    pub fn is_live(&self) -> bool {
        self.source == SOURCE_LIVE
    }

    /// The description without the properties of the individual node, such as host name, UUIDs and
    /// addresses. Nodes with equal classes share a layout. Memory is rounded down to GiB, because
    /// its size in bytes differs between identical nodes.
    pub fn node_class(&self) -> Self {
        const GIB: u64 = 1 << 30;
        let mut class = Self { host: String::new(), notes: Vec::new(), ..self.clone() };
        class.gpus.iter_mut().for_each(|gpu| gpu.uuid = None);
        class.nics.iter_mut().for_each(|nic| nic.addresses.clear());
        class.os.hugepages.iter_mut().for_each(|pages| pages.free = 0);
        class.os.shm_bytes = class.os.shm_bytes.map(|bytes| bytes / GIB);
        class.numa.iter_mut().for_each(|node| node.memory_bytes /= GIB);
        class
    }

    /// The GPUs visible to the job in program order: device *i* of a program is entry *i*.
    pub fn visible_gpus(&self) -> Vec<u32> {
        match &self.usable.gpus {
            Some(gpus) => gpus.clone(),
            None => self.gpus.iter().map(|g| g.index).collect(),
        }
    }

    /// Number of GPUs of the node, including hidden ones: a device cgroup does not hide the PCI bus. A
    /// hidden card counts as one, even if it has several.
    pub fn gpus_with_hidden(&self) -> Option<usize> {
        let vendor = match self.gpus.first()?.vendor {
            GpuVendor::Nvidia => 0x10de,
            GpuVendor::Amd => 0x1002,
            GpuVendor::Intel => 0x8086,
        };
        let is_gpu = |class: u32| matches!(class >> 8, 0x0300 | 0x0302 | 0x0380 | 0x1200);
        let on_bus = self.pci.iter().filter(|d| d.vendor == vendor && is_gpu(d.class)).count();
        let cards: BTreeSet<&String> = self.gpus.iter().filter_map(|g| g.pci.as_ref()).collect();
        Some(self.gpus.len() + on_bus.saturating_sub(cards.len().max(1)))
    }

    /// Maximum hardware threads per core.
    pub fn threads_per_core(&self) -> usize {
        self.cores.iter().map(|c| c.cpus.len()).max().unwrap_or(1)
    }
}

/// [`Machine::source`] of a machine discovered on the running node.
pub const SOURCE_LIVE: &str = "live";
