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
    let checks = Check::ALL.into_iter().filter(|check| !skip.contains(check));
    let checks: Vec<CheckResult> = checks.map(|check| run(check, facts)).collect();
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

fn run(check: Check, facts: &JobFacts) -> CheckResult {
    match check {
        Check::Nodes => nodes::judge(facts),
        Check::Reachability => network::reachability(facts),
        Check::Bandwidth => network::bandwidth(facts),
        Check::Clocks => network::clocks(facts),
        Check::Speed => speed::judge(facts),
        Check::Gpus => gpus::judge(facts),
        Check::GpuHealth => gpu_health::judge(facts),
        Check::PeerToPeer => peer_to_peer::judge(facts),
        Check::Nics => nics::judge(facts),
        Check::NicErrors => nic_errors::judge(facts),
        Check::Mtu => mtu::judge(facts),
        Check::FileSystems => file_systems::judge(facts),
        Check::FileSystemSpeed => file_system_speed::judge(facts),
        Check::SharedMemory => shared_memory::judge(facts),
        Check::Limits => limits::judge(facts),
        Check::Memory => memory::judge(facts),
        Check::DeviceFiles => device_files::judge(facts),
        Check::Versions => versions::judge(facts),
        Check::NetPlugin => net_plugin::judge(facts),
        Check::Leftovers => leftovers::judge(facts),
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
