//! The sockets of a scene: cores grouped by socket, NUMA node and L3 cache.

use std::collections::{BTreeMap, BTreeSet};

use regatta_model::{Core, CpuSet, Machine, NodeLayout, units};

use super::scene::{CoreState, CoreView, Devices, GroupView, NodeView, PackageView, Scene};

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
    let package = |(id, nodes): (u32, BTreeMap<Option<u32>, Vec<&Core>>)| {
        let node = |(numa, cores): (_, Vec<&Core>)| NodeView {
            groups: groups(machine, &cores, &view),
            ..node(machine, multi_socket.then_some(id), numa)
        };
        PackageView { id: Some(id), nodes: nodes.into_iter().map(node).collect() }
    };
    sorted.into_iter().map(package).collect()
}

/// The devices of a NUMA node. A node without cores gets a block of its own; devices without a known
/// NUMA node go to `unknown_locality`.
pub fn devices_at<'a>(m: &Machine, scene: &'a mut Scene, numa: Option<u32>) -> &'a mut Devices {
    let Scene { packages, unknown_locality, .. } = scene;
    let is_known = numa.is_some_and(|id| m.numa_node(id).is_some());
    if is_known && !packages.iter().flat_map(|p| &p.nodes).any(|n| n.numa == numa) {
        let node = node(m, None, numa);
        match packages.last_mut() {
            Some(outside) if outside.id.is_none() => outside.nodes.push(node),
            _ => packages.push(PackageView { id: None, nodes: vec![node] }),
        }
    }
    let mut nodes = packages.iter_mut().flat_map(|p| &mut p.nodes);
    let node = nodes.find(|n| is_known && n.numa == numa);
    node.map_or(unknown_locality, |n| &mut n.devices)
}

/// A NUMA node, without its cores.
fn node(machine: &Machine, socket: Option<u32>, numa: Option<u32>) -> NodeView {
    let name = numa.map_or_else(|| "no NUMA node".to_owned(), |id| format!("NUMA {id}"));
    let label = socket.map_or_else(|| name.clone(), |id| format!("Socket {id}, {name}"));
    let bytes = numa.and_then(|id| machine.numa_node(id)).map_or(0, |n| n.memory_bytes);
    let memory = (bytes > 0).then(|| units::format_bytes(bytes));
    NodeView { numa, label, memory, groups: Vec::new(), devices: Devices::default() }
}

/// The cores of one node, grouped by L3 cache.
fn groups(machine: &Machine, cores: &[&Core], view: &impl Fn(&Core) -> CoreView) -> Vec<GroupView> {
    let mut sorted: BTreeMap<Option<u32>, Vec<CoreView>> = BTreeMap::new();
    for core in cores {
        sorted.entry(core.l3).or_default().push(view(core));
    }
    let group = |(l3, cores): (Option<u32>, _)| {
        let cache = machine.l3.iter().find(|g| Some(g.id) == l3);
        let size = cache.and_then(|g| g.size_bytes).map(units::format_bytes);
        let label = l3.map_or_else(|| "cores".to_owned(), |id| format!("L3 {id}"));
        GroupView { label, size, cores }
    };
    sorted.into_iter().map(group).collect()
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
    let ranks: BTreeSet<u32> = used.iter().copied().flatten().copied().collect();
    let state = if !ranks.is_empty() {
        CoreState::Owned(ranks.into_iter().collect())
    } else if core.cpus.intersects(&layout.reserved) {
        CoreState::Reserved
    } else if core.cpus.intersects(usable) || core.cpus.intersects(&layout.idle) {
        CoreState::Idle
    } else {
        CoreState::Unusable
    };
    CoreView { cpus: core.cpus.clone(), state, threads_used: used.len() }
}
