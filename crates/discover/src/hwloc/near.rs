//! How far two PCI devices are apart.

use regatta_model::Distance;

/// Where a device is attached.
#[derive(Debug, Clone, Default)]
pub(super) struct Attachment {
    /// The bridges from the root to it, outermost first, then its own address. Empty if it is no
    /// PCI device.
    pub(super) path: Vec<String>,
    /// The memory node around it, if it is one.
    pub(super) numa: Option<u32>,
    /// The socket around it, if it is one.
    pub(super) package: Option<u32>,
}

/// The distance between two devices. A bridge beyond the host bridge that is above both is a
/// switch: a plain root port has one device below it.
pub(super) fn distance(a: &Attachment, b: &Attachment) -> Distance {
    let shared = a.path.iter().zip(&b.path).take_while(|(x, y)| x == y).count();
    let same = |x: Option<u32>, y: Option<u32>| Some(x? == y?);
    match (shared, same(a.numa, b.numa), same(a.package, b.package)) {
        (2.., _, _) => Distance::Switch,
        (1, _, _) => Distance::Root,
        (_, Some(true), _) => Distance::Numa,
        (_, _, Some(true)) => Distance::Package,
        (_, _, Some(false)) => Distance::Remote,
        _ => Distance::Unknown,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(path: &[&str], numa: Option<u32>, package: Option<u32>) -> Attachment {
        Attachment { path: path.iter().map(|&p| p.to_owned()).collect(), numa, package }
    }

    #[test]
    fn every_step_from_switch_to_unknown() {
        let gpu = at(&["pci0000:40", "0000:40:01.1", "0000:41:00.0"], Some(0), Some(0));
        let to = |other: &Attachment| (distance(&gpu, other), distance(other, &gpu));
        let both = |d: Distance| (d, d);
        let switch = at(&["pci0000:40", "0000:40:01.1", "0000:42:00.0"], Some(0), Some(0));
        assert_eq!(to(&switch), both(Distance::Switch));
        let root = at(&["pci0000:40", "0000:40:03.1", "0000:45:00.0"], Some(0), Some(0));
        assert_eq!(to(&root), both(Distance::Root));
        let numa = at(&["pci0000:60", "0000:60:01.1"], Some(0), Some(0));
        assert_eq!(to(&numa), both(Distance::Numa));
        let package = at(&["pci0000:80", "0000:80:01.1"], Some(1), Some(0));
        assert_eq!(to(&package), both(Distance::Package));
        let remote = at(&["pci0000:c0", "0000:c0:01.1"], Some(4), Some(1));
        assert_eq!(to(&remote), both(Distance::Remote));
        assert_eq!(to(&at(&[], None, None)), both(Distance::Unknown));
        assert_eq!(to(&at(&[], None, Some(0))), both(Distance::Package));
    }
}
