//! Consistency checks of a machine description.

use super::Machine;
use crate::{CpuSet, Document};

/// Maximum devices of a kind per node; larger descriptions are rejected.
const MAX_DEVICES: usize = 4096;

impl Document for Machine {
    const KIND: &'static str = "machine";
    const VERSION: u32 = 1;
    const WRITTEN_BY: &'static str = "regatta map --dump";

    fn inconsistency(&self) -> Option<String> {
        self.check_counts().or_else(|| self.check_cores()).or_else(|| self.check_gpus())
    }
}

impl Machine {
    fn check_counts(&self) -> Option<String> {
        let max = self.gpus.len().max(self.nics.len()).max(self.numa.len());
        (max > MAX_DEVICES).then(|| format!("{max} devices of one kind, limit {MAX_DEVICES}"))
    }

    fn check_cores(&self) -> Option<String> {
        let mut seen = CpuSet::new();
        for (i, core) in self.cores.iter().enumerate() {
            if core.cpus.is_empty() {
                return Some(format!("core {i} has no CPU"));
            }
            if core.cpus.intersects(&seen) {
                let shared = core.cpus.intersection(&seen);
                return Some(format!("CPU {shared} belongs to two cores"));
            }
            if core.numa.is_some_and(|n| self.numa_node(n).is_none()) {
                return Some(format!("core {i} is on a NUMA node that is not listed"));
            }
            if core.l3.is_some_and(|l| !self.l3.iter().any(|g| g.id == l)) {
                return Some(format!("core {i} is in an L3 group that is not listed"));
            }
            seen = seen.union(&core.cpus);
        }
        None
    }

    fn check_gpus(&self) -> Option<String> {
        for (i, gpu) in self.gpus.iter().enumerate() {
            if gpu.index as usize != i {
                return Some(format!("GPU {} is listed at index {i}", gpu.index));
            }
            if gpu.numa.is_some_and(|n| self.numa_node(n).is_none()) {
                return Some(format!("GPU {i} is on a NUMA node that is not listed"));
            }
            if !gpu.nic_distance.is_empty() && gpu.nic_distance.len() != self.nics.len() {
                let (distances, nics) = (gpu.nic_distance.len(), self.nics.len());
                return Some(format!("GPU {i} has {distances} NIC distances for {nics} NICs"));
            }
        }
        let count = self.gpus.len() as u32;
        if let Some(gpu) = self.usable.gpus.iter().flatten().find(|g| **g >= count) {
            return Some(format!("usable GPU {gpu} does not exist; the node has {count}"));
        }
        let invalid = self.gpu_links.iter().find(|l| l.a >= l.b || l.b >= count)?;
        Some(format!("invalid link between GPU {} and GPU {} of {count}", invalid.a, invalid.b))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Core;

    #[test]
    fn a_cpu_in_two_cores_is_inconsistent() {
        let core =
            |cpus: &str| Core { cpus: cpus.parse().unwrap(), package: 0, numa: None, l3: None };
        let machine = Machine { cores: vec![core("0-1"), core("1-2")], ..Machine::default() };
        assert_eq!(machine.inconsistency().unwrap(), "CPU 1 belongs to two cores");
    }
}
