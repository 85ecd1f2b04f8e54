//! Recorded machines: the sysfs files of each built-in system give the same plan as its description.

mod corrupt;
mod dump;
mod sysfs;

use regatta_model::{CpuSet, Gpu, Machine, MemoryPolicy, Nic, NicKind, PlacedRank, document};
use sysfs::{IntelDriver, SysfsOptions, SysfsTree};

use crate::support::{MapOutput, SYSTEMS, map_json, run_line};

/// The description of a built-in system.
fn system(name: &str) -> Machine {
    document::from_json(&run_line(&format!("map --system {name} --dump -")).ok()).unwrap()
}

fn plan_of(tree: &SysfsTree, words: &str) -> MapOutput {
    map_json(&format!("--machine {} {words}", tree.arg()))
}

/// Asserts that GPUs, NICs and placement are those of the built-in system.
fn assert_same_as_described(name: &str, found: &MapOutput) {
    let described = map_json(&format!("--system {name}"));
    // NVIDIA's files lack the memory size, which NVML reports on a live machine.
    let has_memory = !described.machine().gpus[0].name.contains("NVIDIA");
    let gpus = |plan: &MapOutput| {
        let gpu = |g: &Gpu| {
            let memory = g.memory_bytes.filter(|_| has_memory);
            (g.index, g.vendor, g.numa, g.cpus.to_string(), memory, g.card, g.subdevice)
        };
        plan.machine().gpus.iter().map(gpu).collect::<Vec<_>>()
    };
    assert_eq!(gpus(found), gpus(&described), "{name}");
    let nics = |plan: &MapOutput| {
        let nic = |n: &Nic| {
            (n.name.clone(), n.kind, n.fabric_device.clone(), n.numa, n.speed_mbit, n.state)
        };
        let fabric = plan.machine().nics.iter().filter(|n| n.kind != NicKind::Ethernet);
        fabric.map(nic).collect::<Vec<_>>()
    };
    assert_eq!(nics(found), nics(&described), "{name}");
    assert_same_ranks(name, found, &described);
}

fn assert_same_ranks(name: &str, found: &MapOutput, described: &MapOutput) {
    for (f, d) in found.ranks().iter().zip(described.ranks()) {
        let key = |r: &PlacedRank| {
            (r.gpus.clone(), r.cpus.to_string(), r.mask.clone(), r.numa.clone(), r.nic.clone())
        };
        assert_eq!(key(f), key(d), "{name} local rank {}", f.local_rank);
        assert_eq!(f.memory, d.memory, "{name}");
        assert_eq!(f.omp_num_threads, d.omp_num_threads, "{name}");
    }
    assert_eq!(found.ranks().len(), described.ranks().len(), "{name}");
    assert_eq!(found.layout().reserved, described.layout().reserved, "{name}");
}

#[test]
fn sysfs_files_of_every_system_give_its_published_plan() {
    for name in SYSTEMS {
        let tree = SysfsTree::of(&system(name));
        let found = plan_of(&tree, &format!("--site {name}"));
        assert_same_as_described(name, &found);
        assert_eq!(found.machine().notes, [""; 0], "{name}");
    }
}

#[test]
fn tiles_are_discovered_with_both_intel_drivers() {
    let options = SysfsOptions { intel: IntelDriver::Xe, ..Default::default() };
    let tree = SysfsTree::with_options(&system("aurora"), &options);
    assert_same_as_described("aurora", &plan_of(&tree, "--site aurora"));
}

#[test]
fn sites_are_detected_by_hardware_and_domain() {
    let tree = SysfsTree::of(&system("lumi-g"));
    tree.file("/etc/resolv.conf", "search lumi.csc.fi\nnameserver 10.0.0.1");
    let text = run_line(&format!("map --machine {}", tree.arg())).ok();
    assert!(text.starts_with("site     lumi-g ("), "{text:.80}");
    let masks: Vec<String> = plan_of(&tree, "").ranks().iter().map(|r| r.mask.clone()).collect();
    assert_eq!(masks, regatta_testbed::lumi::MASKS);
}

#[test]
fn offline_sibling_threads_are_not_used() {
    let options = SysfsOptions { offline: "64-127".parse().unwrap(), ..Default::default() };
    let lumi = SysfsTree::with_options(&system("lumi-g"), &options);
    let lumi = plan_of(&lumi, "--site lumi-g --smt all");
    assert_eq!(lumi.cpus()[..3], ["49-55", "57-63", "17-23"]);
    assert_eq!(lumi.machine().gpus[0].cpus.to_string(), "48-63");
    assert_eq!(lumi.machine().threads_per_core(), 1);
    let perlmutter = SysfsTree::with_options(&system("perlmutter"), &options);
    let perlmutter = plan_of(&perlmutter, "--site perlmutter");
    assert_eq!(perlmutter.cpus(), ["48-63", "32-47", "16-31", "0-15"]);
}

#[test]
fn offline_cpus_are_not_used() {
    let off = "3,17-18,40-47,67,81-82,104-111";
    let options = SysfsOptions { offline: off.parse().unwrap(), ..Default::default() };
    let tree = SysfsTree::with_options(&system("lumi-g"), &options);
    let found = plan_of(&tree, "--site lumi-g");
    assert_eq!(found.machine().cores.len(), 64 - 11);
    // Each rank stays on its NUMA node, and ranks of one NUMA node get equally many cores.
    let offline: CpuSet = off.parse().unwrap();
    let numa = [3, 3, 1, 1, 0, 0, 2, 2];
    let mut seen = CpuSet::new();
    for (rank, numa) in found.ranks().iter().zip(numa) {
        assert!(!rank.cpus.intersects(&offline), "{}", rank.cpus);
        assert!(!rank.cpus.intersects(&seen), "{}", rank.cpus);
        assert_eq!(rank.numa, [numa]);
        seen = seen.union(&rank.cpus);
    }
    assert_eq!(found.cpus()[6..], ["33-35", "36-38"], "the rest of the half-offline NUMA node");
    let counts: Vec<usize> = found.ranks().iter().map(|r| r.cpus.len()).collect();
    assert!(counts.chunks(2).all(|pair| pair[0] == pair[1]), "{counts:?}");
}

/// Asserts that all ranks are bound inside the cpuset.
fn assert_inside_cpuset(tree: &SysfsTree, cpus: &str) -> MapOutput {
    let allowed: CpuSet = cpus.parse().unwrap();
    let found = plan_of(tree, "--site lumi-g");
    assert_eq!(found.machine().usable.cgroup.as_ref(), Some(&allowed));
    for rank in found.ranks() {
        assert!(!rank.cpus.is_empty() && rank.cpus.is_subset(&allowed), "{}", rank.cpus);
    }
    found
}

#[test]
fn ranks_stay_inside_a_partial_cpuset() {
    let machine = system("lumi-g");
    // NUMA nodes 0 and 3, without the first core of each L3 cache.
    let cpus = "1-7,9-15,49-55,57-63";
    let check = |tree: &SysfsTree| {
        let found = assert_inside_cpuset(tree, cpus);
        // The ranks of GPUs 2, 3, 6 and 7 have no local core, but get as many as the others.
        let cpus = found.cpus();
        assert_eq!([&cpus[0], &cpus[1], &cpus[4], &cpus[5]], ["49-51", "57-59", "1-3", "9-11"]);
        assert!(found.ranks().iter().all(|r| r.cpus.len() == 3), "{cpus:?}");
        found.assert_warning("remote-cores");
        for rank in found.ranks() {
            assert_eq!(rank.memory, MemoryPolicy::Prefer(rank.numa.clone()));
        }
    };
    let tree = SysfsTree::of(&machine);
    tree.cgroup_v1("/slurm/uid_1000/job_4711/step_0", cpus, "0,3");
    check(&tree);
    let tree = SysfsTree::of(&machine);
    tree.cgroup_v2("/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0", cpus, "0,3");
    check(&tree);
}

#[test]
fn cpuset_is_found_if_the_cgroup_path_is_not_visible() {
    let machine = system("lumi-g");
    let cpus = "1-7,9-15";
    // A container with its own cgroup namespace.
    let tree = SysfsTree::of(&machine);
    tree.cgroup_v2("/", cpus, "0");
    assert_inside_cpuset(&tree, cpus);
    // The innermost cgroups have no cpuset.
    let tree = SysfsTree::of(&machine);
    tree.cgroup_v2("/slurm/job_1", cpus, "0");
    tree.file("/proc/self/cgroup", "0::/slurm/job_1/step_0/user/task_3");
    tree.file("/sys/fs/cgroup/slurm/job_1/step_0/cgroup.procs", "4242");
    assert_inside_cpuset(&tree, cpus);
    // Docker with cgroup v1: the path is the host's, the mount the container's.
    let tree = SysfsTree::of(&machine);
    tree.cgroup_v1("", cpus, "0");
    tree.file("/proc/self/cgroup", "5:cpuset:/docker/0123456789abcdef");
    assert_inside_cpuset(&tree, cpus);
}

#[test]
fn memory_policy_respects_the_cgroup() {
    let tree = SysfsTree::of(&system("lumi-g"));
    tree.cgroup_v2("/job", "0-127", "0-1");
    let found = plan_of(&tree, "--site lumi-g");
    assert_eq!(found.machine().usable.cgroup, None, "all CPUs: no restriction");
    assert_eq!(found.ranks()[0].memory, MemoryPolicy::Default, "node 3 is not allowed");
    assert_eq!(found.ranks()[2].memory, MemoryPolicy::Prefer(vec![1]));
}

#[test]
fn devices_without_numa_node_share_all_cores_equally() {
    let options = SysfsOptions { no_pci_numa: true, ..Default::default() };
    let tree = SysfsTree::with_options(&system("perlmutter"), &options);
    let found = plan_of(&tree, "--site perlmutter");
    assert!(found.machine().gpus.iter().all(|g| g.numa.is_none()));
    assert!(found.machine().nics.iter().all(|n| n.numa.is_none()));
    // Locality is unknown, so each rank gets an equal share of all cores.
    let sizes: Vec<usize> = found.ranks().iter().map(|r| r.cpus.len()).collect();
    assert_eq!(sizes, [32; 4]);
    assert!(found.layout().idle.is_empty());
    // PCI switches still determine the nearest NIC.
    let nics: Vec<&str> = found.ranks().iter().map(|r| r.nic.as_deref().unwrap()).collect();
    assert_eq!(nics, ["hsn3", "hsn2", "hsn1", "hsn0"]);
}

#[test]
fn single_numa_node_is_local_to_every_gpu() {
    let mut machine = system("cpu:1x1x16");
    let dgx = system("dgx-h100");
    machine.nics = dgx.nics[..2].to_vec();
    machine.gpus = dgx.gpus[..2].to_vec();
    machine.gpus.iter_mut().for_each(|g| g.nic_distance.truncate(2));
    let options = SysfsOptions { no_pci_numa: true, ..Default::default() };
    let tree = SysfsTree::with_options(&machine, &options);
    assert_eq!(plan_of(&tree, "").cpus(), ["0-7", "8-15"]);
    // A kernel without NUMA support has no node folders.
    tree.remove("/sys/devices/system/node");
    let found = plan_of(&tree, "");
    assert_eq!(found.cpus(), ["0-7", "8-15"]);
    assert_eq!(found.machine().numa[0].memory_bytes, machine.numa[0].memory_bytes);
}

#[test]
fn empty_mig_numa_nodes_of_gh200_are_ignored() {
    let options = SysfsOptions { empty_mig_nodes: true, ..Default::default() };
    let tree = SysfsTree::with_options(&system("alps"), &options);
    let found = plan_of(&tree, "--site alps");
    assert_eq!(found.machine().numa.len(), 36);
    assert_same_as_described("alps", &found);
    let text = run_line(&format!("map --machine {} --site alps", tree.arg())).ok();
    assert!(!text.contains("NUMA 5"), "empty nodes are not drawn:\n{text}");
}

#[test]
fn container_is_reported() {
    let tree = SysfsTree::of(&system("polaris"));
    assert_eq!(plan_of(&tree, "").machine().os.container, None);
    tree.file("/.dockerenv", "");
    let found = plan_of(&tree, "--site polaris");
    assert_eq!(found.machine().os.container.as_deref(), Some("docker"));
    assert_same_as_described("polaris", &found);
    run_line(&format!("map --machine {}", tree.arg()))
        .assert_ok("inside docker, memlock unlimited, /dev/shm 252 GiB");
}

#[test]
fn nearly_empty_tree_gives_a_clear_error() {
    let tree = SysfsTree::empty();
    let run = || run_line(&format!("map --machine {}", tree.arg()));
    run().assert_error("nor a directory that contains sys/devices/system/cpu");
    tree.folder("/sys/devices/system/cpu");
    run().assert_error("no usable core");
    // One file is enough for a plan.
    tree.file("/sys/devices/system/cpu/online", "0-3");
    assert_eq!(plan_of(&tree, "").cpus(), ["0-3"]);
    tree.remove("/sys/devices/system/cpu/online");
    (0..4).for_each(|cpu| tree.folder(&format!("/sys/devices/system/cpu/cpu{cpu}")));
    assert_eq!(plan_of(&tree, "").cpus(), ["0-3"]);
}
