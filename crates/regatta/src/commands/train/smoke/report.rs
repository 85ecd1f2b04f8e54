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
    /// Whether the result is known.
    #[serde(skip)]
    pub complete: bool,
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
            let start = CheckResult { check: Check::Start, seconds, ..CheckResult::default() };
            self.checks.push(start);
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
        let seconds = 0.5;
        SmokeEvent::Check(Box::new(CheckResult { check, status, seconds, findings, slowest: None }))
    }

    fn report(process: ReportingProcess, events: Vec<SmokeEvent>) -> SmokeReport {
        let mut report = SmokeReport::new(process);
        events.into_iter().for_each(|event| report.on_event(event, 2.0));
        report
    }

    fn passed(check: Check) -> SmokeEvent {
        finished(check, None)
    }

    #[test]
    fn the_report_passes_if_all_checks_do() {
        let events = vec![passed(Check::Join), passed(Check::Steps), SmokeEvent::Done];
        let parent = report(ReportingProcess::Parent, events);
        assert!(parent.passed && parent.complete);
        assert_eq!((parent.ranks, parent.hosts, parent.seconds), (4, 2, 2.0));
        let checks: Vec<_> = parent.checks.iter().map(|c| (c.check, c.seconds)).collect();
        assert_eq!(checks, [(Check::Start, 1.5), (Check::Join, 0.5), (Check::Steps, 0.5)]);
        let rank = report(ReportingProcess::Rank, vec![passed(Check::Join), SmokeEvent::Done]);
        assert_eq!(rank.checks.len(), 1, "a rank does not know how long the launch took");
    }

    #[test]
    fn a_failure_has_its_check_and_a_hint() {
        let rank_report = |events| report(ReportingProcess::Rank, events);
        let loss = finished(Check::Steps, Some("up"));
        let rank = finished(Check::Consistency, Some("rank 1"));
        let report = rank_report(vec![loss, rank, SmokeEvent::Done]);
        let failure = report.failure.unwrap();
        assert_eq!((failure.check, failure.error.as_str()), (Check::Consistency, "rank 1"));
        assert!(failure.hint.is_some_and(|text| text.contains("memory")));
        assert!(!report.passed);
        let reason = "rank 3 exited".to_owned();
        let aborted = SmokeEvent::Aborted { check: Check::AllReduce, reason };
        let report = rank_report(vec![passed(Check::Join), aborted]);
        assert_eq!(report.failure.unwrap().check, Check::AllReduce);
        let interrupted = SmokeEvent::Interrupted(Check::Steps);
        let report = rank_report(vec![passed(Check::Join), interrupted]);
        assert_eq!(report.failure.unwrap().hint, None);
    }

    #[test]
    fn ranks_that_exit_without_a_result_fail_the_test() {
        let exited = |events| {
            let mut report = report(ReportingProcess::Parent, events);
            report.on_ranks_exited(3.0);
            report
        };
        let unfinished = exited(vec![passed(Check::Join), passed(Check::Data)]);
        assert_eq!(unfinished.failure.unwrap().error, "the ranks exited after the check `data`");
        let empty = exited(Vec::new());
        assert!(!empty.passed && empty.failure.unwrap().error.contains("before the bootstrap"));
        assert!(exited(vec![passed(Check::Join), SmokeEvent::Done]).passed);
    }

    #[test]
    fn the_report_serializes_to_one_json_object() {
        let events = vec![passed(Check::Join), SmokeEvent::Done];
        let report = report(ReportingProcess::Parent, events);
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["passed"], true);
        assert_eq!(value["checks"][1]["details"]["world"]["ranks"], 4);
        assert_eq!(value["checks"][1]["status"], "ok");
    }
}
