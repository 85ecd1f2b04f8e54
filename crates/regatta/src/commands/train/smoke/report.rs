//! What is known of a check of all ranks, from what rank 0 told. No I/O; times are given, in seconds
//! since the check began.

use regatta_train::job::smoke::{Figures, Name, Part, Told, Verdict};
use serde::Serialize;

/// All parts, and what they come to. As JSON this is what `--json` prints.
#[derive(Debug, Default, Serialize)]
pub struct Report {
    /// Whether training on all ranks works here.
    pub works: bool,
    /// How many ranks met.
    pub ranks: u32,
    /// On how many hosts.
    pub hosts: u32,
    /// How long all of it took.
    pub seconds: f64,
    /// What does not work.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<Failure>,
    /// The parts that are over.
    pub parts: Vec<Part>,
    #[serde(skip)]
    is_starter: bool,
    #[serde(skip)]
    ended: bool,
}

/// What does not work.
#[derive(Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// The part.
    pub part: Name,
    /// What is wrong with it, and where.
    pub what: String,
    /// What to look at.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub look_at: Option<&'static str>,
}

impl Failure {
    fn new(part: Name, what: String) -> Self {
        Self { part, what, look_at: Some(look_at(part)) }
    }
}

impl Report {
    /// Nothing is known yet. Who started the ranks knows how long that took.
    pub fn new(is_starter: bool) -> Self {
        Self { is_starter, ..Self::default() }
    }

    /// Takes what rank 0 told.
    pub fn hear(&mut self, told: Told, now: f64) {
        match told {
            Told::Part(part) => self.part(*part, now),
            Told::Broken { part, why } => self.end(Some(Failure::new(part, why)), now),
            Told::Stopped(part) => {
                let what = "told to end before all was looked at".to_owned();
                self.end(Some(Failure { part, what, look_at: None }), now);
            }
            Told::Done => {
                let failure = self.failed().map(|(part, why)| Failure::new(part, why));
                self.end(failure, now);
            }
        }
    }

    fn part(&mut self, part: Part, now: f64) {
        if self.is_starter && self.parts.is_empty() {
            let seconds = (now - part.seconds).max(0.0);
            self.parts.push(Part { part: Name::Start, seconds, ..Part::default() });
        }
        if let Figures::World { ranks, hosts } = part.findings.figures {
            (self.ranks, self.hosts) = (ranks, hosts);
        }
        self.parts.push(part);
    }

    /// The part that failed. Where numbers differ, a loss that does not go down follows from that.
    fn failed(&self) -> Option<(Name, String)> {
        let failed = || self.parts.iter().filter(|part| part.verdict == Verdict::Failed);
        let differs = failed().find(|part| part.part == Name::Same);
        let part = differs.or_else(|| failed().next())?;
        Some((part.part, part.findings.wrong.clone().unwrap_or_default()))
    }

    /// All ranks have ended. If rank 0 did not say how, it was not given the time.
    pub fn ranks_ended(&mut self, now: f64) {
        if !self.ended {
            let part = self.parts.last().map_or(Name::Start, |part| part.part);
            let what = match part {
                Name::Start => "the ranks ended before they had met".to_owned(),
                part => format!("the ranks ended after the part {}", part.text()),
            };
            self.end(Some(Failure::new(Name::Start, what)), now);
        }
    }

    /// Whether it is known what it comes to.
    pub fn is_over(&self) -> bool {
        self.ended
    }

    fn end(&mut self, failure: Option<Failure>, now: f64) {
        self.ended = true;
        self.works = failure.is_none();
        self.failure = failure;
        self.seconds = now;
    }
}

/// What to look at when a part does not work.
fn look_at(part: Name) -> &'static str {
    match part {
        Name::Start | Name::Ranks => "what the ranks wrote, in log/ of the run folder",
        Name::Join => {
            "whether all nodes reach rank 0's, and what the ranks wrote, in log/ of the \
             run folder"
        }
        Name::Data => {
            "data.source, and whether every node sees it and may write what is made of it"
        }
        Name::Agreement => "how each rank is started: all need the same words, files and data",
        Name::AllReduce | Name::Broadcast => {
            "`regatta bench all-reduce`, which checks all sizes, and `regatta bench send-recv \
             --pairs`, which names nodes and links"
        }
        Name::Steps => "optimizer.rate and the data, then `regatta bench gemm` for the processors",
        Name::Same => {
            "that rank's node, its memory and processor (`regatta bench gemm`), and \
             whether all ranks run the same build"
        }
        Name::Checkpoint => {
            "the run folder: it must be on a file system that all nodes share, with \
             room; --run-dir names another"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use regatta_train::job::smoke::Findings;

    fn part(name: Name, wrong: Option<&str>) -> Told {
        let figures = match name {
            Name::Join => Figures::World { ranks: 4, hosts: 2 },
            _ => Figures::None,
        };
        let findings = Findings { figures, notes: Vec::new(), wrong: wrong.map(str::to_owned) };
        let verdict = findings.verdict();
        Told::Part(Box::new(Part { part: name, verdict, seconds: 0.5, findings, slowest: None }))
    }

    fn heard(is_starter: bool, all: Vec<Told>) -> Report {
        let mut report = Report::new(is_starter);
        all.into_iter().for_each(|told| report.hear(told, 2.0));
        report
    }

    #[test]
    fn all_parts_in_order_make_it_work() {
        let report = heard(true, vec![part(Name::Join, None), part(Name::Steps, None), Told::Done]);
        assert!(report.works && report.is_over());
        assert_eq!((report.ranks, report.hosts, report.seconds), (4, 2, 2.0));
        let parts: Vec<(Name, f64)> = report.parts.iter().map(|p| (p.part, p.seconds)).collect();
        assert_eq!(parts, [(Name::Start, 1.5), (Name::Join, 0.5), (Name::Steps, 0.5)]);
        let inside = heard(false, vec![part(Name::Join, None), Told::Done]);
        assert_eq!(inside.parts.len(), 1, "a rank does not know when it was started");
    }

    #[test]
    fn what_failed_is_named_with_what_to_look_at() {
        let (loss, rank) = (part(Name::Steps, Some("up")), part(Name::Same, Some("rank 1")));
        let report = heard(false, vec![loss, rank, Told::Done]);
        let failure = report.failure.unwrap();
        assert_eq!((failure.part, failure.what.as_str()), (Name::Same, "rank 1"));
        assert!(failure.look_at.is_some_and(|text| text.contains("memory")));
        assert!(!report.works);
        let broken = Told::Broken { part: Name::AllReduce, why: "rank 3 is gone".to_owned() };
        let report = heard(false, vec![part(Name::Join, None), broken]);
        assert_eq!(report.failure.unwrap().part, Name::AllReduce);
        let stopped = heard(false, vec![part(Name::Join, None), Told::Stopped(Name::Steps)]);
        assert_eq!(stopped.failure.unwrap().look_at, None);
    }

    #[test]
    fn ranks_that_end_without_a_word_have_failed() {
        let mut report = heard(true, vec![part(Name::Join, None), part(Name::Data, None)]);
        report.ranks_ended(3.0);
        let failure = report.failure.as_ref().unwrap();
        assert_eq!(failure.what, "the ranks ended after the part data");
        let mut silent = Report::new(true);
        silent.ranks_ended(3.0);
        assert!(!silent.works && silent.failure.unwrap().what.contains("before they had met"));
        let mut done = heard(true, vec![part(Name::Join, None), Told::Done]);
        done.ranks_ended(3.0);
        assert!(done.works);
    }

    #[test]
    fn as_json_it_is_one_object() {
        let report = heard(true, vec![part(Name::Join, None), Told::Done]);
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["works"], true);
        assert_eq!(value["parts"][1]["figures"]["world"]["ranks"], 4);
        assert_eq!(value["parts"][1]["verdict"], "ok");
    }
}
