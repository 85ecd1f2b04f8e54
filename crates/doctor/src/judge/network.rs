//! Connections between the nodes: reachability, bandwidth, clocks.

use crate::diagnosis::{Check, CheckResult};
use crate::facts::JobFacts;

pub(super) fn reachability(_: &JobFacts) -> CheckResult {
    CheckResult::skipped(Check::Reachability, "not measured")
}

pub(super) fn bandwidth(_: &JobFacts) -> CheckResult {
    CheckResult::skipped(Check::Bandwidth, "not measured")
}

pub(super) fn clocks(_: &JobFacts) -> CheckResult {
    CheckResult::skipped(Check::Clocks, "not measured")
}
