//! Writes events to the run folder. A full disk loses metrics but never ends the training.

use std::io;
use std::path::{Path, PathBuf};

use regatta_model::run_folder::{METRICS, Record, RunEvent, TENSORBOARD};

use super::{Event, JsonLines, StepMetrics, TensorBoard};

/// The metrics files of a run. Rank 0 itself writes them, so that the metrics of a step are written before its
/// checkpoint: a resumed run has those of every step, whichever process was killed.
#[derive(Debug)]
pub struct Recorder {
    folder: PathBuf,
    tensorboard_host: Option<String>,
    lines: Option<JsonLines>,
    tensorboard: Option<TensorBoard>,
    /// Whether a warning was already returned.
    warned: bool,
}

impl Recorder {
    /// Records in a run folder, also for TensorBoard if there is a host, which names the event file.
    pub fn new(folder: &Path, tensorboard_host: Option<String>) -> Self {
        let folder = folder.to_owned();
        Self { folder, tensorboard_host, lines: None, tensorboard: None, warned: false }
    }

    /// Writes an event; `time` is in seconds since the Unix epoch. Returns a warning for the first error.
    /// Later events are still written, because space may have been freed.
    pub fn record(&mut self, event: &Event, time: f64) -> Option<String> {
        let written = match event {
            // The files of a run without steps left stay unchanged.
            Event::Start(about) if about.start_step < about.steps => {
                return self.open(about.start_step, time);
            }
            Event::Step(step) => self.step(step),
            Event::Validation { step, loss } => self.validation(*step, *loss, time),
            _ => Ok(()),
        };
        self.warning(written.as_ref().err())
    }

    /// Opens the files of a run that resumes after step `last_step`.
    fn open(&mut self, last_step: u64, time: f64) -> Option<String> {
        let lines = JsonLines::open(&self.folder.join(METRICS), last_step);
        let folder = self.folder.join(TENSORBOARD);
        let create = |host: &String| TensorBoard::create(&folder, host, time, last_step);
        let tensorboard = self.tensorboard_host.as_ref().map(create).transpose();
        let warnings = [lines.as_ref().err(), tensorboard.as_ref().err()].map(|e| self.warning(e));
        (self.lines, self.tensorboard) = (lines.ok(), tensorboard.ok().flatten());
        warnings.into_iter().flatten().next()
    }

    fn step(&mut self, step: &StepMetrics) -> io::Result<()> {
        let lines = self.write(step.time, RunEvent::Step(Box::new(step.clone())));
        let phases =
            step.seconds.phases().map(|(name, seconds)| (format!("seconds/{name}"), seconds));
        let mut scalars = vec![
            ("loss/train", step.loss),
            ("lr", step.lr),
            ("grad_norm", step.grad_norm),
            ("speed/tokens_per_second", step.tokens_per_second),
            ("speed/flops_per_second", step.flops_per_second),
            ("seconds/step", step.seconds.step),
        ];
        scalars.extend(phases.iter().map(|(name, seconds)| (name.as_str(), *seconds)));
        let memory = step.gpu_memory.map(|memory| ("memory/gpu_peak_bytes", memory.peak as f64));
        scalars.extend(memory);
        scalars.extend(step.val_loss.map(|loss| ("loss/val", loss)));
        lines.and(self.add_scalars(step.time, step.step, &scalars))
    }

    fn validation(&mut self, step: u64, loss: f64, time: f64) -> io::Result<()> {
        let lines = self.write(time, RunEvent::Validation { step, val_loss: loss });
        lines.and(self.add_scalars(time, step, &[("loss/val", loss)]))
    }

    fn write(&mut self, time: f64, event: RunEvent) -> io::Result<()> {
        let Some(lines) = &mut self.lines else { return Ok(()) };
        lines.write(&Record::of_metrics(time, event))
    }

    fn add_scalars(&mut self, time: f64, step: u64, scalars: &[(&str, f64)]) -> io::Result<()> {
        let Some(tensorboard) = &mut self.tensorboard else { return Ok(()) };
        tensorboard.add_scalars(time, step, scalars)
    }

    /// A warning for the first error.
    fn warning(&mut self, error: Option<&io::Error>) -> Option<String> {
        let error = error.filter(|_| !self.warned)?;
        self.warned = true;
        let folder = self.folder.display();
        let fix = match error.kind() {
            io::ErrorKind::FileTooLarge => "; raise the limit with `ulimit -f unlimited`",
            _ => "",
        };
        Some(format!("metrics in {folder} are incomplete: {error}; training continues{fix}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::metrics::RunInfo;
    use crate::testing::TempDir;

    /// A recorder of a run that resumes, and its warning.
    fn open(folder: &Path, tensorboard: bool, start_step: u64) -> (Recorder, Option<String>) {
        let mut recorder = Recorder::new(folder, tensorboard.then(|| "host".to_owned()));
        let about = RunInfo { start_step, steps: 9, ..RunInfo::default() };
        let warning = recorder.record(&Event::Start(Box::new(about)), 1e9);
        (recorder, warning)
    }

    fn step(step: u64) -> Event {
        Event::Step(Box::new(StepMetrics { step, loss: 1.0 / step as f64, ..Default::default() }))
    }

    #[test]
    fn a_resumed_run_records_every_step_once() {
        let folder = TempDir::new();
        let (mut first, warning) = open(&folder.0, true, 0);
        assert_eq!(warning, None);
        for n in 1..=5 {
            assert_eq!(first.record(&step(n), 1e9), None);
        }
        assert_eq!(first.record(&Event::Validation { step: 5, loss: 2.0 }, 1e9), None);
        let (mut second, warning) = open(&folder.0, true, 3);
        assert_eq!(warning, None);
        (4..=6).for_each(|n| assert_eq!(second.record(&step(n), 1e9), None));
        let validation = Event::Validation { step: 6, loss: f64::NAN };
        assert_eq!(second.record(&validation, 1e9), None);
        let text = std::fs::read_to_string(folder.0.join(METRICS)).unwrap();
        let last = Record::parse(text.lines().last().unwrap().as_bytes()).unwrap().event;
        assert!(matches!(last, RunEvent::Validation { step: 6, val_loss } if val_loss.is_nan()));
        let event_files = std::fs::read_dir(folder.0.join(TENSORBOARD)).unwrap().count();
        let line = |line| serde_json::from_str::<StepMetrics>(line).unwrap().step;
        let steps = text.lines().filter(|line| !line.contains("val_loss"));
        assert_eq!(steps.map(line).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(event_files, 2);
    }

    #[test]
    fn a_run_without_steps_left_keeps_its_files() {
        let folder = TempDir::new();
        std::fs::write(folder.0.join(METRICS), "{\"step\":9}\n{\"step\":10}\n").unwrap();
        let (mut recorder, warning) = open(&folder.0, true, 9);
        assert_eq!((warning, recorder.record(&step(10), 1e9)), (None, None));
        assert_eq!(std::fs::read_dir(&folder.0).unwrap().count(), 1);
        assert!(std::fs::read_to_string(folder.0.join(METRICS)).unwrap().contains("10"));
    }

    #[test]
    fn a_full_disk_is_warned_about_once() {
        let folder = TempDir::new();
        std::os::unix::fs::symlink("/dev/full", folder.0.join(METRICS)).unwrap();
        let (mut recorder, warning) = open(&folder.0, false, 0);
        assert_eq!(warning, None);
        let warning = recorder.record(&step(1), 1e9).unwrap();
        assert!(warning.contains("No space left on device"), "{warning}");
        assert_eq!(recorder.record(&step(2), 1e9), None);
    }

    #[test]
    fn an_unwritable_folder_is_warned_about_once() {
        let missing = Path::new("/proc/regatta-is-not-here");
        let (mut recorder, warning) = open(missing, true, 0);
        assert!(warning.unwrap().contains("/proc/regatta-is-not-here"));
        assert_eq!(recorder.record(&step(1), 1e9), None);
    }
}
