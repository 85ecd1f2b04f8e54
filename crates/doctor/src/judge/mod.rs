//! Judgements over the facts of all nodes. No I/O.
//!
//! Thresholds are relative where possible: to the other nodes of the job, because most of them are
//! healthy, and to the machine as its site describes it.

mod blame;
mod device_files;
#[cfg(test)]
mod fault_tests;
mod file_system_speed;
mod file_systems;
mod findings;
mod gpu_health;
mod gpus;
mod leftovers;
mod limits;
pub mod majority;
mod memory;
mod mtu;
mod net_plugin;
mod network;
mod nic_errors;
mod nics;
mod nodes;
mod peer_to_peer;
mod shared_memory;
mod speed;
#[cfg(test)]
mod tests;
mod versions;

use std::collections::BTreeSet;

use regatta_model::{Scheduler, hostlist};

use crate::diagnosis::{Check, CheckResult, Diagnosis, Verdict};
use crate::facts::JobFacts;

/// Judges the nodes of a job by all checks but `skip`.
pub fn judge(facts: &JobFacts, skip: &BTreeSet<Check>) -> Diagnosis {
    let wanted = CHECKS.iter().filter(|(check, ..)| !skip.contains(check));
    let checks: Vec<CheckResult> = wanted.map(|(.., judge)| judge(facts)).collect();
    let bad_nodes = bad_nodes(facts, &checks);
    Diagnosis {
        verdict: checks.iter().map(|c| c.verdict).max().unwrap_or(Verdict::Skip),
        nodes: facts.nodes.len() + facts.missing.len(),
        exclude: exclude_option(facts.scheduler, &bad_nodes),
        bad_nodes,
        checks,
        notes: notes(facts),
    }
}

/// A check, its name, and how it judges the nodes of a job.
type Entry = (Check, &'static str, fn(&JobFacts) -> CheckResult);

/// All checks, in the order of the report.
const CHECKS: [Entry; 20] = [
    (Check::Nodes, "nodes", nodes::judge),
    (Check::Gpus, "gpus", gpus::judge),
    (Check::GpuHealth, "gpu-health", gpu_health::judge),
    (Check::PeerToPeer, "peer-to-peer", peer_to_peer::judge),
    (Check::Nics, "nics", nics::judge),
    (Check::NicErrors, "nic-errors", nic_errors::judge),
    (Check::Mtu, "mtu", mtu::judge),
    (Check::Reachability, "reachability", network::reachability),
    (Check::Bandwidth, "bandwidth", network::bandwidth),
    (Check::Clocks, "clocks", network::clocks),
    (Check::FileSystems, "file-systems", file_systems::judge),
    (Check::FileSystemSpeed, "file-system-speed", file_system_speed::judge),
    (Check::SharedMemory, "shared-memory", shared_memory::judge),
    (Check::Limits, "limits", limits::judge),
    (Check::Memory, "memory", memory::judge),
    (Check::DeviceFiles, "device-files", device_files::judge),
    (Check::Versions, "versions", versions::judge),
    (Check::NetPlugin, "net-plugin", net_plugin::judge),
    (Check::Leftovers, "leftovers", leftovers::judge),
    (Check::Speed, "speed", speed::judge),
];

impl Check {
    /// All checks, in the order of the report.
    pub fn all() -> impl Iterator<Item = Self> {
        CHECKS.iter().map(|(check, ..)| *check)
    }

    /// The name in reports and of `--skip`.
    pub fn name(self) -> &'static str {
        CHECKS.iter().find(|(check, ..)| *check == self).map_or("", |(_, name, _)| name)
    }
}

/// The hosts of failed findings, in the order of the job.
fn bad_nodes(facts: &JobFacts, checks: &[CheckResult]) -> Vec<String> {
    let findings = checks.iter().flat_map(|check| &check.findings);
    let failed = findings.filter(|finding| finding.verdict == Verdict::Fail);
    let hosts: BTreeSet<&str> = failed.flat_map(|f| f.hosts.iter().map(String::as_str)).collect();
    let missing = facts.missing.iter().map(|node| &node.host);
    let all = facts.nodes.iter().map(|node| &node.host).chain(missing);
    all.filter(|host| hosts.contains(host.as_str())).cloned().collect()
}

/// The option that keeps a new job off these nodes. PBS has none.
fn exclude_option(scheduler: Option<Scheduler>, hosts: &[String]) -> Option<String> {
    if hosts.is_empty() {
        return None;
    }
    let list = hostlist::compress(hosts);
    match scheduler? {
        Scheduler::Slurm => Some(format!("--exclude={list}")),
        Scheduler::Flux => Some(format!("--requires=-host:{list}")),
        Scheduler::Pbs | Scheduler::Hostfile | Scheduler::None => None,
    }
}

/// The notes of all nodes; one that all nodes have is given once.
fn notes(facts: &JobFacts) -> Vec<String> {
    let mut notes: Vec<(&str, Vec<&str>)> = Vec::new();
    let all = facts.nodes.iter().flat_map(|node| node.notes.iter().map(|note| (note, &node.host)));
    for (note, host) in all {
        match notes.iter_mut().find(|(known, _)| known == note) {
            Some((_, hosts)) => hosts.push(host),
            None => notes.push((note, vec![host])),
        }
    }
    let text = |(note, hosts): (&str, Vec<&str>)| match hosts.len() == facts.nodes.len() {
        true => note.to_owned(),
        false => format!("{}: {note}", hostlist::compress(&hosts)),
    };
    notes.into_iter().map(text).collect()
}
