//! What is collected on the nodes of a job. Facts carry no judgement; `None` is always "unknown".

use std::net::IpAddr;

pub use regatta_discover::gpu_health::{GpuHealth, GpuProcess};
pub use regatta_model::bench::{Rate, RateTest};
use regatta_model::{Document, Machine, Scheduler};
use serde::{Deserialize, Serialize};

/// The facts of all nodes of a job: the file of `regatta doctor --dump`.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct JobFacts {
    /// The scheduler of the allocation, whose options exclude nodes.
    pub scheduler: Option<Scheduler>,
    /// Name of the site profile.
    pub site: Option<String>,
    /// The node as the site's documentation describes it, if the site is a built-in system.
    pub expected: Option<Machine>,
    /// The nodes that reported, in the order of the allocation.
    pub nodes: Vec<NodeFacts>,
    /// The nodes that did not.
    pub missing: Vec<MissingNode>,
}

impl Document for JobFacts {
    const KIND: &'static str = "doctor-facts";
    const VERSION: u32 = 1;
    const WRITTEN_BY: &'static str = "regatta doctor --dump FILE";
}

/// A node without facts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct MissingNode {
    /// Host name.
    pub host: String,
    /// Why there are none: output of its launcher, exit code of its rank, time limit.
    pub reason: String,
}

/// The facts of a node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeFacts {
    /// Host name, as in the allocation.
    pub host: String,
    /// Topology, limits and versions.
    pub machine: Machine,
    /// Health of the GPUs of [`Machine::gpus`], as far as their driver reports it.
    pub gpus: Vec<GpuHealth>,
    /// What allows or prevents peer-to-peer access between the GPUs.
    pub peer_to_peer: PeerToPeer,
    /// Counters and settings of the NICs of [`Machine::nics`].
    pub nics: Vec<NicHealth>,
    /// File systems that jobs write to.
    pub file_systems: Vec<FileSystem>,
    /// Limits and resources of the operating system.
    pub os: OsFacts,
    /// Device files and kernel modules for GPUs and NICs.
    pub device_files: Vec<DeviceFile>,
    /// The network plug-in that NCCL or RCCL would load.
    pub net_plugin: Option<NetPlugin>,
    /// Processes and shared memory of earlier jobs.
    pub leftovers: Vec<Leftover>,
    /// Short measurements of cores, memory and GPUs.
    pub rates: Vec<Rate>,
    /// Connections to other nodes.
    pub peers: Vec<Peer>,
    /// Facts that could not be collected, with the reason.
    pub notes: Vec<String>,
}

/// What allows or prevents peer-to-peer access between the GPUs of a node.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PeerToPeer {
    /// GPUs of the node, with those that a device cgroup hides from this process.
    pub gpus_on_node: Option<u32>,
    /// The variable and value by which each task gets its own GPUs: `SLURM_GPUS_PER_TASK`, `1`.
    pub gpu_binding: Option<(String, String)>,
    /// Type of the IOMMU group of the first GPU: `identity` translates no addresses, `DMA` and
    /// `DMA-FQ` do.
    pub iommu: Option<String>,
}

/// Counters and settings of a NIC.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct NicHealth {
    /// Name in [`Machine::nics`].
    pub name: String,
    /// Maximum transmission unit in bytes.
    pub mtu: Option<u32>,
    /// PCIe link speed of the NIC now and at most, in GT/s.
    pub pcie_speed: Option<(f64, f64)>,
    /// PCIe lanes now and at most.
    pub pcie_width: Option<(u32, u32)>,
    /// Error counters that are not zero: `rx_crc_errors`, `symbol_error`, `link_downed`.
    pub errors: Vec<(String, u64)>,
    /// Error counters that increased during the tests, by how much.
    pub new_errors: Vec<(String, u64)>,
}

/// Use of a directory by jobs.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum DirectoryUse {
    /// The working directory, with the run folder.
    Work,
    /// The home directory.
    Home,
    /// Temporary files (`TMPDIR`, else `/tmp`).
    Temporary,
    /// Caches of compiled kernels.
    Cache,
    /// A directory of `--path`.
    #[default]
    Given,
}

/// A file system that jobs write to.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct FileSystem {
    /// The directory.
    pub path: String,
    /// What jobs write there.
    pub used_for: DirectoryUse,
    /// File system type: `lustre`, `tmpfs`.
    pub kind: Option<String>,
    /// Free bytes for this user.
    pub free_bytes: Option<u64>,
    /// Total bytes.
    pub total_bytes: Option<u64>,
    /// Free inodes; `None` if the file system does not count them.
    pub free_inodes: Option<u64>,
    /// Total inodes.
    pub total_inodes: Option<u64>,
    /// Bandwidth of the write test in bytes per second.
    pub write_rate: Option<f64>,
    /// Time to create, write, sync and remove a small file, in seconds.
    pub sync_seconds: Option<f64>,
    /// Why the write test failed: `Read-only file system`.
    pub error: Option<String>,
    /// Whether it failed because the file system did not answer in time.
    #[serde(default)]
    pub timed_out: bool,
}

/// Limits and resources of the operating system.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct OsFacts {
    /// Maximum open files (soft limit; the hard limit, to which programs can raise it).
    pub open_files: Option<(u64, u64)>,
    /// Maximum processes of the user; `u64::MAX` is unlimited.
    pub max_processes: Option<u64>,
    /// `RLIMIT_MEMLOCK`; `u64::MAX` is unlimited.
    pub memlock: Option<u64>,
    /// Size of `/dev/shm`.
    pub shm_total: Option<u64>,
    /// Free bytes of `/dev/shm`.
    pub shm_free: Option<u64>,
    /// Why no file can be created in `/dev/shm`.
    pub shm_error: Option<String>,
    /// Memory of the node.
    pub memory_total: Option<u64>,
    /// Available memory.
    pub memory_available: Option<u64>,
    /// Memory limit of the cgroup.
    pub memory_limit: Option<u64>,
    /// Uncorrectable errors of the main memory (EDAC).
    pub memory_errors: Option<u64>,
    /// Share of all CPU time that other processes used before the measurements, 0 to 1.
    pub busy_cpus: Option<f64>,
    /// CPU time in CPUs that the cgroup allows (`cpu.max`).
    pub cpu_quota: Option<f64>,
    /// Frequency policy: `performance`, `powersave`.
    pub cpu_governor: Option<String>,
    /// Time since the boot, in seconds.
    pub uptime: Option<u64>,
}

/// A device file or kernel module that GPUs or NICs need.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct DeviceFile {
    /// `/dev/gdrdrv`, `/dev/cxi0`, `/dev/kfd`, `/dev/infiniband/uverbs0`, or a module: `nvidia_peermem`.
    pub name: String,
    /// What needs it.
    pub needed_by: String,
    /// Whether this node needs it.
    #[serde(default)]
    pub need: DeviceNeed,
    /// Its state.
    pub state: DeviceState,
}

/// Whether a node needs a device file or kernel module.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceNeed {
    /// Its GPUs or NICs cannot be used without.
    #[default]
    Required,
    /// Communication is faster with it. Only listed if it exists.
    Optional,
    /// No GPU or NIC of this node needs it. Only listed if it exists, to compare nodes.
    Unused,
}

/// State of a device file or kernel module.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DeviceState {
    /// It can be opened, or the module is loaded.
    Usable,
    /// It does not exist.
    Missing,
    /// It cannot be opened, with the error.
    Denied(String),
}

/// The network plug-in of NCCL or RCCL.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NetPlugin {
    /// Path of the file.
    pub path: String,
    /// Digest of the file, to compare nodes.
    pub digest: Option<String>,
    /// Versions of the net interface that it exports (`ncclNetPlugin_v8`), ascending.
    pub net_versions: Vec<u32>,
    /// Versions of the collnet interface.
    pub collnet_versions: Vec<u32>,
    /// Other interfaces that it exports: `tuner v3`, `profiler v4`.
    pub other_interfaces: Vec<String>,
    /// Why it cannot be loaded: `libfabric.so.1: cannot open shared object file`.
    pub load_error: Option<String>,
}

/// What an earlier job left behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs, reason = "the variants explain the fields")]
pub enum Leftover {
    /// A process of this user outside of the job: its age, the share of a CPU that it used, and the
    /// devices and shared memory that it holds (`gpu`, `rdma`, `shared-memory`).
    Process {
        pid: u32,
        command: String,
        seconds: u64,
        #[serde(default)]
        cpu_percent: u32,
        #[serde(default)]
        holds: Vec<String>,
    },
    /// A file in `/dev/shm` that no process has open.
    SharedMemory { path: String, bytes: u64 },
    /// A System V segment without attached processes.
    SystemV { id: u32, bytes: u64 },
}

/// A connection to another node over one network.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Peer {
    /// Index of the other node in the peer table.
    pub node: u32,
    /// Host name of the other node.
    pub host: String,
    /// NIC of this node whose network was tested.
    pub nic: String,
    /// Address of the other node.
    pub address: IpAddr,
    /// Shortest round trip in seconds.
    pub round_trip: Option<f64>,
    /// Clock of the other node minus this node's, in seconds, with an error of half a round trip.
    pub clock_offset: Option<f64>,
    /// Best bandwidth to and from the other node in bytes per second, if it was measured.
    pub bandwidth: Option<(f64, f64)>,
    /// Why the connection failed.
    pub error: Option<String>,
}
