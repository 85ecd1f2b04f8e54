//! PCIe links from sysfs.

use crate::{Sysroot, pci};

/// The PCIe link of a device: values now and at most.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PcieLink {
    /// Transfer rate in GT/s.
    pub speed: Option<(f64, f64)>,
    /// Lanes.
    pub width: Option<(u32, u32)>,
}

impl PcieLink {
    /// PCIe generations of the speeds.
    pub fn generations(&self) -> Option<(u32, u32)> {
        let (now, max) = self.speed?;
        Some((generation(now)?, generation(max)?))
    }
}

/// The PCIe link of the device at an address. Devices inside of the processor have none.
pub fn pcie_link(root: &Sysroot, address: &str) -> PcieLink {
    let text = |file: &str| root.read_text(&format!("{}/{file}", pci::sysfs_dir(address)));
    let speed = |file: &str| text(file).and_then(|text| gigatransfers(&text));
    let width = |file: &str| text(file)?.parse().ok().filter(|lanes| (1..=32).contains(lanes));
    PcieLink {
        speed: speed("current_link_speed").zip(speed("max_link_speed")),
        width: width("current_link_width").zip(width("max_link_width")),
    }
}

/// GT/s of `16.0 GT/s PCIe`.
fn gigatransfers(text: &str) -> Option<f64> {
    text.split_once(" GT/s")?.0.trim().parse().ok().filter(|rate| (1.0..1000.0).contains(rate))
}

fn generation(speed: f64) -> Option<u32> {
    const RATES: [f64; 6] = [2.5, 5.0, 8.0, 16.0, 32.0, 64.0];
    RATES.iter().position(|rate| *rate == speed).map(|index| index as u32 + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_speeds_are_parsed() {
        assert_eq!(gigatransfers("16.0 GT/s PCIe"), Some(16.0));
        assert_eq!(gigatransfers("2.5 GT/s"), Some(2.5));
        assert_eq!(gigatransfers("Unknown"), None);
        let link = PcieLink { speed: Some((8.0, 32.0)), width: None };
        assert_eq!(link.generations(), Some((3, 5)));
    }
}
