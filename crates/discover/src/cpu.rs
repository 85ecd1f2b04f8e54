//! CPU topology from sysfs, and the usable CPUs from the cgroup and the affinity.

use std::collections::BTreeMap;

use regatta_model::{Core, CpuSet, L3Group, Machine, NumaNode, Package, UsableResources};

use crate::procfs;
use crate::sysroot::Sysroot;

const CPU: &str = "/sys/devices/system/cpu";
const NODE: &str = "/sys/devices/system/node";

/// A machine with the CPU topology alone. Without /sys, as in some containers, the topology is unknown: every CPU of
/// the affinity counts as a core, and there are no NUMA nodes.
pub(crate) fn topology(root: &Sysroot) -> Machine {
    let listed = list(root, &format!("{CPU}/online")).unwrap_or_else(|| listed_cpus(root));
    let is_known = !listed.is_empty();
    let online = if is_known { listed } else { affinity(root).unwrap_or_default() };
    let numa = if is_known { numa_nodes(root, &online) } else { Vec::new() };
    let l3 = l3_groups(root, &online);
    let (packages, cores) = cores(root, &online, &numa, &l3);
    let usable = usable_resources(root, online);
    let cpu_model = model(root);
    Machine { cpu_model, packages, numa, l3, cores, usable, ..Machine::default() }
}

/// The CPUs in a file with a list, else in the file with the mask: old kernels and some recorded
/// trees have only masks.
fn list(root: &Sysroot, path: &str) -> Option<CpuSet> {
    root.read_cpus(path, &mask_file(path))
}

/// The file with the mask of a file with a list: `cpumap` of `cpulist`, `shared_cpu_map` of
/// `shared_cpu_list`, `thread_siblings` of `thread_siblings_list`.
fn mask_file(path: &str) -> String {
    match (path.strip_suffix("cpulist"), path.strip_suffix("cpu_list"), path.strip_suffix("_list"))
    {
        (Some(start), ..) => format!("{start}cpumap"),
        (_, Some(start), _) => format!("{start}cpu_map"),
        (.., Some(start)) => start.to_owned(),
        _ => path.to_owned(),
    }
}

/// The `cpuN` directories, for trees recorded without the `online` file.
fn listed_cpus(root: &Sysroot) -> CpuSet {
    let number = |name: String| name.strip_prefix("cpu")?.parse().ok();
    root.list_dir(CPU).into_iter().filter_map(number).collect()
}

fn model(root: &Sysroot) -> Option<String> {
    let text = root.read_text("/proc/cpuinfo")?;
    let value = |key: &str| {
        let line = text.lines().find(|l| l.split(':').next().is_some_and(|k| k.trim() == key))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    };
    value("model name")
        .or_else(|| value("CPU implementer").map(|i| arm_name(&i, value("CPU part"))))
}

/// Arm kernels report numeric IDs; these are the processors of current machines.
fn arm_name(implementer: &str, part: Option<String>) -> String {
    match (implementer, part.as_deref()) {
        ("0x41", Some("0xd4f")) => "Arm Neoverse V2 (NVIDIA Grace)".to_owned(),
        ("0x41", Some("0xd40")) => "Arm Neoverse V1".to_owned(),
        ("0x46", Some("0x001")) => "Fujitsu A64FX".to_owned(),
        (i, p) => format!("implementer {i} part {}", p.unwrap_or("?")),
    }
}

fn numa_nodes(root: &Sysroot, online: &CpuSet) -> Vec<NumaNode> {
    let id = |name: String| name.strip_prefix("node")?.parse::<u32>().ok();
    let ids: Vec<u32> = root.list_dir(NODE).into_iter().filter_map(id).collect();
    if ids.is_empty() {
        let memory_bytes = memory(root, "/proc/meminfo");
        return vec![NumaNode { id: 0, cpus: online.clone(), memory_bytes, distances: vec![] }];
    }
    let node = |id: u32| {
        let dir = format!("{NODE}/node{id}");
        let distances = root.read_text(&format!("{dir}/distance")).unwrap_or_default();
        NumaNode {
            id,
            cpus: list(root, &format!("{dir}/cpulist")).unwrap_or_default().intersection(online),
            memory_bytes: memory(root, &format!("{dir}/meminfo")),
            distances: distances.split_whitespace().filter_map(|d| d.parse().ok()).collect(),
        }
    };
    ids.into_iter().map(node).collect()
}

fn memory(root: &Sysroot, path: &str) -> u64 {
    root.read_text(path).and_then(|text| procfs::memory(&text, "MemTotal:")).unwrap_or(0)
}

fn l3_groups(root: &Sysroot, online: &CpuSet) -> Vec<L3Group> {
    let mut groups: Vec<L3Group> = Vec::new();
    let mut seen = CpuSet::new();
    for cpu in online.iter() {
        if seen.contains(cpu) {
            continue;
        }
        let cache = format!("{CPU}/cpu{cpu}/cache");
        let level = |name: &String| root.read_value::<u32>(&format!("{cache}/{name}/level"));
        let level3 = |name: &String| level(name) == Some(3);
        let Some(index) = root.list_dir(&cache).into_iter().find(level3) else { continue };
        let shared = list(root, &format!("{cache}/{index}/shared_cpu_list"));
        let cpus = shared.unwrap_or_default().intersection(online);
        if cpus.is_empty() {
            continue;
        }
        seen = seen.union(&cpus);
        let size_bytes = root.read_text(&format!("{cache}/{index}/size")).and_then(|s| kib(&s));
        groups.push(L3Group { id: groups.len() as u32, cpus, size_bytes });
    }
    groups
}

/// `32768K` in bytes.
fn kib(text: &str) -> Option<u64> {
    text.strip_suffix('K')?.parse::<u64>().ok()?.checked_mul(1024)
}

fn cores(
    root: &Sysroot,
    online: &CpuSet,
    numa: &[NumaNode],
    l3: &[L3Group],
) -> (Vec<Package>, Vec<Core>) {
    let mut packages: BTreeMap<u32, CpuSet> = BTreeMap::new();
    let mut cores: Vec<Core> = Vec::new();
    let mut seen = CpuSet::new();
    for cpu in online.iter() {
        let topology = format!("{CPU}/cpu{cpu}/topology");
        // Virtual machines may report -1.
        let package = root.read_value(&format!("{topology}/physical_package_id")).unwrap_or(0);
        packages.entry(package).or_default().insert(cpu);
        if seen.contains(cpu) {
            continue;
        }
        let files = ["thread_siblings_list", "core_cpus_list"];
        let siblings = files.iter().find_map(|file| list(root, &format!("{topology}/{file}")));
        let siblings = siblings.unwrap_or_default().intersection(online).difference(&seen);
        let cpus = if siblings.contains(cpu) { siblings } else { CpuSet::range(cpu, cpu) };
        seen = seen.union(&cpus);
        cores.push(Core {
            package,
            numa: numa.iter().find(|n| n.cpus.contains(cpu)).map(|n| n.id),
            l3: l3.iter().find(|g| g.cpus.contains(cpu)).map(|g| g.id),
            cpus,
        });
    }
    let packages = packages.into_iter().map(|(id, cpus)| Package { id, cpus }).collect();
    (packages, cores)
}

fn usable_resources(root: &Sysroot, online: CpuSet) -> UsableResources {
    let narrower = |set: &CpuSet| !online.is_subset(set);
    let (cgroup, memory_nodes) = (cpuset(root, "cpus").filter(narrower), cpuset(root, "mems"));
    let affinity = affinity(root).filter(narrower);
    UsableResources { affinity, cgroup, memory_nodes, online, gpus: None }
}

/// The effective `cpus` or `mems` of the innermost cgroup that has them: the controller may be disabled
/// further down, and in a container the path may lead outside of the mount.
fn cpuset(root: &Sysroot, what: &str) -> Option<CpuSet> {
    let names = [
        format!("cpuset.{what}.effective"),
        format!("cpuset.effective_{what}"),
        format!("cpuset.{what}"),
    ];
    let of_dir = |dir: String| {
        let set = names.iter().find_map(|name| list(root, &format!("{dir}/{name}")));
        set.filter(|set| !set.is_empty())
    };
    procfs::cgroup_dirs(root, "cpuset").into_iter().find_map(of_dir)
}

/// The CPU affinity of this process, or of the recorded one.
fn affinity(root: &Sysroot) -> Option<CpuSet> {
    if root.is_live() { live_affinity() } else { recorded_affinity(root) }
}

fn recorded_affinity(root: &Sysroot) -> Option<CpuSet> {
    let status = root.read_text("/proc/self/status")?;
    status.lines().find_map(|l| l.strip_prefix("Cpus_allowed_list:"))?.parse().ok()
}

/// The CPU affinity of this process. Uses the C library's function, because a preloaded library may
/// interpose it.
pub fn live_affinity() -> Option<CpuSet> {
    let mut words = vec![0u64; regatta_model::cpuset::MAX_CPUS / 64];
    let bytes = std::mem::size_of_val(words.as_slice());
    // SAFETY: `words` is writable for `bytes` bytes, and sched_getaffinity writes at most
    // `bytes` bytes.
    let result = unsafe { libc::sched_getaffinity(0, bytes, words.as_mut_ptr().cast()) };
    if result < 0 {
        return None;
    }
    let bits = |(i, word): (usize, u64)| {
        (0..64).filter(move |b| word & (1 << b) != 0).map(move |b| i * 64 + b)
    };
    Some(words.into_iter().enumerate().flat_map(bits).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake_sysfs::FakeSysfs;

    #[test]
    fn masks_are_read_where_lists_are_missing() {
        let machine = FakeSysfs::new();
        for cpu in 0..4 {
            let dir = format!("/sys/devices/system/cpu/cpu{cpu}");
            let siblings = format!("00000000,0000000{}\n", if cpu % 2 == 0 { "5" } else { "a" });
            machine.file(&format!("{dir}/topology/thread_siblings"), &siblings);
            machine.file(&format!("{dir}/cache/index3/level"), "3\n");
            machine.file(&format!("{dir}/cache/index3/shared_cpu_map"), "00000000,0000000f\n");
        }
        machine.file("/sys/devices/system/node/node0/cpumap", "00000000,0000000f\n");
        let found = topology(&machine.root());
        let cores: Vec<String> = found.cores.iter().map(|core| core.cpus.to_string()).collect();
        assert_eq!(cores, ["0,2", "1,3"]);
        assert_eq!((found.l3.len(), found.l3[0].cpus.to_string()), (1, "0-3".to_owned()));
        assert_eq!(found.numa[0].cpus.to_string(), "0-3");
    }

    #[test]
    fn without_sysfs_the_cores_are_those_of_the_affinity() {
        let machine = FakeSysfs::new();
        machine.file("/proc/self/status", "Name:\tx\nCpus_allowed_list:\t2-3,7\n");
        machine.file("/proc/meminfo", "MemTotal: 9000 kB\n");
        let found = topology(&machine.root());
        let cpus: Vec<String> = found.cores.iter().map(|core| core.cpus.to_string()).collect();
        assert_eq!(cpus, ["2", "3", "7"]);
        assert!(found.cores.iter().all(|core| core.numa.is_none() && core.l3.is_none()));
        assert!(found.numa.is_empty(), "memory must not be bound to a guessed node");
        assert_eq!(found.usable.process_cpus().to_string(), "2-3,7");
    }
}
