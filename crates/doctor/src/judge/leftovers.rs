//! Processes and shared memory of earlier jobs.

use regatta_model::units::{format_bytes, format_duration, pluralize};

use super::findings::Findings;
use crate::diagnosis::{Check, CheckResult, Verdict};
use crate::facts::{JobFacts, Leftover, NodeFacts};

/// Share of a CPU from which a process slows the job down.
const FAIL_CPU_PERCENT: u32 = 50;

pub(super) fn judge(facts: &JobFacts) -> CheckResult {
    let mut findings = Findings::default();
    for node in &facts.nodes {
        judge_processes(node, &mut findings);
        judge_shared_memory(node, &mut findings);
        judge_system_v(node, &mut findings);
    }
    CheckResult::new(Check::Leftovers, "none", findings.into_list())
}

fn judge_processes(node: &NodeFacts, findings: &mut Findings) {
    for leftover in &node.leftovers {
        let Leftover::Process { pid, command, seconds, cpu_percent, holds } = leftover else {
            continue;
        };
        let has_gpu = holds.iter().any(|kind| kind == "gpu");
        let is_harmful = has_gpu || *cpu_percent >= FAIL_CPU_PERCENT;
        let verdict = if is_harmful { Verdict::Fail } else { Verdict::Warn };
        let used = match holds.is_empty() {
            true => format!("uses {cpu_percent} % of a CPU"),
            false => format!("holds {}", holds.join(", ")),
        };
        let age = format_duration(*seconds as f64);
        let value = format!("{command} (PID {pid}) {used}, started {age} ago");
        let what = "process of this user outside of the job";
        findings.add(verdict, &node.host, what, value, "end it (`kill PID`), or exclude the node");
    }
}

fn judge_shared_memory(node: &NodeFacts, findings: &mut Findings) {
    let file = |leftover: &Leftover| match leftover {
        Leftover::SharedMemory { path, bytes } => Some((path.clone(), *bytes)),
        _ => None,
    };
    let files: Vec<(String, u64)> = node.leftovers.iter().filter_map(file).collect();
    let Some((first, _)) = files.first() else { return };
    let bytes = files.iter().fold(0u64, |sum, (_, bytes)| sum.saturating_add(*bytes));
    let what = "files in /dev/shm that no process uses";
    let value = format!("{} of {}", pluralize(files.len(), "file"), format_bytes(bytes));
    let prefix = first.split_inclusive(['-', '.', '_']).next().unwrap_or(first);
    let fix = format!("remove them: `rm {prefix}*`");
    findings.add(Verdict::Warn, &node.host, what, value, fix);
}

fn judge_system_v(node: &NodeFacts, findings: &mut Findings) {
    let segment = |leftover: &Leftover| match leftover {
        Leftover::SystemV { bytes, .. } => Some(*bytes),
        _ => None,
    };
    let segments: Vec<u64> = node.leftovers.iter().filter_map(segment).collect();
    if segments.is_empty() {
        return;
    }
    let bytes = segments.iter().fold(0u64, |sum, bytes| sum.saturating_add(*bytes));
    let value = format!("{} of {}", pluralize(segments.len(), "segment"), format_bytes(bytes));
    let what = "System V shared memory without processes";
    let fix = "remove it: `ipcs -m`, `ipcrm -m ID`";
    findings.add(Verdict::Warn, &node.host, what, value, fix);
}
