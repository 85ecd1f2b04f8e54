//! Judgements of whole jobs: small machines, two nodes, the site's description.

use std::collections::BTreeSet;

use regatta_discover::systems::system;
use regatta_model::{Gpu, GpuVendor, LinkState, Nic, NicKind};

use super::judge;
use crate::diagnosis::{Check, Finding, Verdict};
use crate::facts::{DeviceNeed, DeviceState, JobFacts, NodeFacts};
use crate::simulated::healthy_job;

/// Faults of the network between nodes and of measured speeds have tests of their own.
const MEASURED: [Check; 4] = [Check::Reachability, Check::Bandwidth, Check::Clocks, Check::Speed];

pub(super) fn findings(facts: &JobFacts) -> Vec<(Check, Finding)> {
    let all = judge(facts, &BTreeSet::from(MEASURED)).checks.into_iter();
    all.flat_map(|result| result.findings.into_iter().map(move |f| (result.check, f))).collect()
}

const GIB: u64 = 1 << 30;

#[test]
fn a_thousand_nodes_are_judged() {
    let mut facts = healthy_job(&system("lumi-g").unwrap(), 1000, 7);
    facts.nodes[123].os.memlock = Some(64 << 10);
    facts.nodes[877].machine.nics[3].state = LinkState::Down;
    let diagnosis = judge(&facts, &BTreeSet::from(MEASURED));
    assert_eq!(diagnosis.bad_nodes, ["nid000123", "nid000877"]);
    assert_eq!(diagnosis.exclude.as_deref(), Some("--exclude=nid[000123,000877]"));
}

/// A laptop or virtual machine: no GPUs, virtual interfaces, small limits.
fn small_machine(host: &str) -> NodeFacts {
    let mut node = NodeFacts { host: host.to_owned(), ..NodeFacts::default() };
    node.machine.nics =
        vec![Nic::new("eth0", NicKind::Virtual), Nic::new("docker0", NicKind::Virtual)];
    node.os.memlock = Some(8 << 20);
    node.os.open_files = Some((1024, 4096));
    node.os.shm_total = Some(64 << 20);
    node.os.shm_free = Some(64 << 20);
    node.os.memory_total = Some(8 * GIB);
    node.os.memory_available = Some(2 * GIB);
    node
}

fn job(nodes: Vec<NodeFacts>) -> JobFacts {
    JobFacts { nodes, ..JobFacts::default() }
}

#[test]
fn small_machines_have_no_findings() {
    assert_eq!(findings(&job(vec![small_machine("laptop")])), []);
    let mut other = small_machine("n2");
    other.machine.nics[1].state = LinkState::Down;
    other.machine.nics.push(Nic::new("veth12ab", NicKind::Virtual));
    assert_eq!(findings(&job(vec![small_machine("n1"), other])), [], "local interfaces differ");
}

#[test]
fn of_two_nodes_the_lower_limit_is_at_fault() {
    let mut low = small_machine("n2");
    low.os.memlock = Some(64 << 10);
    low.machine.nics[0].state = LinkState::Down;
    let found = findings(&job(vec![small_machine("n1"), low]));
    let found: Vec<_> = found.iter().map(|(c, f)| (*c, f.verdict, f.hosts.as_slice())).collect();
    let host = ["n2".to_owned()];
    let expected =
        [(Check::Nics, Verdict::Fail, &host[..]), (Check::Limits, Verdict::Fail, &host[..])];
    assert_eq!(found, expected);
}

#[test]
fn two_nodes_with_other_versions_are_both_named() {
    let with_libfabric = |host: &str, version: &str| {
        let mut node = small_machine(host);
        node.machine.software.libfabric = Some(version.to_owned());
        node
    };
    let found = findings(&job(vec![with_libfabric("n1", "1.15"), with_libfabric("n2", "1.22")]));
    let [(Check::Versions, finding)] = &found[..] else { panic!("{found:?}") };
    let reason = "libfabric version differs between the nodes: 1.15 on n1, 1.22 on n2";
    assert_eq!((finding.hosts.len(), finding.reason.as_str()), (0, reason));
}

#[test]
fn a_cpu_quota_of_all_nodes_is_a_warning() {
    let mut facts = healthy_job(&system("lumi-g").unwrap(), 3, 3);
    facts.nodes.iter_mut().for_each(|node| node.os.cpu_quota = Some(16.0));
    let found = findings(&facts);
    let [(Check::Limits, finding)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((finding.verdict, finding.hosts.len()), (Verdict::Warn, 3));
    let reason = "the cgroup allows less CPU time than the 128 usable CPUs: 16 CPUs";
    assert_eq!(finding.reason, reason);
    facts.nodes[1].os.cpu_quota = Some(4.0);
    assert_eq!(findings(&facts)[0].1.hosts, ["nid000000", "nid000002"], "n1 is slow");
}

#[test]
fn optional_device_files_are_warnings() {
    let mut facts = healthy_job(&system("dgx-h100").unwrap(), 4, 3);
    facts.nodes[1].device_files.retain(|file| file.need != DeviceNeed::Optional);
    let found = findings(&facts);
    let [(Check::DeviceFiles, finding)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(
        (finding.verdict, &finding.hosts[..]),
        (Verdict::Warn, &["nid000001".to_owned()][..])
    );
    assert_eq!(finding.reason, "/dev/gdrdrv (GDRCopy) is missing, but exists on other nodes");
}

#[test]
fn the_site_describes_what_a_single_node_must_have() {
    let mut facts = healthy_job(&system("lumi-g").unwrap(), 1, 3);
    facts.nodes[0].machine.gpus.truncate(6);
    facts.nodes[0].peer_to_peer.gpus_on_node = Some(6);
    facts.nodes[0].machine.nics[0].speed_mbit = Some(100_000);
    let reasons: Vec<String> = findings(&facts).into_iter().map(|(_, f)| f.reason).collect();
    let expected = [
        "fewer GPUs than the 8 that a node of the site has: 6",
        "hsn0 is slower than the site's 200 Gb/s: 100 Gb/s",
    ];
    assert_eq!(reasons, expected);
}

#[test]
fn gpus_of_other_jobs_are_no_defect() {
    let mut facts = healthy_job(&system("lumi-g").unwrap(), 1, 3);
    let node = &mut facts.nodes[0];
    node.machine.gpus.truncate(4);
    node.gpus.truncate(4);
    node.machine.gpu_links.retain(|link| link.b < 4);
    assert_eq!(findings(&facts), []);
    // A variable restricts the job to two GPUs; a third one is in use by another job.
    facts.nodes[0].machine.usable.gpus = Some(vec![0, 1]);
    facts.nodes[0].gpus[3].memory_used = Some(60 * GIB);
    assert_eq!(findings(&facts), []);
}

#[test]
fn slingshot_needs_a_plugin_and_locked_memory() {
    let mut node = small_machine("n1");
    node.machine.gpus = vec![Gpu::new(0, GpuVendor::Amd, "MI250X")];
    node.machine.nics = vec![Nic::new("hsn0", NicKind::Slingshot)];
    let found: Vec<_> =
        findings(&job(vec![node])).iter().map(|(check, f)| (*check, f.verdict)).collect();
    let expected = [
        (Check::SharedMemory, Verdict::Warn),
        (Check::Limits, Verdict::Fail),
        (Check::NetPlugin, Verdict::Warn),
    ];
    assert_eq!(found, expected);
}

#[test]
fn denied_files_without_hardware_are_compared_only() {
    let file = |state| crate::facts::DeviceFile {
        name: "/dev/infiniband/uverbs0".to_owned(),
        needed_by: "RDMA".to_owned(),
        need: DeviceNeed::Unused,
        state,
    };
    let node = |host: &str, files: Vec<_>| NodeFacts { device_files: files, ..small_machine(host) };
    let denied = || vec![file(DeviceState::Denied("No such device or address".to_owned()))];
    let mut nodes = vec![node("n1", denied()), node("n2", denied()), node("n3", denied())];
    assert_eq!(findings(&job(nodes.clone())), []);
    nodes[1] = node("n2", vec![]);
    let found = findings(&job(nodes));
    let [(Check::DeviceFiles, finding)] = &found[..] else { panic!("{found:?}") };
    assert_eq!((finding.verdict, &finding.hosts[..]), (Verdict::Fail, &["n2".to_owned()][..]));
}

#[test]
fn a_file_system_that_counts_nothing_has_no_findings() {
    let mut facts = healthy_job(&system("lumi-g").unwrap(), 2, 3);
    for fs in facts.nodes.iter_mut().flat_map(|node| &mut node.file_systems) {
        (fs.free_bytes, fs.free_inodes) = (Some(0), Some(0));
    }
    assert_eq!(findings(&facts), []);
}

#[test]
fn one_gpu_with_fewer_lanes_is_a_warning() {
    let mut facts = healthy_job(&system("dgx-h100").unwrap(), 1, 3);
    facts.nodes[0].gpus[5].pcie_width = Some((8, 16));
    let found = findings(&facts);
    let [(Check::GpuHealth, finding)] = &found[..] else { panic!("{found:?}") };
    assert_eq!(finding.verdict, Verdict::Warn);
    assert_eq!(finding.reason, "PCIe link of GPU 5 uses fewer lanes than its 16: 8");
    facts.nodes[0].gpus.iter_mut().for_each(|gpu| gpu.pcie_width = Some((8, 16)));
    assert_eq!(findings(&facts), [], "slots with eight lanes");
}

#[test]
fn every_check_is_documented() {
    let page = include_str!("../../../../docs/doctor.md");
    for check in Check::all() {
        assert!(page.contains(&format!("\n| `{}` |", check.name())), "{}", check.name());
    }
}
