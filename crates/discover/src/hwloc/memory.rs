//! NUMA nodes and their distances.

use regatta_model::{CpuSet, NumaNode};

use super::distances;
use super::error::{HwlocError, Result};
use super::topology::{ObjectType, Topology};

/// Linux's maximum number of NUMA nodes.
const MAX_NODES: usize = 1024;

/// hwloc subtypes of memory other than DRAM.
const SPECIAL_SUBTYPES: [&str; 6] = ["HBM", "MCDRAM", "GPUMemory", "NVM", "SPM", "CXL"];

struct Draft {
    node: NumaNode,
    is_special: bool,
}

/// The NUMA nodes by ID. The kernel assigns each CPU to one node, but hwloc gives every node its
/// local CPUs, including HBM and GPU memory. DRAM nodes take their CPUs first, then nodes with
/// fewer CPUs, because a CPU must belong to one node.
pub(super) fn read(topology: &Topology<'_>, online: &CpuSet) -> Result<Vec<NumaNode>> {
    let mut drafts = drafts(topology, online)?;
    drafts.sort_by_key(|d| (d.is_special, d.node.cpus.len(), d.node.id));
    let mut taken = CpuSet::new();
    for draft in &mut drafts {
        draft.node.cpus = draft.node.cpus.difference(&taken);
        taken = taken.union(&draft.node.cpus);
    }
    let mut nodes: Vec<NumaNode> = drafts.into_iter().map(|draft| draft.node).collect();
    nodes.sort_by_key(|node| node.id);
    set_distances(topology, &mut nodes)?;
    Ok(nodes)
}

fn drafts(topology: &Topology<'_>, online: &CpuSet) -> Result<Vec<Draft>> {
    let mut drafts: Vec<Draft> = Vec::new();
    for (_, object) in topology.of_type(ObjectType::Numa) {
        let id: u32 = object.os_index()?;
        if drafts.iter().any(|d| d.node.id == id) {
            return Err(object.duplicate("NUMA node", id.into()));
        }
        if drafts.len() == MAX_NODES {
            return Err(object.too_many("NUMA nodes", MAX_NODES));
        }
        let subtype = object.text("subtype").unwrap_or_default();
        drafts.push(Draft {
            is_special: SPECIAL_SUBTYPES.iter().any(|name| subtype.starts_with(name)),
            node: NumaNode {
                id,
                cpus: object.set("cpuset")?.unwrap_or_default().intersection(online),
                memory_bytes: object.integer("local_memory")?.unwrap_or(0),
                distances: Vec::new(),
            },
        });
    }
    if drafts.is_empty() {
        drafts.extend(undivided_memory(topology, online)?);
    }
    Ok(drafts)
}

/// The only NUMA node of a machine, which hwloc 1 did not list.
fn undivided_memory(topology: &Topology<'_>, online: &CpuSet) -> Result<Option<Draft>> {
    let machine = topology.of_type(ObjectType::Machine).next();
    let Some((_, machine)) = machine.filter(|_| topology.major == 1) else { return Ok(None) };
    let memory_bytes = machine.integer("local_memory")?.unwrap_or(0);
    let node = NumaNode { id: 0, cpus: online.clone(), memory_bytes, distances: Vec::new() };
    Ok(Some(Draft { is_special: false, node }))
}

/// Sets the distances of hwloc 1, relative to that of a node to itself, if they cover all nodes,
/// whose IDs are then in document order.
fn set_relative_distances(topology: &Topology<'_>, nodes: &mut [NumaNode]) {
    let ids: Vec<Option<u32>> = topology
        .of_type(ObjectType::Numa)
        .map(|(_, node)| node.integer("os_index").ok().flatten())
        .collect();
    let in_order = ids.iter().copied().eq(nodes.iter().map(|node| Some(node.id)));
    let Some(matrix) = distances::relative(topology)
        .filter(|matrix| in_order && matrix.len() == nodes.len() * nodes.len())
    else {
        return;
    };
    let rows = matrix.chunks(nodes.len().max(1)).map(<[u32]>::to_vec).collect::<Vec<_>>();
    nodes.iter_mut().zip(rows).for_each(|(node, row)| node.distances = row);
}

/// Sets the kernel's distances if they cover all nodes.
fn set_distances(topology: &Topology<'_>, nodes: &mut [NumaNode]) -> Result<()> {
    if topology.major == 1 {
        set_relative_distances(topology, nodes);
        return Ok(());
    }
    let mut elements = topology.elements("distances2");
    while let Some(element) = elements.find(|e| distances::are_numa_latencies(*e)) {
        let matrix = distances::read(element)?;
        let index_of = |node: &NumaNode| {
            matrix.objects.iter().position(|object| object.index == u64::from(node.id))
        };
        let indices: Option<Vec<usize>> = nodes.iter().map(index_of).collect();
        let Some(indices) = indices else { continue };
        for (node, &from) in nodes.iter_mut().zip(&indices) {
            let row = indices.iter().map(|&to| u32::try_from(matrix.at(from, to)));
            let why = || "a distance exceeds 4294967295".to_owned();
            let error = |_| HwlocError::Distances { at: matrix.position, why: why() };
            node.distances = row.collect::<std::result::Result<_, _>>().map_err(error)?;
        }
        return Ok(());
    }
    Ok(())
}
