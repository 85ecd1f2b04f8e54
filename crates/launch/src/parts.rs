//! What is asked of a job besides its ranks: a list of parts, given by the command that launches it.

use std::path::Path;
use std::time::Duration;

use regatta_model::result::RunResult;

use crate::attempt::AttemptSpec;
use crate::error::PartError;
use crate::run_folder::RunFolder;
use crate::worker_group::{JobEvent, RankControl, WorkerGroup};

/// A part of a job: a check of the network, a profile, a plug-in of NCCL. All methods but
/// [`plan`](Self::plan) have a default that does nothing.
pub trait JobPart {
    /// Adds what the ranks need to an attempt: variables, files, input. `folder` is the absolute path of the
    /// run folder, which may not exist. No effect but notes to the user.
    fn plan(&mut self, attempt: &mut AttemptSpec, folder: &Path) -> Result<(), PartError>;

    /// Prepares the run folder before the ranks of an attempt start.
    fn start(&mut self, _: &AttemptSpec, _: &RunFolder) -> Result<(), PartError> {
        Ok(())
    }

    /// The next event of its own for the job.
    fn next_event(&mut self, _output_paused: bool) -> Option<JobEvent> {
        None
    }

    /// Takes note of an event of the ranks.
    fn on_event(&mut self, _: &JobEvent) {}

    /// Takes note of a command to the ranks.
    fn on_control(&mut self, _: RankControl) {}

    /// Adds its findings to the result of an attempt, before it is reported.
    fn finish(&mut self, _: &RunFolder, _: &mut RunResult) {}

    /// Reports to the user after the result of an attempt, and may fail a job that succeeded.
    fn conclude(&mut self, _: &RunFolder, _: &mut RunResult) {}

    /// Removes what it wrote to a folder in which nothing ran.
    fn discard(&mut self, _: &RunFolder) {}
}

/// All parts of a job.
pub type JobParts<'a> = Vec<Box<dyn JobPart + 'a>>;

/// The ranks of an attempt, with the events of the parts.
pub(crate) struct ObservedWorkers<'a, 'b> {
    pub(crate) workers: &'a mut dyn WorkerGroup,
    pub(crate) parts: &'a mut [Box<dyn JobPart + 'b>],
}

impl WorkerGroup for ObservedWorkers<'_, '_> {
    fn next(&mut self, timeout: Duration, output_paused: bool) -> Option<JobEvent> {
        let own = self.parts.iter_mut().find_map(|part| part.next_event(output_paused));
        if own.is_some() {
            return own;
        }
        let event = self.workers.next(timeout, output_paused)?;
        self.parts.iter_mut().for_each(|part| part.on_event(&event));
        Some(event)
    }

    fn control(&mut self, control: RankControl) {
        self.parts.iter_mut().for_each(|part| part.on_control(control));
        self.workers.control(control);
    }
}
