//! What a launch yields to its caller: lines and frames of the ranks, and its own status.

use std::path::Path;
use std::time::Duration;

use regatta_model::result::RunResult;
use regatta_model::run_folder::{Record, RunEvent};

use crate::attempt::AttemptSpec;
use crate::lines::MergedLine;
use crate::node_pool::PoolUpdate;

/// A change of a launch.
#[derive(Debug)]
#[allow(missing_docs, reason = "the variants explain the fields")]
pub enum JobStatus<'a> {
    /// A text for the user about the job and its options.
    Note(&'a str),
    /// A text of a part of the job, as it is shown.
    Notice(&'a str),
    /// The agents of these hosts, of all `nodes`, have not connected yet.
    WaitingForAgents { missing: Vec<&'a str>, nodes: usize },
    /// Nodes were replaced or dropped, or too few are left. Indices into `hosts`.
    NodesChanged { update: &'a PoolUpdate, hosts: &'a [String] },
    /// The hosts that were given up so far, with the reasons: before each attempt and at the end.
    Excluded(&'a [(String, String)]),
    /// An attempt is placed; its ranks start next.
    Placed(&'a AttemptSpec),
    /// The ranks of an attempt run.
    Started { attempt: &'a AttemptSpec, folder: &'a Path },
    /// This was appended to the events of the run folder.
    Recorded(&'a Record),
    /// A signal of the user or the scheduler was forwarded to the ranks or, as the second termination
    /// signal does, kills them.
    Signal { signal: i32, killing: bool },
    /// An attempt has ended.
    Ended { result: &'a RunResult, folder: &'a Path },
    /// All ranks are restarted after a delay.
    Restarting { restart: u32, max: u32, delay: Duration },
    /// A restart waits until the agents of these hosts have killed their ranks.
    Fencing { hosts: Vec<&'a str>, remaining: Duration },
    /// Commands that started agents did not exit with the job and were killed.
    AgentsKilled { hosts: Vec<&'a str> },
}

/// What a frame of a rank adds to the run folder.
#[derive(Debug, Default)]
pub struct FrameRecord {
    /// Text for the rank's log, possibly empty.
    pub log: String,
    /// The event, if it is one of the run.
    pub event: Option<RunEvent>,
}

/// Receives the output, the messages and the status of a job. No method may block.
pub trait JobObserver {
    /// Shows a line of output; false if it does not accept one now.
    fn on_line(&mut self, _: &MergedLine) -> bool {
        true
    }

    /// Whether all lines have been written; called after the last line until it is true.
    fn flush(&mut self) -> bool {
        true
    }

    /// Whether all text so far has been written; called after SIGTSTP until it is true.
    fn is_idle(&mut self) -> bool {
        true
    }

    /// Handles a frame of a rank's channel, and tells what it adds to the run folder. It may overtake
    /// lines that wait for identical lines of other ranks.
    fn on_frame(&mut self, _rank: u32, _bytes: &[u8], _record: &mut FrameRecord) {}

    /// Takes note of a change.
    fn on_status(&mut self, _: &JobStatus<'_>) {}

    /// Why the job failed although all ranks exited successfully.
    fn failure(&self) -> Option<String> {
        None
    }
}

/// Several observers. Each gets all output in the same order, and the slowest sets the pace.
pub struct Observers<'a> {
    list: Vec<&'a mut dyn JobObserver>,
    /// How many have accepted the line that another one has not.
    accepted: usize,
}

impl<'a> Observers<'a> {
    /// Notifies all of `list`, in this order.
    pub fn new(list: Vec<&'a mut dyn JobObserver>) -> Self {
        Self { list, accepted: 0 }
    }
}

impl JobObserver for Observers<'_> {
    fn on_line(&mut self, line: &MergedLine) -> bool {
        while let Some(observer) = self.list.get_mut(self.accepted) {
            if !observer.on_line(line) {
                return false;
            }
            self.accepted += 1;
        }
        self.accepted = 0;
        true
    }

    fn flush(&mut self) -> bool {
        let mut flushed = true;
        self.list.iter_mut().for_each(|observer| flushed &= observer.flush());
        flushed
    }

    fn is_idle(&mut self) -> bool {
        let mut idle = true;
        self.list.iter_mut().for_each(|observer| idle &= observer.is_idle());
        idle
    }

    fn on_frame(&mut self, rank: u32, bytes: &[u8], record: &mut FrameRecord) {
        self.list.iter_mut().for_each(|observer| observer.on_frame(rank, bytes, record));
    }

    fn on_status(&mut self, status: &JobStatus<'_>) {
        self.list.iter_mut().for_each(|observer| observer.on_status(status));
    }

    fn failure(&self) -> Option<String> {
        self.list.iter().find_map(|observer| observer.failure())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Accepts every second call.
    #[derive(Default)]
    struct Slow {
        calls: usize,
        lines: Vec<String>,
    }

    impl JobObserver for Slow {
        fn on_line(&mut self, line: &MergedLine) -> bool {
            self.calls += 1;
            let accepts = self.calls.is_multiple_of(2);
            self.lines.extend(accepts.then(|| line.text.clone()));
            accepts
        }
    }

    #[test]
    fn every_observer_gets_a_line_once_and_the_slowest_sets_the_pace() {
        let (mut first, mut second) = (Slow::default(), Slow::default());
        let mut all = Observers::new(vec![&mut first, &mut second]);
        let line = |text: &str| MergedLine::of(0, false, text.to_owned());
        let mut refused = 0;
        for text in ["a", "b"] {
            while !all.on_line(&line(text)) {
                refused += 1;
            }
        }
        assert_eq!(refused, 4);
        assert_eq!(
            (first.lines, second.lines),
            (vec!["a".to_owned(), "b".to_owned()], vec!["a".to_owned(), "b".to_owned()])
        );
    }
}
