//! The ranks of this node: started, listened to, ended with all they started.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::process::Child;
use std::sync::Arc;
use std::time::{Duration, Instant};

use regatta_model::result::Ending;

use crate::carry::{self, Log, News, Output};
use crate::crew::{Crew, Event, Order};
use crate::folder::{FolderError, LogFolder};
use crate::lines::Folded;
use crate::process::{self, RankSpec, StartError};
use crate::queue::{Notify, Queue};
use crate::signals::asks_to_end;
use crate::watch::{OomWatch, doing, ticks};

/// Why ranks could not be started on this node.
#[derive(Debug, thiserror::Error)]
pub enum CrewError {
    /// One of them could not.
    #[error(transparent)]
    Start(#[from] StartError),
    /// Its log could not be written.
    #[error(transparent)]
    Folder(#[from] FolderError),
    /// There is no thread left to carry a rank's output.
    #[error(
        "no thread for a rank's output: {0}; raise the limit on processes (ulimit -u), or start fewer ranks"
    )]
    Thread(std::io::Error),
}

/// How many last lines of a failed rank are kept.
const TAIL: usize = 10;
/// How often the ranks' progress is looked at.
const LOOK: Duration = Duration::from_secs(1);
/// How often leave is taken of orphans that are over.
const BURY: Duration = Duration::from_millis(20);
/// How long, after the last rank is over, what it started may go on writing: `tee` of a shell's
/// `exec > >(tee log)` has the last lines.
const LINGER: Duration = Duration::from_secs(1);
/// How long a rank may take to die of a kill.
const UNDYING: Duration = Duration::from_secs(30);
/// How long, after the last rank is over, its output may take to arrive, and the rest to die.
const DRAIN: Duration = Duration::from_secs(5);

/// How ranks are started and watched.
pub struct Watch {
    /// Where their logs go; `None`: to whoever takes the events.
    pub logs: Option<LogFolder>,
    /// How often the job was started before.
    pub attempt: u32,
    /// Whether their progress is looked at: it takes a walk through /proc.
    pub progress: bool,
    /// Called by other threads when there is something to take.
    pub notify: Option<Notify>,
}

/// The ranks of this node.
pub struct LocalCrew {
    running: BTreeMap<u32, Child>,
    queue: Arc<Queue<News, Output>>,
    ready: VecDeque<Event>,
    tails: BTreeMap<u32, VecDeque<String>>,
    /// Ranks that failed and whose last lines are still to come.
    failed: BTreeSet<u32>,
    /// Open streams of each rank.
    open: BTreeMap<u32, u32>,
    oom: OomWatch,
    progress: bool,
    /// The ranks' time on processors when it was last looked at, and when that was.
    computed: (u64, Instant),
    /// When ranks were first killed.
    killed: Option<Instant>,
    /// When the last rank was over, and when that was last acted upon.
    over: Option<Instant>,
    swept: Option<Instant>,
    /// When leave was last taken of orphans.
    buried: Instant,
    done: bool,
}

impl LocalCrew {
    /// Starts ranks, from this thread: they are to die when it does. If one cannot be started, none
    /// is left.
    pub fn start(specs: &[RankSpec], watch: &Watch) -> Result<Self, CrewError> {
        process::adopt_orphans();
        let mut crew = Self {
            running: BTreeMap::new(),
            queue: Queue::new(watch.notify.clone()),
            ready: VecDeque::new(),
            tails: BTreeMap::new(),
            failed: BTreeSet::new(),
            open: BTreeMap::new(),
            oom: OomWatch::start(),
            progress: watch.progress,
            computed: (0, Instant::now()),
            killed: None,
            over: specs.is_empty().then(Instant::now),
            swept: None,
            buried: Instant::now(),
            done: false,
        };
        for spec in specs {
            if let Err(error) = crew.start_rank(spec, watch) {
                process::end_descendants(DRAIN);
                return Err(error);
            }
        }
        Ok(crew)
    }

    fn start_rank(&mut self, spec: &RankSpec, watch: &Watch) -> Result<(), CrewError> {
        let rank = spec.rank;
        let log = |error| match &watch.logs {
            Some(logs) => logs.file(watch.attempt, rank, error).map(Log::Kept),
            None => Ok(Log::Sent),
        };
        let logs = (log(false)?, log(true)?);
        let mut child = spec.start()?;
        let pid = child.id();
        let streams = (child.stdout.take(), child.stderr.take());
        self.running.insert(rank, child);
        if let (Some(out), Some(err)) = streams {
            self.open.insert(rank, 2);
            carry::stream(out, logs.0, self.queue.clone(), rank, false)
                .and_then(|()| carry::stream(err, logs.1, self.queue.clone(), rank, true))
                .and_then(|()| carry::end(pid, self.queue.clone(), rank))
                .map_err(CrewError::Thread)?;
        }
        self.ready.push_back(Event::Started { rank, pid });
        Ok(())
    }

    /// What happened, without waiting for it. While `held`, what ranks write is left with them.
    pub fn poll(&mut self, held: bool) -> Option<Event> {
        self.tick();
        while self.ready.is_empty() {
            if let Some(news) = self.queue.news() {
                self.hear(news);
            } else if let Some(output) = (!held).then(|| self.queue.output()).flatten() {
                self.take(output);
            } else {
                self.settle(held);
                break;
            }
        }
        self.ready.pop_front()
    }

    fn hear(&mut self, news: News) {
        match news {
            News::Ended(rank) => self.ended(rank),
            News::Closed(rank) => {
                self.open.entry(rank).and_modify(|n| *n = n.saturating_sub(1));
            }
            News::LogCut(what) => self.ready.push_back(Event::Note(what)),
        }
    }

    fn take(&mut self, output: Output) {
        match output {
            Output::Line { rank, error, text } => {
                let tail = self.tails.entry(rank).or_default();
                if tail.len() == TAIL {
                    tail.pop_front();
                }
                tail.push_back(text.clone());
                self.ready.push_back(Event::Line(Folded::of(rank, error, text)));
            }
            Output::Bytes { rank, error, bytes } => {
                self.ready.push_back(Event::Wrote { rank, error, bytes });
            }
        }
    }

    /// A rank is over; its number stays taken until it is asked for its status here.
    fn ended(&mut self, rank: u32) {
        let Some(mut child) = self.running.remove(&rank) else { return };
        let mut ending = child.wait().map_or(Ending::Exit(1), process::ending);
        if ending == Ending::Signal(libc::SIGKILL) && self.oom.has_killed() {
            ending = Ending::OutOfMemory;
        }
        if !ending.is_good() {
            self.failed.insert(rank);
        }
        if self.running.is_empty() {
            self.over = Some(Instant::now());
        }
        self.ready.push_back(Event::Ended(rank, ending));
    }

    /// Nothing waits to be taken: what has come to its end?
    fn settle(&mut self, held: bool) {
        let open = |rank: &u32| self.open.get(rank).is_some_and(|&n| n > 0);
        // While output is held, what looks like silence is not.
        let late = !held && self.over.is_some_and(|since| since.elapsed() > DRAIN);
        let whole: Vec<u32> =
            self.failed.iter().copied().filter(|r| late || (!held && !open(r))).collect();
        for rank in whole {
            self.failed.remove(&rank);
            let lines = self.tails.remove(&rank).unwrap_or_default();
            self.ready.push_back(Event::Tail(rank, lines.into()));
        }
        let closed = !held && self.open.values().all(|&n| n == 0);
        if self.over.is_some() && (closed || late) && !self.done {
            self.done = true;
            process::end_descendants(DRAIN);
            self.ready.push_back(Event::Over);
        }
    }

    fn tick(&mut self) {
        if self.done {
            return;
        }
        if self.buried.elapsed() >= BURY {
            process::bury_orphans(|pid| self.running.values().any(|c| c.id() == pid));
            self.buried = Instant::now();
        }
        self.look_for_progress();
        if self.killed.is_some_and(|at| at.elapsed() >= UNDYING) {
            self.give_up();
        }
        // Now and then: it takes a walk through /proc, and many lines may still come.
        let since = self.swept.or(self.over);
        if since.is_some_and(|since| since.elapsed() >= LINGER) {
            process::kill_descendants();
            self.swept = Some(Instant::now());
        }
    }

    /// Does not wait any longer for ranks that a kill does not end: they wait in the kernel for a
    /// device or a file system that does not answer.
    fn give_up(&mut self) {
        for (rank, child) in std::mem::take(&mut self.running) {
            let (pid, what) = (child.id(), doing(child.id()));
            let note = format!("rank {rank}, process {pid}, cannot be killed: it is {what}");
            self.ready.push_back(Event::Note(note));
            self.ready.push_back(Event::Ended(rank, Ending::Signal(libc::SIGKILL)));
            self.over = Some(Instant::now());
        }
    }

    /// Whether anything below us used a processor since the last look.
    fn look_for_progress(&mut self) {
        let (before, when) = self.computed;
        if !self.progress || when.elapsed() < LOOK {
            return;
        }
        let now = ticks(&process::descendants());
        self.computed = (now, Instant::now());
        if now != before {
            self.ready.push_back(Event::Progress);
        }
    }

    /// Whether nothing more is to come.
    pub fn is_done(&self) -> bool {
        self.done && self.ready.is_empty()
    }
}

impl Crew for LocalCrew {
    fn next(&mut self, timeout: Duration, held: bool) -> Option<Event> {
        self.poll(held).or_else(|| {
            self.queue.wait(timeout, held);
            self.poll(held)
        })
    }

    fn order(&mut self, order: Order) {
        match order {
            Order::Signal(signal) => {
                let pids = self.running.values().map(Child::id);
                pids.clone().for_each(|pid| process::signal_group(pid, signal));
                // A rank that is stopped, for asking the terminal, hears of its end only so.
                if asks_to_end(signal) {
                    pids.for_each(|pid| process::signal_group(pid, libc::SIGCONT));
                }
            }
            Order::Kill => {
                self.killed.get_or_insert_with(Instant::now);
                process::kill_descendants();
            }
            Order::Look => {
                let what = self.running.iter().map(|(rank, c)| (*rank, doing(c.id())));
                self.ready.push_back(Event::Doing(what.collect()));
            }
        }
    }
}

/// Nothing outlives the one who started it.
impl Drop for LocalCrew {
    fn drop(&mut self) {
        if !self.done {
            process::end_descendants(DRAIN);
        }
    }
}
