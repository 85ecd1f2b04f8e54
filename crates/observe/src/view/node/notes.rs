//! Notes about the whole node: device counts, GPU links, memory without cores.

use std::collections::BTreeSet;

use regatta_model::{GpuLink, LinkKind, Machine, NicKind, NodeLayout, NumaNode, units};

/// Maximum number of links listed individually.
const MAX_PAIRS: usize = 24;

/// Numbers of cores, devices and ranks.
pub fn counts(machine: &Machine, layout: &NodeLayout) -> Vec<String> {
    let threads = match machine.threads_per_core() {
        1 => String::new(),
        n => format!(" with {n} threads"),
    };
    let cores = units::pluralize(machine.cores.len(), "core") + &threads;
    let nics = machine.nics.iter().filter(|n| n.kind != NicKind::Virtual).count();
    let devices = [(machine.gpus.len(), "GPU"), (nics, "NIC")].into_iter().filter(|d| d.0 > 0);
    let others = devices.chain([(layout.ranks.len(), "rank")]);
    [cores].into_iter().chain(others.map(|(n, noun)| units::pluralize(n, noun))).collect()
}

/// GPU links, and NUMA nodes without cores.
pub fn notes(machine: &Machine) -> Vec<String> {
    links(machine).into_iter().chain(memory(machine)).collect()
}

fn links(machine: &Machine) -> Option<String> {
    let mut kinds: Vec<((LinkKind, Option<u32>), Pairs)> = Vec::new();
    for &GpuLink { a, b, kind, count, .. } in &machine.gpu_links {
        match kinds.iter_mut().find(|(known, _)| *known == (kind, count)) {
            Some((_, pairs)) => drop(pairs.insert((a, b))),
            None => kinds.push(((kind, count), [(a, b)].into())),
        }
    }
    let text = |(kind, pairs): &_| link_text(*kind, pairs, machine.gpus.len());
    let texts: Vec<String> = kinds.iter().map(text).collect();
    (!texts.is_empty()).then(|| format!("GPU links: {}", texts.join("; ")))
}

/// Pairs of GPU indices.
type Pairs = BTreeSet<(u32, u32)>;

fn link_text((kind, count): (LinkKind, Option<u32>), pairs: &Pairs, gpus: usize) -> String {
    let name = match kind {
        LinkKind::NvLink => "NVLink",
        LinkKind::Xgmi => "xGMI",
        LinkKind::XeLink => "Xe Link",
        LinkKind::OnCard => "on card",
    };
    let name = count.filter(|&n| n > 1).map_or(name.to_owned(), |n| format!("{name} x{n}"));
    if gpus > 2 && pairs.len() == gpus * (gpus - 1) / 2 {
        return format!("all-to-all {name}");
    }
    let listed = pairs.iter().take(MAX_PAIRS).map(|(a, b)| format!(" {a}-{b}"));
    let rest = match pairs.len().saturating_sub(MAX_PAIRS) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    name + &listed.collect::<String>() + &rest
}

/// NUMA nodes without cores or devices, which have no block of their own: GPU memory on GH200,
/// high-bandwidth memory of a socket.
fn memory(machine: &Machine) -> Option<String> {
    let size = |n: &NumaNode, of: &str| format!(" ({}{of})", units::format_bytes(n.memory_bytes));
    let cores = machine.cores.iter().map(|c| c.numa);
    let devices = machine.gpus.iter().map(|g| g.numa).chain(machine.nics.iter().map(|n| n.numa));
    let in_use: BTreeSet<u32> = cores.chain(devices).flatten().collect();
    let bare = machine.numa.iter().filter(|n| n.memory_bytes > 0 && !in_use.contains(&n.id));
    let bare: Vec<&NumaNode> = bare.collect();
    let first = bare.first()?;
    let same_size = bare.iter().all(|n| n.memory_bytes == first.memory_bytes);
    let texts: Vec<String> = match same_size {
        true => bare.iter().map(|n| n.id.to_string()).collect(),
        false => bare.iter().map(|n| format!("{}{}", n.id, size(n, ""))).collect(),
    };
    let size = match (same_size, bare.len()) {
        (false, _) => String::new(),
        (true, 1) => size(first, ""),
        (true, _) => size(first, " each"),
    };
    Some(format!("Memory without cores: NUMA {}{size}", texts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gpu_links_are_summarised() {
        let all = [(0, 1), (0, 2), (1, 2)].into();
        assert_eq!(link_text((LinkKind::NvLink, Some(18)), &all, 3), "all-to-all NVLink x18");
        let some = [(2, 3), (0, 1)].into();
        assert_eq!(link_text((LinkKind::Xgmi, None), &some, 4), "xGMI 0-1 2-3");
        let many = (1..40).map(|b| (0, b)).collect();
        assert!(link_text((LinkKind::XeLink, None), &many, 40).ends_with("0-24 and 15 more"));
    }
}
