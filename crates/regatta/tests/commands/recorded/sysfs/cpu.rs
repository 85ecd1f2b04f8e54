//! /sys/devices/system: CPUs, caches and NUMA nodes. Bitmaps are left out, because the kernel also
//! provides lists and they would double the number of files.

use regatta_model::{Core, CpuSet, Machine, NumaNode};

use super::{SysfsOptions, SysfsTree};

const CPU: &str = "/sys/devices/system/cpu";
const NODE: &str = "/sys/devices/system/node";

/// A machine and its online CPUs.
pub struct OnlineCpus<'a> {
    pub machine: &'a Machine,
    pub online: &'a CpuSet,
}

impl OnlineCpus<'_> {
    /// The online CPUs of a NUMA node.
    pub fn of_node(&self, id: u32) -> CpuSet {
        let node = self.machine.numa.iter().find(|n| n.id == id).unwrap();
        node.cpus.intersection(self.online)
    }

    pub fn write(&self, tree: &SysfsTree) {
        let all = &self.machine.usable.online;
        tree.file(&format!("{CPU}/possible"), all);
        tree.file(&format!("{CPU}/present"), all);
        tree.file(&format!("{CPU}/online"), self.online);
        tree.file(&format!("{CPU}/offline"), all.difference(self.online));
        tree.file(&format!("{CPU}/kernel_max"), 8191);
        let smt = self.machine.cores.iter().any(|c| c.cpus.intersection(self.online).len() > 1);
        tree.file(&format!("{CPU}/smt/active"), u32::from(smt));
        tree.file(&format!("{CPU}/smt/control"), if smt { "on" } else { "off" });
        // Folders that are not CPUs.
        tree.folder(&format!("{CPU}/cpufreq"));
        tree.folder(&format!("{CPU}/cpuidle"));
        for core in &self.machine.cores {
            for cpu in core.cpus.iter() {
                // CPU 0 cannot be taken offline and has no such file.
                if cpu != 0 {
                    let on = u32::from(self.online.contains(cpu));
                    tree.file(&format!("{CPU}/cpu{cpu}/online"), on);
                }
                // An offline CPU keeps an empty folder.
                if self.online.contains(cpu) {
                    self.topology(tree, core, cpu);
                    self.caches(tree, core, cpu);
                }
            }
        }
    }

    fn topology(&self, tree: &SysfsTree, core: &Core, cpu: usize) {
        let package = self.machine.packages.iter().find(|p| p.id == core.package).unwrap();
        let first = package.cpus.first().unwrap();
        let on = |set: &CpuSet| set.intersection(self.online);
        let folder = format!("{CPU}/cpu{cpu}/topology");
        let file = |name: &str, text: String| tree.file(&format!("{folder}/{name}"), text);
        file("physical_package_id", core.package.to_string());
        file("core_id", (core.cpus.first().unwrap() - first).to_string());
        file("thread_siblings_list", on(&core.cpus).to_string());
        file("core_cpus_list", on(&core.cpus).to_string());
        file("package_cpus_list", on(&package.cpus).to_string());
        if let Some(numa) = core.numa {
            tree.link(&format!("{CPU}/cpu{cpu}/node{numa}"), &format!("{NODE}/node{numa}"));
        }
    }

    fn caches(&self, tree: &SysfsTree, core: &Core, cpu: usize) {
        let own = &core.cpus;
        let l3 = core.l3.and_then(|id| self.machine.l3.iter().find(|g| g.id == id));
        let caches = [
            Some((1, "Data", 32, own)),
            Some((1, "Instruction", 32, own)),
            Some((2, "Unified", 512, own)),
            l3.map(|group| (3, "Unified", 32768, &group.cpus)),
        ];
        for (index, (level, kind, kib, shared)) in caches.into_iter().flatten().enumerate() {
            let folder = format!("{CPU}/cpu{cpu}/cache/index{index}");
            let shared = shared.intersection(self.online);
            tree.file(&format!("{folder}/level"), level);
            tree.file(&format!("{folder}/type"), kind);
            tree.file(&format!("{folder}/size"), format!("{kib}K"));
            tree.file(&format!("{folder}/shared_cpu_list"), &shared);
        }
    }

    /// NUMA distance: 10 to itself, more within a socket and across sockets.
    fn distance(&self, a: &NumaNode, b: &NumaNode) -> u32 {
        let packages = |node: &NumaNode| {
            let on = self.machine.packages.iter().filter(|p| p.cpus.intersects(&node.cpus));
            on.map(|p| p.id).collect::<Vec<u32>>()
        };
        match (a.id == b.id, a.cpus.is_empty() || b.cpus.is_empty()) {
            (true, _) => 10,
            (_, true) => 80,
            _ if packages(a) == packages(b) => 12,
            _ => 32,
        }
    }
}

/// Writes the NUMA nodes.
pub fn nodes(tree: &SysfsTree, cpus: &OnlineCpus<'_>, options: &SysfsOptions) {
    let mut nodes: Vec<NumaNode> = cpus.machine.numa.clone();
    if options.empty_mig_nodes {
        let last = nodes.iter().map(|n| n.id).max().unwrap() + 7;
        let known: Vec<u32> = nodes.iter().map(|n| n.id).collect();
        let empty =
            |id| NumaNode { id, cpus: CpuSet::new(), memory_bytes: 0, distances: Vec::new() };
        nodes.extend((0..=last).filter(|id| !known.contains(id)).map(empty));
        nodes.sort_by_key(|n| n.id);
    }
    let list = |keep: &dyn Fn(&&NumaNode) -> bool| {
        nodes.iter().filter(keep).map(|n| n.id as usize).collect::<CpuSet>()
    };
    tree.file(&format!("{NODE}/online"), list(&|_| true));
    tree.file(&format!("{NODE}/possible"), list(&|_| true));
    tree.file(&format!("{NODE}/has_cpu"), list(&|n| !n.cpus.is_empty()));
    tree.file(&format!("{NODE}/has_memory"), list(&|n| n.memory_bytes > 0));
    for node in &nodes {
        let folder = format!("{NODE}/node{}", node.id);
        let on = node.cpus.intersection(cpus.online);
        tree.file(&format!("{folder}/cpulist"), &on);
        tree.file(&format!("{folder}/meminfo"), meminfo(node));
        let distances: Vec<String> =
            nodes.iter().map(|other| cpus.distance(node, other).to_string()).collect();
        tree.file(&format!("{folder}/distance"), distances.join(" "));
    }
}

fn meminfo(node: &NumaNode) -> String {
    let (id, total) = (node.id, node.memory_bytes / 1024);
    let line = |name: &str, kib: u64| format!("Node {id} {name:<16}{kib:>10} kB");
    [
        line("MemTotal:", total),
        line("MemFree:", total / 10 * 9),
        line("MemUsed:", total / 10),
        format!("Node {id} HugePages_Total:     0"),
    ]
    .join("\n")
}
