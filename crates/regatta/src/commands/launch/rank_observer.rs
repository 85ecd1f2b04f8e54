//! What a command that launches its own ranks learns of them.

use regatta_launch::lines::MergedLine;
use regatta_launch::status::{JobObserver, JobStatus};

/// Receives the messages of the ranks, for the command that launches them.
pub trait RankObserver {
    /// Called before a line of output is shown.
    fn on_line(&mut self) {}

    /// Called for each frame of a rank's channel. Returns its text for the rank's log, possibly empty.
    fn on_frame(&mut self, rank: u32, bytes: &[u8]) -> String;

    /// Called when a signal is forwarded to the ranks.
    fn on_signal(&mut self, _signal: i32) {}

    /// Called at least once after all ranks have exited and their last line was shown.
    fn on_exit(&mut self) {}

    /// Why the job failed although all ranks exited successfully.
    fn failure(&self) -> Option<String> {
        None
    }

    /// Whether the observer itself prints the path of the run folder at the end.
    fn prints_run_dir(&self) -> bool;

    /// Called before each attempt and after the last with the nodes that were given up, and the
    /// reasons.
    fn on_excluded(&mut self, _: &[(String, String)]) {}
}

/// Passes on what a launch yields.
pub struct RankReporter<'a>(pub &'a mut dyn RankObserver);

impl JobObserver for RankReporter<'_> {
    fn on_line(&mut self, _: &MergedLine) -> bool {
        self.0.on_line();
        true
    }

    fn flush(&mut self) -> bool {
        self.0.on_exit();
        true
    }

    fn on_frame(&mut self, rank: u32, bytes: &[u8]) -> String {
        self.0.on_frame(rank, bytes)
    }

    fn on_status(&mut self, status: &JobStatus<'_>) {
        match status {
            JobStatus::Signal { signal, .. } => self.0.on_signal(*signal),
            JobStatus::Excluded(nodes) => self.0.on_excluded(nodes),
            _ => {}
        }
    }

    fn failure(&self) -> Option<String> {
        self.0.failure()
    }
}
