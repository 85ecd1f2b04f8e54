//! Packages, L3 groups and cores, put together from the CPUs inside them.

use regatta_model::{Core, CpuSet, L3Group, Package};

use super::MAX_CPUS;
use super::error::HwlocError;
use super::tree::{Kind, Tree};

/// The processors of a topology. The cores do not know their memory nodes yet.
pub(super) struct Processors {
    pub(super) online: CpuSet,
    pub(super) packages: Vec<Package>,
    pub(super) l3: Vec<L3Group>,
    pub(super) cores: Vec<Core>,
}

/// What is around an object: positions in the drafts.
#[derive(Clone, Copy, Default)]
struct Inside {
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
    inside: Inside,
    cpus: CpuSet,
}

#[derive(Default)]
struct Drafts {
    online: CpuSet,
    packages: Vec<DraftPackage>,
    l3: Vec<DraftL3>,
    cores: Vec<DraftCore>,
}

pub(super) fn read(tree: &Tree<'_>) -> Result<Processors, HwlocError> {
    let drafts = drafts(tree)?;
    if drafts.online.is_empty() {
        return Err(HwlocError::NoCpu { at: tree.place() });
    }
    let (l3, l3_ids) = groups(drafts.l3);
    let mut cores: Vec<Core> = (drafts.cores.into_iter())
        .filter(|core| !core.cpus.is_empty())
        .map(|core| Core {
            package: 0,
            numa: None,
            l3: core.inside.l3.and_then(|draft| l3_ids.get(draft).copied().flatten()),
            cpus: core.cpus,
        })
        .collect();
    cores.sort_by_key(|core| core.cpus.first());
    let packages = packages(drafts.packages, &drafts.online);
    let package_of = owners(packages.iter().map(|p| (p.id, &p.cpus)));
    for core in &mut cores {
        core.package = owner(&package_of, &core.cpus).unwrap_or_default();
    }
    Ok(Processors { online: drafts.online, packages, l3, cores })
}

fn drafts(tree: &Tree<'_>) -> Result<Drafts, HwlocError> {
    let mut drafts = Drafts::default();
    let mut insides: Vec<Inside> = Vec::with_capacity(tree.objects.len());
    for object in &tree.objects {
        let mut inside = object.parent.map(|p| insides[p]).unwrap_or_default();
        match object.kind {
            Kind::Package => {
                inside.package = Some(drafts.packages.len());
                let id = object.number("os_index")?;
                drafts.packages.push(DraftPackage { id, ..DraftPackage::default() });
            }
            Kind::L3 => {
                inside.l3 = Some(drafts.l3.len());
                let size_bytes = object.number("cache_size")?.filter(|&bytes| bytes > 0);
                drafts.l3.push(DraftL3 { size_bytes, ..DraftL3::default() });
            }
            Kind::Core => {
                inside.core = Some(drafts.cores.len());
                drafts.cores.push(DraftCore { inside, cpus: CpuSet::new() });
            }
            Kind::Cpu => {
                let cpu: usize = object.os_index()?;
                if cpu >= MAX_CPUS {
                    return Err(object.bad("os_index", "a CPU number below 16384"));
                }
                if drafts.online.contains(cpu) {
                    let (at, number) = (object.place(), cpu as u64);
                    return Err(HwlocError::Twice { at, what: "CPU", number });
                }
                drafts.add(cpu, inside);
            }
            _ => {}
        }
        insides.push(inside);
    }
    Ok(drafts)
}

impl Drafts {
    fn add(&mut self, cpu: usize, inside: Inside) {
        self.online.insert(cpu);
        if let Some(package) = inside.package {
            self.packages[package].cpus.insert(cpu);
        }
        if let Some(l3) = inside.l3 {
            self.l3[l3].cpus.insert(cpu);
        }
        match inside.core {
            Some(core) => self.cores[core].cpus.insert(cpu),
            // The file was exported without cores: each CPU counts as one.
            None => self.cores.push(DraftCore { inside, cpus: [cpu].into_iter().collect() }),
        }
    }
}

/// The groups that have CPUs, in the order of their first one, and each draft's number.
fn groups(drafts: Vec<DraftL3>) -> (Vec<L3Group>, Vec<Option<u32>>) {
    let mut ids = vec![None; drafts.len()];
    let mut kept: Vec<(usize, DraftL3)> =
        drafts.into_iter().enumerate().filter(|(_, draft)| !draft.cpus.is_empty()).collect();
    kept.sort_by_key(|(_, draft)| draft.cpus.first());
    let mut groups = Vec::with_capacity(kept.len());
    for (id, (position, draft)) in (0u32..).zip(kept) {
        ids[position] = Some(id);
        groups.push(L3Group { id, cpus: draft.cpus, size_bytes: draft.size_bytes });
    }
    (groups, ids)
}

/// The packages that have CPUs. CPUs outside all of them make one more, so that every core has one.
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

/// Which of several disjoint sets each CPU is in.
pub(super) fn owners<'s>(sets: impl Iterator<Item = (u32, &'s CpuSet)>) -> Vec<Option<u32>> {
    let mut owners = Vec::new();
    for (id, cpus) in sets {
        for cpu in cpus.iter() {
            if cpu >= owners.len() {
                owners.resize(cpu + 1, None);
            }
            owners[cpu] = Some(id);
        }
    }
    owners
}

/// The set that all these CPUs are in, if it is one.
pub(super) fn owner(owners: &[Option<u32>], cpus: &CpuSet) -> Option<u32> {
    let of = |cpu: usize| owners.get(cpu).copied().flatten();
    let first = of(cpus.first()?)?;
    cpus.iter().all(|cpu| of(cpu) == Some(first)).then_some(first)
}
