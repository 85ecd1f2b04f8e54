//! Healthy simulated jobs have no findings, and every planted fault is found on its node.

use std::collections::BTreeSet;

use proptest::prelude::*;
use regatta_discover::systems::system;
use regatta_model::{LinkState, Machine};

use super::judge;
use super::tests::findings;
use crate::diagnosis::{Check, Finding, Verdict};
use crate::facts::{DeviceState, DirectoryUse, FileSystem, GpuProcess, Leftover, NodeFacts};
use crate::simulated::healthy_job;

/// A fault of one node, the check that finds it, and its verdict.
struct Fault {
    name: &'static str,
    check: Check,
    verdict: Verdict,
    plant: fn(&mut NodeFacts),
}

const fn fail(name: &'static str, check: Check, plant: fn(&mut NodeFacts)) -> Fault {
    Fault { name, check, verdict: Verdict::Fail, plant }
}

const fn warn(name: &'static str, check: Check, plant: fn(&mut NodeFacts)) -> Fault {
    Fault { name, check, verdict: Verdict::Warn, plant }
}

fn temporary(node: &mut NodeFacts) -> &mut FileSystem {
    let is_temporary = |fs: &&mut FileSystem| fs.used_for == DirectoryUse::Temporary;
    node.file_systems.iter_mut().find(is_temporary).unwrap()
}

fn not_written(fs: &mut FileSystem, error: &str) {
    (fs.write_rate, fs.sync_seconds) = (None, None);
    fs.error = Some(error.to_owned());
}

const GIB: u64 = 1 << 30;

/// Faults of systems with several GPUs and NICs.
const FAULTS: &[Fault] = &[
    fail("lost GPU", Check::Gpus, |n| {
        n.machine.gpus.pop();
        n.gpus.pop();
        n.peer_to_peer.gpus_on_node = Some(n.machine.gpus.len() as u32);
    }),
    fail("GPU that the driver does not list", Check::Gpus, |n| {
        n.machine.gpus.pop();
    }),
    fail("other GPU", Check::Gpus, |n| n.machine.gpus[2].name = "NVIDIA L4".to_owned()),
    fail("MIG mode", Check::Gpus, |n| n.machine.gpus[0].mig = true),
    fail("unreadable GPU", Check::GpuHealth, |n| {
        n.gpus[1].error = Some("GPU is lost".to_owned());
    }),
    fail("uncorrectable errors", Check::GpuHealth, |n| n.gpus[1].uncorrectable_errors = Some(3)),
    fail("pending remapping", Check::GpuHealth, |n| n.gpus[1].remap_pending = Some(true)),
    fail("failed remapping", Check::GpuHealth, |n| n.gpus[1].remap_failed = Some(true)),
    fail("throttling", Check::GpuHealth, |n| {
        n.gpus[0].throttle_reasons = vec!["hw-thermal-slowdown".to_owned()];
    }),
    warn("hot GPU", Check::GpuHealth, |n| n.gpus[0].temperature = Some(95)),
    fail("low power limit", Check::GpuHealth, |n| n.gpus[0].power_limit = Some(300)),
    warn("lower power limit", Check::GpuHealth, |n| n.gpus[0].power_limit = Some(600)),
    warn("low clock", Check::GpuHealth, |n| n.gpus[0].max_clock = Some(900)),
    fail("slow PCIe link", Check::GpuHealth, |n| n.gpus[0].pcie_generation = Some((3, 3))),
    fail("prohibited GPU", Check::GpuHealth, |n| {
        n.gpus[0].compute_mode = Some("prohibited".to_owned());
    }),
    fail("GPU memory in use", Check::GpuHealth, |n| {
        n.gpus[3].memory_used = Some(40 * GIB);
        let process = GpuProcess { pid: 7, command: None, uid: None, memory: None };
        n.gpus[3].processes = vec![process];
    }),
    warn("GPUs per task", Check::PeerToPeer, |n| {
        n.peer_to_peer.gpu_binding = Some(("SLURM_GPUS_PER_TASK".to_owned(), "1".to_owned()));
    }),
    fail("lost GPU link", Check::PeerToPeer, |n| {
        n.machine.gpu_links.pop();
    }),
    fail("NIC down", Check::Nics, |n| n.machine.nics[1].state = LinkState::Down),
    fail("missing NIC", Check::Nics, |n| {
        n.machine.nics.remove(1);
    }),
    fail("slow NIC", Check::Nics, |n| n.machine.nics[1].speed_mbit = Some(100_000)),
    fail("slow PCIe link of a NIC", Check::Nics, |n| n.nics[0].pcie_width = Some((8, 16))),
    fail("errors during the tests", Check::NicErrors, |n| {
        n.nics[0].new_errors = vec![("symbol_error".to_owned(), 5000)];
    }),
    fail("link lost during the tests", Check::NicErrors, |n| {
        n.nics[0].new_errors = vec![("link_downed".to_owned(), 1)];
    }),
    warn("many errors since the boot", Check::NicErrors, |n| {
        n.nics[0].errors = vec![("symbol_error".to_owned(), 1_000_000)];
    }),
    fail("MTU", Check::Mtu, |n| n.nics[0].mtu = Some(1500)),
    fail("full disk", Check::FileSystems, |n| {
        not_written(temporary(n), "No space left on device");
        temporary(n).free_bytes = Some(0);
    }),
    fail("almost full disk", Check::FileSystems, |n| temporary(n).free_bytes = Some(GIB / 2)),
    fail("no inodes", Check::FileSystems, |n| {
        not_written(temporary(n), "No space left on device");
        temporary(n).free_inodes = Some(0);
    }),
    fail("read-only file system", Check::FileSystems, |n| {
        not_written(temporary(n), "Read-only file system");
    }),
    fail("dead file system", Check::FileSystems, |n| {
        not_written(&mut n.file_systems[0], "timed out after 20 s");
        (n.file_systems[0].free_bytes, n.file_systems[0].timed_out) = (None, true);
    }),
    fail("file system not mounted", Check::FileSystems, |n| {
        n.file_systems[0].kind = Some("xfs".to_owned());
    }),
    fail("slow disk", Check::FileSystemSpeed, |n| temporary(n).write_rate = Some(5e6)),
    warn("slower disk", Check::FileSystemSpeed, |n| temporary(n).write_rate = Some(6e7)),
    warn("slow small files", Check::FileSystemSpeed, |n| temporary(n).sync_seconds = Some(4.0)),
    fail("tiny /dev/shm", Check::SharedMemory, |n| {
        (n.os.shm_total, n.os.shm_free) = (Some(64 << 20), Some(64 << 20));
    }),
    fail("full /dev/shm", Check::SharedMemory, |n| n.os.shm_free = Some(4096)),
    fail("/dev/shm not writable", Check::SharedMemory, |n| {
        n.os.shm_error = Some("Permission denied".to_owned());
    }),
    fail("low memlock", Check::Limits, |n| n.os.memlock = Some(64 << 10)),
    warn("few open files", Check::Limits, |n| n.os.open_files = Some((1024, 65_536))),
    warn("few processes", Check::Limits, |n| n.os.max_processes = Some(4096)),
    warn("CPU frequency", Check::Limits, |n| n.os.cpu_governor = Some("powersave".to_owned())),
    fail("lost memory", Check::Memory, |n| {
        n.os.memory_total = n.os.memory_total.map(|total| total / 2);
        n.os.memory_available = n.os.memory_total;
    }),
    fail("memory in use", Check::Memory, |n| n.os.memory_available = Some(GIB)),
    fail("memory limit", Check::Memory, |n| n.os.memory_limit = Some(16 * GIB)),
    warn("memory errors", Check::Memory, |n| n.os.memory_errors = Some(2)),
    fail("missing device file", Check::DeviceFiles, |n| {
        n.device_files.last_mut().unwrap().state = DeviceState::Missing;
    }),
    fail("unlisted device file", Check::DeviceFiles, |n| {
        n.device_files.pop();
    }),
    fail("denied device file", Check::DeviceFiles, |n| {
        n.device_files[0].state = DeviceState::Denied("Permission denied".to_owned());
    }),
    fail("other library", Check::Versions, |n| {
        n.machine.software.libfabric = Some("1.15.2".to_owned());
    }),
    fail("missing library", Check::Versions, |n| n.machine.software.libfabric = None),
    warn("other kernel", Check::Versions, |n| {
        n.machine.os.kernel = Some("5.14.21-150400".to_owned());
    }),
    fail("no plug-in", Check::NetPlugin, |n| n.net_plugin = None),
    fail("other plug-in", Check::NetPlugin, |n| {
        n.net_plugin.as_mut().unwrap().digest = Some("0".to_owned());
    }),
    fail("plug-in not loadable", Check::NetPlugin, |n| {
        let error = "libfabric.so.1: cannot open shared object file".to_owned();
        n.net_plugin.as_mut().unwrap().load_error = Some(error);
    }),
    fail("plug-in of another version", Check::NetPlugin, |n| {
        n.net_plugin.as_mut().unwrap().net_versions = vec![3, 4];
    }),
    fail("process of an earlier job", Check::Leftovers, |n| {
        n.leftovers.push(Leftover::Process {
            pid: 4242,
            command: "python train.py".to_owned(),
            seconds: 90_000,
            cpu_percent: 100,
            holds: vec!["gpu".to_owned()],
        });
    }),
    warn("shared memory of an earlier job", Check::Leftovers, |n| {
        let path = "/dev/shm/nccl-x8Kd2a".to_owned();
        n.leftovers.push(Leftover::SharedMemory { path, bytes: 10 << 20 });
    }),
    warn("System V segment of an earlier job", Check::Leftovers, |n| {
        n.leftovers.push(Leftover::SystemV { id: 5, bytes: 4 << 20 });
    }),
];

/// A system with several GPUs, GPU links and NICs; half of them without the site's description.
fn any_system() -> impl Strategy<Value = Machine> {
    let names = prop::sample::select(vec!["lumi-g", "frontier", "perlmutter", "dgx-h100"]);
    (names, any::<bool>()).prop_map(|(name, is_known)| {
        let machine = system(name).unwrap();
        Machine { system: machine.system.clone().filter(|_| is_known), ..machine }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn healthy_jobs_have_no_findings(system in any_system(), nodes in 1u32..=200, seed: u64) {
        let diagnosis = judge(&healthy_job(&system, nodes, seed), &BTreeSet::new());
        let found: Vec<Finding> = diagnosis.checks.into_iter().flat_map(|c| c.findings).collect();
        prop_assert_eq!(found, vec![]);
    }

    #[test]
    fn planted_faults_are_found_on_their_node(
        system in any_system(),
        nodes in 3u32..40,
        fault in prop::sample::select((0..FAULTS.len()).collect::<Vec<_>>()),
        place: prop::sample::Index,
        seed: u64,
    ) {
        let fault = &FAULTS[fault];
        let mut facts = healthy_job(&system, nodes, seed);
        let bad = place.index(facts.nodes.len());
        (fault.plant)(&mut facts.nodes[bad]);
        let host = facts.nodes[bad].host.clone();
        let found = findings(&facts);
        let is_fault = |(check, f): &&(Check, Finding)| {
            *check == fault.check && f.verdict == fault.verdict
        };
        prop_assert!(found.iter().any(|f| is_fault(&f)), "{}: {found:?}", fault.name);
        let hosts = |f: &(Check, Finding)| f.1.hosts == [host.clone()];
        prop_assert!(found.iter().all(hosts), "{} on {host}: {found:?}", fault.name);
        let reasons: BTreeSet<Check> = found.iter().map(|(check, _)| *check).collect();
        prop_assert_eq!(reasons, BTreeSet::from([fault.check]), "{}", fault.name);
    }
}

#[test]
fn every_fault_is_found_on_every_system() {
    for name in ["lumi-g", "dgx-h100"] {
        for fault in FAULTS {
            let mut facts = healthy_job(&system(name).unwrap(), 4, 1);
            (fault.plant)(&mut facts.nodes[2]);
            let found = findings(&facts);
            let is_found = found.iter().any(|(check, f)| {
                (*check, f.verdict) == (fault.check, fault.verdict) && f.hosts == ["nid000002"]
            });
            assert!(is_found, "{} on {name}: {found:?}", fault.name);
            assert!(found.iter().all(|(_, f)| !f.fix.is_empty() && !f.reason.is_empty()));
        }
    }
}
