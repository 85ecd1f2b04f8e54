//! The placement: GPUs, cores, memory and NIC of every rank, each with its reason.
//!
//! Identical nodes share a [`NodeLayout`]: ten thousand of them cost one layout and ten thousand
//! entries.

use serde::{Deserialize, Serialize};

use crate::{CpuSet, Document, GpuVisibility};

/// The placement of a job on its nodes.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Placement {
    /// World size.
    pub ranks: u32,
    /// The nodes in allocation order.
    pub nodes: Vec<PlacedNode>,
    /// The distinct layouts.
    pub layouts: Vec<NodeLayout>,
    /// Warnings for the user.
    pub warnings: Vec<Warning>,
}

/// One node and its ranks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacedNode {
    /// Host name.
    pub host: String,
    /// Index of its layout in [`Placement::layouts`].
    pub layout: u32,
    /// The global ranks on the node, by local rank.
    pub ranks: Vec<u32>,
}

/// The ranks of one node.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct NodeLayout {
    /// Host or system name of the machine it was computed for.
    pub machine: String,
    /// The ranks, by local rank.
    pub ranks: Vec<PlacedRank>,
    /// CPUs reserved for the operating system.
    pub reserved: CpuSet,
    /// Usable CPUs that no rank is bound to.
    pub idle: CpuSet,
}

/// The resources of one local rank.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlacedRank {
    /// Local rank.
    pub local_rank: u32,
    /// Its GPUs, by runtime index.
    pub gpus: Vec<u32>,
    /// The CPUs it is bound to.
    pub cpus: CpuSet,
    /// `cpus` as a hex mask, for scripts.
    pub mask: String,
    /// The NUMA nodes of its CPUs.
    pub numa: Vec<u32>,
    /// Its memory policy.
    pub memory: MemoryPolicy,
    /// The NIC closest to its GPU.
    pub nic: Option<String>,
    /// `OMP_NUM_THREADS`: one thread per physical core.
    pub omp_num_threads: u32,
    /// GPUs visible to it.
    pub visibility: GpuVisibility,
    /// The reason for each choice.
    pub reasons: PlacementReasons,
}

/// The kernel memory policy of a rank (`set_mempolicy(2)`).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum MemoryPolicy {
    /// `MPOL_PREFERRED_MANY`: these NUMA nodes first.
    Prefer(Vec<u32>),
    /// `MPOL_BIND`: these NUMA nodes only.
    Bind(Vec<u32>),
    /// `MPOL_DEFAULT`: first touch.
    #[serde(alias = "system")]
    Default,
}

/// The reason for each resource of a rank, one sentence each.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PlacementReasons {
    /// The GPUs.
    pub gpu: String,
    /// The cores.
    pub cpus: String,
    /// The memory policy.
    pub memory: String,
    /// The NIC.
    pub nic: String,
    /// The thread count.
    pub threads: String,
}

/// A warning about a placement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Warning {
    /// Stable identifier for scripts: `idle-cores`.
    pub code: String,
    /// The finding.
    #[serde(alias = "what")]
    pub message: String,
    /// How to fix it.
    pub hint: String,
}

impl Warning {
    /// A warning with its code, message and hint.
    pub fn new(code: &str, message: impl Into<String>, hint: impl Into<String>) -> Self {
        Self { code: code.to_owned(), message: message.into(), hint: hint.into() }
    }
}

impl Placement {
    /// The node index, node and local rank of a global rank.
    pub fn find_rank(&self, rank: u32) -> Option<(usize, &PlacedNode, &PlacedRank)> {
        // With block distribution, the last node whose first rank is not above `rank`.
        let next = self.nodes.partition_point(|n| n.ranks.first().is_some_and(|&f| f <= rank));
        let block = next.checked_sub(1).and_then(|i| self.rank_on_node(i, rank));
        block.or_else(|| (0..self.nodes.len()).find_map(|i| self.rank_on_node(i, rank)))
    }

    fn rank_on_node(&self, index: usize, rank: u32) -> Option<(usize, &PlacedNode, &PlacedRank)> {
        let node = self.nodes.get(index)?;
        let local_rank = node.ranks.iter().position(|&r| r == rank)?;
        let placed = self.layouts.get(node.layout as usize)?.ranks.get(local_rank)?;
        Some((index, node, placed))
    }
}

impl Document for Placement {
    const KIND: &'static str = "placement";
    const VERSION: u32 = 1;

    fn inconsistency(&self) -> Option<String> {
        for node in &self.nodes {
            let Some(layout) = self.layouts.get(node.layout as usize) else {
                return Some(format!("node {} has no layout {}", node.host, node.layout));
            };
            if layout.ranks.len() != node.ranks.len() {
                let (host, has, laid_out) = (&node.host, node.ranks.len(), layout.ranks.len());
                return Some(format!("node {host} has {has} ranks, its layout has {laid_out}"));
            }
        }
        let mut ranks: Vec<u32> = self.nodes.iter().flat_map(|n| n.ranks.iter().copied()).collect();
        ranks.sort_unstable();
        let message =
            || format!("the nodes do not contain each of the {} ranks exactly once", self.ranks);
        (!ranks.into_iter().eq(0..self.ranks)).then(message)
    }
}
