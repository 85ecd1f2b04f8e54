//! Main memory.

use regatta_model::units::format_bytes;

use super::findings::{Findings, upper_median};
use crate::diagnosis::{Check, CheckResult, Verdict};
use crate::facts::{JobFacts, NodeFacts};

/// Memory relative to the other nodes': a missing module is at least a sixteenth or so.
const WARN_TOTAL: f64 = 0.96;
const FAIL_TOTAL: f64 = 0.75;
/// Memory relative to the site's description, part of which the kernel and firmware reserve.
const MIN_EXPECTED: f64 = 0.8;
/// Available memory as a share of all, and relative to the other nodes'.
const FAIL_AVAILABLE: f64 = 0.05;
const WARN_AVAILABLE: (f64, f64) = (0.25, 0.5);
/// Limit of the cgroup relative to the other nodes'.
const MIN_LIMIT: f64 = 0.5;

pub(super) fn judge(facts: &JobFacts) -> CheckResult {
    let median = |value: fn(&NodeFacts) -> Option<u64>| {
        upper_median(facts.nodes.iter().filter_map(value).map(|bytes| bytes as f64))
    };
    let Some(total) = median(|node| node.os.memory_total) else {
        return CheckResult::skipped(Check::Memory, "unknown");
    };
    let usual = Usual {
        total,
        available: median(|node| node.os.memory_available).unwrap_or(0.0),
        limit: median(limit).unwrap_or(0.0),
        expected: expected(facts),
    };
    let mut findings = Findings::default();
    for node in &facts.nodes {
        usual.judge_total(node, &mut findings);
        usual.judge_available(node, &mut findings);
        if let Some(errors @ 1..) = node.os.memory_errors {
            let what = "uncorrectable errors of the main memory since the boot";
            let fix = "exclude the node and report its memory to the site";
            findings.add(Verdict::Warn, &node.host, what, errors, fix);
        }
    }
    let summary = format!("{} per node", format_bytes(total as u64));
    CheckResult::new(Check::Memory, summary, findings.into_list())
}

/// The memory that the job may use.
fn limit(node: &NodeFacts) -> Option<u64> {
    node.os.memory_limit.or(node.os.memory_total)
}

/// Memory next to the processors, as the site describes it.
fn expected(facts: &JobFacts) -> f64 {
    let nodes = facts.expected.iter().flat_map(|machine| &machine.numa);
    nodes.filter(|numa| !numa.cpus.is_empty()).map(|numa| numa.memory_bytes as f64).sum()
}

struct Usual {
    total: f64,
    available: f64,
    limit: f64,
    expected: f64,
}

impl Usual {
    fn judge_total(&self, node: &NodeFacts, findings: &mut Findings) {
        let Some(total) = node.os.memory_total else { return };
        let own = total as f64;
        let (verdict, what) = match own {
            _ if own < MIN_EXPECTED * self.expected => {
                let expected = format_bytes(self.expected as u64);
                (Verdict::Fail, format!("less memory than the {expected} of the site's nodes"))
            }
            _ if own < WARN_TOTAL * self.total => {
                let is_low = own < FAIL_TOTAL * self.total;
                let verdict = if is_low { Verdict::Fail } else { Verdict::Warn };
                let usual = format_bytes(self.total as u64);
                (verdict, format!("less memory than the {usual} of the other nodes"))
            }
            _ => return,
        };
        let fix = "a memory module may have failed (`dmesg`, `free`): report the node to the site";
        findings.add(verdict, &node.host, what, format_bytes(total), fix);
    }

    fn judge_available(&self, node: &NodeFacts, findings: &mut Findings) {
        let (total, available) = (node.os.memory_total, node.os.memory_available);
        if let Some((total, available)) = total.zip(available) {
            let own = available as f64;
            let (share, of_usual) = WARN_AVAILABLE;
            let verdict = match total as f64 {
                total if own < FAIL_AVAILABLE * total => Some(Verdict::Fail),
                total if own < share * total && own < of_usual * self.available => {
                    Some(Verdict::Warn)
                }
                _ => None,
            };
            if let Some(verdict) = verdict {
                let value = format!("{} of {}", format_bytes(available), format_bytes(total));
                let fix = "end processes of earlier jobs (`ps -u $USER`), or exclude the node";
                findings.add(verdict, &node.host, "little available memory", value, fix);
            }
        }
        if let Some(limit) = node.os.memory_limit.filter(|l| (*l as f64) < MIN_LIMIT * self.limit) {
            let usual = format_bytes(self.limit as u64);
            let what = format!("the cgroup allows less memory than the other nodes' {usual}");
            let fix = "request memory for all nodes (--mem=0), or exclude the node";
            findings.add(Verdict::Fail, &node.host, what, format_bytes(limit), fix);
        }
    }
}
