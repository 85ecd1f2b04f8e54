//! Consumes the events of a run: shows the progress, and records some in the run folder.

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use regatta_launch::channel::ChannelError;
use regatta_launch::signals::is_termination_signal;
use regatta_launch::status::FrameRecord;
use regatta_model::run_folder::RunEvent;
use regatta_observe::read;
use regatta_train::metrics::{Event, RunInfo};
use signal_hook::consts::{SIGCONT, SIGINT, SIGTSTP};
use signal_hook::low_level::signal_name;

use super::terminal::{OutputMode, TerminalOutput, terminal_size};
use crate::commands::launcher::QueuedStreams;
use crate::commands::rank_events::EventReporter;
use regatta_observe::view::train::history::RunHistory;
use regatta_observe::view::train::log::resume_command;

/// Interval of dashboard updates between events.
const REFRESH_INTERVAL: Duration = Duration::from_millis(500);

type StdoutWriter = Box<dyn Write + Send>;
type SharedOutput = Arc<Mutex<TerminalOutput<StdoutWriter>>>;

/// Shows the progress of a run on standard output.
pub struct ProgressReporter {
    output: SharedOutput,
    start: Instant,
    run_dir: PathBuf,
    /// Started by the first event: the launcher forks before it, and a thread does not survive a
    /// fork.
    refresh: Option<RefreshThread>,
    has_dashboard: bool,
    /// Log lines of rank 0, whose own output has none: it sends events.
    rank_log: TerminalOutput<Vec<u8>>,
    /// Whether a termination signal was forwarded.
    terminating: bool,
}

impl ProgressReporter {
    /// A reporter of the run in `run_dir`, in a rank that has no launcher.
    pub fn of_rank(json: bool, run_dir: &Path) -> Self {
        Self::new(json, run_dir, Box::new(std::io::stdout()))
    }

    /// A reporter of the run in `run_dir`, in the launcher: a terminal or pipe that blocks must not
    /// stop the heartbeats to the nodes.
    pub fn of_launcher(json: bool, run_dir: &Path) -> Self {
        Self::new(json, run_dir, Box::new(QueuedStreams::of_process().stdout))
    }

    fn new(json: bool, run_dir: &Path, out: StdoutWriter) -> Self {
        let mode = OutputMode::of_stdout(json);
        let output = TerminalOutput::new(mode, out, terminal_size());
        Self {
            output: Arc::new(Mutex::new(output)),
            start: Instant::now(),
            run_dir: run_dir.to_owned(),
            refresh: None,
            has_dashboard: matches!(mode, OutputMode::Dashboard { .. }),
            rank_log: TerminalOutput::new(OutputMode::Log, Vec::new(), terminal_size()),
            terminating: false,
        }
    }

    /// How to resume a run that failed after a checkpoint.
    pub fn resume_hint(&self) -> Option<String> {
        let output = lock(&self.output);
        let history = &output.history;
        let failed = history.summary.is_none() && !self.terminating;
        let last = history.checkpoint.filter(|_| failed)?;
        let command = resume_command(&history.about);
        Some(format!("the last checkpoint is at step {last}; resume: {command}"))
    }

    /// Fails if the progress could not be printed directly.
    pub fn finish(&self) -> Result<()> {
        let error = lock(&self.output).error.take();
        let error = error.filter(|error| error.kind() != io::ErrorKind::BrokenPipe);
        error.map_or(Ok(()), |error| Err(error).context("standard output"))
    }
}

impl EventReporter for ProgressReporter {
    type Event = Event;

    fn on_event(&mut self, event: Event) {
        if self.has_dashboard && self.refresh.is_none() {
            self.refresh = RefreshThread::start(self.output.clone(), self.start);
        }
        let mut output = lock(&self.output);
        // The loss plot of a resumed run includes the earlier steps.
        if let Event::Start(about) = &event
            && about.start_step > 0
        {
            output.history.restore(&read::metrics(&self.run_dir), about.start_step);
        }
        output.on_event(&event, self.start.elapsed().as_secs_f64());
    }

    fn record(&mut self, event: &Event, record: &mut FrameRecord) {
        self.rank_log.on_event(event, self.start.elapsed().as_secs_f64());
        record.log = String::from_utf8(std::mem::take(&mut self.rank_log.out)).unwrap_or_default();
        // Rank 0 itself records the others.
        if let Event::Start(_) | Event::Checkpoint { .. } | Event::End(_) = event {
            record.event = Some(RunEvent::Training { training: event.clone() });
        }
    }

    fn on_event_error(&mut self, error: ChannelError) {
        self.on_event(Event::Note(format!("cannot decode an event of rank 0: {error}")));
    }

    fn on_signal(&mut self, signal: i32) {
        let now = self.start.elapsed().as_secs_f64();
        let mut output = lock(&self.output);
        let note = match signal {
            SIGTSTP => return output.stop_drawing(now),
            SIGCONT => return output.resume_drawing(now),
            _ if self.terminating && is_termination_signal(signal) => {
                // The note stays below the dashboard.
                output.stop_drawing(now);
                kill_note(signal, &output.history)
            }
            _ => signal_note(signal, &output.history),
        };
        output.history.signal_note = Some(note.clone());
        drop(output);
        self.terminating |= is_termination_signal(signal);
        self.on_event(Event::Note(note));
    }

    fn hide_progress(&mut self) {
        lock(&self.output).hide_dashboard();
    }
}

/// What the ranks do on a signal.
fn signal_note(signal: i32, history: &RunHistory) -> String {
    let name = name_of(signal);
    // Before the run has started, the ranks have nothing to save.
    if history.about.steps == 0 {
        return format!("{name}: no step has been trained; exiting");
    }
    let kill = match signal {
        SIGINT => "; Ctrl-C again to kill",
        _ if is_termination_signal(signal) => "; a second signal kills",
        _ => "",
    };
    let step = (history.done() + 1).min(history.steps());
    let then = match history.about.checkpoint_interval {
        0 => "then exiting without a checkpoint (checkpoint.interval is 0)",
        _ => "then saving a checkpoint",
    };
    format!("{name}: finishing step {step}, {then}{kill}")
}

/// What is lost when a second signal kills the ranks.
fn kill_note(signal: i32, history: &RunHistory) -> String {
    let killing = format!("{}: killing the ranks", name_of(signal));
    let RunInfo { steps, start_step, .. } = history.about;
    if steps == 0 {
        return killing;
    }
    let step = (history.done() + 1).min(history.steps());
    match history.checkpoint.or((start_step > 0).then_some(start_step)) {
        None => format!("{killing}; step {step} is not saved, and there is no checkpoint"),
        Some(last) => format!(
            "{killing}; step {step} is not saved, the last checkpoint is at step {last}; resume: {}",
            resume_command(&history.about)
        ),
    }
}

fn name_of(signal: i32) -> &'static str {
    signal_name(signal).unwrap_or("signal")
}

/// Redraws the dashboard periodically until it is dropped: dropping the sender ends the thread.
struct RefreshThread(Option<(Sender<()>, JoinHandle<()>)>);

impl RefreshThread {
    fn start(output: SharedOutput, start: Instant) -> Option<Self> {
        let (stop, stopped) = channel();
        let refresh = move || {
            while stopped.recv_timeout(REFRESH_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                lock(&output).refresh(start.elapsed().as_secs_f64());
            }
        };
        let thread = std::thread::Builder::new().name("refresh".to_owned()).spawn(refresh).ok()?;
        Some(Self(Some((stop, thread))))
    }
}

impl Drop for RefreshThread {
    fn drop(&mut self) {
        if let Some((stop, thread)) = self.0.take() {
            drop(stop);
            let _ = thread.join();
        }
    }
}

fn lock(output: &SharedOutput) -> MutexGuard<'_, TerminalOutput<StdoutWriter>> {
    output.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use signal_hook::consts::{SIGTERM, SIGUSR1};

    use super::*;

    #[test]
    fn signal_note_names_the_step_in_progress() {
        let mut history = RunHistory::default();
        assert_eq!(signal_note(SIGINT, &history), "SIGINT: no step has been trained; exiting");
        let checkpoint_interval = 50;
        let about =
            RunInfo { steps: 300, start_step: 270, checkpoint_interval, ..RunInfo::default() };
        history.about = about;
        let saving = "finishing step 271, then saving a checkpoint";
        let expected = format!("SIGINT: {saving}; Ctrl-C again to kill");
        assert_eq!(signal_note(SIGINT, &history), expected);
        assert_eq!(
            signal_note(SIGTERM, &history),
            format!("SIGTERM: {saving}; a second signal kills")
        );
        assert_eq!(signal_note(SIGUSR1, &history), format!("SIGUSR1: {saving}"));
        history.about.checkpoint_interval = 0;
        let unsaved = "SIGUSR1: finishing step 271, then exiting without a checkpoint (";
        assert!(signal_note(SIGUSR1, &history).starts_with(unsaved));
        history.about.start_step = 300;
        assert!(signal_note(SIGINT, &history).contains("finishing step 300, "));
    }

    #[test]
    fn kill_note_names_the_step_that_is_lost_and_the_last_checkpoint() {
        let mut history = RunHistory::default();
        assert_eq!(kill_note(SIGTERM, &history), "SIGTERM: killing the ranks");
        history.about =
            RunInfo { steps: 300, ranks: 2, folder: "my run".to_owned(), ..history.about };
        let lost = "SIGINT: killing the ranks; step 1 is not saved, ";
        let none = format!("{lost}and there is no checkpoint");
        assert_eq!(kill_note(SIGINT, &history), none);
        history.checkpoint = Some(0);
        let resume = "resume: regatta train --resume 'my run' -n 2";
        let last = format!("{lost}the last checkpoint is at step 0; {resume}");
        assert_eq!(kill_note(SIGINT, &history), last);
    }
}
