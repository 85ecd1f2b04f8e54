//! What becomes of events: shown to whoever watches, and kept in the run's folder.

use std::io::Stdout;
use std::path::{Path, PathBuf};
use std::time::{Instant, SystemTime};

use regatta_train::metrics::{Event, Recorder};

use super::args::TrainArgs;
use super::screen::{Form, Screen, terminal_size};

/// Shows and keeps what happens.
pub struct Report {
    screen: Screen<Stdout>,
    began: Instant,
    folder: PathBuf,
    tensorboard: bool,
    /// Known when the training says how many steps were done before.
    recorder: Option<Recorder>,
}

impl Report {
    /// For a training that keeps its metrics in this folder.
    pub fn new(args: &TrainArgs, folder: &Path, tensorboard: bool) -> Self {
        let form = Form::of_stdout(args.json);
        Self {
            screen: Screen::new(form, std::io::stdout(), Box::new(terminal_size)),
            began: Instant::now(),
            folder: folder.to_owned(),
            tensorboard,
            recorder: None,
        }
    }

    /// Hears an event as it came from rank 0.
    pub fn hear_text(&mut self, text: &str) {
        match serde_json::from_str(text) {
            Ok(event) => self.hear(&event),
            Err(error) => self.note(format!("rank 0 told something that cannot be read: {error}")),
        }
    }

    /// Hears an event.
    pub fn hear(&mut self, event: &Event) {
        let now = since_1970();
        if let Event::Begin(about) = event {
            let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
            let (recorder, warning) =
                Recorder::open(&self.folder, self.tensorboard, about.done, &host, now);
            self.recorder = Some(recorder);
            warning.into_iter().for_each(|warning| self.note(warning));
        }
        let warning = self.recorder.as_mut().and_then(|recorder| recorder.record(event, now));
        self.show(event);
        warning.into_iter().for_each(|warning| self.note(warning));
    }

    /// Something else is about to be shown.
    pub fn make_way(&mut self) {
        self.screen.make_way();
    }

    fn note(&mut self, note: String) {
        self.show(&Event::Note(note));
    }

    fn show(&mut self, event: &Event) {
        self.screen.hear(event, self.began.elapsed().as_secs_f64());
    }
}

/// Now, in seconds since 1970.
fn since_1970() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0.0, |now| now.as_secs_f64())
}
