//! What becomes of events: shown to whoever watches, and kept in the run's folder.

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

/// Shows and keeps what happens.
pub struct Report {
    screen: Shown,
    began: Instant,
    folder: PathBuf,
    tensorboard: bool,
    /// Known when the training says how many steps were done before.
    recorder: Option<Recorder>,
    _clock: Option<Clock>,
}

impl Report {
    /// For a training that keeps its metrics in this folder.
    pub fn new(args: &TrainArgs, folder: &Path, tensorboard: bool) -> Self {
        let form = Form::of_stdout(args.json);
        let screen = Screen::new(form, std::io::stdout(), Box::new(terminal_size));
        let (screen, began) = (Arc::new(Mutex::new(screen)), Instant::now());
        let live = matches!(form, Form::Live { .. });
        let clock = live.then(|| Clock::start(screen.clone(), began)).flatten();
        let folder = folder.to_owned();
        Self { screen, began, folder, tensorboard, recorder: None, _clock: clock }
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
            self.open(about.done, now);
        }
        let warning = self.recorder.as_mut().and_then(|recorder| recorder.record(event, now));
        self.show(event);
        warning.into_iter().for_each(|warning| self.note(warning));
    }

    /// Something else is about to be shown.
    pub fn make_way(&mut self) {
        lock(&self.screen).make_way();
    }

    /// Opens the files of a training of which so many steps are done; the curve begins with those.
    fn open(&mut self, done: u64, now: f64) {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let (recorder, warning) = Recorder::open(&self.folder, self.tensorboard, done, &host, now);
        self.recorder = Some(recorder);
        warning.into_iter().for_each(|warning| self.note(warning));
        if done > 0 {
            let before = JsonLines::read(&self.folder.join(METRICS_FILE), done).unwrap_or_default();
            lock(&self.screen).recall(&before);
        }
    }

    fn note(&mut self, note: String) {
        self.show(&Event::Note(note));
    }

    fn show(&mut self, event: &Event) {
        lock(&self.screen).hear(event, self.began.elapsed().as_secs_f64());
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
