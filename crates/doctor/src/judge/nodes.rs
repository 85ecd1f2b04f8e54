//! Whether all nodes reported.

use regatta_model::units::pluralize;

use crate::diagnosis::{Check, CheckResult, Finding, Verdict};
use crate::facts::{JobFacts, MissingNode};

pub(super) fn judge(facts: &JobFacts) -> CheckResult {
    let finding = |MissingNode { host, reason }: &MissingNode| {
        let fix = "exclude the node and report it to the site";
        Finding::of(Verdict::Fail, host, reason.clone(), fix)
    };
    let findings = facts.missing.iter().map(finding).collect();
    let summary = format!("{} reported", pluralize(facts.nodes.len(), "node"));
    CheckResult::new(Check::Nodes, summary, findings)
}
