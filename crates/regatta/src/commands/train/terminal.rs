//! Shows a run to whoever watches: a display that is drawn in place, lines of a log, or JSON.

use std::io::{IsTerminal, Write};

use anstream::adapter::strip_str;
use regatta_train::metrics::Event;

use super::face::{self, Size};
use super::watch::Watch;
use crate::cli::WARNING;
use crate::draw::text::sanitize;

/// The display is drawn at most this often: ten times a second.
const PAUSE: f64 = 0.1;

/// How a run is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A display that is drawn in place, with colours or without.
    Live {
        /// Whether it has colours.
        colour: bool,
    },
    /// A line now and then.
    Lines,
    /// Every event as a line of JSON.
    Json,
}

impl Form {
    /// What standard output can show.
    pub fn of_stdout(json: bool) -> Self {
        let stdout = std::io::stdout();
        let dumb = std::env::var_os("TERM").is_none_or(|term| term == "dumb" || term.is_empty());
        let colour = anstream::AutoStream::choice(&stdout) != anstream::ColorChoice::Never;
        match (json, stdout.is_terminal() && !dumb && crate::commands::map::supports_unicode()) {
            (true, _) => Self::Json,
            (_, true) => Self::Live { colour },
            (_, false) => Self::Lines,
        }
    }
}

/// How large the terminal is now.
pub fn terminal_size() -> Size {
    let size = rustix::termios::tcgetwinsize(std::io::stdout()).ok();
    let known = size.filter(|size| size.ws_col > 0 && size.ws_row > 0);
    let (columns, rows) = known.map_or((80, 24), |size| (size.ws_col, size.ws_row));
    Size { width: usize::from(columns), height: usize::from(rows) }
}

/// Where a run is shown. Times are in seconds since it was made.
pub struct Screen<W: Write> {
    form: Form,
    out: W,
    size: Box<dyn FnMut() -> Size + Send>,
    watch: Watch,
    /// How wide each line is that is on the terminal now.
    drawn: Vec<usize>,
    drawn_at: f64,
    /// A validation that no line of the log had yet.
    untold: Option<f64>,
    /// What the model wrote, to be read below the display when that is done.
    samples: String,
}

impl<W: Write> Screen<W> {
    /// Shows nothing yet.
    pub fn new(form: Form, out: W, size: Box<dyn FnMut() -> Size + Send>) -> Self {
        let (watch, drawn, drawn_at) = (Watch::default(), Vec::new(), f64::NEG_INFINITY);
        Self { form, out, size, watch, drawn, drawn_at, untold: None, samples: String::new() }
    }

    /// Takes what happened before a restart, for the curve.
    pub fn recall(&mut self, before: &[Event]) {
        self.watch.recall(before);
    }

    /// Shows what happened.
    pub fn hear(&mut self, event: &Event, now: f64) {
        self.watch.hear(event, now);
        match self.form {
            Form::Json => self.json(event),
            Form::Lines => self.lines(event, now),
            Form::Live { .. } => self.live(event, now),
        }
    }

    /// Time has passed: what is left of it is less.
    pub fn tick(&mut self, now: f64) {
        let is_live = matches!(self.form, Form::Live { .. }) && self.watch.ended.is_none();
        if is_live && !self.drawn.is_empty() && now - self.drawn_at >= PAUSE {
            self.draw(now);
        }
    }

    /// Something else is about to be written: the display goes, and comes back with the next event.
    pub fn make_way(&mut self) {
        if !self.drawn.is_empty() {
            let text = self.back() + "\x1b[J";
            self.write(&text);
            self.drawn.clear();
        }
    }

    fn json(&mut self, event: &Event) {
        if let Ok(line) = serde_json::to_string(event) {
            self.write(&(line + "\n"));
        }
    }

    fn lines(&mut self, event: &Event, now: f64) {
        let text = match event {
            Event::Begin(about) => face::first_line(about),
            Event::Validation { loss, .. } => {
                self.untold = Some(*loss);
                return;
            }
            Event::Step(step) => {
                self.untold = step.validation_loss.or(self.untold);
                let every = self.watch.about.log_every.max(1);
                let first = step.step == self.watch.about.done + 1;
                if !(first || step.step == step.steps || step.step.is_multiple_of(every)) {
                    return;
                }
                face::line(&self.watch, self.untold.take(), now)
            }
            other => aside(other, usize::MAX),
        };
        let text = strip_str(&text).to_string();
        self.write(&text);
    }

    fn live(&mut self, event: &Event, now: f64) {
        match event {
            Event::End(_) => {
                // The last display stays, and what is said of it comes below.
                self.draw(now);
                self.drawn.clear();
                let width = (self.size)().width.saturating_sub(1);
                let below = std::mem::take(&mut self.samples) + &aside(event, width);
                self.say(&below);
            }
            Event::Sample(_) => self.samples.push_str(&aside(event, usize::MAX)),
            Event::Note(_) => {
                self.make_way();
                self.say(&aside(event, usize::MAX));
                self.draw(now);
            }
            _ if now - self.drawn_at >= PAUSE => self.draw(now),
            _ => {}
        }
    }

    /// Draws the display over the one before, in one piece. The cursor is away only meanwhile, so
    /// that it is there whatever ends the program.
    fn draw(&mut self, now: f64) {
        let size = (self.size)();
        let lines = face::frame(&self.watch, size, now);
        let mut text = format!("\x1b[?25l{}", self.back_to(size.width));
        for line in &lines {
            let shown = self.coloured(line);
            text.push_str(&format!("{shown}\x1b[K\r\n"));
        }
        text.push_str("\x1b[J\x1b[?25h");
        let width = |line: &String| strip_str(line).to_string().chars().count();
        self.drawn = lines.iter().map(width).collect();
        self.drawn_at = now;
        self.write(&text);
    }

    fn back(&mut self) -> String {
        let size = (self.size)();
        self.back_to(size.width)
    }

    /// Moves to the display's first line. Lines that are wider than the terminal is by now have
    /// been broken by it.
    fn back_to(&self, width: usize) -> String {
        let rows: usize = self.drawn.iter().map(|line| line.div_ceil(width.max(1)).max(1)).sum();
        if rows == 0 { String::new() } else { format!("\r\x1b[{rows}A") }
    }

    fn say(&mut self, text: &str) {
        let text = self.coloured(text);
        self.write(&text);
    }

    fn coloured(&self, text: &str) -> String {
        match self.form {
            Form::Live { colour: true } => text.to_owned(),
            _ => strip_str(text).to_string(),
        }
    }

    /// Who does not read on misses it: the run goes on, and its folder has all.
    fn write(&mut self, text: &str) {
        let _ = self.out.write_all(text.as_bytes()).and_then(|()| self.out.flush());
    }
}

/// What is said of events that have no place in the display, in lines of this width where they can be
/// broken.
fn aside(event: &Event, width: usize) -> String {
    match event {
        Event::Note(note) => format!("{WARNING}note:{WARNING:#} {}\n", sanitize(note)),
        Event::Sample(text) => face::sample(text),
        Event::End(summary) => face::closing(summary, width),
        Event::Checkpoint { step, folder, seconds } => {
            format!("checkpoint of step {step}  {seconds:.1} s  {}\n", sanitize(folder))
        }
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests;
