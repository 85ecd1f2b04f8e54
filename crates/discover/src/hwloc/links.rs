//! Direct links between GPUs, from the bandwidth matrices of the vendor libraries.

use std::collections::{BTreeMap, HashMap};

use regatta_model::{GpuLink, LinkKind};

use super::distances::{self, DistanceMatrix};
use super::error::Result;
use super::gpus::FoundGpu;
use super::topology::Topology;

/// hwloc's names of the matrices, in MB/s.
const MATRICES: [(&str, LinkKind); 3] = [
    ("NVLinkBandwidth", LinkKind::NvLink),
    ("XGMIBandwidth", LinkKind::Xgmi),
    ("XeLinkBandwidth", LinkKind::XeLink),
];

pub(super) fn read(topology: &Topology<'_>, gpus: &[FoundGpu]) -> Result<Vec<GpuLink>> {
    let indices = gpus.iter().flat_map(|f| f.indices.iter().map(|&index| (index, f.gpu.index)));
    let gpu_by_index: HashMap<u64, u32> = indices.collect();
    let mut links = BTreeMap::new();
    for element in topology.elements("distances2").chain(topology.elements("distances2hetero")) {
        let name = element.attribute("name").unwrap_or_default();
        let Some((_, kind)) = MATRICES.iter().find(|(matrix, _)| *matrix == name) else { continue };
        let matrix = distances::read(element)?;
        for (a, b, bandwidth) in pairs(&matrix, &gpu_by_index) {
            let card = |index: u32| gpus.get(index as usize).map(|f| f.gpu.card);
            let kind = if card(a) == card(b) { LinkKind::OnCard } else { *kind };
            let link = GpuLink { a, b, kind, count: None, megabytes_per_second: Some(bandwidth) };
            links.entry((a, b)).or_insert(link);
        }
    }
    Ok(links.into_values().collect())
}

/// The linked pairs of GPUs, lower index first, with their bandwidth.
fn pairs(matrix: &DistanceMatrix, gpu_by_index: &HashMap<u64, u32>) -> Vec<(u32, u32, u64)> {
    let members = || matrix.objects.iter().enumerate();
    let gpus: Vec<(usize, u32)> =
        members().filter_map(|(i, m)| Some((i, *gpu_by_index.get(&m.index)?))).collect();
    let switches: Vec<usize> = members().filter(|(_, m)| m.is_pci).map(|(i, _)| i).collect();
    // NVSwitches are connected to each other, so any two GPUs on switches are linked.
    let to_switches =
        |gpu: usize| switches.iter().map(|&s| matrix.at(gpu, s)).fold(0, u64::saturating_add);
    let with_switch_bandwidth: Vec<(usize, u32, u64)> =
        gpus.into_iter().map(|(i, gpu)| (i, gpu, to_switches(i))).collect();
    let mut pairs = Vec::new();
    for &(i, a, from_a) in &with_switch_bandwidth {
        for &(j, b, from_b) in with_switch_bandwidth.iter().filter(|(_, b, _)| a < *b) {
            let bandwidth = matrix.at(i, j).max(from_a.min(from_b));
            if bandwidth > 0 {
                pairs.push((a, b, bandwidth));
            }
        }
    }
    pairs
}
