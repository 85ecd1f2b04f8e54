//! Error counters of the NICs.

use std::collections::BTreeMap;

use super::findings::{Findings, by_key, lower_median};
use crate::diagnosis::{Check, CheckResult, Verdict};
use crate::facts::{JobFacts, NicHealth, NodeFacts};

/// Errors during the tests: healthy links have a few.
const WARN_NEW: u64 = 10;
const FAIL_NEW: u64 = 1000;
/// Errors since the boot that are worth a look if other nodes have far fewer.
const MIN_LIFETIME: u64 = 1000;
const LIFETIME_RATIO: f64 = 100.0;
/// Counters of lost links, of which one is too many.
const LINK_LOSSES: [&str; 2] = ["link_downed", "carrier_down_count"];

const FIX: &str = "reseat or replace the cable, check the switch port; exclude the node until then";

pub(super) fn judge(facts: &JobFacts) -> CheckResult {
    if facts.nodes.iter().all(|node| node.nics.is_empty()) {
        return CheckResult::skipped(Check::NicErrors, "no NICs");
    }
    let mut findings = Findings::default();
    let usual = usual(facts);
    for node in &facts.nodes {
        judge_new(node, &mut findings);
        judge_lifetime(node, &usual, facts.nodes.len(), &mut findings);
    }
    CheckResult::new(Check::NicErrors, "no errors during the tests", findings.into_list())
}

fn judge_new(node: &NodeFacts, findings: &mut Findings) {
    for nic in &node.nics {
        for (counter, count) in &nic.new_errors {
            let is_loss = LINK_LOSSES.contains(&counter.as_str());
            let verdict = match *count {
                _ if is_loss => Verdict::Fail,
                FAIL_NEW.. => Verdict::Fail,
                WARN_NEW.. => Verdict::Warn,
                _ => continue,
            };
            let what = format!("{counter} of {} increased during the tests", nic.name);
            findings.add(verdict, &node.host, what, format!("by {count}"), FIX);
        }
    }
}

/// The usual value of each counter of each NIC; nodes without errors have 0.
fn usual<'a>(facts: &'a JobFacts) -> BTreeMap<(&'a str, &'a str), f64> {
    let counts = by_key(facts, |node| {
        let of_nic = |nic: &'a NicHealth| {
            nic.errors.iter().map(|(name, count)| ((nic.name.as_str(), name.as_str()), *count))
        };
        node.nics.iter().flat_map(of_nic)
    });
    let median = |(key, values): (_, Vec<(&NodeFacts, u64)>)| {
        let zeros = std::iter::repeat_n(0.0, facts.nodes.len().saturating_sub(values.len()));
        let values = values.into_iter().map(|(_, count)| count as f64);
        Some((key, lower_median(values.chain(zeros))?))
    };
    counts.into_iter().filter_map(median).collect()
}

fn judge_lifetime(
    node: &NodeFacts,
    usual: &BTreeMap<(&str, &str), f64>,
    nodes: usize,
    findings: &mut Findings,
) {
    if nodes < 3 {
        return;
    }
    for nic in &node.nics {
        for (counter, count) in &nic.errors {
            let usual = usual.get(&(nic.name.as_str(), counter.as_str())).copied().unwrap_or(0.0);
            if *count >= MIN_LIFETIME && *count as f64 > LIFETIME_RATIO * usual.max(1.0) {
                let what =
                    format!("{counter} of {} is far above the other nodes' {usual:.0}", nic.name);
                findings.add(Verdict::Warn, &node.host, what, count, FIX);
            }
        }
    }
}
