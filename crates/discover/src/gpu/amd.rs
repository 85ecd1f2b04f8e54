//! AMD GPUs and GCDs from the kernel's compute driver (kfd), in the order of its nodes, which is
//! HIP's order.

use std::collections::BTreeMap;

use regatta_model::{Gpu, GpuLink, GpuVendor, LinkKind, PciDevice};

use super::{Found, gpu_at, may_open, render_node};
use crate::{Root, pci};

pub(super) const VENDOR: u16 = 0x1002;

const NODES: &str = "/sys/class/kfd/kfd/topology/nodes";
const KFD: &str = "/dev/kfd";

/// The type of an Infinity Fabric link among kfd's io_links.
const XGMI: u64 = 11;
/// What kfd adds to a link's weight for each hop; with more, the two are not neighbours.
const WEIGHT_OF_A_HOP: u64 = 15;
/// MI250X and MI250: two GCDs on a card, each a device of its own. The MI210 has the same
/// architecture and one GCD.
const TWO_GCDS: [u64; 2] = [0x7408, 0x740c];
/// Links between the two GCDs of such a card; no GCDs of different cards have as many.
const LINKS_WITHIN_CARD: u32 = 4;

/// Whether a PCI device is a GPU: a display controller of any kind, or a processing accelerator,
/// which an MI300 calls itself.
pub(super) fn is_gpu(device: &PciDevice) -> bool {
    device.vendor == VENDOR && matches!(device.class >> 16, 0x03 | 0x12)
}

pub(super) fn scan(root: &Root, devices: &[PciDevice]) -> Found {
    let names = root.names(NODES);
    if names.is_empty() {
        return without_kfd(root, devices);
    }
    let mut notes = Vec::new();
    let nodes = gpu_nodes(root, &names, &mut notes);
    let mut links = links(root, &nodes);
    let mut gpus: Vec<Gpu> =
        nodes.iter().enumerate().map(|(i, node)| node.gpu(root, devices, i)).collect();
    let partners = partners(&nodes, &links);
    number_cards(&nodes, &partners, &mut gpus);
    for link in &mut links {
        if gpus[link.a as usize].card == gpus[link.b as usize].card {
            link.kind = LinkKind::OnCard;
        }
    }
    if !gpus.is_empty() && may_open(root, KFD) == Some(false) {
        notes.push(format!(
            "{KFD} may not be opened, so ROCm programs find no GPU: join the group that owns it \
             (render or video), or pass it into the container"
        ));
    }
    Found { gpus, links, notes }
}

/// A file of lines such as `simd_count 440`.
type Properties = BTreeMap<String, u64>;

fn properties(root: &Root, path: &str) -> Option<Properties> {
    let text = root.text(path)?;
    let pair = |line: &str| {
        let (key, value) = line.split_once(char::is_whitespace)?;
        Some((key.to_owned(), value.trim().parse().ok()?))
    };
    Some(text.lines().filter_map(pair).collect())
}

/// A GPU among kfd's nodes, which are processors and GPUs.
struct Node {
    id: u64,
    address: Option<String>,
    /// Which part of a partitioned GPU it is.
    partition: u64,
    properties: Properties,
}

fn gpu_nodes(root: &Root, names: &[String], notes: &mut Vec<String>) -> Vec<Node> {
    let mut nodes = Vec::new();
    let mut refused = Vec::new();
    for name in names {
        let Ok(id) = name.parse() else { continue };
        match properties(root, &format!("{NODES}/{name}/properties")) {
            Some(p) if p.get("simd_count").is_some_and(|n| *n > 0) => nodes.push(Node::new(id, p)),
            Some(p) if !p.is_empty() => {}
            // The kernel refuses the properties of a GPU outside of the device cgroup; a copy of
            // such a tree has an empty file, or none.
            _ => refused.push(name.as_str()),
        }
    }
    if !refused.is_empty() {
        notes.push(format!(
            "{} AMD GPUs of this node are hidden from this process, as by a device cgroup (kfd \
             nodes {}); this process sees {}",
            refused.len(),
            refused.join(", "),
            nodes.len()
        ));
    }
    nodes
}

impl Node {
    fn new(id: u64, properties: Properties) -> Self {
        let get = |key: &str| properties.get(key).copied();
        let address = get("location_id").map(|location| {
            // Bus, device and function are the low 16 bits, a partition's number the top four.
            let part = |shift: u32, mask: u64| ((location >> shift) & mask) as u32;
            let domain = get("domain").unwrap_or(0) as u32;
            pci::address(domain, part(8, 0xff), part(3, 0x1f), part(0, 7))
        });
        let partition = get("location_id").unwrap_or(0) >> 28;
        Self { id, address, partition, properties }
    }

    fn get(&self, key: &str) -> Option<u64> {
        self.properties.get(key).copied()
    }

    fn has_two_gcds(&self) -> bool {
        self.get("device_id").is_some_and(|id| TWO_GCDS.contains(&id))
    }

    fn gpu(&self, root: &Root, devices: &[PciDevice], index: usize) -> Gpu {
        let file = self.get("drm_render_minor").filter(|m| *m > 0);
        let file = file.map(|minor| format!("/dev/dri/renderD{minor}"));
        let unique = self.get("unique_id").filter(|id| *id > 0);
        Gpu {
            name: self.name(root),
            memory_bytes: self.memory(root),
            uuid: unique.map(|id| format!("GPU-{id:016x}")),
            accessible: file.as_deref().and_then(|f| both(may_open(root, f), may_open(root, KFD))),
            device_file: file,
            ..gpu_at(root, devices, GpuVendor::Amd, index, self.address.as_deref())
        }
    }

    fn name(&self, root: &Root) -> String {
        let product = self.address.as_deref().and_then(|address| product_name(root, address));
        product.unwrap_or_else(|| match self.get("gfx_target_version") {
            Some(version) if version > 0 => format!("AMD {}", gfx_name(version)),
            _ => "AMD GPU".to_owned(),
        })
    }

    /// Its own memory; what an APU shares with the processor is not listed in the banks.
    fn memory(&self, root: &Root) -> Option<u64> {
        const FRAME_BUFFER: [u64; 2] = [1, 2];
        let banks = format!("{NODES}/{}/mem_banks", self.id);
        let size = |bank: String| {
            let bank = properties(root, &format!("{banks}/{bank}/properties"))?;
            let own = bank.get("heap_type").is_some_and(|t| FRAME_BUFFER.contains(t));
            bank.get("size_in_bytes").copied().filter(|_| own)
        };
        let total = root.names(&banks).into_iter().filter_map(size).fold(0, u64::saturating_add);
        let vram = || {
            root.value(&format!("{}/mem_info_vram_total", pci::folder(self.address.as_deref()?)))
        };
        Some(total).filter(|t| *t > 0).or_else(vram)
    }
}

/// A process needs the GPU's own file and kfd's.
fn both(own: Option<bool>, kfd: Option<bool>) -> Option<bool> {
    Some(own? && kfd?)
}

/// `gfx90a` from 90010: major, minor and step in two decimal digits each, the last two written
/// in hexadecimal.
fn gfx_name(version: u64) -> String {
    format!("gfx{}{:x}{:x}", version / 10000, version / 100 % 100, version % 100)
}

fn product_name(root: &Root, address: &str) -> Option<String> {
    root.text(&format!("{}/product_name", pci::folder(address))).filter(|name| !name.is_empty())
}

/// The Infinity Fabric links between neighbours, once each. kfd lists every pair of a hive, also
/// those that reach each other over a third GPU.
fn links(root: &Root, nodes: &[Node]) -> Vec<GpuLink> {
    let position: BTreeMap<u64, u32> =
        nodes.iter().enumerate().map(|(i, n)| (n.id, i as u32)).collect();
    let mut found: BTreeMap<(u32, u32), GpuLink> = BTreeMap::new();
    for (from, node) in nodes.iter().enumerate() {
        let folder = format!("{NODES}/{}/io_links", node.id);
        for name in root.names(&folder) {
            let Some(link) = properties(root, &format!("{folder}/{name}/properties")) else {
                continue;
            };
            let Some(to) = neighbour(&link).and_then(|id| position.get(&id)) else { continue };
            let (a, b) = ((from as u32).min(*to), (from as u32).max(*to));
            if a != b {
                found.entry((a, b)).or_insert_with(|| xgmi_link(a, b, &link));
            }
        }
    }
    found.into_values().collect()
}

/// The node at the far end of a direct Infinity Fabric link.
fn neighbour(link: &Properties) -> Option<u64> {
    let get = |key: &str| link.get(key).copied().unwrap_or(0);
    // A pair without a link of its own has no bandwidth where kfd knows any.
    let direct =
        get("weight") <= WEIGHT_OF_A_HOP && (get("max_bandwidth") > 0 || get("min_bandwidth") == 0);
    if get("type") == XGMI && direct { link.get("node_to").copied() } else { None }
}

/// kfd gives the bandwidth of one link as the least and that of all as the most, in MB/s.
fn xgmi_link(a: u32, b: u32, link: &Properties) -> GpuLink {
    let get = |key: &str| link.get(key).copied().filter(|v| *v > 0);
    let (one, all) = (get("min_bandwidth"), get("max_bandwidth"));
    let count = one.zip(all).filter(|(one, all)| all % one == 0).map(|(one, all)| all / one);
    GpuLink {
        a,
        b,
        kind: LinkKind::Xgmi,
        count: count.and_then(|c| u32::try_from(c).ok()),
        megabytes_per_second: all,
    }
}

/// For each GPU the other GCD of its card. The two have the fastest link; kernels that do not
/// tell the bandwidth list them one after the other.
fn partners(nodes: &[Node], links: &[GpuLink]) -> Vec<Option<usize>> {
    let is_half = |i: u32| nodes[i as usize].has_two_gcds();
    let halves: Vec<usize> = (0..nodes.len()).filter(|i| nodes[*i].has_two_gcds()).collect();
    let links: Vec<&GpuLink> = links.iter().filter(|l| is_half(l.a) && is_half(l.b)).collect();
    let mut partners = vec![None; nodes.len()];
    if links.iter().all(|l| l.megabytes_per_second.is_none()) && halves.len().is_multiple_of(2) {
        let adjacent = |pair: &&[usize]| nodes[pair[0]].id + 1 == nodes[pair[1]].id;
        for pair in halves.chunks_exact(2).filter(adjacent) {
            (partners[pair[0]], partners[pair[1]]) = (Some(pair[1]), Some(pair[0]));
        }
        return partners;
    }
    let fastest = |i: usize| {
        let mut own: Vec<&&GpuLink> =
            links.iter().filter(|l| [l.a, l.b].contains(&(i as u32))).collect();
        own.sort_by_key(|l| std::cmp::Reverse(l.megabytes_per_second));
        let first = own.first()?;
        let tie = own.get(1).is_some_and(|l| l.megabytes_per_second == first.megabytes_per_second);
        let enough = first.count.is_none_or(|c| c >= LINKS_WITHIN_CARD);
        let other = if first.a as usize == i { first.b } else { first.a };
        (enough && !tie).then_some(other as usize)
    };
    for i in halves {
        partners[i] = fastest(i).filter(|other| fastest(*other) == Some(i));
    }
    partners
}

/// Numbers the cards in the order of their first GPU, and the parts of those that have several.
fn number_cards(nodes: &[Node], partners: &[Option<usize>], gpus: &mut [Gpu]) {
    let mut cards: Vec<Vec<usize>> = Vec::new();
    for i in 0..nodes.len() {
        // Partitions of one GPU share its PCI address.
        let same = |j: &usize| {
            partners[i] == Some(*j)
                || (nodes[i].address.is_some() && nodes[i].address == nodes[*j].address)
        };
        match cards.iter_mut().find(|card| card.iter().any(same)) {
            Some(card) => card.push(i),
            None => cards.push(vec![i]),
        }
    }
    for (number, card) in cards.iter().enumerate() {
        let partitioned = card.iter().any(|i| nodes[*i].partition > 0);
        for (position, i) in card.iter().enumerate() {
            let part = if partitioned { nodes[*i].partition as u32 } else { position as u32 };
            gpus[*i].card = number as u32;
            gpus[*i].part = (card.len() > 1).then_some(part);
        }
    }
}

/// GPUs with the graphics driver only, in PCI bus order.
fn without_kfd(root: &Root, devices: &[PciDevice]) -> Found {
    let bound =
        |d: &&PciDevice| is_gpu(d) && pci::driver(root, &d.address).as_deref() == Some("amdgpu");
    let gpu = |(i, device): (usize, &PciDevice)| {
        let file = render_node(root, &device.address);
        Gpu {
            name: product_name(root, &device.address)
                .unwrap_or_else(|| format!("AMD GPU {:04x}", device.device)),
            memory_bytes: root
                .value(&format!("{}/mem_info_vram_total", pci::folder(&device.address))),
            accessible: file.as_deref().and_then(|f| may_open(root, f)),
            device_file: file,
            ..gpu_at(root, devices, GpuVendor::Amd, i, Some(&device.address))
        }
    };
    let gpus: Vec<Gpu> = devices.iter().filter(bound).enumerate().map(gpu).collect();
    let mut notes = Vec::new();
    if !gpus.is_empty() {
        notes.push(format!(
            "the kernel has no kfd ({NODES} is missing): ROCm programs cannot use the AMD GPUs, \
             and their order is that of the PCI bus"
        ));
    }
    Found { gpus, links: Vec::new(), notes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_have_hexadecimal_names() {
        let names = [90010, 90402, 110001, 90006].map(gfx_name);
        assert_eq!(names, ["gfx90a", "gfx942", "gfx1101", "gfx906"]);
    }

    fn link(text: &str) -> Properties {
        let pair = |word: &str| {
            let (key, value) = word.split_once('=').unwrap();
            (key.to_owned(), value.parse().unwrap())
        };
        text.split(' ').map(pair).collect()
    }

    #[test]
    fn only_neighbours_are_linked() {
        let far = |text: &str| neighbour(&link(text));
        assert_eq!(
            far("type=11 node_to=5 weight=15 min_bandwidth=50000 max_bandwidth=200000"),
            Some(5)
        );
        assert_eq!(far("type=11 node_to=5 weight=15"), Some(5), "kernels without bandwidth");
        assert_eq!(far("type=11 node_to=5 weight=30 min_bandwidth=50000 max_bandwidth=0"), None);
        assert_eq!(far("type=11 node_to=5 weight=15 min_bandwidth=50000 max_bandwidth=0"), None);
        assert_eq!(far("type=2 node_to=5 weight=20"), None, "PCIe");
        assert_eq!(far("type=11 weight=15"), None);
    }

    fn gcd(id: u64) -> Node {
        let location = 0xc100 + id * 0x100;
        Node::new(id, link(&format!("device_id={} location_id={location}", 0x7408)))
    }

    fn joined(a: u32, b: u32, all: &str) -> GpuLink {
        xgmi_link(a, b, &link(&format!("min_bandwidth=50000 max_bandwidth={all}")))
    }

    #[test]
    fn the_fastest_link_joins_the_gcds_of_a_card() {
        let nodes = [4, 5, 6, 7].map(gcd);
        let links = [joined(0, 2, "200000"), joined(1, 3, "200000"), joined(0, 1, "100000")];
        assert_eq!(partners(&nodes, &links), [Some(2), Some(3), Some(0), Some(1)]);
        // The other halves are hidden by a cgroup: these two are not one card.
        assert_eq!(partners(&nodes[..2], &[joined(0, 1, "100000")]), [None, None]);
        // Nothing tells the bandwidth.
        assert_eq!(partners(&nodes, &[]), [Some(1), Some(0), Some(3), Some(2)]);
        assert_eq!(partners(&[gcd(4), gcd(6)], &[]), [None, None]);
    }

    #[test]
    fn partitions_of_a_gpu_are_parts_of_a_card() {
        let part = |id: u64, n: u64| {
            Node::new(id, link(&format!("device_id=29857 location_id={}", 0xc100 + (n << 28))))
        };
        let nodes = [part(2, 0), part(3, 1), part(4, 2), gcd(9)];
        let tree = crate::testing::Tree::new();
        let mut gpus: Vec<Gpu> =
            nodes.iter().enumerate().map(|(i, n)| n.gpu(&tree.root(), &[], i)).collect();
        number_cards(&nodes, &[None; 4], &mut gpus);
        let cards: Vec<(u32, Option<u32>)> = gpus.iter().map(|g| (g.card, g.part)).collect();
        assert_eq!(cards, [(0, Some(0)), (0, Some(1)), (0, Some(2)), (1, None)]);
        assert_eq!(gpus[2].pci.as_deref(), Some("0000:c1:00.0"));
    }
}
