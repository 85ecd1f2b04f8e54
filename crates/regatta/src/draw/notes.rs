//! Notes about the whole node: device counts, GPU links, memory without cores.

use std::collections::BTreeSet;

use regatta_model::{GpuLink, LinkKind, Machine, NicKind, NodeLayout, NumaNode, units};

/// Maximum number of links listed individually.
const MAX_PAIRS: usize = 24;

/// Numbers of cores, devices and ranks.
pub fn counts(machine: &Machine, layout: &NodeLayout) -> Vec<String> {
    let mut counts: Vec<String> = Vec::new();
    let threads = match machine.threads_per_core() {
        1 => String::new(),
        n => format!(" with {n} threads"),
    };
    counts.push(format!("{}{threads}", units::pluralize(machine.cores.len(), "core")));
    if !machine.gpus.is_empty() {
        counts.push(units::pluralize(machine.gpus.len(), "GPU"));
    }
    let nics = machine.nics.iter().filter(|n| n.kind != NicKind::Virtual).count();
    if nics > 0 {
        counts.push(units::pluralize(nics, "NIC"));
    }
    counts.push(units::pluralize(layout.ranks.len(), "rank"));
    counts
}

/// GPU links, and NUMA nodes without cores.
pub fn notes(machine: &Machine) -> Vec<String> {
    links(machine).into_iter().chain(memory(machine)).collect()
}

fn links(machine: &Machine) -> Option<String> {
    let mut kinds: Vec<(LinkKind, Option<u32>)> = Vec::new();
    for link in &machine.gpu_links {
        if !kinds.contains(&(link.kind, link.count)) {
            kinds.push((link.kind, link.count));
        }
    }
    let gpus = machine.gpus.len();
    let texts: Vec<String> = kinds
        .iter()
        .map(|&(kind, count)| {
            let same = |l: &&GpuLink| (l.kind, l.count) == (kind, count);
            let pairs: BTreeSet<(u32, u32)> =
                machine.gpu_links.iter().filter(same).map(|l| (l.a, l.b)).collect();
            link_text(kind, count, &pairs, gpus)
        })
        .collect();
    (!texts.is_empty()).then(|| format!("GPU links: {}", texts.join("; ")))
}

fn link_text(
    kind: LinkKind,
    count: Option<u32>,
    pairs: &BTreeSet<(u32, u32)>,
    gpus: usize,
) -> String {
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
    let listed: Vec<String> =
        pairs.iter().take(MAX_PAIRS).map(|(a, b)| format!("{a}-{b}")).collect();
    let rest = match pairs.len().saturating_sub(MAX_PAIRS) {
        0 => String::new(),
        n => format!(" and {n} more"),
    };
    format!("{name} {}{rest}", listed.join(" "))
}

/// NUMA nodes without cores or devices, which have no block of their own: GPU memory on GH200,
/// high-bandwidth memory of a socket.
fn memory(machine: &Machine) -> Option<String> {
    let in_use = |id: u32| {
        let id = Some(id);
        machine.cores.iter().any(|c| c.numa == id)
            || machine.gpus.iter().any(|g| g.numa == id)
            || machine.nics.iter().any(|n| n.numa == id)
    };
    let bare: Vec<&NumaNode> =
        machine.numa.iter().filter(|n| n.memory_bytes > 0 && !in_use(n.id)).collect();
    let first = bare.first()?;
    let same_size = bare.iter().all(|n| n.memory_bytes == first.memory_bytes);
    let texts: Vec<String> = match same_size {
        true => bare.iter().map(|n| n.id.to_string()).collect(),
        false => bare
            .iter()
            .map(|n| format!("{} ({})", n.id, units::format_bytes(n.memory_bytes)))
            .collect(),
    };
    let size = match (same_size, bare.len()) {
        (false, _) => String::new(),
        (true, 1) => format!(" ({})", units::format_bytes(first.memory_bytes)),
        (true, _) => format!(" ({} each)", units::format_bytes(first.memory_bytes)),
    };
    Some(format!("Memory without cores: NUMA {}{size}", texts.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(all: &[(u32, u32)]) -> BTreeSet<(u32, u32)> {
        all.iter().copied().collect()
    }

    #[test]
    fn gpu_links_are_summarised() {
        let all = pairs(&[(0, 1), (0, 2), (1, 2)]);
        assert_eq!(link_text(LinkKind::NvLink, Some(18), &all, 3), "all-to-all NVLink x18");
        let some = pairs(&[(2, 3), (0, 1)]);
        assert_eq!(link_text(LinkKind::Xgmi, None, &some, 4), "xGMI 0-1 2-3");
        let many: BTreeSet<(u32, u32)> = (1..40).map(|b| (0, b)).collect();
        assert!(link_text(LinkKind::XeLink, None, &many, 40).ends_with("0-24 and 15 more"));
    }
}
