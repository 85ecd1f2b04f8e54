//! Runs a job's ranks to their end: hears what happens to them, does what the supervisor says, and
//! tells how it ended.

use std::collections::{BTreeMap, VecDeque};
use std::time::{Duration, Instant};

use regatta_model::result::{Ending, Failure, RunResult};
use serde::Serialize;

use crate::chorus::Chorus;
use crate::crew::{Crew, Event, Order};
use crate::folder::RunFolder;
use crate::lines::{Folded, Folder};
use crate::signals::Caught;
use crate::supervise::{Action, Input, Limits, Supervisor};

/// One start of a job.
#[derive(Debug)]
pub struct Job {
    /// What the ranks run.
    pub command: Vec<String>,
    /// The node of each rank.
    pub hosts: Vec<String>,
    /// How long things may take.
    pub limits: Limits,
    /// How often the job was started before.
    pub attempt: u32,
}

/// How a start ended.
#[derive(Debug)]
pub struct Outcome {
    /// For the run folder.
    pub result: RunResult,
    /// Nodes that are gone, by position.
    pub lost: Vec<u32>,
    /// Whether a signal asked for the end, of the user or of the scheduler.
    pub asked_to_end: bool,
}

/// How long a line waits for the same line of other ranks.
const FOLD: Duration = Duration::from_millis(100);
/// How often time and signals are looked at.
const TICK: Duration = Duration::from_millis(50);
/// How many lines are shown at a time: a flood of them must not keep us from hearing what happens,
/// nor the nodes from hearing that we live.
const SHOWN: usize = 256;
/// How long a terminal that is slow is left alone.
const PAUSE: Duration = Duration::from_millis(2);
/// How often signals are looked at where much happens: each look asks the kernel.
const LOOK: Duration = Duration::from_millis(5);

/// What is written to the run's events.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case", tag = "event")]
enum Note<'a> {
    Started { rank: u32, pid: u32 },
    Ended { rank: u32, ending: Ending },
    Signal { signal: i32 },
    Told { signal: i32 },
    Killed,
    Broken { why: &'a str },
    Lost { ranks: &'a [u32] },
    Remark { what: &'a str },
}

/// A note with the seconds since the start.
#[derive(Serialize)]
struct Stamped<'a> {
    seconds: f64,
    #[serde(flatten)]
    note: Note<'a>,
}

struct Driver<'a> {
    job: &'a Job,
    crew: &'a mut dyn Crew,
    folder: &'a mut RunFolder,
    supervisor: Supervisor,
    lines: Folder,
    tails: BTreeMap<u32, Vec<String>>,
    others: BTreeMap<u32, String>,
    lost: Vec<u32>,
    /// What is known of the first failure beyond the rank's end.
    why: Option<String>,
    notes: Vec<String>,
    signals: Chorus,
    killing: bool,
    start: Instant,
}

/// Takes a line for the terminal, if it can take one now; it never waits.
pub type Show<'a> = &'a mut dyn FnMut(&Folded) -> bool;

/// Runs one start of a job to its end. `signals` may hold some from before; `show` gets the lines
/// for the terminal.
pub fn run(
    job: &Job,
    crew: &mut dyn Crew,
    folder: &mut RunFolder,
    signals: &mut Caught,
    show: Show,
) -> Outcome {
    let mut driver = Driver {
        supervisor: Supervisor::new(job.hosts.len() as u32, job.limits, Instant::now()),
        lines: Folder::new(FOLD),
        tails: BTreeMap::new(),
        others: BTreeMap::new(),
        lost: Vec::new(),
        why: None,
        notes: Vec::new(),
        signals: Chorus::default(),
        killing: false,
        start: Instant::now(),
        job,
        crew,
        folder,
    };
    driver.watch(signals, show);
    driver.outcome()
}

impl Driver<'_> {
    fn watch(&mut self, signals: &mut Caught, show: Show) {
        let mut looked: Option<Instant> = None;
        let mut unshown: VecDeque<Folded> = VecDeque::new();
        loop {
            // A slow terminal holds back what ranks write, and nothing else.
            let held = !unshown.is_empty();
            let event = self.crew.next(if held { PAUSE } else { TICK }, held);
            let over = event == Some(Event::Over);
            // Before the rest: a rank may have died of the same signal, which is no failure of it.
            let ends = over || matches!(event, Some(Event::Ended(..)));
            if ends || looked.is_none_or(|at| at.elapsed() >= LOOK) {
                signals.pending().into_iter().for_each(|signal| self.signalled(signal, false));
                looked = Some(Instant::now());
            }
            if let Some(event) = event {
                self.hear(event);
            }
            self.handle(Input::Tick);
            if over {
                break;
            }
            unshown.extend(self.lines.some_ready(Instant::now(), SHOWN - SHOWN.min(unshown.len())));
            while unshown.pop_front_if(|line| show(line)).is_some() {}
        }
        unshown.extend(self.lines.finish());
        while !unshown.is_empty() {
            if unshown.pop_front_if(|line| show(line)).is_none() {
                std::thread::sleep(PAUSE);
            }
        }
    }

    fn hear(&mut self, event: Event) {
        match event {
            Event::Started { rank, pid } => self.note(Note::Started { rank, pid }),
            Event::Line(line) => {
                self.handle(Input::Progress);
                self.lines.push(line, Instant::now());
            }
            Event::Wrote { rank, error, bytes } => self.keep(rank, error, &bytes),
            Event::Progress => self.handle(Input::Progress),
            Event::Ended(rank, ending) => {
                self.note(Note::Ended { rank, ending });
                self.handle(Input::Ended(rank, ending));
            }
            Event::Tail(rank, lines) => drop(self.tails.insert(rank, lines)),
            Event::Doing(what) => self.others.extend(what),
            Event::Signal(signal) => self.signalled(signal, true),
            Event::Broken { rank, why } => self.broken(rank, why),
            Event::Lost { node, ranks } => self.lose(node, &ranks),
            Event::Unstarted { rank, why } => {
                self.explain(why);
                self.handle(Input::Ended(rank, UNSTARTED));
            }
            Event::Note(what) => self.remark(what),
            Event::Over => {}
        }
    }

    fn signalled(&mut self, signal: i32, by_node: bool) {
        if self.signals.is_new(signal, by_node, Instant::now()) {
            self.note(Note::Signal { signal });
            let input = if by_node { Input::NodeSignal } else { Input::Signal };
            self.handle(input(signal));
        }
    }

    fn broken(&mut self, rank: u32, why: String) {
        self.note(Note::Broken { why: &why });
        self.explain(why);
        self.handle(Input::Broken(rank));
    }

    /// Keeps what is known of a failure if it is the first.
    fn explain(&mut self, why: String) {
        if self.supervisor.first_failure().is_none() {
            self.why = Some(why);
        }
    }

    fn lose(&mut self, node: u32, ranks: &[u32]) {
        self.lost.push(node);
        self.note(Note::Lost { ranks });
        for &rank in ranks {
            self.handle(Input::Ended(rank, Ending::Lost));
        }
    }

    /// Writes what a node keeps no log of.
    fn keep(&mut self, rank: u32, error: bool, bytes: &[u8]) {
        if let Some(why) = self.folder.append_log(self.job.attempt, rank, error, bytes) {
            self.remark(why);
        }
    }

    fn remark(&mut self, what: String) {
        self.note(Note::Remark { what: &what });
        self.notes.push(what);
    }

    fn handle(&mut self, input: Input) {
        for action in self.supervisor.handle(input, Instant::now()) {
            match action {
                Action::SignalRanks(signal) => {
                    self.note(Note::Told { signal });
                    self.crew.order(Order::Signal(signal));
                }
                Action::Kill => {
                    if !std::mem::replace(&mut self.killing, true) {
                        self.note(Note::Killed);
                    }
                    self.crew.order(Order::Kill);
                }
                Action::Look => self.crew.order(Order::Look),
                Action::Finish => {}
            }
        }
    }

    fn note(&mut self, note: Note) {
        self.folder.event(&Stamped { seconds: self.start.elapsed().as_secs_f64(), note });
    }

    fn outcome(self) -> Outcome {
        let host = |rank: u32| self.job.hosts.get(rank as usize).cloned().unwrap_or_default();
        let failed = self.supervisor.first_failure();
        let failure = failed.map(|(rank, ending)| Failure {
            rank,
            host: host(rank),
            ending,
            last_lines: self.tails.get(&rank).cloned().unwrap_or_default(),
            others: self.others.clone(),
        });
        let result = RunResult {
            command: self.job.command.clone(),
            ranks: self.job.hosts.len() as u32,
            code: self.supervisor.code(),
            restarts: self.job.attempt,
            reason: self.reason(failure.as_ref()),
            failure,
            hang: self.supervisor.hung().then(|| self.others.clone()),
            notes: self.notes,
            endings: self.supervisor.endings().clone(),
            seconds: self.start.elapsed().as_secs_f64(),
        };
        let asked_to_end = self.supervisor.ended_by().is_some();
        Outcome { result, lost: self.lost, asked_to_end }
    }

    fn reason(&self, failure: Option<&Failure>) -> String {
        let quiet = self.job.limits.hang_after.unwrap_or_default().as_secs();
        match (failure, self.supervisor.ended_by(), &self.why) {
            _ if self.supervisor.hung() => {
                format!("no rank wrote anything or used a processor for {quiet} s")
            }
            (Some(_), _, Some(why)) => why.clone(),
            (Some(f), ..) => format!("rank {} on {} failed first: {}", f.rank, f.host, f.ending),
            (None, Some(signal), _) => format!("ended by {}", Ending::Signal(signal)),
            (None, None, _) => "all ranks ended well".to_owned(),
        }
    }
}

/// What a shell says of a command it cannot run.
const UNSTARTED: Ending = Ending::Exit(127);
