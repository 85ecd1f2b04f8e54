//! Packages, L3 groups and cores.

use regatta_model::{Core, CpuSet, L3Group, Package};

use super::MAX_CPUS;
use super::error::HwlocError;
use super::topology::{ObjectType, Topology};

/// The CPUs of a topology. The NUMA nodes of the cores are set later.
pub(super) struct HwlocCpus {
    pub(super) online: CpuSet,
    pub(super) packages: Vec<Package>,
    pub(super) l3: Vec<L3Group>,
    pub(super) cores: Vec<Core>,
}

/// The enclosing package, L3 group and core of an object: indices in the drafts.
#[derive(Clone, Copy, Default)]
struct Ancestors {
    package: Option<usize>,
    l3: Option<usize>,
    core: Option<usize>,
}

#[derive(Default)]
struct DraftPackage {
    id: Option<u32>,
    cpus: CpuSet,
}

#[derive(Default)]
struct DraftL3 {
    size_bytes: Option<u64>,
    cpus: CpuSet,
}

struct DraftCore {
    ancestors: Ancestors,
    cpus: CpuSet,
}

#[derive(Default)]
struct Drafts {
    online: CpuSet,
    packages: Vec<DraftPackage>,
    l3: Vec<DraftL3>,
    cores: Vec<DraftCore>,
}

pub(super) fn read(topology: &Topology<'_>) -> Result<HwlocCpus, HwlocError> {
    let drafts = drafts(topology)?;
    if drafts.online.is_empty() {
        return Err(HwlocError::NoPu { at: topology.position() });
    }
    let (l3, l3_ids) = groups(drafts.l3);
    let mut cores: Vec<Core> = (drafts.cores.into_iter())
        .filter(|core| !core.cpus.is_empty())
        .map(|core| Core {
            package: 0,
            numa: None,
            l3: core.ancestors.l3.and_then(|draft| l3_ids.get(draft).copied().flatten()),
            cpus: core.cpus,
        })
        .collect();
    cores.sort_by_key(|core| core.cpus.first());
    let packages = packages(drafts.packages, &drafts.online);
    let package_by_cpu = owner_by_cpu(packages.iter().map(|p| (p.id, &p.cpus)));
    for core in &mut cores {
        core.package = common_owner(&package_by_cpu, &core.cpus).unwrap_or_default();
    }
    Ok(HwlocCpus { online: drafts.online, packages, l3, cores })
}

fn drafts(topology: &Topology<'_>) -> Result<Drafts, HwlocError> {
    let mut drafts = Drafts::default();
    let mut ancestors_of: Vec<Ancestors> = Vec::with_capacity(topology.objects.len());
    for object in &topology.objects {
        let mut ancestors = object.parent.map(|p| ancestors_of[p]).unwrap_or_default();
        match object.kind {
            ObjectType::Package => {
                ancestors.package = Some(drafts.packages.len());
                let id = object.integer("os_index")?;
                drafts.packages.push(DraftPackage { id, ..DraftPackage::default() });
            }
            ObjectType::L3 => {
                ancestors.l3 = Some(drafts.l3.len());
                let size_bytes = object.integer("cache_size")?.filter(|&bytes| bytes > 0);
                drafts.l3.push(DraftL3 { size_bytes, ..DraftL3::default() });
            }
            ObjectType::Core => {
                ancestors.core = Some(drafts.cores.len());
                drafts.cores.push(DraftCore { ancestors, cpus: CpuSet::new() });
            }
            ObjectType::Pu => {
                let cpu: usize = object.os_index()?;
                if cpu >= MAX_CPUS {
                    return Err(object.bad("os_index", "a CPU index below 16384"));
                }
                if drafts.online.contains(cpu) {
                    let (at, number) = (object.position(), cpu as u64);
                    return Err(HwlocError::Duplicate { at, what: "CPU", number });
                }
                drafts.add(cpu, ancestors);
            }
            _ => {}
        }
        ancestors_of.push(ancestors);
    }
    Ok(drafts)
}

impl Drafts {
    fn add(&mut self, cpu: usize, ancestors: Ancestors) {
        self.online.insert(cpu);
        if let Some(package) = ancestors.package {
            self.packages[package].cpus.insert(cpu);
        }
        if let Some(l3) = ancestors.l3 {
            self.l3[l3].cpus.insert(cpu);
        }
        match ancestors.core {
            Some(core) => self.cores[core].cpus.insert(cpu),
            // The file was exported without cores: each PU is one.
            None => self.cores.push(DraftCore { ancestors, cpus: [cpu].into_iter().collect() }),
        }
    }
}

/// The L3 groups with CPUs, ordered by their first CPU, and the ID of each draft.
fn groups(drafts: Vec<DraftL3>) -> (Vec<L3Group>, Vec<Option<u32>>) {
    let mut ids = vec![None; drafts.len()];
    let mut non_empty: Vec<(usize, DraftL3)> =
        drafts.into_iter().enumerate().filter(|(_, draft)| !draft.cpus.is_empty()).collect();
    non_empty.sort_by_key(|(_, draft)| draft.cpus.first());
    let mut groups = Vec::with_capacity(non_empty.len());
    for (id, (position, draft)) in (0u32..).zip(non_empty) {
        ids[position] = Some(id);
        groups.push(L3Group { id, cpus: draft.cpus, size_bytes: draft.size_bytes });
    }
    (groups, ids)
}

/// The packages with CPUs. CPUs outside of all packages form one more, because every core needs
/// one.
fn packages(drafts: Vec<DraftPackage>, online: &CpuSet) -> Vec<Package> {
    let mut drafts: Vec<DraftPackage> =
        drafts.into_iter().filter(|draft| !draft.cpus.is_empty()).collect();
    let inside = drafts.iter().fold(CpuSet::new(), |all, draft| all.union(&draft.cpus));
    let outside = online.difference(&inside);
    if !outside.is_empty() {
        drafts.push(DraftPackage { id: None, cpus: outside });
    }
    drafts.sort_by_key(|draft| (draft.id.is_none(), draft.id, draft.cpus.first()));
    let numbered = drafts.iter().all(|draft| draft.id.is_some());
    let distinct = drafts.windows(2).all(|pair| pair[0].id != pair[1].id);
    (0u32..)
        .zip(drafts)
        .map(|(position, draft)| Package {
            id: draft.id.filter(|_| numbered && distinct).unwrap_or(position),
            cpus: draft.cpus,
        })
        .collect()
}

/// The ID of the disjoint set that contains each CPU.
pub(super) fn owner_by_cpu<'s>(sets: impl Iterator<Item = (u32, &'s CpuSet)>) -> Vec<Option<u32>> {
    let mut owner_by_cpu = Vec::new();
    for (id, cpus) in sets {
        for cpu in cpus.iter() {
            if cpu >= owner_by_cpu.len() {
                owner_by_cpu.resize(cpu + 1, None);
            }
            owner_by_cpu[cpu] = Some(id);
        }
    }
    owner_by_cpu
}

/// The ID of the set that contains all of these CPUs, if there is one.
pub(super) fn common_owner(owner_by_cpu: &[Option<u32>], cpus: &CpuSet) -> Option<u32> {
    let of = |cpu: usize| owner_by_cpu.get(cpu).copied().flatten();
    let first = of(cpus.first()?)?;
    cpus.iter().all(|cpu| of(cpu) == Some(first)).then_some(first)
}
