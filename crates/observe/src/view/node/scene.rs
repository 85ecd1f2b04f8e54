//! The content of a drawing, independent of its format: sockets, NUMA nodes, cores with their ranks,
//! and devices.

use regatta_draw::text::sanitize;
use regatta_model::{CpuSet, Machine, NicKind, NodeLayout};

use super::{cores, devices, notes};

/// A node with its ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Scene {
    /// Host name.
    pub host: String,
    /// CPU model.
    pub cpu_model: Option<String>,
    /// Counts: `64 cores with 2 threads`, `8 GPUs`.
    pub counts: Vec<String>,
    /// Sockets.
    pub packages: Vec<PackageView>,
    /// Devices without a known NUMA node.
    pub unknown_locality: Devices,
    /// Notes about the whole node: GPU links, memory without cores.
    pub notes: Vec<String>,
    /// The ranks by local rank.
    pub ranks: Vec<RankView>,
}

/// A socket, or the NUMA nodes without one.
#[derive(Debug, Clone, PartialEq)]
pub struct PackageView {
    /// Kernel ID; `None` for NUMA nodes without a socket.
    pub id: Option<u32>,
    /// NUMA nodes.
    pub nodes: Vec<NodeView>,
}

/// The part of a NUMA node in one socket.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeView {
    /// Kernel ID; `None` for cores without a known NUMA node.
    pub numa: Option<u32>,
    /// Name, with the socket if there are several.
    pub label: String,
    /// Memory size, as text.
    pub memory: Option<String>,
    /// Cores grouped by L3 cache.
    pub groups: Vec<GroupView>,
    /// Attached devices.
    pub devices: Devices,
}

/// Cores that share a last-level cache.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupView {
    /// `L3 6`, or `cores` where no cache is known.
    pub label: String,
    /// Cache size, as text.
    pub size: Option<String>,
    /// Cores in kernel order.
    pub cores: Vec<CoreView>,
}

/// A core.
#[derive(Debug, Clone, PartialEq)]
pub struct CoreView {
    /// Hardware threads.
    pub cpus: CpuSet,
    /// Use of the core.
    pub state: CoreState,
    /// Number of hardware threads that ranks are bound to.
    pub threads_used: usize,
}

/// Use of a core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoreState {
    /// Local ranks bound to it; several only if oversubscribed.
    Owned(Vec<u32>),
    /// Kept free of ranks on purpose.
    Reserved,
    /// Usable, but without a rank.
    Idle,
    /// Offline or outside the job's cpuset.
    Unusable,
}

/// GPUs and NICs of one NUMA node.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Devices {
    /// GPUs in device order.
    pub gpus: Vec<GpuView>,
    /// NICs, used ones first.
    pub nics: Vec<NicView>,
    /// Names of further unused NICs.
    pub folded_nics: Vec<String>,
}

impl Devices {
    /// Whether there are no devices.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty() && self.nics.is_empty() && self.folded_nics.is_empty()
    }
}

/// A GPU, GCD or tile.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuView {
    /// Device index.
    pub index: u32,
    /// Name without vendor and memory size.
    pub name: String,
    /// Memory size, as text.
    pub memory: Option<String>,
    /// PCI address without the default domain.
    pub pci: Option<String>,
    /// Local ranks that use it.
    pub ranks: Vec<u32>,
}

/// A NIC.
#[derive(Debug, Clone, PartialEq)]
pub struct NicView {
    /// Interface name.
    pub name: String,
    /// Network type.
    pub kind: &'static str,
    /// Link speed, as text.
    pub speed: Option<String>,
    /// Link state, as text.
    pub state: &'static str,
    /// Local ranks that use it.
    pub ranks: Vec<u32>,
}

/// A rank in the legend.
#[derive(Debug, Clone, PartialEq)]
pub struct RankView {
    /// Local rank.
    pub local_rank: u32,
    /// Its resources, as text: GPUs, CPUs, NIC, threads, memory.
    pub resources: Vec<String>,
    /// Reason for its cores.
    pub cpu_reason: Option<String>,
    /// All reasons, one sentence each.
    pub reasons: Vec<String>,
}

impl Scene {
    /// Builds the scene of a node.
    pub fn new(machine: &Machine, layout: &NodeLayout) -> Self {
        let mut scene = Self {
            host: sanitize(if machine.host.is_empty() { &layout.machine } else { &machine.host }),
            cpu_model: machine.cpu_model.as_deref().map(sanitize).filter(|m| !m.is_empty()),
            counts: notes::counts(machine, layout),
            packages: cores::packages(machine, layout),
            unknown_locality: Devices::default(),
            notes: notes::notes(machine),
            ranks: layout.ranks.iter().map(devices::rank).collect(),
        };
        for gpu in &machine.gpus {
            cores::devices_at(machine, &mut scene, gpu.numa).gpus.push(devices::gpu(gpu, layout));
        }
        for nic in &machine.nics {
            let view = devices::nic(nic, layout);
            let devices = cores::devices_at(machine, &mut scene, nic.numa);
            devices.add_nic(view, nic.kind == NicKind::Virtual);
        }
        scene
    }

    /// The NUMA nodes of all sockets.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeView> {
        self.packages.iter().flat_map(|p| &p.nodes)
    }

    /// All cores.
    pub fn cores(&self) -> impl Iterator<Item = &CoreView> {
        self.nodes().flat_map(|n| &n.groups).flat_map(|g| &g.cores)
    }

    /// Number of NUMA nodes in the largest socket.
    pub fn nodes_per_socket(&self) -> usize {
        self.packages.iter().map(|p| p.nodes.len()).max().unwrap_or(1)
    }

    /// The first of the ranks that share a core.
    pub fn first_sharing_rank(&self) -> Option<u32> {
        self.shared_cores().first().and_then(|(ranks, _)| ranks.first().copied())
    }

    /// How many hardware threads per core the ranks use, as text; `None` without SMT or without bound
    /// ranks.
    pub fn smt_use(&self) -> Option<String> {
        let all = self.cores().map(|c| c.cpus.len()).max().filter(|&n| n > 1)?;
        let used = || self.cores().map(|c| c.threads_used).filter(|&n| n > 0);
        let (fewest, most) = (used().min()?, used().max()?);
        Some(match fewest == most {
            true if most == all => format!("ranks use all {all} threads per core"),
            true => format!("ranks use {most} of {all} threads per core"),
            false => format!("ranks use {fewest} to {most} of {all} threads per core"),
        })
    }

    /// The sets of ranks that share cores, with the first CPU of each shared core.
    pub fn shared_cores(&self) -> Vec<(Vec<u32>, CpuSet)> {
        let mut sets: Vec<(Vec<u32>, CpuSet)> = Vec::new();
        for core in self.cores() {
            let CoreState::Owned(ranks) = &core.state else { continue };
            let Some(first) = core.cpus.first().filter(|_| ranks.len() > 1) else { continue };
            match sets.iter_mut().find(|(r, _)| r == ranks) {
                Some((_, cpus)) => cpus.insert(first),
                None => sets.push((ranks.clone(), [first].into_iter().collect())),
            }
        }
        sets
    }
}
