//! hwloc's distance matrices: latencies between memory nodes, bandwidths between GPUs. The numbers
//! of the objects and the values come in chunks of ten.

use roxmltree::Node;

use super::error::{HwlocError, Place, shortened};
use super::tree::place;

/// Objects in one matrix, as many as Linux has memory nodes at most.
const MAX_OBJECTS: usize = 1024;
/// hwloc's bit for "the values are latencies".
const MEANS_LATENCY: u64 = 1 << 2;

/// One object of a matrix.
pub(super) struct Member {
    /// The kernel's number for memory nodes, else hwloc's own `gp_index`.
    pub(super) number: u64,
    /// Whether it is a PCI device: the NVSwitches among the GPUs.
    pub(super) is_pci: bool,
}

/// A square matrix.
pub(super) struct Matrix {
    pub(super) place: Place,
    pub(super) objects: Vec<Member>,
    values: Vec<u64>,
}

impl Matrix {
    /// The value from one object to another, by their positions.
    pub(super) fn at(&self, from: usize, to: usize) -> u64 {
        self.values.get(from * self.objects.len() + to).copied().unwrap_or(0)
    }
}

/// Whether these are the kernel's distances between memory nodes. hwloc 2.0 gave them no name.
pub(super) fn are_numa_latencies(element: Node<'_, '_>) -> bool {
    let kind = element.attribute("kind").and_then(|kind| kind.parse::<u64>().ok()).unwrap_or(0);
    let named = element.attribute("name").is_none_or(|name| name == "NUMALatency");
    let by_number = element.attribute("indexing") == Some("os");
    element.attribute("type") == Some("NUMANode") && named && by_number && kind & MEANS_LATENCY != 0
}

/// Reads one matrix. In those of mixed objects each number follows its type: `OSDev:802`.
pub(super) fn read(element: Node<'_, '_>) -> Result<Matrix, HwlocError> {
    let wrong = |why: String| HwlocError::Distances { at: place(element), why };
    let common = element.attribute("type").unwrap_or_default();
    let mut objects = Vec::new();
    for word in words(element, "indexes") {
        let (kind, digits) = word.split_once(':').unwrap_or((common, word));
        let number = digits.parse();
        let number = number.map_err(|_| wrong(format!("{:?} is no number", shortened(word))))?;
        objects.push(Member { number, is_pci: kind == "PCIDev" });
    }
    if objects.len() > MAX_OBJECTS {
        return Err(wrong(format!("{} objects, over the limit of {MAX_OBJECTS}", objects.len())));
    }
    let mut values = Vec::new();
    for word in words(element, "u64values") {
        let value = word.parse();
        values.push(value.map_err(|_| wrong(format!("{:?} is no number", shortened(word))))?);
    }
    let wanted = objects.len() * objects.len();
    if values.len() != wanted {
        return Err(wrong(format!("{} objects but {} values", objects.len(), values.len())));
    }
    Ok(Matrix { place: place(element), objects, values })
}

fn words<'a>(element: Node<'a, 'a>, name: &'static str) -> impl Iterator<Item = &'a str> {
    let chunks = element.children().filter(move |n| n.has_tag_name(name));
    chunks.flat_map(|n| n.text().unwrap_or_default().split_ascii_whitespace())
}
