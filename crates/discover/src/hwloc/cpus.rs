//! Packages, L3 groups and cores.

use regatta_model::{Core, CpuSet, L3Group, Package};

use super::MAX_CPUS;
use super::error::{HwlocError, Result};
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

/// The objects with their attribute and the CPUs found so far.
#[derive(Default)]
struct Drafts {
    online: CpuSet,
    /// By OS index.
    packages: Vec<(Option<u32>, CpuSet)>,
    /// By size in bytes.
    l3: Vec<(Option<u64>, CpuSet)>,
    /// By enclosing objects.
    cores: Vec<(Ancestors, CpuSet)>,
}

pub(super) fn read(topology: &Topology<'_>) -> Result<HwlocCpus> {
    let drafts = drafts(topology)?;
    if drafts.online.is_empty() {
        return Err(HwlocError::NoPu { at: topology.position() });
    }
    let (l3, l3_ids) = groups(drafts.l3);
    let packages = packages(drafts.packages, &drafts.online);
    let package_by_cpu = owner_by_cpu(packages.iter().map(|p| (p.id, &p.cpus)));
    let core = |(ancestors, cpus): (Ancestors, CpuSet)| Core {
        package: common_owner(&package_by_cpu, &cpus).unwrap_or_default(),
        numa: None,
        l3: ancestors.l3.and_then(|draft| l3_ids[draft]),
        cpus,
    };
    let cores = drafts.cores.into_iter().filter(|(_, cpus)| !cpus.is_empty());
    let mut cores: Vec<Core> = cores.map(core).collect();
    cores.sort_by_key(|core| core.cpus.first());
    Ok(HwlocCpus { online: drafts.online, packages, l3, cores })
}

fn drafts(topology: &Topology<'_>) -> Result<Drafts> {
    let mut drafts = Drafts::default();
    let mut ancestors_of: Vec<Ancestors> = Vec::with_capacity(topology.objects.len());
    for object in &topology.objects {
        let mut ancestors = object.parent.map(|p| ancestors_of[p]).unwrap_or_default();
        match object.kind {
            ObjectType::Package => {
                ancestors.package = Some(drafts.packages.len());
                drafts.packages.push((object.integer("os_index")?, CpuSet::new()));
            }
            ObjectType::L3 => {
                ancestors.l3 = Some(drafts.l3.len());
                let size_bytes = object.integer("cache_size")?.filter(|&bytes| bytes > 0);
                drafts.l3.push((size_bytes, CpuSet::new()));
            }
            ObjectType::Core => {
                ancestors.core = Some(drafts.cores.len());
                drafts.cores.push((ancestors, CpuSet::new()));
            }
            ObjectType::Pu => {
                let cpu: usize = object.os_index()?;
                if cpu >= MAX_CPUS {
                    return Err(object.bad("os_index", "a CPU index below 16384"));
                }
                if drafts.online.contains(cpu) {
                    return Err(object.duplicate("CPU", cpu as u64));
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
            self.packages[package].1.insert(cpu);
        }
        if let Some(l3) = ancestors.l3 {
            self.l3[l3].1.insert(cpu);
        }
        match ancestors.core {
            Some(core) => self.cores[core].1.insert(cpu),
            // The file was exported without cores: each PU is one.
            None => self.cores.push((ancestors, CpuSet::range(cpu, cpu))),
        }
    }
}

/// The L3 groups with CPUs, ordered by their first CPU, and the ID of each draft.
fn groups(drafts: Vec<(Option<u64>, CpuSet)>) -> (Vec<L3Group>, Vec<Option<u32>>) {
    let mut ids = vec![None; drafts.len()];
    let mut drafts: Vec<_> = drafts.into_iter().enumerate().collect();
    drafts.retain(|(_, (_, cpus))| !cpus.is_empty());
    drafts.sort_by_key(|(_, (_, cpus))| cpus.first());
    let mut groups = Vec::with_capacity(drafts.len());
    for (id, (position, (size_bytes, cpus))) in (0u32..).zip(drafts) {
        ids[position] = Some(id);
        groups.push(L3Group { id, cpus, size_bytes });
    }
    (groups, ids)
}

/// The packages with CPUs. CPUs outside of all packages form one more, because every core needs
/// one.
fn packages(mut drafts: Vec<(Option<u32>, CpuSet)>, online: &CpuSet) -> Vec<Package> {
    let inside = drafts.iter().fold(CpuSet::new(), |all, (_, cpus)| all.union(cpus));
    drafts.push((None, online.difference(&inside)));
    drafts.retain(|(_, cpus)| !cpus.is_empty());
    drafts.sort_by_key(|(id, cpus)| (id.is_none(), *id, cpus.first()));
    let numbered = drafts.iter().all(|(id, _)| id.is_some());
    let distinct = drafts.windows(2).all(|pair| pair[0].0 != pair[1].0);
    let package = |(position, (id, cpus)): (u32, (Option<u32>, CpuSet))| Package {
        id: id.filter(|_| numbered && distinct).unwrap_or(position),
        cpus,
    };
    (0u32..).zip(drafts).map(package).collect()
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
