//! The devices and ranks of a scene, as text.

use regatta_draw::text::sanitize;
use regatta_model::units::format_ranges;
use regatta_model::{Gpu, LinkState, MemoryPolicy, Nic, NodeLayout, PlacedRank, units};

use super::names::{short_gpu_name, short_pci};
use super::scene::{Devices, GpuView, NicView, RankView};

/// Maximum number of unused NICs shown in full per NUMA node.
const UNUSED_NICS_SHOWN: usize = 4;

impl Devices {
    /// Adds a NIC: used NICs first, unused ones in full only up to a limit.
    pub fn add_nic(&mut self, nic: NicView, is_virtual: bool) {
        let unused = self.nics.iter().filter(|n| n.ranks.is_empty()).count();
        if !nic.ranks.is_empty() {
            self.nics.insert(self.nics.len() - unused, nic);
        } else if is_virtual || unused >= UNUSED_NICS_SHOWN {
            self.folded_nics.push(nic.name);
        } else {
            self.nics.push(nic);
        }
    }
}

/// A GPU with its ranks.
pub fn gpu(gpu: &Gpu, layout: &NodeLayout) -> GpuView {
    let name = sanitize(&gpu.name);
    GpuView {
        index: gpu.index,
        name: short_gpu_name(&name, gpu.memory_bytes.is_some()).to_owned(),
        memory: gpu.memory_bytes.map(units::format_bytes),
        pci: gpu.pci.as_deref().map(|p| short_pci(&sanitize(p)).to_owned()),
        ranks: ranks(layout, |r| r.gpus.contains(&gpu.index)),
    }
}

/// A NIC with its ranks.
pub fn nic(nic: &Nic, layout: &NodeLayout) -> NicView {
    NicView {
        name: sanitize(&nic.name),
        kind: nic.kind.name(),
        speed: nic.speed_mbit.map(units::format_mbit_per_s),
        state: match nic.state {
            LinkState::Up => "up",
            LinkState::Down => "DOWN",
            LinkState::Unknown => "state unknown",
        },
        ranks: ranks(layout, |r| r.nic.as_ref() == Some(&nic.name)),
    }
}

fn ranks(layout: &NodeLayout, has: impl Fn(&PlacedRank) -> bool) -> Vec<u32> {
    layout.ranks.iter().filter(|r| has(r)).map(|r| r.local_rank).collect()
}

/// A rank's resources and the reasons for them.
pub fn rank(rank: &PlacedRank) -> RankView {
    let memory = match &rank.memory {
        MemoryPolicy::Prefer(nodes) => Some(format!("memory NUMA {}", format_ranges(nodes))),
        MemoryPolicy::Bind(nodes) => Some(format!("memory NUMA {} only", format_ranges(nodes))),
        MemoryPolicy::Default => None,
    };
    let resources = [
        (!rank.gpus.is_empty()).then(|| format!("GPU {}", format_ranges(&rank.gpus))),
        (!rank.cpus.is_empty()).then(|| format!("CPUs {}", rank.cpus)),
        rank.nic.as_deref().map(sanitize),
        Some(units::pluralize(rank.omp_num_threads as usize, "thread")),
        memory,
    ];
    let why = &rank.reasons;
    let reasons = [&why.gpu, &why.cpus, &why.memory, &why.nic, &why.threads];
    RankView {
        local_rank: rank.local_rank,
        resources: resources.into_iter().flatten().collect(),
        cpu_reason: (!why.cpus.is_empty()).then(|| sanitize(&why.cpus)),
        reasons: reasons.into_iter().filter(|r| !r.is_empty()).map(|r| sanitize(r)).collect(),
    }
}
