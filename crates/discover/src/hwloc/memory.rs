//! Memory nodes and the kernel's distances between them.

use regatta_model::{CpuSet, NumaNode};

use super::distances;
use super::error::HwlocError;
use super::tree::{Kind, Tree};

/// As many memory nodes as Linux can be built for.
const MAX_NODES: usize = 1024;

/// hwloc's names for memory that is not the ordinary one of its CPUs.
const SPECIAL: [&str; 6] = ["HBM", "MCDRAM", "GPUMemory", "NVM", "SPM", "CXL"];

struct Draft {
    node: NumaNode,
    special: bool,
}

/// The memory nodes by number. The kernel gives each CPU to one node, hwloc gives every node the
/// CPUs it is near to, also high-bandwidth memory, GPU memory and the like. So that a CPU has one
/// node again, ordinary memory takes its CPUs first, then what is near to fewer CPUs.
pub(super) fn read(tree: &Tree<'_>, online: &CpuSet) -> Result<Vec<NumaNode>, HwlocError> {
    let mut drafts = drafts(tree, online)?;
    drafts.sort_by_key(|d| (d.special, d.node.cpus.len(), d.node.id));
    let mut taken = CpuSet::new();
    for draft in &mut drafts {
        draft.node.cpus = draft.node.cpus.difference(&taken);
        taken = taken.union(&draft.node.cpus);
    }
    let mut nodes: Vec<NumaNode> = drafts.into_iter().map(|draft| draft.node).collect();
    nodes.sort_by_key(|node| node.id);
    set_distances(tree, &mut nodes)?;
    Ok(nodes)
}

fn drafts(tree: &Tree<'_>, online: &CpuSet) -> Result<Vec<Draft>, HwlocError> {
    let mut drafts: Vec<Draft> = Vec::new();
    for (_, object) in tree.of_kind(Kind::Numa) {
        let id: u32 = object.os_index()?;
        if drafts.iter().any(|d| d.node.id == id) {
            let (at, number) = (object.place(), id.into());
            return Err(HwlocError::Twice { at, what: "NUMA node", number });
        }
        if drafts.len() == MAX_NODES {
            let (at, what) = (object.place(), "NUMA nodes");
            return Err(HwlocError::TooMany { at, what, limit: MAX_NODES });
        }
        let subtype = object.text("subtype").unwrap_or_default();
        drafts.push(Draft {
            special: SPECIAL.iter().any(|name| subtype.starts_with(name)),
            node: NumaNode {
                id,
                cpus: object.set("cpuset")?.unwrap_or_default().intersection(online),
                memory_bytes: object.number("local_memory")?.unwrap_or(0),
                distances: Vec::new(),
            },
        });
    }
    Ok(drafts)
}

/// Latencies as the kernel gives them, if they cover every node.
fn set_distances(tree: &Tree<'_>, nodes: &mut [NumaNode]) -> Result<(), HwlocError> {
    for element in tree.extras("distances2") {
        if !distances::are_numa_latencies(element) {
            continue;
        }
        let matrix = distances::read(element)?;
        let ids: Vec<u64> = nodes.iter().map(|node| node.id.into()).collect();
        let place_of = |id: &u64| matrix.objects.iter().position(|object| object.number == *id);
        let Some(places) = ids.iter().map(place_of).collect::<Option<Vec<usize>>>() else {
            continue;
        };
        for (node, &from) in nodes.iter_mut().zip(&places) {
            let row = places.iter().map(|&to| u32::try_from(matrix.at(from, to)));
            node.distances = row.collect::<Result<_, _>>().map_err(|_| HwlocError::Distances {
                at: matrix.place,
                why: "a distance is over 4294967295".to_owned(),
            })?;
        }
        return Ok(());
    }
    Ok(())
}
