//! What becomes of events: shown to whoever watches, and kept in the run's folder.
//!
//! They are kept by rank 0 itself, so that the figures of a step are there before a checkpoint of it
//! is: whatever is killed, a run that goes on misses none.

use std::io::Stdout;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use regatta_train::metrics::{Event, JsonLines, METRICS_FILE, Recorder};

use super::args::TrainArgs;
use super::screen::{Form, Screen, terminal_size};

/// How often the display shows that time passes, where steps are slow.
const TICK: Duration = Duration::from_millis(500);

type Shown = Arc<Mutex<Screen<Stdout>>>;

/// Shows what happens.
pub struct Report {
    screen: Shown,
    began: Instant,
    folder: PathBuf,
    /// Started when the first event is heard, and where it is: before that the launcher becomes two
    /// processes, and a thread stays in the other.
    clock: Option<Clock>,
    live: bool,
}

impl Report {
    /// In the form that is asked for; the training keeps its metrics in this folder.
    pub fn new(args: &TrainArgs, folder: &Path) -> Self {
        let form = Form::of_stdout(args.json);
        let screen = Screen::new(form, std::io::stdout(), Box::new(terminal_size));
        let (screen, began) = (Arc::new(Mutex::new(screen)), Instant::now());
        let live = matches!(form, Form::Live { .. });
        Self { screen, began, folder: folder.to_owned(), clock: None, live }
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
        if self.live && self.clock.is_none() {
            self.clock = Clock::start(self.screen.clone(), self.began);
        }
        let mut screen = lock(&self.screen);
        // The curve begins with what was done before.
        if let Event::Begin(about) = event
            && about.done > 0
        {
            let file = self.folder.join(METRICS_FILE);
            screen.recall(&JsonLines::read(&file, about.done).unwrap_or_default());
        }
        screen.hear(event, self.began.elapsed().as_secs_f64());
    }

    /// Something else is about to be shown.
    pub fn make_way(&mut self) {
        lock(&self.screen).make_way();
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

/// Makes the display show that time passes, until it is dropped.
struct Clock {
    /// Dropped first: that ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Clock {
    fn start(screen: Shown, began: Instant) -> Option<Self> {
        let (stop, stopped) = channel();
        let tick = move || {
            while stopped.recv_timeout(TICK) == Err(RecvTimeoutError::Timeout) {
                lock(&screen).tick(began.elapsed().as_secs_f64());
            }
        };
        let thread = std::thread::Builder::new().name("clock".to_owned()).spawn(tick).ok()?;
        Some(Self { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Clock {
    fn drop(&mut self) {
        self.stop = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn lock(screen: &Shown) -> MutexGuard<'_, Screen<Stdout>> {
    screen.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Now, in seconds since 1970.
fn since_1970() -> f64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.map_or(0.0, |now| now.as_secs_f64())
}
