//! The sockets of a scene: cores grouped by socket, NUMA node and L3 cache.

use std::collections::BTreeMap;

use regatta_model::{Core, CpuSet, Machine, NodeLayout, units};

use super::scene::{CoreState, CoreView, Devices, GroupView, NodeView, PackageView};

/// The sockets with their cores, without devices.
pub fn packages(machine: &Machine, layout: &NodeLayout) -> Vec<PackageView> {
    let owners = owners(layout);
    let usable = machine.usable.job_cpus();
    let mut sorted: BTreeMap<u32, BTreeMap<Option<u32>, Vec<&Core>>> = BTreeMap::new();
    for core in &machine.cores {
        let nodes = sorted.entry(core.package).or_default();
        nodes.entry(core.numa).or_default().push(core);
    }
    let multi_socket = sorted.len() > 1;
    let view = |core: &Core| core_view(core, &owners, layout, &usable);
    sorted
        .into_iter()
        .map(|(id, nodes)| PackageView {
            id: Some(id),
            nodes: nodes
                .into_iter()
                .map(|(numa, cores)| NodeView {
                    groups: groups(machine, &cores, &view),
                    ..node(machine, multi_socket.then_some(id), numa)
                })
                .collect(),
        })
        .collect()
}

/// The devices of a NUMA node. A node without cores gets a block of its own; devices without a known
/// NUMA node go to `unknown_locality`.
pub fn devices_at<'a>(
    machine: &Machine,
    packages: &'a mut Vec<PackageView>,
    unknown_locality: &'a mut Devices,
    numa: Option<u32>,
) -> &'a mut Devices {
    if numa.is_none_or(|id| machine.numa_node(id).is_none()) {
        return unknown_locality;
    }
    let found = packages
        .iter()
        .enumerate()
        .find_map(|(p, package)| Some((p, package.nodes.iter().position(|n| n.numa == numa)?)));
    let (p, n) = found.unwrap_or_else(|| append(packages, node(machine, None, numa)));
    &mut packages[p].nodes[n].devices
}

/// Appends a node outside of any socket; returns its indices.
fn append(packages: &mut Vec<PackageView>, node: NodeView) -> (usize, usize) {
    if packages.last().is_none_or(|p| p.id.is_some()) {
        packages.push(PackageView { id: None, nodes: Vec::new() });
    }
    let p = packages.len() - 1;
    packages[p].nodes.push(node);
    (p, packages[p].nodes.len() - 1)
}

/// A NUMA node, without its cores.
fn node(machine: &Machine, socket: Option<u32>, numa: Option<u32>) -> NodeView {
    let name = numa.map_or_else(|| "no NUMA node".to_owned(), |id| format!("NUMA {id}"));
    let label = socket.map_or_else(|| name.clone(), |id| format!("Socket {id}, {name}"));
    let bytes = numa.and_then(|id| machine.numa_node(id)).map_or(0, |n| n.memory_bytes);
    NodeView {
        numa,
        label,
        memory: (bytes > 0).then(|| units::format_bytes(bytes)),
        groups: Vec::new(),
        devices: Devices::default(),
    }
}

/// The cores of one node, grouped by L3 cache.
fn groups(machine: &Machine, cores: &[&Core], view: &impl Fn(&Core) -> CoreView) -> Vec<GroupView> {
    let mut sorted: BTreeMap<Option<u32>, Vec<CoreView>> = BTreeMap::new();
    for core in cores {
        sorted.entry(core.l3).or_default().push(view(core));
    }
    sorted
        .into_iter()
        .map(|(l3, cores)| {
            let cache = machine.l3.iter().find(|g| Some(g.id) == l3);
            GroupView {
                label: l3.map_or_else(|| "cores".to_owned(), |id| format!("L3 {id}")),
                size: cache.and_then(|g| g.size_bytes).map(units::format_bytes),
                cores,
            }
        })
        .collect()
}

/// The local ranks bound to each CPU.
fn owners(layout: &NodeLayout) -> BTreeMap<usize, Vec<u32>> {
    let mut owners: BTreeMap<usize, Vec<u32>> = BTreeMap::new();
    for rank in &layout.ranks {
        for cpu in rank.cpus.iter() {
            owners.entry(cpu).or_default().push(rank.local_rank);
        }
    }
    owners
}

fn core_view(
    core: &Core,
    owners: &BTreeMap<usize, Vec<u32>>,
    layout: &NodeLayout,
    usable: &CpuSet,
) -> CoreView {
    let used: Vec<&Vec<u32>> = core.cpus.iter().filter_map(|cpu| owners.get(&cpu)).collect();
    let mut ranks: Vec<u32> = used.iter().flat_map(|r| r.iter().copied()).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let state = if !ranks.is_empty() {
        CoreState::Owned(ranks)
    } else if core.cpus.intersects(&layout.reserved) {
        CoreState::Reserved
    } else if core.cpus.intersects(usable) || core.cpus.intersects(&layout.idle) {
        CoreState::Idle
    } else {
        CoreState::Unusable
    };
    CoreView { cpus: core.cpus.clone(), state, threads_used: used.len() }
}
