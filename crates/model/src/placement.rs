//! Which rank gets which GPU, cores, memory and NIC, with the reason for each.
//!
//! Nodes of one kind share a [`Layout`], so that ten thousand equal nodes cost one layout and ten
//! thousand lines.

use serde::{Deserialize, Serialize};

use crate::{CpuSet, Document, Visibility};

/// A whole job on its nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// How many ranks the job has.
    pub ranks: u32,
    /// The nodes in the order of the allocation.
    pub nodes: Vec<PlacedNode>,
    /// What the nodes look like inside.
    pub layouts: Vec<Layout>,
    /// What the user should know.
    pub warnings: Vec<Warning>,
}

/// One node and its ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedNode {
    /// The node's name.
    pub host: String,
    /// Position of its layout in [`Placement::layouts`].
    pub layout: u32,
    /// The job-wide number of each local rank, in the order of local ranks.
    pub ranks: Vec<u32>,
}

/// How the ranks of a node are laid out on it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Layout {
    /// The machine it is for: its host or system name.
    pub machine: String,
    /// The ranks, by local rank.
    pub ranks: Vec<PlacedRank>,
    /// CPUs kept from the ranks on purpose.
    pub reserved: CpuSet,
    /// CPUs that are usable but that no rank got.
    pub idle: CpuSet,
}

/// One local rank's share of a node.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlacedRank {
    /// Its number on the node.
    pub local_rank: u32,
    /// Its GPUs, by the runtime's number.
    pub gpus: Vec<u32>,
    /// The CPUs it is bound to.
    pub cpus: CpuSet,
    /// `cpus` as a hex mask, for scripts.
    pub mask: String,
    /// The NUMA nodes of its CPUs.
    pub numa: Vec<u32>,
    /// Where its memory comes from.
    pub memory: MemoryPolicy,
    /// The interface nearest to its GPU.
    pub nic: Option<String>,
    /// Threads of its process: one a physical core.
    pub omp_num_threads: u32,
    /// Which GPUs it sees.
    pub visibility: Visibility,
    /// Why all of this.
    pub reasons: Reasons,
}

/// The kernel's memory policy for a rank.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryPolicy {
    /// These nodes first.
    Prefer(Vec<u32>),
    /// These nodes only.
    Bind(Vec<u32>),
    /// The kernel's default: the node of the CPU that touches a page first.
    System,
}

/// Why a rank got what it got: one sentence each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reasons {
    /// The GPU.
    pub gpu: String,
    /// The cores.
    pub cpus: String,
    /// The memory policy.
    pub memory: String,
    /// The NIC.
    pub nic: String,
    /// The number of threads.
    pub threads: String,
}

/// Something the user should know about a placement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// A short name for scripts: `idle-cores`.
    pub code: String,
    /// What is so.
    pub what: String,
    /// What to do about it.
    pub hint: String,
}

impl Placement {
    /// The node, its position and the local rank of a rank of the job.
    pub fn find(&self, rank: u32) -> Option<(usize, &PlacedNode, &PlacedRank)> {
        // Where each node has the numbers after the last one's, it is the last that begins before.
        let behind = self.nodes.partition_point(|n| n.ranks.first().is_some_and(|&f| f <= rank));
        let likely = behind.checked_sub(1).and_then(|i| self.on(i, rank));
        likely.or_else(|| (0..self.nodes.len()).find_map(|i| self.on(i, rank)))
    }

    fn on(&self, position: usize, rank: u32) -> Option<(usize, &PlacedNode, &PlacedRank)> {
        let node = self.nodes.get(position)?;
        let local = node.ranks.iter().position(|&r| r == rank)?;
        let placed = self.layouts.get(node.layout as usize)?.ranks.get(local)?;
        Some((position, node, placed))
    }
}

impl Document for Placement {
    const KIND: &'static str = "placement";
    const VERSION: u32 = 1;

    fn fault(&self) -> Option<String> {
        for node in &self.nodes {
            let Some(layout) = self.layouts.get(node.layout as usize) else {
                return Some(format!("node {} has no layout {}", node.host, node.layout));
            };
            if layout.ranks.len() != node.ranks.len() {
                return Some(format!("node {} and its layout differ in ranks", node.host));
            }
        }
        let mut all: Vec<u32> = self.nodes.iter().flat_map(|n| n.ranks.iter().copied()).collect();
        all.sort_unstable();
        let in_order = all.iter().enumerate().all(|(i, &r)| i == r as usize);
        let whole = in_order && all.len() == self.ranks as usize;
        (!whole).then(|| format!("its nodes do not hold ranks 0 to {} once each", self.ranks))
    }
}
