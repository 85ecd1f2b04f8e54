//! The report of a smoke test, accumulated from the events of rank 0. No I/O; times are arguments,
//! in seconds since the start.

use regatta_train::job::smoke::{Figures, Name, Part, Told, Verdict};
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

/// All parts and the result. `--json` prints it.
#[derive(Debug, Default, Serialize)]
pub struct SmokeReport {
    /// Whether all parts passed.
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
    /// The completed parts.
    pub parts: Vec<Part>,
    #[serde(skip)]
    process: ReportingProcess,
    #[serde(skip)]
    complete: bool,
}

/// The failure of a part.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct SmokeFailure {
    /// The part.
    pub part: Name,
    /// The error, with rank and host.
    pub error: String,
    /// What to check.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hint: Option<&'static str>,
}

impl SmokeFailure {
    fn new(part: Name, error: String) -> Self {
        Self { part, error, hint: Some(hint(part)) }
    }
}

impl SmokeReport {
    /// An empty report.
    pub fn new(process: ReportingProcess) -> Self {
        Self { process, ..Self::default() }
    }

    /// Adds an event of rank 0.
    pub fn on_event(&mut self, event: Told, now: f64) {
        match event {
            Told::Part(part) => self.add_part(*part, now),
            Told::Broken { part, why } => self.complete(Some(SmokeFailure::new(part, why)), now),
            Told::Stopped(part) => {
                let error = "interrupted before all checks finished".to_owned();
                self.complete(Some(SmokeFailure { part, error, hint: None }), now);
            }
            Told::Done => self.complete(self.first_failure(), now),
        }
    }

    fn add_part(&mut self, part: Part, now: f64) {
        if self.process == ReportingProcess::Parent && self.parts.is_empty() {
            let seconds = (now - part.seconds).max(0.0);
            self.parts.push(Part { part: Name::Start, seconds, ..Part::default() });
        }
        if let Figures::World { ranks, hosts } = part.findings.figures {
            (self.ranks, self.hosts) = (ranks, hosts);
        }
        self.parts.push(part);
    }

    /// The first failed part, or that of differing parameters, which is the cause of a loss that does
    /// not decrease.
    fn first_failure(&self) -> Option<SmokeFailure> {
        let failed = || self.parts.iter().filter(|part| part.verdict == Verdict::Failed);
        let differing = failed().find(|part| part.part == Name::Same);
        let part = differing.or_else(|| failed().next())?;
        Some(SmokeFailure::new(part.part, part.findings.wrong.clone().unwrap_or_default()))
    }

    /// Completes the report after all ranks have exited, if rank 0 was ended before it could.
    pub fn on_ranks_exited(&mut self, now: f64) {
        if !self.complete {
            let part = self.parts.last().map_or(Name::Start, |part| part.part);
            let error = match part {
                Name::Start => "the ranks exited before the bootstrap completed".to_owned(),
                part => format!("the ranks exited after part {}", part.text()),
            };
            self.complete(Some(SmokeFailure::new(Name::Start, error)), now);
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

/// What to check after the failure of a part.
fn hint(part: Name) -> &'static str {
    match part {
        Name::Start | Name::Ranks => "check the ranks' logs in log/ of the run folder",
        Name::Join => {
            "check that all nodes can connect to rank 0's node, and the ranks' logs in log/ of the \
             run folder"
        }
        Name::Data => {
            "check data.source, and that every node can read it and write the tokenized data"
        }
        Name::Agreement => {
            "check how each rank is started: all need the same arguments, files and data"
        }
        Name::AllReduce | Name::Broadcast => {
            "run `regatta bench all-reduce`, which verifies all sizes, and `regatta bench \
             send-recv --pairs`, which finds slow or faulty nodes and links"
        }
        Name::Steps => "check optimizer.rate and the data, then the CPUs with `regatta bench gemm`",
        Name::Same => {
            "check that rank's node, its memory and CPU (`regatta bench gemm`), and that all ranks \
             run the same build"
        }
        Name::Checkpoint => {
            "check the run folder: it must be on a file system shared by all nodes, with free \
             space; --run-dir sets another"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_train::job::smoke::Findings;

    fn part(name: Name, error: Option<&str>) -> Told {
        let figures = match name {
            Name::Join => Figures::World { ranks: 4, hosts: 2 },
            _ => Figures::None,
        };
        let findings = Findings { figures, notes: Vec::new(), wrong: error.map(str::to_owned) };
        let verdict = findings.verdict();
        Told::Part(Box::new(Part { part: name, verdict, seconds: 0.5, findings, slowest: None }))
    }

    fn report(process: ReportingProcess, events: Vec<Told>) -> SmokeReport {
        let mut report = SmokeReport::new(process);
        events.into_iter().for_each(|event| report.on_event(event, 2.0));
        report
    }

    fn parent_report(events: Vec<Told>) -> SmokeReport {
        report(ReportingProcess::Parent, events)
    }

    fn rank_report(events: Vec<Told>) -> SmokeReport {
        report(ReportingProcess::Rank, events)
    }

    #[test]
    fn the_report_passes_if_all_parts_do() {
        let report =
            parent_report(vec![part(Name::Join, None), part(Name::Steps, None), Told::Done]);
        assert!(report.passed && report.is_complete());
        assert_eq!((report.ranks, report.hosts, report.seconds), (4, 2, 2.0));
        let parts: Vec<(Name, f64)> = report.parts.iter().map(|p| (p.part, p.seconds)).collect();
        assert_eq!(parts, [(Name::Start, 1.5), (Name::Join, 0.5), (Name::Steps, 0.5)]);
        let report = rank_report(vec![part(Name::Join, None), Told::Done]);
        assert_eq!(report.parts.len(), 1, "a rank does not know how long the launch took");
    }

    #[test]
    fn a_failure_has_its_part_and_a_hint() {
        let (loss, rank) = (part(Name::Steps, Some("up")), part(Name::Same, Some("rank 1")));
        let report = rank_report(vec![loss, rank, Told::Done]);
        let failure = report.failure.unwrap();
        assert_eq!((failure.part, failure.error.as_str()), (Name::Same, "rank 1"));
        assert!(failure.hint.is_some_and(|text| text.contains("memory")));
        assert!(!report.passed);
        let broken = Told::Broken { part: Name::AllReduce, why: "rank 3 exited".to_owned() };
        let report = rank_report(vec![part(Name::Join, None), broken]);
        assert_eq!(report.failure.unwrap().part, Name::AllReduce);
        let stopped = rank_report(vec![part(Name::Join, None), Told::Stopped(Name::Steps)]);
        assert_eq!(stopped.failure.unwrap().hint, None);
    }

    #[test]
    fn ranks_that_exit_without_a_result_fail_the_test() {
        let mut report = parent_report(vec![part(Name::Join, None), part(Name::Data, None)]);
        report.on_ranks_exited(3.0);
        assert_eq!(report.failure.unwrap().error, "the ranks exited after part data");
        let mut empty = parent_report(Vec::new());
        empty.on_ranks_exited(3.0);
        assert!(!empty.passed && empty.failure.unwrap().error.contains("before the bootstrap"));
        let mut done = parent_report(vec![part(Name::Join, None), Told::Done]);
        done.on_ranks_exited(3.0);
        assert!(done.passed);
    }

    #[test]
    fn the_report_serializes_to_one_json_object() {
        let report = parent_report(vec![part(Name::Join, None), Told::Done]);
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["passed"], true);
        assert_eq!(value["parts"][1]["figures"]["world"]["ranks"], 4);
        assert_eq!(value["parts"][1]["verdict"], "ok");
    }
}
