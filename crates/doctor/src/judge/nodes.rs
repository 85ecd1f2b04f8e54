//! Whether all nodes reported.

use regatta_model::units::pluralize;

use crate::diagnosis::{Check, CheckResult, Finding, Verdict};
use crate::facts::{JobFacts, MissingNode};

pub(super) fn judge(facts: &JobFacts) -> CheckResult {
    let finding = |MissingNode { host, reason }: &MissingNode| Finding {
        verdict: Verdict::Fail,
        hosts: vec![host.clone()],
        reason: reason.clone(),
        fix: "exclude the node and report it to the site".to_owned(),
    };
    let findings = facts.missing.iter().map(finding).collect();
    let summary = format!("{} reported", pluralize(facts.nodes.len(), "node"));
    CheckResult::new(Check::Nodes, summary, findings)
}
