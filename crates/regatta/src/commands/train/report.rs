//! What becomes of events: shown to whoever watches, and kept in the run's folder.
//!
//! They are kept by rank 0 itself, so that the figures of a step are there before a checkpoint of it
//! is: whatever is killed, a run that goes on misses none.

use std::io::Stdout;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use regatta_train::metrics::{Event, Recorder};

use super::args::TrainArgs;
use super::screen::{Form, Screen, terminal_size};

/// Shows what happens.
pub struct Report {
    screen: Screen<Stdout>,
    began: Instant,
}

impl Report {
    /// In the form that is asked for.
    pub fn new(args: &TrainArgs) -> Self {
        let form = Form::of_stdout(args.json);
        Self {
            screen: Screen::new(form, std::io::stdout(), Box::new(terminal_size)),
            began: Instant::now(),
        }
    }

    /// Hears an event as it came from rank 0.
    pub fn hear_text(&mut self, text: &str) {
        match serde_json::from_str(text) {
            Ok(event) => self.hear(&event),
            Err(error) => {
                let note = format!("rank 0 told something that cannot be read: {error}");
                self.hear(&Event::Note(note));
            }
        }
    }

    /// Hears an event.
    pub fn hear(&mut self, event: &Event) {
        self.screen.hear(event, self.began.elapsed().as_secs_f64());
    }

    /// Something else is about to be shown.
    pub fn make_way(&mut self) {
        self.screen.make_way();
    }
}

/// Keeps what happens in a run's folder.
pub struct Record {
    folder: PathBuf,
    tensorboard: bool,
    /// Known when the training says how many steps were done before.
    recorder: Option<Recorder>,
}

impl Record {
    /// In this folder, for TensorBoard too or not.
    pub fn new(folder: &Path, tensorboard: bool) -> Self {
        Self { folder: folder.to_owned(), tensorboard, recorder: None }
    }

    /// Keeps an event. Returns what is to be said of that.
    pub fn keep(&mut self, event: &Event) -> Option<String> {
        let now = since_1970();
        if let Event::Begin(about) = event {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            let (recorder, warning) =
                Recorder::open(&self.folder, self.tensorboard, about.done, &host, now);
            self.recorder = Some(recorder);
            return warning;
        }
        self.recorder.as_mut().and_then(|recorder| recorder.record(event, now))
    }
}

/// Now, in seconds since 1970.
fn since_1970() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0.0, |now| now.as_secs_f64())
}
