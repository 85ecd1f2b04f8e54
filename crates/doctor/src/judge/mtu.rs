//! The MTU of the fabric.

use std::collections::BTreeSet;

use super::findings::{Findings, by_key};
use super::majority::Groups;
use crate::diagnosis::{Check, CheckResult, Verdict};
use crate::fabric::fabric;
use crate::facts::JobFacts;

pub(super) fn judge(facts: &JobFacts) -> CheckResult {
    let values = by_key(facts, |node| {
        let mtu = |name: &str| node.nics.iter().find(|health| health.name == name)?.mtu;
        fabric(&node.machine.nics).into_iter().map(move |nic| (&nic.name, mtu(&nic.name)))
    });
    let known: BTreeSet<u32> = values.values().flatten().filter_map(|(_, mtu)| *mtu).collect();
    if known.is_empty() {
        return CheckResult::skipped(Check::Mtu, "unknown");
    }
    let mut findings = Findings::default();
    for (name, values) in values {
        let values = Groups::new(values.iter().map(|(node, mtu)| (node.host.as_str(), *mtu)));
        let fix = match values.most_common() {
            Some(mtu) => format!("`ip link set {name} mtu {mtu}` as root, or exclude the node"),
            None => continue,
        };
        findings.add_differing(Verdict::Fail, &format!("MTU of {name}"), &values, &fix);
    }
    let known: Vec<String> = known.iter().map(u32::to_string).collect();
    let summary = format!("MTU {}", known.join(", "));
    CheckResult::new(Check::Mtu, summary, findings.into_list())
}
