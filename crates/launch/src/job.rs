//! Runs a job's ranks on this node: starts them, carries their output, does what the supervisor
//! says, and tells how it ended.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{Read, Write};
use std::process::Child;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use regatta_model::result::{Ending, Failure, RunResult};
use serde::Serialize;

use crate::folder::{FolderError, RunFolder};
use crate::lines::{Folded, Folder, Splitter};
use crate::process::{self, RankSpec, StartError};
use crate::signals::{Caught, asks_to_end};
use crate::supervise::{Action, Input, Limits, Supervisor};
use crate::watch::{OomWatch, doing, ticks};

/// Why a job could not be run.
#[derive(Debug, thiserror::Error)]
pub enum JobError {
    /// A rank could not be started.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The run folder could not be written.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// There is no thread left to carry a rank's output.
    #[error(
        "no thread for a rank's output: {0}; raise the limit on processes (ulimit -u), or start fewer ranks"
    )]
    Thread(std::io::Error),
}

/// A job on this node.
#[derive(Debug)]
pub struct LocalJob {
    /// This node.
    pub host: String,
    /// Its ranks.
    pub ranks: Vec<RankSpec>,
    /// How long things may take.
    pub limits: Limits,
    /// How often the job was started before.
    pub attempt: u32,
}

/// How long a line waits for the same line of other ranks.
const FOLD: Duration = Duration::from_millis(100);
/// How often time is looked at.
const TICK: Duration = Duration::from_millis(50);
/// How many last lines of a failed rank are kept.
const TAIL: usize = 10;

/// How often the ranks' progress is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How long, after the last rank is over, what it started may go on writing: `tee` of a shell's
/// `exec > >(tee log)` has the last lines.
const LINGER: Duration = Duration::from_secs(1);
/// How long, after the last rank is over, its output may take to arrive, and the rest to die.
const DRAIN: Duration = Duration::from_secs(5);

enum Event {
    Line {
        rank: u32,
        error: bool,
        text: String,
    },
    /// A stream of a rank is at its end.
    Closed,
    Ended {
        rank: u32,
    },
}

/// What is written to the run's events.
#[derive(Serialize)]
#[serde(rename_all = "kebab-case", tag = "event")]
enum Note {
    Started { rank: u32, pid: u32 },
    Ended { rank: u32, ending: Ending },
    Signal { signal: i32 },
    Told { signal: i32 },
    Killed,
}

struct Driver<'a> {
    job: &'a LocalJob,
    folder: &'a mut RunFolder,
    running: BTreeMap<u32, Child>,
    tails: BTreeMap<u32, VecDeque<String>>,
    supervisor: Supervisor,
    oom: OomWatch,
    /// Streams that are still open.
    open: usize,
    over: Option<Instant>,
    others: BTreeMap<u32, String>,
    hang: Option<BTreeMap<u32, String>>,
    /// The ranks' time on processors when it was last looked at, and when that was.
    computed: (u64, Instant),
    start: Instant,
}

/// Runs the job to its end. `signals` may hold some from before; `show` gets the lines for the
/// terminal.
pub fn run(
    job: &LocalJob,
    folder: &mut RunFolder,
    signals: &mut Caught,
    show: &mut dyn FnMut(&Folded),
) -> Result<RunResult, JobError> {
    process::adopt_orphans();
    let (sender, events) = sync_channel(1024);
    let mut driver = Driver {
        supervisor: Supervisor::new(job.ranks.len() as u32, job.limits, Instant::now()),
        oom: OomWatch::start(),
        running: BTreeMap::new(),
        tails: BTreeMap::new(),
        open: 0,
        over: None,
        others: BTreeMap::new(),
        hang: None,
        computed: (0, Instant::now()),
        start: Instant::now(),
        job,
        folder,
    };
    let started = driver.start_ranks(&sender);
    if started.is_ok() {
        driver.watch(&events, signals, show);
    }
    process::end_descendants(DRAIN);
    started?;
    Ok(driver.result())
}

impl Driver<'_> {
    /// Starts all ranks, from this thread: they are to die when it does.
    fn start_ranks(&mut self, sender: &SyncSender<Event>) -> Result<(), JobError> {
        for spec in &self.job.ranks {
            let rank = spec.rank;
            let log = |stream: &str| self.folder.log(self.job.attempt, rank, stream);
            let logs = (log("out")?, log("err")?);
            let mut child = spec.start()?;
            let pid = child.id();
            if let (Some(out), Some(err)) = (child.stdout.take(), child.stderr.take()) {
                self.open += 2;
                carry(out, logs.0, sender.clone(), rank, false)?;
                carry(err, logs.1, sender.clone(), rank, true)?;
            }
            self.running.insert(rank, child);
            self.folder.event(&Stamped::new(self.start, Note::Started { rank, pid }));
            let sender = sender.clone();
            thread(move || {
                process::await_end(pid);
                let _ = sender.send(Event::Ended { rank });
            })?;
        }
        Ok(())
    }

    fn watch(
        &mut self,
        events: &Receiver<Event>,
        signals: &mut Caught,
        show: &mut dyn FnMut(&Folded),
    ) {
        let mut folder = Folder::new(FOLD);
        let (mut quiet, mut linger) = (false, None);
        while !self.is_done(quiet) {
            let event = events.recv_timeout(TICK);
            quiet = event.is_err();
            match event {
                Ok(Event::Line { rank, error, text }) => {
                    self.keep(rank, &text);
                    self.handle(Input::Progress);
                    folder.push(rank, error, text, Instant::now());
                }
                Ok(Event::Closed) => self.open = self.open.saturating_sub(1),
                Ok(Event::Ended { rank }) => self.ended(rank),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => break,
            }
            for signal in signals.pending() {
                self.note(Note::Signal { signal });
                self.handle(Input::Signal(signal));
            }
            process::bury_orphans(|pid| self.running.values().any(|c| c.id() == pid));
            self.look_for_progress();
            self.handle(Input::Tick);
            // Now and then: it takes a walk through /proc, and many lines may still come.
            if linger.is_some_and(|since: Instant| since.elapsed() >= LINGER) {
                process::kill_descendants();
                linger = None;
            }
            linger = linger.or(self.over.map(|_| Instant::now()));
            folder.ready(Instant::now()).iter().for_each(&mut *show);
        }
        folder.finish().iter().for_each(&mut *show);
    }

    /// Whether anything below us used a processor since the last look. It takes a walk through
    /// /proc, so it is done only if somebody wants to know, and once a second.
    fn look_for_progress(&mut self) {
        let (before, when) = self.computed;
        if self.job.limits.hang_after.is_none() || when.elapsed() < LOOK {
            return;
        }
        let now = ticks(&process::descendants());
        self.computed = (now, Instant::now());
        if now != before {
            self.handle(Input::Progress);
        }
    }

    /// What each running rank is doing.
    fn doing(&self) -> BTreeMap<u32, String> {
        self.running.iter().map(|(rank, child)| (*rank, doing(child.id()))).collect()
    }

    /// Over, and nothing more to come; or what is to come takes too long. While lines do come, it
    /// is the terminal that is slow.
    fn is_done(&self, quiet: bool) -> bool {
        self.over.is_some_and(|since| self.open == 0 || (quiet && since.elapsed() > DRAIN))
    }

    fn keep(&mut self, rank: u32, text: &str) {
        let tail = self.tails.entry(rank).or_default();
        if tail.len() == TAIL {
            tail.pop_front();
        }
        tail.push_back(text.to_owned());
    }

    /// A rank is over; its number stays taken until it is asked for its status here.
    fn ended(&mut self, rank: u32) {
        let Some(mut child) = self.running.remove(&rank) else { return };
        let mut ending = child.wait().map_or(Ending::Exit(1), process::ending);
        if ending == Ending::Signal(libc::SIGKILL) && self.oom.has_killed() {
            ending = Ending::OutOfMemory;
        }
        if !ending.is_good() && self.supervisor.first_failure().is_none() {
            self.others = self.doing();
        }
        self.note(Note::Ended { rank, ending });
        self.handle(Input::Ended(rank, ending));
    }

    fn handle(&mut self, input: Input) {
        for action in self.supervisor.handle(input, Instant::now()) {
            match action {
                Action::SignalRanks(signal) => {
                    self.note(Note::Told { signal });
                    self.running.values().for_each(|c| process::signal_group(c.id(), signal));
                    // A rank that is stopped, for asking the terminal, hears of its end only so.
                    if asks_to_end(signal) {
                        self.running
                            .values()
                            .for_each(|c| process::signal_group(c.id(), libc::SIGCONT));
                    }
                }
                Action::Kill => {
                    if !self.running.is_empty() {
                        self.note(Note::Killed);
                    }
                    process::kill_descendants();
                }
                Action::ReportHang => self.hang = Some(self.doing()),
                Action::Finish => self.over = Some(Instant::now()),
            }
        }
    }

    fn note(&mut self, note: Note) {
        self.folder.event(&Stamped::new(self.start, note));
    }

    fn result(self) -> RunResult {
        let failure = self.supervisor.first_failure().map(|(rank, ending)| Failure {
            rank,
            host: self.job.host.clone(),
            ending,
            last_lines: self.tails.get(&rank).into_iter().flatten().cloned().collect(),
            others: self.others.clone(),
        });
        let quiet = self.job.limits.hang_after.unwrap_or_default().as_secs();
        let reason = match (&failure, self.supervisor.ended_by()) {
            _ if self.supervisor.hung() => {
                format!("no rank wrote anything or used a processor for {quiet} s")
            }
            (Some(f), _) => format!("rank {} on {} failed first: {}", f.rank, f.host, f.ending),
            (None, Some(signal)) => format!("ended by {}", Ending::Signal(signal)),
            (None, None) => "all ranks ended well".to_owned(),
        };
        let words = self.job.ranks.first().map(|r| r.command.as_slice()).unwrap_or_default();
        RunResult {
            command: words.iter().map(|w| w.to_string_lossy().into_owned()).collect(),
            ranks: self.job.ranks.len() as u32,
            code: self.supervisor.code(),
            restarts: self.job.attempt,
            reason,
            failure,
            hang: self.hang,
            endings: self.supervisor.endings().clone(),
            seconds: self.start.elapsed().as_secs_f64(),
        }
    }
}

/// A note with the seconds since the start.
#[derive(Serialize)]
struct Stamped {
    seconds: f64,
    #[serde(flatten)]
    note: Note,
}

impl Stamped {
    fn new(start: Instant, note: Note) -> Self {
        Self { seconds: start.elapsed().as_secs_f64(), note }
    }
}

/// A thread, or an error where the limit on processes leaves none.
fn thread(work: impl FnOnce() + Send + 'static) -> Result<(), JobError> {
    std::thread::Builder::new().spawn(work).map(drop).map_err(JobError::Thread)
}

/// Carries one stream of a rank: to its log at once, so that nothing is lost whatever becomes of
/// us, and line by line to the terminal.
fn carry(
    mut stream: impl Read + Send + 'static,
    mut log: File,
    sender: SyncSender<Event>,
    rank: u32,
    error: bool,
) -> Result<(), JobError> {
    thread(move || {
        let mut splitter = Splitter::default();
        let mut buffer = vec![0; 64 * 1024];
        loop {
            let bytes = match stream.read(&mut buffer) {
                Ok(0) => break,
                Ok(n) => &buffer[..n],
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => break,
            };
            // A full disk must not stop the rank.
            let _ = log.write_all(bytes);
            for text in splitter.push(bytes, Instant::now()) {
                let _ = sender.send(Event::Line { rank, error, text });
            }
        }
        if let Some(text) = splitter.finish() {
            let _ = sender.send(Event::Line { rank, error, text });
        }
        let _ = sender.send(Event::Closed);
    })
}
