//! Limits of processes: locked memory, open files, processes, CPU time.

use regatta_model::units::format_bytes;
use regatta_model::{LinkState, NicKind};

use super::findings::{Findings, upper_median};
use super::majority::Groups;
use crate::diagnosis::{Check, CheckResult, Verdict};
use crate::facts::{JobFacts, NodeFacts, OsFacts};

/// Locked memory that RDMA needs at least.
const MIN_MEMLOCK: u64 = 1 << 30;
/// Hard limit of open files.
const FAIL_OPEN_FILES: u64 = 1024;
const WARN_OPEN_FILES: u64 = 4096;
/// Processes and threads of the user.
const WARN_PROCESSES: u64 = 1024;
/// Less than this share of the other nodes' limit.
const MIN_SHARE: f64 = 0.5;

const MEMLOCK_FIX: &str = "`ulimit -l unlimited`; set memlock in /etc/security/limits.conf, for Slurm \
                           LimitMEMLOCK=infinity in slurmd's unit and \
                           PropagateResourceLimitsExcept=MEMLOCK, in containers --ulimit memlock=-1";

const LIMIT_FIX: &str =
    "raise it in /etc/security/limits.conf or the unit of the scheduler's daemon";

pub(super) fn judge(facts: &JobFacts) -> CheckResult {
    let mut findings = Findings::default();
    let limits = [
        Limit {
            name: "memlock limit",
            value: |os| os.memlock,
            verdict: Verdict::Fail,
            format: bytes,
            fix: MEMLOCK_FIX,
        },
        Limit {
            name: "limit of open files",
            value: hard_files,
            verdict: Verdict::Warn,
            format: count,
            fix: LIMIT_FIX,
        },
        Limit {
            name: "limit of processes",
            value: |os| os.max_processes,
            verdict: Verdict::Warn,
            format: count,
            fix: LIMIT_FIX,
        },
    ];
    for limit in limits {
        limit.compare(facts, &mut findings);
    }
    let memlock = upper_median(facts.nodes.iter().filter_map(|n| n.os.memlock).map(|m| m as f64));
    for node in &facts.nodes {
        judge_node(node, memlock.unwrap_or(0.0), &mut findings);
    }
    judge_quota(facts, &mut findings);
    let governors = facts.nodes.iter().map(|n| (n.host.as_str(), n.os.cpu_governor.as_deref()));
    let fix = "`cpupower frequency-set -g performance` as root";
    findings.add_differing(Verdict::Warn, "CPU frequency policy", &Groups::new(governors), fix);
    match memlock {
        Some(memlock) => {
            let summary = format!("memlock {}", bytes(memlock as u64));
            CheckResult::new(Check::Limits, summary, findings.into_list())
        }
        None => CheckResult::skipped(Check::Limits, "unknown"),
    }
}

fn hard_files(os: &OsFacts) -> Option<u64> {
    os.open_files.map(|(_, hard)| hard)
}

fn bytes(value: u64) -> String {
    if value == u64::MAX { "unlimited".to_owned() } else { format_bytes(value) }
}

fn count(value: u64) -> String {
    if value == u64::MAX { "unlimited".to_owned() } else { value.to_string() }
}

/// A limit that should not be far below the other nodes'.
struct Limit {
    name: &'static str,
    value: fn(&OsFacts) -> Option<u64>,
    verdict: Verdict,
    format: fn(u64) -> String,
    fix: &'static str,
}

impl Limit {
    fn compare(&self, facts: &JobFacts, findings: &mut Findings) {
        let values = facts.nodes.iter().filter_map(|node| (self.value)(&node.os));
        let Some(usual) = upper_median(values.map(|value| value as f64)) else { return };
        for node in &facts.nodes {
            let Some(value) = (self.value)(&node.os) else { continue };
            if (value as f64) < MIN_SHARE * usual {
                let other = (self.format)(usual as u64);
                let what = format!("{} is below the other nodes' {other}", self.name);
                findings.add(self.verdict, &node.host, what, (self.format)(value), self.fix);
            }
        }
    }
}

/// Whether the node has an interface whose driver locks memory.
fn has_rdma(node: &NodeFacts) -> bool {
    let is_rdma = |kind: NicKind| !matches!(kind, NicKind::Ethernet | NicKind::Virtual);
    node.machine.nics.iter().any(|nic| is_rdma(nic.kind) && nic.state != LinkState::Down)
}

fn judge_node(node: &NodeFacts, usual_memlock: f64, findings: &mut Findings) {
    // A limit below the other nodes' is a finding already.
    let is_low = |m: &u64| *m < MIN_MEMLOCK && *m as f64 >= MIN_SHARE * usual_memlock;
    if let Some(memlock) = node.os.memlock.filter(|m| is_low(m) && has_rdma(node)) {
        let what = format!("memlock limit is below the {} that RDMA needs", bytes(MIN_MEMLOCK));
        findings.add(Verdict::Fail, &node.host, what, bytes(memlock), MEMLOCK_FIX);
    }
    if let Some((_, hard)) = node.os.open_files.filter(|(_, hard)| *hard < WARN_OPEN_FILES) {
        let verdict = if hard < FAIL_OPEN_FILES { Verdict::Fail } else { Verdict::Warn };
        let what = format!("hard limit of open files is below {WARN_OPEN_FILES}");
        findings.add(verdict, &node.host, what, hard, "raise nofile in /etc/security/limits.conf");
    }
    if let Some(processes) = node.os.max_processes.filter(|p| *p < WARN_PROCESSES) {
        let what = format!("limit of processes and threads is below {WARN_PROCESSES}");
        let fix = "raise nproc in /etc/security/limits.conf";
        findings.add(Verdict::Warn, &node.host, what, processes, fix);
    }
}

/// CPU time of the cgroup that is less than the CPUs of the node throttles its threads. A node with
/// less than the others is a finding of the check of speeds.
fn judge_quota(facts: &JobFacts, findings: &mut Findings) {
    let cpus = |node: &NodeFacts| node.machine.usable.process_cpus().len() as f64;
    let allowed = |node: &NodeFacts| node.os.cpu_quota.map_or(cpus(node), |q| q.min(cpus(node)));
    let usual = upper_median(facts.nodes.iter().map(allowed)).unwrap_or(0.0);
    for node in &facts.nodes {
        let Some(quota) = node.os.cpu_quota.filter(|quota| *quota >= usual) else { continue };
        if quota < cpus(node) {
            let cpus = cpus(node);
            let what = format!("the cgroup allows less CPU time than the {cpus} usable CPUs");
            let fix = "raise the CPU quota (cpu.max) of the job or container";
            findings.add(Verdict::Warn, &node.host, what, format!("{quota} CPUs"), fix);
        }
    }
}
