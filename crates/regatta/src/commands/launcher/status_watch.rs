//! Reads the live status of all ranks while the job runs, to detect and explain hangs of collectives.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, SyncSender};
use std::time::Duration;

use anyhow::{Context, Result};
use regatta_events::status::{self, Status};
use regatta_launch::signals::is_termination_signal;
use regatta_launch::worker_group::{JobEvent, RankControl};
use regatta_observe::comms_status::{Finding, JobStatus, StallTracker, judge};
use regatta_observe::read::comms;
use regatta_wire::clock;

/// Interval of reading, per `RANKS_PER_INTERVAL` ranks, and the longest: file systems have other work.
const INTERVAL: Duration = Duration::from_secs(1);
const MAX_INTERVAL: Duration = Duration::from_secs(10);
const RANKS_PER_INTERVAL: usize = 256;
/// Operations in flight for a shorter time are not reported.
const MIN_AGE: Duration = Duration::from_secs(5);
/// The status of all ranks.
pub struct StatusWatch {
    snapshots: Receiver<Vec<Status>>,
    latest: Vec<Status>,
    tracker: StallTracker,
    hosts: Vec<String>,
    /// Ranks that have exited.
    exited: BTreeSet<u32>,
    /// A stall of this long is a hang.
    limit: Option<Duration>,
    /// Whether the ranks were told to exit: what they do since then explains nothing.
    frozen: bool,
}

impl StatusWatch {
    /// Starts to read the status files of a folder. Those that exist already are of an earlier attempt.
    pub fn start(
        folder: PathBuf,
        hosts: Vec<String>,
        hang_after: Option<Duration>,
    ) -> Result<Self> {
        let (sender, snapshots) = mpsc::sync_channel(1);
        let earlier = status_files(&folder).filter_map(|path| Some(path.file_name()?.to_owned()));
        let earlier: HashSet<OsString> = earlier.collect();
        let interval = interval(hosts.len(), hang_after);
        let thread = std::thread::Builder::new().name("status-watch".to_owned());
        // Not joined: a file system that does not respond must not hang the launcher.
        thread
            .spawn(move || read_periodically(&folder, &earlier, interval, &sender))
            .context("start a thread")?;
        Ok(Self {
            snapshots,
            latest: Vec::new(),
            tracker: StallTracker::default(),
            hosts,
            exited: BTreeSet::new(),
            limit: hang_after,
            frozen: false,
        })
    }

    /// Takes a new snapshot, and returns the event of a stall. Ranks whose output is paused may wait for
    /// the reader.
    pub fn event(&mut self, output_paused: bool) -> Option<JobEvent> {
        if self.frozen {
            return None;
        }
        if output_paused {
            self.tracker.reset();
        }
        self.latest = self.snapshots.try_recv().ok()?;
        if output_paused {
            return None;
        }
        let stall = self.tracker.update(&self.latest, clock::now());
        self.limit.filter(|limit| stall >= *limit).map(|_| JobEvent::Stalled)
    }

    /// Takes note of exits.
    pub fn on_event(&mut self, event: &JobEvent) {
        match event {
            JobEvent::Exited(rank, _) if !self.frozen => drop(self.exited.insert(*rank)),
            _ => {}
        }
    }

    /// Takes note of signals.
    pub fn on_control(&mut self, control: RankControl) {
        match control {
            RankControl::Signal(signal) if !is_termination_signal(signal) => self.tracker.reset(),
            _ => self.frozen = true,
        }
    }

    /// The operations that did not complete when the ranks were told to exit.
    pub fn judge(&self, is_hung: bool) -> Vec<Finding> {
        if !self.frozen {
            return Vec::new();
        }
        let limit = self.limit.filter(|_| is_hung).unwrap_or(MIN_AGE * 2);
        let nanoseconds = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        judge(&JobStatus {
            hosts: &self.hosts,
            statuses: &self.latest,
            exited: &self.exited,
            min_age: nanoseconds(MIN_AGE.min(limit / 2)),
        })
    }
}

/// How often the files are read.
fn interval(ranks: usize, hang_after: Option<Duration>) -> Duration {
    let share = INTERVAL * ranks.div_ceil(RANKS_PER_INTERVAL).max(1) as u32;
    let often = hang_after.map_or(MAX_INTERVAL, |limit| (limit / 4).max(INTERVAL / 4));
    share.min(MAX_INTERVAL).min(often)
}

/// Sends a snapshot after each interval, until the receiver is gone.
fn read_periodically(
    folder: &Path,
    earlier: &HashSet<OsString>,
    interval: Duration,
    sender: &SyncSender<Vec<Status>>,
) {
    loop {
        std::thread::sleep(interval);
        let is_new = |path: &PathBuf| path.file_name().is_some_and(|name| !earlier.contains(name));
        let files = status_files(folder).filter(is_new);
        if sender.send(files.filter_map(|path| comms::read_status(&path)).collect()).is_err() {
            return;
        }
    }
}

fn status_files(folder: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    comms::files_of(folder, status::EXTENSION).unwrap_or_default().into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_jobs_are_read_less_often_and_short_timeouts_more() {
        let seconds = |ranks, limit: Option<u64>| {
            interval(ranks, limit.map(Duration::from_secs)).as_secs_f64()
        };
        assert_eq!([seconds(1, None), seconds(256, None), seconds(257, None)], [1.0, 1.0, 2.0]);
        assert_eq!(seconds(100_000, None), 10.0);
        assert_eq!(
            [seconds(8, Some(2)), seconds(8, Some(1)), seconds(8, Some(600))],
            [0.5, 0.25, 1.0]
        );
    }
}
