//! GPUs present and identical.

use std::collections::BTreeSet;

use regatta_model::units::pluralize;

use super::findings::{Findings, upper_median};
use super::majority::Groups;
use crate::diagnosis::{Check, CheckResult, Verdict};
use crate::facts::{JobFacts, NodeFacts};

const MISSING_FIX: &str = "look for Xid errors or a lost device in `dmesg`, and check the driver with \
                           `nvidia-smi` or `rocm-smi`; exclude the node and report it to the site";

pub(super) fn judge(facts: &JobFacts) -> CheckResult {
    let expected = facts.expected.as_ref().map_or(0, |machine| machine.gpus.len());
    if expected == 0 && facts.nodes.iter().all(|node| node.machine.gpus.is_empty()) {
        return CheckResult::skipped(Check::Gpus, "no GPUs");
    }
    let mut findings = Findings::default();
    judge_count(facts, expected, &mut findings);
    let with_gpus = || facts.nodes.iter().filter(|node| !node.machine.gpus.is_empty());
    let names = Groups::new(with_gpus().map(|node| (node.host.as_str(), Some(names(node)))));
    let fix =
        "exclude the node, or request nodes of one type with the scheduler's constraint option";
    findings.add_differing(Verdict::Fail, "GPU model", &names, fix);
    let mig = |node: &NodeFacts| match node.machine.gpus.iter().any(|gpu| gpu.mig) {
        true => "enabled",
        false => "disabled",
    };
    let mig = Groups::new(with_gpus().map(|node| (node.host.as_str(), Some(mig(node)))));
    let fix = "`nvidia-smi -mig 0` as root, or exclude the node";
    findings.add_differing(Verdict::Fail, "MIG mode", &mig, fix);
    CheckResult::new(Check::Gpus, summary(facts, &names), findings.into_list())
}

/// GPUs of the node, with those of other jobs that a device cgroup hides.
fn on_node(node: &NodeFacts) -> usize {
    let listed = node.machine.gpus.len();
    node.peer_to_peer.gpus_on_node.map_or(listed, |count| (count as usize).max(listed))
}

/// The GPUs that the driver lists must be as many as on the other nodes, and those on the node as many
/// as the site describes.
fn judge_count(facts: &JobFacts, expected: usize, findings: &mut Findings) {
    let usual = upper_median(facts.nodes.iter().map(|node| node.machine.gpus.len() as f64));
    for node in &facts.nodes {
        let (usable, present) = (node.machine.gpus.len(), on_node(node));
        let (wanted, source) = match usual {
            _ if present < expected => (expected, "that a node of the site has"),
            Some(usual) if (usable as f64) < usual => (usual as usize, "of the other nodes"),
            _ => continue,
        };
        let what = format!("fewer GPUs than the {wanted} {source}");
        findings.add(Verdict::Fail, &node.host, what, usable.min(present), MISSING_FIX);
    }
}

fn names(node: &NodeFacts) -> String {
    let names: BTreeSet<&str> = node.machine.gpus.iter().map(|gpu| gpu.name.as_str()).collect();
    Vec::from_iter(names).join(" and ")
}

fn summary(facts: &JobFacts, names: &Groups<'_, String>) -> String {
    let counts = facts.nodes.iter().map(|n| (n.host.as_str(), Some(n.machine.gpus.len())));
    let count = Groups::new(counts).most_common().copied().unwrap_or(0);
    match names.most_common() {
        Some(name) => format!("{} per node: {name}", pluralize(count, "GPU")),
        None => "no GPUs".to_owned(),
    }
}
