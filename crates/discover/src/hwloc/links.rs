//! Direct links between GPUs, from the bandwidths that hwloc asked the vendors' libraries for.

use std::collections::{BTreeMap, HashMap};

use regatta_model::{GpuLink, LinkKind};

use super::distances::{self, Matrix};
use super::error::HwlocError;
use super::gpus::FoundGpu;
use super::tree::Tree;

/// hwloc's names of the matrices, in megabytes a second.
const MATRICES: [(&str, LinkKind); 3] = [
    ("NVLinkBandwidth", LinkKind::NvLink),
    ("XGMIBandwidth", LinkKind::Xgmi),
    ("XeLinkBandwidth", LinkKind::XeLink),
];

pub(super) fn read(tree: &Tree<'_>, gpus: &[FoundGpu]) -> Result<Vec<GpuLink>, HwlocError> {
    let numbers = gpus.iter().flat_map(|f| f.numbers.iter().map(|&number| (number, f.gpu.index)));
    let gpu_of: HashMap<u64, u32> = numbers.collect();
    let mut links = BTreeMap::new();
    for element in tree.extras("distances2").chain(tree.extras("distances2hetero")) {
        let name = element.attribute("name").unwrap_or_default();
        let Some((_, kind)) = MATRICES.iter().find(|(matrix, _)| *matrix == name) else { continue };
        let matrix = distances::read(element)?;
        for (a, b, bandwidth) in pairs(&matrix, &gpu_of) {
            let card = |index: u32| gpus.get(index as usize).map(|f| f.gpu.card);
            let kind = if card(a) == card(b) { LinkKind::OnCard } else { *kind };
            let link = GpuLink { a, b, kind, count: None, megabytes_per_second: Some(bandwidth) };
            links.entry((a, b)).or_insert(link);
        }
    }
    Ok(links.into_values().collect())
}

/// The linked pairs of GPUs, the lower one first, with their bandwidth.
fn pairs(matrix: &Matrix, gpu_of: &HashMap<u64, u32>) -> Vec<(u32, u32, u64)> {
    let members = || matrix.objects.iter().enumerate();
    let gpus: Vec<(usize, u32)> =
        members().filter_map(|(i, m)| Some((i, *gpu_of.get(&m.number)?))).collect();
    let switches: Vec<usize> = members().filter(|(_, m)| m.is_pci).map(|(i, _)| i).collect();
    // Switches pass traffic on to one another, so any two GPUs on switches reach each other.
    let to_switches =
        |gpu: usize| switches.iter().map(|&s| matrix.at(gpu, s)).fold(0, u64::saturating_add);
    let reach: Vec<(usize, u32, u64)> =
        gpus.into_iter().map(|(i, gpu)| (i, gpu, to_switches(i))).collect();
    let mut pairs = Vec::new();
    for &(i, a, from_a) in &reach {
        for &(j, b, from_b) in reach.iter().filter(|(_, b, _)| a < *b) {
            let bandwidth = matrix.at(i, j).max(from_a.min(from_b));
            if bandwidth > 0 {
                pairs.push((a, b, bandwidth));
            }
        }
    }
    pairs
}
