//! Reads NCCL's debug logs of all ranks while the job runs.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::net_log::report::report;
use crate::net_log::{NetLog, NetReport, Requirement, SourceId};

/// Interval of reading the logs, per `RANKS_PER_INTERVAL` ranks: file systems have other work.
const INTERVAL: Duration = Duration::from_millis(250);
const RANKS_PER_INTERVAL: usize = 256;
/// Time between the first violation and its report, in which other ranks log theirs.
const SETTLE_TIME: Duration = Duration::from_secs(2);
/// Most bytes of a log that are read at a time, and in total: a job that logs every operation
/// (`NCCL_DEBUG=TRACE`) has said all about its network before that.
const CHUNK: usize = 1 << 20;
const MAX_LOG: u64 = 256 << 20;

/// What was found while the job runs.
#[derive(Debug)]
pub enum NetUpdate {
    /// All ranks are connected.
    Connected(Box<NetReport>),
    /// A rank violates the requirement.
    Violated(Box<NetReport>),
}

/// Reads the logs of all ranks in a thread.
#[derive(Debug)]
pub struct NetLogWatch {
    updates: Receiver<NetUpdate>,
    stop: Arc<AtomicBool>,
    thread: JoinHandle<NetReport>,
}

impl NetLogWatch {
    /// Starts to read the log of each rank, which the rank may still have to create.
    pub fn start(logs: Vec<PathBuf>, requirement: Option<Requirement>) -> io::Result<Self> {
        let (sender, updates) = mpsc::channel();
        let stop = Arc::new(AtomicBool::new(false));
        let reader = Reader::new(logs, requirement, sender);
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new().name("net-check".to_owned());
        let thread = thread.spawn(move || reader.run(&stopped))?;
        Ok(Self { updates, stop, thread })
    }

    /// What was found since the last call.
    pub fn next_update(&self) -> Option<NetUpdate> {
        self.updates.try_recv().ok()
    }

    /// Reads the rest, and judges all logs.
    pub fn finish(self) -> Option<NetReport> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().ok()
    }
}

/// Reads the logs of all ranks.
struct Reader {
    log: NetLog,
    files: Vec<RankLog>,
    requirement: Option<Requirement>,
    updates: Sender<NetUpdate>,
    /// When the requirement was first violated.
    violated: Option<Instant>,
    /// Whether everything has been reported.
    done: bool,
}

struct RankLog {
    path: PathBuf,
    source: SourceId,
    read: u64,
}

impl Reader {
    fn new(
        logs: Vec<PathBuf>,
        requirement: Option<Requirement>,
        updates: Sender<NetUpdate>,
    ) -> Self {
        let mut log = NetLog::default();
        let file = |(rank, path): (u32, PathBuf)| {
            let source = log.add_source(&path.display().to_string(), Some(rank));
            RankLog { path, source, read: 0 }
        };
        let files = (0..).zip(logs).map(file).collect();
        Self { log, files, requirement, updates, violated: None, done: false }
    }

    /// Reads until it is stopped, and returns the last report.
    fn run(mut self, stop: &AtomicBool) -> NetReport {
        let interval = INTERVAL * self.files.len().div_ceil(RANKS_PER_INTERVAL).max(1) as u32;
        let mut next = Instant::now();
        while !stop.load(Ordering::Relaxed) {
            if !self.done && Instant::now() >= next {
                let has_news = self.read_all();
                self.check(has_news);
                next = Instant::now() + interval;
            }
            std::thread::sleep(INTERVAL / 10);
        }
        while self.read_all() {}
        for file in &self.files {
            self.log.finish(file.source);
        }
        report(&self.log, self.requirement.as_ref())
    }

    /// Reads what is new; returns whether there was anything.
    fn read_all(&mut self) -> bool {
        let mut chunk = vec![0; CHUNK];
        let mut has_news = false;
        for file in &mut self.files {
            // The rank may not have created it yet.
            let length = read_from(&file.path, file.read, &mut chunk).unwrap_or(0);
            if length > 0 && file.read < MAX_LOG {
                self.log.read(file.source, &chunk[..length]);
                file.read += length as u64;
                has_news = true;
            }
        }
        has_news
    }

    fn check(&mut self, has_news: bool) {
        let (connected, _) = self.log.progress();
        let all_connected = connected >= self.files.len();
        if !has_news && self.violated.is_none() {
            return;
        }
        let required = self.requirement.as_ref();
        let violated = required.is_some_and(|required| {
            let report = report(&self.log, None);
            required.is_violated(&report)
        });
        if violated {
            let since = *self.violated.get_or_insert_with(Instant::now);
            if all_connected || since.elapsed() >= SETTLE_TIME {
                self.send(NetUpdate::Violated);
            }
        } else if all_connected {
            self.send(NetUpdate::Connected);
        }
    }

    fn send(&mut self, update: impl Fn(Box<NetReport>) -> NetUpdate) {
        let report = report(&self.log, self.requirement.as_ref());
        // The receiver is gone if the job has ended.
        let _ = self.updates.send(update(Box::new(report)));
        self.done = true;
    }
}

fn read_from(path: &Path, offset: u64, chunk: &mut [u8]) -> io::Result<usize> {
    let mut file = File::open(path)?;
    file.seek(SeekFrom::Start(offset))?;
    file.read(chunk)
}
