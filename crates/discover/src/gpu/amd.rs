//! AMD GPUs and GCDs from the kernel's compute driver (kfd), in the order of its nodes, which is
//! HIP's order.

use std::collections::BTreeMap;

use regatta_model::{Gpu, GpuLink, GpuVendor, LinkKind, PciDevice};

use super::{GpuScan, gpu_from_pci, is_accessible, render_node};
use crate::{Sysroot, pci};

pub(super) const VENDOR: u16 = 0x1002;

const NODES: &str = "/sys/class/kfd/kfd/topology/nodes";
const KFD: &str = "/dev/kfd";

/// Type of an Infinity Fabric link in kfd's io_links.
const XGMI: u64 = 11;
/// Weight per hop in kfd's io_links; more than one hop is not a direct link.
const WEIGHT_PER_HOP: u64 = 15;
/// MI250X and MI250: two GCDs per card, each a device. The MI210 has the same architecture and one
/// GCD.
const TWO_GCDS: [u64; 2] = [0x7408, 0x740c];
/// Links between the two GCDs of a card; GCDs of different cards have fewer.
const LINKS_ON_CARD: u32 = 4;

/// Whether a PCI device is a GPU: a display controller, or a processing accelerator, the class of
/// an MI300.
pub(super) fn is_gpu(device: &PciDevice) -> bool {
    device.vendor == VENDOR && matches!(device.class >> 16, 0x03 | 0x12)
}

pub(super) fn scan(root: &Sysroot, devices: &[PciDevice]) -> GpuScan {
    let names = root.list_dir(NODES);
    if names.is_empty() {
        return without_kfd(root, devices);
    }
    let mut notes = Vec::new();
    let nodes = gpu_nodes(root, &names, &mut notes);
    let mut links = links(root, &nodes);
    let mut gpus: Vec<Gpu> =
        nodes.iter().enumerate().map(|(i, node)| node.gpu(root, devices, i)).collect();
    let sibling_gcds = sibling_gcds(&nodes, &links);
    assign_cards(&nodes, &sibling_gcds, &mut gpus);
    for link in &mut links {
        if gpus[link.a as usize].card == gpus[link.b as usize].card {
            link.kind = LinkKind::OnCard;
        }
    }
    if !gpus.is_empty() && is_accessible(root, KFD) == Some(false) {
        notes.push(format!(
            "{KFD} cannot be opened, so ROCm finds no GPU: join its group (render or video), or \
             pass it into the container"
        ));
    }
    GpuScan { gpus, links, notes, ..GpuScan::default() }
}

/// The key-value lines of a kfd file, such as `simd_count 440`.
type Properties = BTreeMap<String, u64>;

fn properties(root: &Sysroot, path: &str) -> Option<Properties> {
    let text = root.read_text(path)?;
    let pair = |line: &str| {
        let (key, value) = line.split_once(char::is_whitespace)?;
        Some((key.to_owned(), value.trim().parse().ok()?))
    };
    Some(text.lines().filter_map(pair).collect())
}

/// A GPU node of kfd, whose nodes are CPUs and GPUs.
struct KfdNode {
    id: u64,
    address: Option<String>,
    /// Partition index of a partitioned GPU.
    partition: u64,
    properties: Properties,
}

fn gpu_nodes(root: &Sysroot, names: &[String], notes: &mut Vec<String>) -> Vec<KfdNode> {
    let mut nodes = Vec::new();
    let mut hidden = Vec::new();
    for name in names {
        let Ok(id) = name.parse() else { continue };
        match properties(root, &format!("{NODES}/{name}/properties")) {
            Some(p) if p.get("simd_count") > Some(&0) => nodes.push(KfdNode::new(id, p)),
            Some(p) if !p.is_empty() => {}
            // The kernel denies the properties of a GPU outside of the device cgroup; in a copied
            // tree the file is empty or missing.
            _ => hidden.push(name.as_str()),
        }
    }
    if !hidden.is_empty() {
        notes.push(format!(
            "{} AMD GPUs of this node are hidden from this process (device cgroup?), kfd nodes \
             {}; this process sees {}",
            hidden.len(),
            hidden.join(", "),
            nodes.len()
        ));
    }
    nodes
}

impl KfdNode {
    fn new(id: u64, properties: Properties) -> Self {
        let get = |key: &str| properties.get(key).copied();
        let address = get("location_id").map(|location| {
            // Bus, device and function are the low 16 bits, the partition index the top four.
            let bits = |shift: u32, mask: u64| ((location >> shift) & mask) as u32;
            let domain = get("domain").unwrap_or(0) as u32;
            pci::format_address(domain, bits(8, 0xff), bits(3, 0x1f), bits(0, 7))
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

    fn gpu(&self, root: &Sysroot, devices: &[PciDevice], index: usize) -> Gpu {
        let file = self.get("drm_render_minor").filter(|m| *m > 0);
        let file = file.map(|minor| format!("/dev/dri/renderD{minor}"));
        let unique = self.get("unique_id").filter(|id| *id > 0);
        Gpu {
            name: self.name(root),
            memory_bytes: self.memory(root),
            uuid: unique.map(|id| format!("GPU-{id:016x}")),
            // A process needs both files.
            accessible: file
                .as_deref()
                .and_then(|f| Some(is_accessible(root, f)? && is_accessible(root, KFD)?)),
            device_file: file,
            ..gpu_from_pci(root, devices, GpuVendor::Amd, index, self.address.as_deref())
        }
    }

    fn name(&self, root: &Sysroot) -> String {
        let product = self.address.as_deref().and_then(|address| product_name(root, address));
        product.unwrap_or_else(|| match self.get("gfx_target_version") {
            Some(version) if version > 0 => format!("AMD {}", gfx_name(version)),
            _ => "AMD GPU".to_owned(),
        })
    }

    /// Its dedicated memory. The memory that an APU shares with the CPU is not in the banks.
    fn memory(&self, root: &Sysroot) -> Option<u64> {
        const FRAME_BUFFER: [u64; 2] = [1, 2];
        let banks = format!("{NODES}/{}/mem_banks", self.id);
        let size = |bank: String| {
            let bank = properties(root, &format!("{banks}/{bank}/properties"))?;
            let own = bank.get("heap_type").is_some_and(|t| FRAME_BUFFER.contains(t));
            bank.get("size_in_bytes").copied().filter(|_| own)
        };
        let total = root.list_dir(&banks).into_iter().filter_map(size).fold(0, u64::saturating_add);
        Some(total).filter(|t| *t > 0).or_else(|| vram(root, self.address.as_deref()?))
    }
}

/// `gfx90a` from 90010: major, minor and stepping in two decimal digits each, of which the last two
/// are printed in hexadecimal.
fn gfx_name(version: u64) -> String {
    format!("gfx{}{:x}{:x}", version / 10000, version / 100 % 100, version % 100)
}

fn product_name(root: &Sysroot, address: &str) -> Option<String> {
    let name = root.read_text(&format!("{}/product_name", pci::sysfs_dir(address)));
    name.filter(|name| !name.is_empty())
}

fn vram(root: &Sysroot, address: &str) -> Option<u64> {
    root.read_value(&format!("{}/mem_info_vram_total", pci::sysfs_dir(address)))
}

/// The direct Infinity Fabric links, once per pair. kfd lists all pairs of a hive, including those
/// connected through a third GPU.
fn links(root: &Sysroot, nodes: &[KfdNode]) -> Vec<GpuLink> {
    let position: BTreeMap<u64, u32> =
        nodes.iter().enumerate().map(|(i, n)| (n.id, i as u32)).collect();
    let mut found: BTreeMap<(u32, u32), GpuLink> = BTreeMap::new();
    for (from, node) in nodes.iter().enumerate() {
        let dir = format!("{NODES}/{}/io_links", node.id);
        let names = root.list_dir(&dir).into_iter();
        for link in names.filter_map(|name| properties(root, &format!("{dir}/{name}/properties"))) {
            let Some(to) = direct_peer(&link).and_then(|id| position.get(&id)) else { continue };
            let (a, b) = ((from as u32).min(*to), (from as u32).max(*to));
            if a != b {
                found.entry((a, b)).or_insert_with(|| xgmi_link(a, b, &link));
            }
        }
    }
    found.into_values().collect()
}

/// The kfd node at the other end of a direct Infinity Fabric link.
fn direct_peer(link: &Properties) -> Option<u64> {
    let get = |key: &str| link.get(key).copied().unwrap_or(0);
    // A pair without a direct link has no bandwidth, if kfd reports any.
    let direct =
        get("weight") <= WEIGHT_PER_HOP && (get("max_bandwidth") > 0 || get("min_bandwidth") == 0);
    if get("type") == XGMI && direct { link.get("node_to").copied() } else { None }
}

/// kfd reports the bandwidth of one link as the minimum and of all links as the maximum, in MB/s.
fn xgmi_link(a: u32, b: u32, link: &Properties) -> GpuLink {
    let get = |key: &str| link.get(key).copied().filter(|v| *v > 0);
    let (one, all) = (get("min_bandwidth"), get("max_bandwidth"));
    let count = one.zip(all).filter(|(one, all)| all % one == 0).map(|(one, all)| all / one);
    let count = count.and_then(|count| u32::try_from(count).ok());
    GpuLink { a, b, kind: LinkKind::Xgmi, count, megabytes_per_second: all }
}

/// The sibling GCD of each GPU, which has the fastest link. Kernels that do not report bandwidth
/// list the two consecutively.
fn sibling_gcds(nodes: &[KfdNode], links: &[GpuLink]) -> Vec<Option<usize>> {
    let has_sibling = |i: u32| nodes[i as usize].has_two_gcds();
    let gcds: Vec<usize> = (0..nodes.len()).filter(|i| nodes[*i].has_two_gcds()).collect();
    let links = links.iter().filter(|l| has_sibling(l.a) && has_sibling(l.b));
    let links: Vec<&GpuLink> = links.collect();
    let mut sibling_gcds = vec![None; nodes.len()];
    if links.iter().all(|l| l.megabytes_per_second.is_none()) && gcds.len().is_multiple_of(2) {
        let adjacent = |pair: &&[usize]| nodes[pair[0]].id + 1 == nodes[pair[1]].id;
        for pair in gcds.chunks_exact(2).filter(adjacent) {
            (sibling_gcds[pair[0]], sibling_gcds[pair[1]]) = (Some(pair[1]), Some(pair[0]));
        }
        return sibling_gcds;
    }
    let fastest = |i: usize| {
        let mut own = links.clone();
        own.retain(|l| [l.a, l.b].contains(&(i as u32)));
        own.sort_by_key(|l| std::cmp::Reverse(l.megabytes_per_second));
        let first = own.first()?;
        let tie = own.get(1).is_some_and(|l| l.megabytes_per_second == first.megabytes_per_second);
        let enough = first.count.is_none_or(|c| c >= LINKS_ON_CARD);
        let other = if first.a as usize == i { first.b } else { first.a };
        (enough && !tie).then_some(other as usize)
    };
    for i in gcds {
        sibling_gcds[i] = fastest(i).filter(|other| fastest(*other) == Some(i));
    }
    sibling_gcds
}

/// Assigns card indices in the order of their first GPU, and subdevice indices on cards with
/// several.
fn assign_cards(nodes: &[KfdNode], sibling_gcds: &[Option<usize>], gpus: &mut [Gpu]) {
    let mut cards: Vec<Vec<usize>> = Vec::new();
    for i in 0..nodes.len() {
        // Partitions of a GPU share its PCI address.
        let same = |j: &usize| {
            sibling_gcds[i] == Some(*j)
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
            let subdevice = if partitioned { nodes[*i].partition as u32 } else { position as u32 };
            gpus[*i].card = number as u32;
            gpus[*i].subdevice = (card.len() > 1).then_some(subdevice);
        }
    }
}

/// GPUs without kfd, in PCI bus order.
fn without_kfd(root: &Sysroot, devices: &[PciDevice]) -> GpuScan {
    let bound =
        |d: &&PciDevice| is_gpu(d) && pci::driver(root, &d.address).as_deref() == Some("amdgpu");
    let gpu = |(i, PciDevice { address, device, .. }): (usize, &PciDevice)| {
        let file = render_node(root, address);
        let name = product_name(root, address);
        Gpu {
            name: name.unwrap_or_else(|| format!("AMD GPU {device:04x}")),
            memory_bytes: vram(root, address),
            accessible: file.as_deref().and_then(|f| is_accessible(root, f)),
            device_file: file,
            ..gpu_from_pci(root, devices, GpuVendor::Amd, i, Some(address))
        }
    };
    let gpus: Vec<Gpu> = devices.iter().filter(bound).enumerate().map(gpu).collect();
    let mut notes = Vec::new();
    if !gpus.is_empty() {
        notes.push(format!(
            "the kernel has no kfd ({NODES} is missing): ROCm cannot use the AMD GPUs, which are \
             listed in PCI bus order"
        ));
    }
    GpuScan { gpus, notes, ..GpuScan::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gfx_versions_are_named_in_hexadecimal() {
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
    fn only_direct_peers_are_linked() {
        let peer = |text: &str| direct_peer(&link(text));
        let direct = "type=11 node_to=5 weight=15 min_bandwidth=50000 max_bandwidth=200000";
        assert_eq!(peer(direct), Some(5));
        assert_eq!(peer("type=11 node_to=5 weight=15"), Some(5), "kernels without bandwidth");
        assert_eq!(peer("type=11 node_to=5 weight=30 min_bandwidth=50000 max_bandwidth=0"), None);
        assert_eq!(peer("type=11 node_to=5 weight=15 min_bandwidth=50000 max_bandwidth=0"), None);
        assert_eq!(peer("type=2 node_to=5 weight=20"), None, "PCIe");
        assert_eq!(peer("type=11 weight=15"), None);
    }

    fn gcd(id: u64) -> KfdNode {
        let location = 0xc100 + id * 0x100;
        KfdNode::new(id, link(&format!("device_id={} location_id={location}", 0x7408)))
    }

    fn joined(a: u32, b: u32, all: &str) -> GpuLink {
        xgmi_link(a, b, &link(&format!("min_bandwidth=50000 max_bandwidth={all}")))
    }

    #[test]
    fn gcds_with_the_fastest_link_share_a_card() {
        let nodes = [4, 5, 6, 7].map(gcd);
        let links = [joined(0, 2, "200000"), joined(1, 3, "200000"), joined(0, 1, "100000")];
        assert_eq!(sibling_gcds(&nodes, &links), [Some(2), Some(3), Some(0), Some(1)]);
        // The siblings are hidden by a cgroup: these two are on different cards.
        assert_eq!(sibling_gcds(&nodes[..2], &[joined(0, 1, "100000")]), [None, None]);
        // No bandwidth is reported.
        assert_eq!(sibling_gcds(&nodes, &[]), [Some(1), Some(0), Some(3), Some(2)]);
        assert_eq!(sibling_gcds(&[gcd(4), gcd(6)], &[]), [None, None]);
    }

    #[test]
    fn partitions_of_a_gpu_share_a_card() {
        let part = |id: u64, n: u64| {
            KfdNode::new(id, link(&format!("device_id=29857 location_id={}", 0xc100 + (n << 28))))
        };
        let nodes = [part(2, 0), part(3, 1), part(4, 2), gcd(9)];
        let tree = crate::fake_sysfs::FakeSysfs::new();
        let mut gpus: Vec<Gpu> =
            nodes.iter().enumerate().map(|(i, n)| n.gpu(&tree.root(), &[], i)).collect();
        assign_cards(&nodes, &[None; 4], &mut gpus);
        let cards: Vec<(u32, Option<u32>)> = gpus.iter().map(|g| (g.card, g.subdevice)).collect();
        assert_eq!(cards, [(0, Some(0)), (0, Some(1)), (0, Some(2)), (1, None)]);
        assert_eq!(gpus[2].pci.as_deref(), Some("0000:c1:00.0"));
    }
}
