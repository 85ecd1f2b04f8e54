//! hwloc's distance matrices: latencies between NUMA nodes, bandwidths between GPUs. Indices and
//! values are written in chunks of ten.

use roxmltree::Node;

use super::error::{HwlocError, Result, TextPosition, truncated};
use super::topology::{Topology, position};

/// Maximum objects per matrix: Linux's maximum number of NUMA nodes.
const MAX_OBJECTS: usize = 1024;
/// `HWLOC_DISTANCES_KIND_MEANS_LATENCY`.
const MEANS_LATENCY: u64 = 1 << 2;

pub(super) struct MatrixObject {
    /// OS index of a NUMA node, else hwloc's `gp_index`.
    pub(super) index: u64,
    /// Whether it is a PCI device, such as an NVSwitch.
    pub(super) is_pci: bool,
}

/// A square matrix.
pub(super) struct DistanceMatrix {
    pub(super) position: TextPosition,
    pub(super) objects: Vec<MatrixObject>,
    values: Vec<u64>,
}

impl DistanceMatrix {
    /// The value from one object to another, by their indices in the matrix.
    pub(super) fn at(&self, from: usize, to: usize) -> u64 {
        self.values.get(from * self.objects.len() + to).copied().unwrap_or(0)
    }
}

/// Whether these are the kernel's NUMA distances. hwloc 2.0 gives them no name.
pub(super) fn are_numa_latencies(element: Node<'_, '_>) -> bool {
    let kind = element.attribute("kind").and_then(|kind| kind.parse::<u64>().ok()).unwrap_or(0);
    let named = element.attribute("name").is_none_or(|name| name == "NUMALatency");
    let os_indexed = element.attribute("indexing") == Some("os");
    element.attribute("type") == Some("NUMANode")
        && named
        && os_indexed
        && kind & MEANS_LATENCY != 0
}

/// Parses a matrix. In heterogeneous ones each index has its type: `OSDev:802`.
pub(super) fn read(element: Node<'_, '_>) -> Result<DistanceMatrix> {
    let at = position(element);
    let invalid = |why: String| HwlocError::Distances { at, why };
    let number = |digits: &str, word: &str| {
        digits.parse().map_err(|_| invalid(format!("{:?} is not a number", truncated(word))))
    };
    let common = element.attribute("type").unwrap_or_default();
    let object = |word| {
        let (kind, digits) = str::split_once(word, ':').unwrap_or((common, word));
        Ok(MatrixObject { index: number(digits, word)?, is_pci: kind == "PCIDev" })
    };
    let objects: Vec<MatrixObject> =
        tokens(element, "indexes").map(object).collect::<Result<_>>()?;
    let count = objects.len();
    if count > MAX_OBJECTS {
        return Err(invalid(format!("{count} objects, limit {MAX_OBJECTS}")));
    }
    let values = tokens(element, "u64values").map(|word| number(word, word));
    let values: Vec<u64> = values.collect::<Result<_>>()?;
    if values.len() != count * count {
        return Err(invalid(format!("{count} objects but {} values", values.len())));
    }
    Ok(DistanceMatrix { position: at, objects, values })
}

/// The values of the first matrix of hwloc 1, multiplied by its base. Malformed ones are ignored:
/// distances only improve the choice of remote cores.
pub(super) fn relative(topology: &Topology<'_>) -> Option<Vec<u32>> {
    let element = topology.machine_element("distances")?;
    let number = |text: Option<&str>| text?.parse::<f64>().ok().filter(|n| (0.0..1e6).contains(n));
    let base = number(element.attribute("latency_base"))?;
    let values = element.children().filter(|n| n.has_tag_name("latency"));
    let value = |n: Node<'_, '_>| Some((number(n.attribute("value"))? * base).round() as u32);
    values.map(value).collect()
}

fn tokens<'a>(element: Node<'a, 'a>, name: &'static str) -> impl Iterator<Item = &'a str> {
    let chunks = element.children().filter(move |n| n.has_tag_name(name));
    chunks.flat_map(|n| n.text().unwrap_or_default().split_ascii_whitespace())
}
