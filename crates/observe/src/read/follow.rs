//! Follows the records of a run that goes on: events of all launches and attempts, and metrics.

use std::path::PathBuf;

use regatta_model::run_folder::{EVENTS, METRICS, Record, RunEvent};

use super::lines::{LineFollower, NewLines};
use super::{Launch, ReadError, Run, RunState};

/// Where a record comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The launcher.
    Events {
        /// Its index in [`Run::launches`].
        launch: usize,
        /// Number of restarts in the launch before this attempt.
        attempt: u32,
    },
    /// Rank 0 of the training, over all launches and attempts.
    Metrics,
}

/// A record and its source.
#[derive(Debug, Clone, PartialEq)]
pub struct Followed {
    /// Its file.
    pub source: Source,
    /// The record.
    pub record: Record,
}

/// What a poll found.
#[derive(Debug, Default)]
pub struct Update {
    /// Whether records that were returned before are void, because a file was truncated or replaced: a
    /// resumed training repeats steps. All records of the run follow again.
    pub restarted: bool,
    /// New records, in the order of each file.
    pub records: Vec<Followed>,
    /// Lines that are no records.
    pub skipped: usize,
    /// Files that cannot be read; the next poll tries again.
    pub errors: Vec<ReadError>,
    /// Whether the run had ended when the poll began, and nothing is left to read. The launcher may
    /// have been killed: [`super::Run::state`] says how it ended.
    pub ended: bool,
}

/// The records of a run.
#[derive(Debug)]
pub struct RunFollower {
    run: Run,
    metrics: LineFollower,
    launches: Vec<LaunchEvents>,
}

/// The events of a launch.
#[derive(Debug)]
struct LaunchEvents {
    /// Folder of the launch.
    path: PathBuf,
    lines: LineFollower,
    /// Attempts seen.
    attempts: u32,
}

impl RunFollower {
    /// Follows a run from its start.
    pub(super) fn new(run: Run) -> Self {
        let metrics = LineFollower::new(run.path().join(METRICS));
        Self { run, metrics, launches: Vec::new() }
    }

    /// Reads what was recorded since the last poll.
    pub fn poll(&mut self) -> Update {
        // First: what is recorded until then is read.
        let is_running = self.run.state() == RunState::Running;
        self.find_launches();
        let mut update = self.poll_files();
        if update.restarted {
            *self = Self::new(self.run.clone());
            self.find_launches();
            update = Update { restarted: true, ..self.poll_files() };
        }
        update.ended &= !is_running;
        update
    }

    /// Adds the launches that are not known yet.
    fn find_launches(&mut self) {
        for Launch { path } in self.run.launches() {
            if self.launches.iter().all(|known| known.path != path) {
                let lines = LineFollower::new(path.join(EVENTS));
                self.launches.push(LaunchEvents { path, lines, attempts: 0 });
            }
        }
    }

    /// Polls all files; `ended` tells whether all were read to their end.
    fn poll_files(&mut self) -> Update {
        let mut update = Update { ended: true, ..Update::default() };
        for (launch, events) in self.launches.iter_mut().enumerate() {
            let LaunchEvents { lines, attempts, .. } = events;
            update.add(lines.poll(), |event| {
                *attempts += u32::from(matches!(event, RunEvent::Launched { .. }));
                Source::Events { launch, attempt: attempts.saturating_sub(1) }
            });
        }
        update.add(self.metrics.poll(), |_| Source::Metrics);
        update
    }
}

impl Update {
    fn add(
        &mut self,
        polled: Result<NewLines, ReadError>,
        mut source: impl FnMut(&RunEvent) -> Source,
    ) {
        let new = match polled {
            Ok(new) => new,
            Err(error) => return self.errors.push(error),
        };
        self.restarted |= new.restarted;
        self.ended &= !new.has_more;
        self.skipped += new.skipped;
        for line in new.lines {
            match Record::parse(&line) {
                Ok(record) => {
                    let source = source(&record.event);
                    self.records.push(Followed { source, record });
                }
                Err(_) => self.skipped += 1,
            }
        }
    }
}
