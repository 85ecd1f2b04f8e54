//! Prints the progress of a run: a dashboard drawn in place, log lines, or JSON lines.

use std::io::{self, IsTerminal, Write};

use anstream::adapter::strip_str;
use regatta_draw::screen::{DEFAULT_SIZE, InlineScreen, TerminalSize};
use regatta_train::metrics::Event;

use crate::cli::WARNING;
use regatta_draw::text::sanitize;
use regatta_observe::view::train::history::RunHistory;
use regatta_observe::view::train::{dashboard, log};

/// Minimum seconds between log lines within a step.
const MIN_LOG_INTERVAL: f64 = 10.0;

/// How progress is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OutputMode {
    /// A dashboard drawn in place.
    Dashboard {
        /// Whether it is coloured.
        colour: bool,
    },
    /// A line every `log_interval` steps.
    Log,
    /// Each event as a JSON line.
    Json,
}

impl OutputMode {
    /// The mode that standard output supports.
    pub fn of_stdout(json: bool) -> Self {
        let stdout = std::io::stdout();
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
        let colour = anstream::AutoStream::choice(&stdout) != anstream::ColorChoice::Never;
        match (json, stdout.is_terminal() && !dumb && crate::commands::map::supports_unicode()) {
            (true, _) => Self::Json,
            (_, true) => Self::Dashboard { colour },
            (_, false) => Self::Log,
        }
    }
}

/// The size of the terminal, if this process may draw on it.
pub type GetSize = Box<dyn FnMut() -> Option<TerminalSize> + Send>;

/// The current size of the terminal, while the process group of the caller is in the foreground. In the
/// background, the terminal is that of the shell.
pub fn terminal_size() -> GetSize {
    // The launcher draws in another process group. It is 0 if its leader is outside of this PID
    // namespace, as in a container.
    // SAFETY: a plain system call.
    let group = unsafe { libc::getpgrp() };
    Box::new(move || {
        let stdout = std::io::stdout();
        // Fails without a controlling terminal, and thus without a shell that shares it.
        // SAFETY: a plain system call on a descriptor that stays open.
        let foreground = unsafe { libc::tcgetpgrp(libc::STDOUT_FILENO) };
        let is_background = group > 0 && foreground > 0 && foreground != group;
        let size = rustix::termios::tcgetwinsize(&stdout).ok();
        let known = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
        let size = known.map_or(DEFAULT_SIZE, |size| TerminalSize {
            width: size.ws_col.into(),
            height: size.ws_row.into(),
        });
        (!is_background).then_some(size)
    })
}

/// Progress output to a terminal, file or pipe. Times are in seconds since the start.
pub struct TerminalOutput<W: Write> {
    mode: OutputMode,
    pub out: W,
    size: GetSize,
    pub history: RunHistory,
    screen: InlineScreen,
    /// Time of the last log line.
    logged_at: f64,
    /// The progress of the step that was logged last.
    logged_progress: String,
    /// Samples, printed below the dashboard at the end.
    samples: String,
    /// The first write error.
    pub error: Option<io::Error>,
}

impl<W: Write> TerminalOutput<W> {
    /// An output that has printed nothing yet.
    pub fn new(mode: OutputMode, out: W, size: GetSize) -> Self {
        Self {
            mode,
            out,
            size,
            history: RunHistory::default(),
            screen: InlineScreen::default(),
            logged_at: 0.0,
            logged_progress: String::new(),
            samples: String::new(),
            error: None,
        }
    }

    /// Prints an event.
    pub fn on_event(&mut self, event: &Event, now: f64) {
        self.history.on_event(event, now);
        match self.mode {
            OutputMode::Json => {
                if let Ok(line) = serde_json::to_string(event) {
                    self.write(&(line + "\n"));
                }
            }
            OutputMode::Log => self.print_log(event, now),
            OutputMode::Dashboard { .. } => self.update_dashboard(event, now),
        }
    }

    /// Redraws the dashboard, to update the ETA between events.
    pub fn refresh(&mut self, now: f64) {
        let is_running = self.is_dashboard() && self.history.summary.is_none();
        if is_running && self.screen.is_drawn() && self.screen.is_due(now) {
            self.draw(now);
        }
    }

    /// Leaves the dashboard as it is, with the cursor below it, and draws no more: the terminal belongs to
    /// the shell (Ctrl-Z), or the run is being killed.
    pub fn stop_drawing(&mut self, now: f64) {
        let erase_echo = self.screen.stop(now);
        self.write(erase_echo);
    }

    /// Draws a new dashboard after [`Self::stop_drawing`].
    pub fn resume_drawing(&mut self, now: f64) {
        let Some(stopped) = self.screen.resume(now) else { return };
        self.history.skip(stopped);
        if self.is_dashboard() && self.history.about.steps > 0 && self.history.summary.is_none() {
            self.draw(now);
        }
    }

    /// Erases the dashboard before other output. The next event redraws it.
    pub fn hide_dashboard(&mut self) {
        match (self.size)() {
            Some(size) => {
                let erase = self.screen.erase(size.width);
                self.write(&erase);
            }
            None => self.screen.keep(),
        }
    }

    fn is_dashboard(&self) -> bool {
        matches!(self.mode, OutputMode::Dashboard { .. })
    }

    fn print_log(&mut self, event: &Event, now: f64) {
        let text = match event {
            Event::Start(about) => log::header_lines(about),
            Event::Validation { step, loss } => log::validation_line(&self.history, *step, *loss),
            Event::MicroBatch { .. } if now - self.logged_at < MIN_LOG_INTERVAL => return,
            Event::MicroBatch { .. } => {
                let text = log::progress_line(&self.history, now);
                // A micro-batch may take long.
                if text == self.logged_progress {
                    return;
                }
                self.logged_progress.clone_from(&text);
                text
            }
            Event::Step(step) => {
                let interval = self.history.about.log_interval.max(1);
                let is_first = step.step == self.history.about.start_step + 1;
                let is_last = step.step == step.steps;
                if !(is_first || is_last || step.step.is_multiple_of(interval)) {
                    return;
                }
                log::step_line(&self.history, now)
            }
            other => self.event_text(other, usize::MAX),
        };
        self.logged_at = now;
        let text = strip_str(&text).to_string();
        self.write(&text);
    }

    fn update_dashboard(&mut self, event: &Event, now: f64) {
        match event {
            Event::End(_) => {
                // The last dashboard stays, with the summary below it.
                self.draw(now);
                self.screen.keep();
                let width = (self.size)().unwrap_or(DEFAULT_SIZE).width.saturating_sub(1);
                let below = std::mem::take(&mut self.samples) + &self.event_text(event, width);
                self.print(&below);
            }
            Event::Sample(_) => self.samples += &self.event_text(event, usize::MAX),
            Event::Note(_) => {
                self.hide_dashboard();
                self.print(&self.event_text(event, usize::MAX));
                self.draw(now);
            }
            _ if self.screen.is_due(now) => self.draw(now),
            _ => {}
        }
    }

    /// Draws the dashboard over the previous one, in a single write.
    fn draw(&mut self, now: f64) {
        let size = (self.size)().filter(|_| !self.screen.is_stopped());
        let Some(size) = size else { return self.screen.keep() };
        let lines = dashboard::render(&self.history, size, now);
        let colour = self.mode == OutputMode::Dashboard { colour: true };
        let text = self.screen.draw(&lines, size.width, colour, now);
        self.write(&text);
    }

    /// The text of an event that is not part of the dashboard, with the summary wrapped to `width`.
    fn event_text(&self, event: &Event, width: usize) -> String {
        match event {
            Event::Note(note) => format!("{WARNING}note:{WARNING:#} {}\n", sanitize(note)),
            Event::Sample(text) => log::sample(text),
            Event::End(summary) => log::summary(summary, &self.history.about, width),
            Event::Checkpoint { step, dir: folder, seconds } => {
                format!("saved checkpoint at step {step} in {seconds:.1} s: {}\n", sanitize(folder))
            }
            _ => String::new(),
        }
    }

    /// Strips colours unless the mode has them.
    fn print(&mut self, text: &str) {
        match self.mode {
            OutputMode::Dashboard { colour: true } => self.write(text),
            _ => self.write(&strip_str(text).to_string()),
        }
    }

    /// A write error does not end the run, whose folder has all metrics. Later text would follow a gap.
    fn write(&mut self, text: &str) {
        if self.error.is_none() && !text.is_empty() {
            let written = self.out.write_all(text.as_bytes());
            self.error = written.and_then(|()| self.out.flush()).err();
        }
    }
}

#[cfg(test)]
mod tests;
