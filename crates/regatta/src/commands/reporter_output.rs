//! The text of a reporter of rank events for the standard streams.

use anyhow::Result;

use super::launcher::QueuedStreams;
use crate::cli::WARNING;
use crate::output;

/// Prints directly or, in the launcher, through queues: a reader that blocks must stop neither its
/// heartbeats nor its handling of signals.
#[derive(Default)]
pub struct ReporterOutput {
    queued: Option<QueuedStreams>,
    /// The first error in writing to standard output. Later text would follow a gap.
    error: Option<anyhow::Error>,
}

impl ReporterOutput {
    /// Output through queues, while the launcher runs.
    pub fn queued() -> Self {
        Self { queued: Some(QueuedStreams::of_process()), error: None }
    }

    /// The queues that the launcher writes.
    pub fn streams(&self) -> Option<QueuedStreams> {
        self.queued.clone()
    }

    /// Prints a text to standard output. An error must not end the job: [`Self::finish`] returns it.
    pub fn print(&mut self, text: &str) {
        match &self.queued {
            Some(streams) => streams.stdout.print(text),
            None if self.error.is_none() => self.error = output::print(text).err(),
            None => {}
        }
    }

    /// Prints a text to standard error.
    pub fn eprint(&self, text: &str) {
        match &self.queued {
            Some(streams) => streams.stderr.print(text),
            None => output::eprint(text),
        }
    }

    /// Prints a note to standard error.
    pub fn note(&self, text: &str) {
        self.eprint(&format!("{WARNING}note:{WARNING:#} {text}\n"));
    }

    /// Prints directly from now on: the launcher has ended, and with it the handling of the queues.
    pub fn on_launch_ended(&mut self) {
        self.queued = None;
    }

    /// Fails if a text could not be printed directly. The launcher reports the errors of the queues.
    pub fn finish(&mut self) -> Result<()> {
        self.error.take().filter(|error| !output::is_closed_pipe(error)).map_or(Ok(()), Err)
    }
}
