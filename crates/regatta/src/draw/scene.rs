//! What a drawing shows, without any idea of how it is drawn: sockets, their memory nodes, the
//! cores in them with their ranks, and the devices beside them.

use regatta_model::{CpuSet, Layout, Machine, NicKind};

use super::text::printable;
use super::{cores, devices, notes};

/// A node with its ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Scene {
    /// The node's name.
    pub host: String,
    /// The processor's name.
    pub cpu_model: Option<String>,
    /// How many of what it has: `64 cores with 2 threads`, `8 GPUs`.
    pub parts: Vec<String>,
    /// Its sockets.
    pub packages: Vec<PackageView>,
    /// Devices of which the system does not say where they hang.
    pub adrift: Devices,
    /// Lines that belong to the whole node: GPU links, memory without cores.
    pub notes: Vec<String>,
    /// The ranks by local rank.
    pub ranks: Vec<RankView>,
}

/// A socket; memory nodes that belong to none stand in one without a number.
#[derive(Debug, Clone, PartialEq)]
pub struct PackageView {
    /// The kernel's number.
    pub id: Option<u32>,
    /// Its memory nodes.
    pub nodes: Vec<NodeView>,
}

/// A memory node's share of one socket.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeView {
    /// The kernel's number; `None` for cores on no known node.
    pub numa: Option<u32>,
    /// What it is called, with its socket if there are several.
    pub label: String,
    /// Its memory, in words.
    pub memory: Option<String>,
    /// Its cores by the cache they share.
    pub groups: Vec<GroupView>,
    /// What hangs on it.
    pub devices: Devices,
}

/// Cores that share a last-level cache.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupView {
    /// `L3 6`, or `cores` where no cache is known.
    pub label: String,
    /// The cache's size, in words.
    pub size: Option<String>,
    /// The cores in the order of the machine.
    pub cores: Vec<CoreView>,
}

/// A core.
#[derive(Debug, Clone, PartialEq)]
pub struct CoreView {
    /// Its hardware threads.
    pub cpus: CpuSet,
    /// Who has it.
    pub state: CoreState,
    /// How many of its threads ranks are bound to.
    pub threads_used: usize,
}

/// Who has a core.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CoreState {
    /// These local ranks: several only when cores are shared.
    Owned(Vec<u32>),
    /// Kept from the ranks on purpose.
    Reserved,
    /// Usable, but no rank has it.
    Idle,
    /// Offline or outside of the job's cpuset.
    Unusable,
}

/// GPUs and interfaces at one place.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Devices {
    /// GPUs in the runtime's order.
    pub gpus: Vec<GpuView>,
    /// Interfaces, those with ranks first.
    pub nics: Vec<NicView>,
    /// Names of further interfaces that no rank uses, too many to show.
    pub folded_nics: Vec<String>,
}

impl Devices {
    /// Whether nothing is there.
    pub fn is_empty(&self) -> bool {
        self.gpus.is_empty() && self.nics.is_empty() && self.folded_nics.is_empty()
    }
}

/// A GPU, GCD or tile.
#[derive(Debug, Clone, PartialEq)]
pub struct GpuView {
    /// The runtime's number.
    pub index: u32,
    /// Its name without vendor and memory.
    pub name: String,
    /// Its memory, in words.
    pub memory: Option<String>,
    /// Its PCI address without the usual domain.
    pub pci: Option<String>,
    /// The local ranks on it.
    pub ranks: Vec<u32>,
}

/// A network interface.
#[derive(Debug, Clone, PartialEq)]
pub struct NicView {
    /// Its name.
    pub name: String,
    /// What network it is on.
    pub kind: &'static str,
    /// Its speed, in words.
    pub speed: Option<String>,
    /// Whether it carries traffic, in words.
    pub state: &'static str,
    /// The local ranks that use it.
    pub ranks: Vec<u32>,
}

/// What a legend says of a rank.
#[derive(Debug, Clone, PartialEq)]
pub struct RankView {
    /// Its number on the node.
    pub local_rank: u32,
    /// The parts of its share of the node, in words: GPUs, CPUs, interface, threads, memory.
    pub share: Vec<String>,
    /// Why it has its cores.
    pub cpu_reason: Option<String>,
    /// All reasons, one sentence each.
    pub reasons: Vec<String>,
}

impl Scene {
    /// The scene of a node.
    pub fn new(machine: &Machine, layout: &Layout) -> Self {
        let mut packages = cores::packages(machine, layout);
        let mut adrift = Devices::default();
        for gpu in &machine.gpus {
            let spot = cores::spot(machine, &mut packages, &mut adrift, gpu.numa);
            spot.gpus.push(devices::gpu(gpu, layout));
        }
        for nic in &machine.nics {
            let spot = cores::spot(machine, &mut packages, &mut adrift, nic.numa);
            spot.add_nic(devices::nic(nic, layout), nic.kind == NicKind::Virtual);
        }
        Self {
            host: printable(if machine.host.is_empty() { &layout.machine } else { &machine.host }),
            cpu_model: machine.cpu_model.as_deref().map(printable).filter(|m| !m.is_empty()),
            parts: notes::parts(machine, layout),
            packages,
            adrift,
            notes: notes::notes(machine),
            ranks: layout.ranks.iter().map(devices::rank).collect(),
        }
    }

    /// The memory nodes of all sockets.
    pub fn nodes(&self) -> impl Iterator<Item = &NodeView> {
        self.packages.iter().flat_map(|p| &p.nodes)
    }

    /// All cores.
    pub fn cores(&self) -> impl Iterator<Item = &CoreView> {
        self.nodes().flat_map(|n| &n.groups).flat_map(|g| &g.cores)
    }

    /// How many of a core's threads the ranks use, in words; `None` where cores have one thread or
    /// no rank has a core.
    pub fn threads(&self) -> Option<String> {
        let all = self.cores().map(|c| c.cpus.len()).max().filter(|&n| n > 1)?;
        let used = || self.cores().map(|c| c.threads_used).filter(|&n| n > 0);
        let (fewest, most) = (used().min()?, used().max()?);
        Some(match fewest == most {
            true if most == all => format!("ranks use all {all} threads of their cores"),
            true => format!("ranks use {most} of the {all} threads of their cores"),
            false => format!("ranks use {fewest} to {most} of the {all} threads of their cores"),
        })
    }

    /// The sets of ranks that share cores, with the first CPU of each core they share.
    pub fn shared(&self) -> Vec<(Vec<u32>, CpuSet)> {
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
