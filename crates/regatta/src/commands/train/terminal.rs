//! Prints the progress of a run: a dashboard drawn in place, log lines, or JSON lines.

use std::io::{self, IsTerminal, Write};

use anstream::adapter::strip_str;
use regatta_train::metrics::Event;

use super::dashboard::{self, TerminalSize};
use super::history::RunHistory;
use crate::cli::WARNING;
use crate::draw::text::sanitize;

/// Minimum seconds between redraws.
const MIN_REDRAW_INTERVAL: f64 = 0.1;

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

/// The current size of the terminal; 80 x 24 if unknown.
pub fn terminal_size() -> TerminalSize {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let known = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
    let (columns, rows) = known.map_or((80, 24), |size| (size.ws_col, size.ws_row));
    TerminalSize { width: usize::from(columns), height: usize::from(rows) }
}

/// Progress output to a terminal, file or pipe. Times are in seconds since the start.
pub struct TerminalOutput<W: Write> {
    mode: OutputMode,
    out: W,
    size: Box<dyn FnMut() -> TerminalSize + Send>,
    pub history: RunHistory,
    /// Widths of the dashboard lines now on the terminal.
    drawn: Vec<usize>,
    drawn_at: f64,
    /// Time of the last log line.
    logged_at: f64,
    /// Samples, printed below the dashboard at the end.
    samples: String,
    /// The first write error.
    pub error: Option<io::Error>,
}

impl TerminalOutput<Vec<u8>> {
    /// The output since the last call.
    pub fn take_output(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }
}

impl<W: Write> TerminalOutput<W> {
    /// An output that has printed nothing yet; `size` returns the terminal's current size.
    pub fn new(mode: OutputMode, out: W, size: Box<dyn FnMut() -> TerminalSize + Send>) -> Self {
        Self {
            mode,
            out,
            size,
            history: RunHistory::default(),
            drawn: Vec::new(),
            drawn_at: f64::NEG_INFINITY,
            logged_at: 0.0,
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
        let is_running =
            matches!(self.mode, OutputMode::Dashboard { .. }) && self.history.summary.is_none();
        if is_running && !self.drawn.is_empty() && now - self.drawn_at >= MIN_REDRAW_INTERVAL {
            self.draw(now);
        }
    }

    /// Erases the dashboard before other output. The next event redraws it.
    pub fn hide_dashboard(&mut self) {
        if !self.drawn.is_empty() {
            let width = (self.size)().width;
            let text = self.cursor_up(width) + "\x1b[J";
            self.write(&text);
            self.drawn.clear();
        }
    }

    fn print_log(&mut self, event: &Event, now: f64) {
        let text = match event {
            Event::Start(about) => dashboard::log_header(about),
            Event::Validation { step, loss } => {
                dashboard::log_validation(&self.history, *step, *loss)
            }
            Event::MicroBatch { .. } if now - self.logged_at < MIN_LOG_INTERVAL => return,
            Event::MicroBatch { .. } => dashboard::log_progress(&self.history),
            Event::Step(step) => {
                let interval = self.history.about.log_interval.max(1);
                let is_first = step.step == self.history.about.start_step + 1;
                let is_last = step.step == step.steps;
                if !(is_first || is_last || step.step.is_multiple_of(interval)) {
                    return;
                }
                dashboard::log_line(&self.history, now)
            }
            other => event_text(other, usize::MAX),
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
                self.drawn.clear();
                let width = (self.size)().width.saturating_sub(1);
                let below = std::mem::take(&mut self.samples) + &event_text(event, width);
                self.print(&below);
            }
            Event::Sample(_) => self.samples.push_str(&event_text(event, usize::MAX)),
            Event::Note(_) => {
                self.hide_dashboard();
                self.print(&event_text(event, usize::MAX));
                self.draw(now);
            }
            _ if now - self.drawn_at >= MIN_REDRAW_INTERVAL => self.draw(now),
            _ => {}
        }
    }

    /// Draws the dashboard over the previous one, in a single write. The cursor is hidden only within
    /// that write, so that it is visible however the process ends.
    fn draw(&mut self, now: f64) {
        let size = (self.size)();
        let lines = dashboard::render(&self.history, size, now);
        let mut text = format!("\x1b[?25l{}", self.cursor_up(size.width));
        for line in &lines {
            let shown = self.with_mode_colours(line);
            text.push_str(&format!("{shown}\x1b[K\r\n"));
        }
        text.push_str("\x1b[J\x1b[?25h");
        let width = |line: &String| strip_str(line).to_string().chars().count();
        self.drawn = lines.iter().map(width).collect();
        self.drawn_at = now;
        self.write(&text);
    }

    /// Moves the cursor to the first line of the dashboard. Lines wider than the terminal is now have
    /// been wrapped by it.
    fn cursor_up(&self, width: usize) -> String {
        let rows: usize = self.drawn.iter().map(|line| line.div_ceil(width.max(1)).max(1)).sum();
        if rows == 0 { String::new() } else { format!("\r\x1b[{rows}A") }
    }

    fn print(&mut self, text: &str) {
        let text = self.with_mode_colours(text);
        self.write(&text);
    }

    /// Strips colours unless the mode has them.
    fn with_mode_colours(&self, text: &str) -> String {
        match self.mode {
            OutputMode::Dashboard { colour: true } => text.to_owned(),
            _ => strip_str(text).to_string(),
        }
    }

    /// A write error does not end the run, whose folder has all metrics. Later text would follow a gap.
    fn write(&mut self, text: &str) {
        if self.error.is_none() {
            let written = self.out.write_all(text.as_bytes());
            self.error = written.and_then(|()| self.out.flush()).err();
        }
    }
}

/// The text of an event that is not part of the dashboard, with the summary wrapped to `width`.
fn event_text(event: &Event, width: usize) -> String {
    match event {
        Event::Note(note) => format!("{WARNING}note:{WARNING:#} {}\n", sanitize(note)),
        Event::Sample(text) => dashboard::sample(text),
        Event::End(summary) => dashboard::summary(summary, width),
        Event::Checkpoint { step, dir: folder, seconds } => {
            format!("saved checkpoint at step {step} in {seconds:.1} s: {}\n", sanitize(folder))
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod screenshot;
#[cfg(test)]
mod tests;
