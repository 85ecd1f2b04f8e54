//! The report of a smoke test, accumulated from the events of rank 0. No I/O; times are arguments,
//! in seconds since the start.

use regatta_train::training::smoke::{Check, CheckResult, CheckStatus, Details, SmokeEvent};
use serde::Serialize;

/// The process that writes the report.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum ReportingProcess {
    /// The parent of the ranks, which knows how long their launch took.
    Parent,
    /// Rank 0.
    #[default]
    Rank,
}

/// All checks and the result. `--json` prints it.
#[derive(Debug, Default, Serialize)]
pub struct SmokeReport {
    /// Whether all checks passed.
    pub passed: bool,
    /// Number of ranks.
    pub ranks: u32,
    /// Number of hosts.
    pub hosts: u32,
    /// Total time.
    pub seconds: f64,
    /// The failure, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<SmokeFailure>,
    /// The finished checks.
    pub checks: Vec<CheckResult>,
    #[serde(skip)]
    process: ReportingProcess,
    #[serde(skip)]
    complete: bool,
}

/// The failure of a check.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct SmokeFailure {
    /// The check.
    pub check: Check,
    /// The error, with rank and host.
    pub error: String,
    /// What to check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<&'static str>,
}

impl SmokeFailure {
    fn new(check: Check, error: String) -> Self {
        Self { check, error, hint: Some(hint(check)) }
    }
}

impl SmokeReport {
    /// An empty report.
    pub fn new(process: ReportingProcess) -> Self {
        Self { process, ..Self::default() }
    }

    /// Adds an event of rank 0.
    pub fn on_event(&mut self, event: SmokeEvent, now: f64) {
        match event {
            SmokeEvent::Check(result) => self.add(*result, now),
            SmokeEvent::Aborted { check, reason } => {
                self.complete(Some(SmokeFailure::new(check, reason)), now)
            }
            SmokeEvent::Interrupted(check) => {
                let error = "interrupted before all checks finished".to_owned();
                self.complete(Some(SmokeFailure { check, error, hint: None }), now);
            }
            SmokeEvent::Done => self.complete(self.first_failure(), now),
        }
    }

    fn add(&mut self, result: CheckResult, now: f64) {
        if self.process == ReportingProcess::Parent && self.checks.is_empty() {
            let seconds = (now - result.seconds).max(0.0);
            self.checks.push(CheckResult {
                check: Check::Start,
                seconds,
                ..CheckResult::default()
            });
        }
        if let Details::World { ranks, hosts } = result.findings.details {
            (self.ranks, self.hosts) = (ranks, hosts);
        }
        self.checks.push(result);
    }

    /// The first failed check, or that of differing parameters, which is the cause of a loss that does
    /// not decrease.
    fn first_failure(&self) -> Option<SmokeFailure> {
        let failed = || self.checks.iter().filter(|result| result.status == CheckStatus::Failed);
        let differing = failed().find(|result| result.check == Check::Consistency);
        let result = differing.or_else(|| failed().next())?;
        Some(SmokeFailure::new(result.check, result.findings.error.clone().unwrap_or_default()))
    }

    /// Completes the report after all ranks have exited, if rank 0 was ended before it could.
    pub fn on_ranks_exited(&mut self, now: f64) {
        if !self.complete {
            let last = self.checks.last().map_or(Check::Start, |result| result.check);
            let error = match last {
                Check::Start => "the ranks exited before the bootstrap completed".to_owned(),
                check => format!("the ranks exited after the check `{}`", check.name()),
            };
            self.complete(Some(SmokeFailure::new(Check::Start, error)), now);
        }
    }

    /// Whether the result is known.
    pub fn is_complete(&self) -> bool {
        self.complete
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
    use super::*;
    use regatta_train::training::smoke::Findings;

    fn finished(check: Check, error: Option<&str>) -> SmokeEvent {
        let details = match check {
            Check::Join => Details::World { ranks: 4, hosts: 2 },
            _ => Details::None,
        };
        let findings = Findings { details, notes: Vec::new(), error: error.map(str::to_owned) };
        let status = findings.status();
        SmokeEvent::Check(Box::new(CheckResult {
            check,
            status,
            seconds: 0.5,
            findings,
            slowest: None,
        }))
    }

    fn report(process: ReportingProcess, events: Vec<SmokeEvent>) -> SmokeReport {
        let mut report = SmokeReport::new(process);
        events.into_iter().for_each(|event| report.on_event(event, 2.0));
        report
    }

    fn parent_report(events: Vec<SmokeEvent>) -> SmokeReport {
        report(ReportingProcess::Parent, events)
    }

    fn rank_report(events: Vec<SmokeEvent>) -> SmokeReport {
        report(ReportingProcess::Rank, events)
    }

    #[test]
    fn the_report_passes_if_all_checks_do() {
        let report = parent_report(vec![
            finished(Check::Join, None),
            finished(Check::Steps, None),
            SmokeEvent::Done,
        ]);
        assert!(report.passed && report.is_complete());
        assert_eq!((report.ranks, report.hosts, report.seconds), (4, 2, 2.0));
        let checks: Vec<(Check, f64)> =
            report.checks.iter().map(|c| (c.check, c.seconds)).collect();
        assert_eq!(checks, [(Check::Start, 1.5), (Check::Join, 0.5), (Check::Steps, 0.5)]);
        let report = rank_report(vec![finished(Check::Join, None), SmokeEvent::Done]);
        assert_eq!(report.checks.len(), 1, "a rank does not know how long the launch took");
    }

    #[test]
    fn a_failure_has_its_check_and_a_hint() {
        let (loss, rank) =
            (finished(Check::Steps, Some("up")), finished(Check::Consistency, Some("rank 1")));
        let report = rank_report(vec![loss, rank, SmokeEvent::Done]);
        let failure = report.failure.unwrap();
        assert_eq!((failure.check, failure.error.as_str()), (Check::Consistency, "rank 1"));
        assert!(failure.hint.is_some_and(|text| text.contains("memory")));
        assert!(!report.passed);
        let broken =
            SmokeEvent::Aborted { check: Check::AllReduce, reason: "rank 3 exited".to_owned() };
        let report = rank_report(vec![finished(Check::Join, None), broken]);
        assert_eq!(report.failure.unwrap().check, Check::AllReduce);
        let stopped =
            rank_report(vec![finished(Check::Join, None), SmokeEvent::Interrupted(Check::Steps)]);
        assert_eq!(stopped.failure.unwrap().hint, None);
    }

    #[test]
    fn ranks_that_exit_without_a_result_fail_the_test() {
        let mut report =
            parent_report(vec![finished(Check::Join, None), finished(Check::Data, None)]);
        report.on_ranks_exited(3.0);
        assert_eq!(report.failure.unwrap().error, "the ranks exited after the check `data`");
        let mut empty = parent_report(Vec::new());
        empty.on_ranks_exited(3.0);
        assert!(!empty.passed && empty.failure.unwrap().error.contains("before the bootstrap"));
        let mut done = parent_report(vec![finished(Check::Join, None), SmokeEvent::Done]);
        done.on_ranks_exited(3.0);
        assert!(done.passed);
    }

    #[test]
    fn the_report_serializes_to_one_json_object() {
        let report = parent_report(vec![finished(Check::Join, None), SmokeEvent::Done]);
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["passed"], true);
        assert_eq!(value["checks"][1]["details"]["world"]["ranks"], 4);
        assert_eq!(value["checks"][1]["verdict"], "ok");
    }
}
