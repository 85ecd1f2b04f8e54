//! Results and report of a smoke test. No I/O; times are in seconds since the start.

use std::fmt;

use regatta_doctor::Verdict;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The checks, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Check {
    /// Until the ranks run; only the launcher measures it.
    Start,
    /// Bootstrap of the communicator.
    Join,
    /// Hosts, cores and kernels of the ranks.
    Ranks,
    /// The data is prepared or found, and opened.
    Data,
    /// All ranks have the same configuration and data.
    Agreement,
    /// All-reduces return the right sums.
    AllReduce,
    /// All ranks receive the initial state.
    Broadcast,
    /// Training steps.
    Steps,
    /// All replicas have the same state after the steps.
    Consistency,
    /// A checkpoint is written and read back.
    Checkpoint,
}

impl fmt::Display for Check {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A finished check. What it found is the same on all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CheckResult {
    /// The check.
    pub check: Check,
    /// Failed if there is an error, passed with a warning if there are notes.
    pub status: Verdict,
    /// Duration on rank 0.
    pub seconds: f64,
    /// The slowest rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slowest: Option<SlowestRank>,
    /// What was measured.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub details: Value,
    /// The same in a few words; empty if there are none, or if they describe success.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub summary: String,
    /// Notes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The slowest rank of a check.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SlowestRank {
    /// The rank.
    pub rank: u32,
    /// Its host.
    pub host: String,
    /// Its duration.
    pub seconds: f64,
}

impl CheckResult {
    /// A check that passed, before it was timed.
    pub fn passed(details: Value, summary: String) -> Self {
        Self {
            check: Check::Start,
            status: Verdict::Pass,
            seconds: 0.0,
            slowest: None,
            details,
            summary,
            notes: Vec::new(),
            error: None,
        }
    }

    /// A check that passed with a summary, or failed.
    pub fn verified(details: Value, summary: String, error: Option<String>) -> Self {
        let summary = if error.is_none() { summary } else { String::new() };
        Self { error, ..Self::passed(details, summary) }
    }
}

/// Events that rank 0 reports.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SmokeEvent {
    /// The ranks have joined.
    World {
        /// Number of ranks.
        ranks: usize,
        /// Number of hosts.
        hosts: usize,
    },
    /// A check finished.
    Check(Box<CheckResult>),
    /// The test ended, with the check that could not be completed, if any: the remaining ones are skipped.
    End(Option<SmokeFailure>),
}

/// The failure of a check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SmokeFailure {
    /// The check.
    pub check: Check,
    /// The error, with rank and host.
    pub error: String,
    /// What to check.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hint: Option<String>,
}

impl SmokeFailure {
    /// With the hint of the check.
    pub fn new(check: Check, error: String) -> Self {
        Self { check, error, hint: Some(hint(check).to_owned()) }
    }
}

/// All checks and the result. `--json` prints it.
#[derive(Debug, Default, Serialize)]
pub struct SmokeReport {
    /// Whether all checks passed.
    pub passed: bool,
    /// Number of ranks.
    pub ranks: usize,
    /// Number of hosts.
    pub hosts: usize,
    /// Total time.
    pub seconds: f64,
    /// The failure, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<SmokeFailure>,
    /// The finished checks.
    pub checks: Vec<CheckResult>,
    /// Whether this process launched the ranks, and knows how long that took.
    #[serde(skip)]
    pub is_launcher: bool,
    /// Whether the result is known.
    #[serde(skip)]
    pub complete: bool,
}

impl SmokeReport {
    /// Adds an event of rank 0.
    pub fn on_event(&mut self, event: SmokeEvent, now: f64) {
        match event {
            SmokeEvent::World { ranks, hosts } => (self.ranks, self.hosts) = (ranks, hosts),
            SmokeEvent::Check(result) => self.add(*result, now),
            SmokeEvent::End(failure) => {
                self.complete(failure.or_else(|| self.first_failure()), now);
            }
        }
    }

    fn add(&mut self, result: CheckResult, now: f64) {
        if self.is_launcher && self.checks.is_empty() {
            let seconds = (now - result.seconds).max(0.0);
            let start = CheckResult::passed(Value::Null, String::new());
            self.checks.push(CheckResult { seconds, ..start });
        }
        self.checks.push(result);
    }

    /// The first failed check, or that of differing parameters, which is the cause of a loss that does
    /// not decrease.
    fn first_failure(&self) -> Option<SmokeFailure> {
        let failed = || self.checks.iter().filter(|result| result.status == Verdict::Fail);
        let differing = failed().find(|result| result.check == Check::Consistency);
        let result = differing.or_else(|| failed().next())?;
        Some(SmokeFailure::new(result.check, result.error.clone().unwrap_or_default()))
    }

    /// Completes the report after all ranks have exited, if rank 0 was ended before it could.
    pub fn on_ranks_exited(&mut self, now: f64) {
        if !self.complete {
            let error = match self.checks.last() {
                None => "the ranks exited before the bootstrap completed".to_owned(),
                Some(last) => format!("the ranks exited after the check `{}`", last.check),
            };
            self.complete(Some(SmokeFailure::new(Check::Start, error)), now);
        }
    }

    fn complete(&mut self, failure: Option<SmokeFailure>, now: f64) {
        self.complete = true;
        self.passed = failure.is_none();
        self.failure = failure;
        self.seconds = now;
    }
}

/// What to check after a failure.
fn hint(check: Check) -> &'static str {
    match check {
        Check::Start | Check::Ranks => "check the ranks' logs in log/ of the run folder",
        Check::Join => {
            "check that all nodes can connect to rank 0's node, and the ranks' logs in log/ of the \
             run folder"
        }
        Check::Data => {
            "check data.source, and that every node can read it and write the tokenized data"
        }
        Check::Agreement => {
            "check how each rank is started: all need the same arguments, files and data"
        }
        Check::AllReduce | Check::Broadcast => {
            "run `regatta bench all-reduce`, which verifies all sizes, and `regatta bench \
             send-recv --pairs`, which finds slow or faulty nodes and links"
        }
        Check::Steps => "check optimizer.lr and the data, then the CPUs with `regatta bench gemm`",
        Check::Consistency => {
            "check that rank's node, its memory and CPU (`regatta bench gemm`), and that all ranks \
             run the same build"
        }
        Check::Checkpoint => {
            "check the run folder: it must be on a file system shared by all nodes, with free \
             space; --run-dir sets another"
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn finished(check: Check, error: Option<&str>) -> SmokeEvent {
        let (seconds, error) = (0.5, error.map(str::to_owned));
        let status = if error.is_some() { Verdict::Fail } else { Verdict::Pass };
        let passed = CheckResult::passed(Value::Null, String::new());
        SmokeEvent::Check(Box::new(CheckResult { check, status, seconds, error, ..passed }))
    }

    fn report(is_launcher: bool, events: Vec<SmokeEvent>) -> SmokeReport {
        let mut report = SmokeReport { is_launcher, ..SmokeReport::default() };
        report.on_event(SmokeEvent::World { ranks: 4, hosts: 2 }, 0.0);
        events.into_iter().for_each(|event| report.on_event(event, 2.0));
        report
    }

    fn passed(check: Check) -> SmokeEvent {
        finished(check, None)
    }

    #[test]
    fn the_report_passes_if_all_checks_do() {
        let events = vec![passed(Check::Join), passed(Check::Steps), SmokeEvent::End(None)];
        let parent = report(true, events);
        assert!(parent.passed && parent.complete);
        assert_eq!((parent.ranks, parent.hosts, parent.seconds), (4, 2, 2.0));
        let checks: Vec<_> = parent.checks.iter().map(|c| (c.check, c.seconds)).collect();
        assert_eq!(checks, [(Check::Start, 1.5), (Check::Join, 0.5), (Check::Steps, 0.5)]);
        let rank = report(false, vec![passed(Check::Join), SmokeEvent::End(None)]);
        assert_eq!(rank.checks.len(), 1, "a rank does not know how long the launch took");
    }

    #[test]
    fn a_failure_has_its_check_and_a_hint() {
        let rank_report = |events| report(false, events);
        let loss = finished(Check::Steps, Some("up"));
        let rank = finished(Check::Consistency, Some("rank 1"));
        let report = rank_report(vec![loss, rank, SmokeEvent::End(None)]);
        let failure = report.failure.unwrap();
        assert_eq!((failure.check, failure.error.as_str()), (Check::Consistency, "rank 1"));
        assert!(failure.hint.is_some_and(|text| text.contains("memory")));
        assert!(!report.passed);
        let reason = "rank 3 exited".to_owned();
        let aborted = SmokeEvent::End(Some(SmokeFailure::new(Check::AllReduce, reason)));
        let report = rank_report(vec![passed(Check::Join), aborted]);
        assert_eq!(report.failure.unwrap().check, Check::AllReduce);
        let (check, error, hint) = (Check::Steps, "interrupted".to_owned(), None);
        let interrupted = SmokeEvent::End(Some(SmokeFailure { check, error, hint }));
        let report = rank_report(vec![passed(Check::Join), interrupted]);
        assert_eq!(report.failure.unwrap().hint, None);
    }

    #[test]
    fn ranks_that_exit_without_a_result_fail_the_test() {
        let exited = |events| {
            let mut report = report(true, events);
            report.on_ranks_exited(3.0);
            report
        };
        let unfinished = exited(vec![passed(Check::Join), passed(Check::Data)]);
        assert_eq!(unfinished.failure.unwrap().error, "the ranks exited after the check `data`");
        let empty = exited(Vec::new());
        assert!(!empty.passed && empty.failure.unwrap().error.contains("before the bootstrap"));
        assert!(exited(vec![passed(Check::Join), SmokeEvent::End(None)]).passed);
    }

    #[test]
    fn the_report_serializes_to_one_json_object() {
        let SmokeEvent::Check(mut join) = passed(Check::Join) else { panic!() };
        join.details = json!({"world": {"ranks": 4}});
        let report = report(true, vec![SmokeEvent::Check(join), SmokeEvent::End(None)]);
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["passed"], true);
        assert_eq!(value["checks"][1]["details"]["world"]["ranks"], 4);
        assert_eq!(value["checks"][1]["status"], "pass");
    }
}
