//! Writes what happens into the run folder. A full disk costs metrics, never the training.

use std::io;
use std::path::{Path, PathBuf};

use super::lines::Validated;
use super::{Event, JsonLines, METRICS_FILE, StepMetrics, TENSORBOARD_FOLDER, TensorBoard};

/// The files that events go to.
#[derive(Debug)]
pub struct Recorder {
    lines: Option<JsonLines>,
    board: Option<TensorBoard>,
    folder: PathBuf,
    /// Whether somebody knows that something is missing.
    complained: bool,
}

impl Recorder {
    /// Opens the files of a run of which so many steps are done; `host` and `time`, in seconds since
    /// 1970, are for the name of the event file. Returns a warning too, where one cannot be opened.
    pub fn open(
        folder: &Path,
        tensorboard: bool,
        done: u64,
        host: &str,
        time: f64,
    ) -> (Self, Option<String>) {
        let lines = JsonLines::open(&folder.join(METRICS_FILE), done);
        let board = tensorboard
            .then(|| TensorBoard::create(&folder.join(TENSORBOARD_FOLDER), host, time, done))
            .transpose();
        let mut recorder =
            Self { lines: None, board: None, folder: folder.to_owned(), complained: false };
        let warnings = [lines.as_ref().err(), board.as_ref().err()].map(|e| recorder.warning(e));
        recorder.lines = lines.ok();
        recorder.board = board.ok().flatten();
        (recorder, warnings.into_iter().flatten().next())
    }

    /// Writes what happened; `time` is in seconds since 1970. Returns a warning the first time that
    /// this fails. The next event is tried again: there may be room by then.
    pub fn record(&mut self, event: &Event, time: f64) -> Option<String> {
        let written = match event {
            Event::Step(step) => self.step(step),
            Event::Validation { step, loss } => self.validation(*step, *loss, time),
            _ => Ok(()),
        };
        self.warning(written.as_ref().err())
    }

    fn step(&mut self, step: &StepMetrics) -> io::Result<()> {
        let lines = self.lines.as_mut().map_or(Ok(()), |lines| lines.write(step));
        let parts =
            step.seconds.parts().map(|(name, seconds)| (format!("seconds/{name}"), seconds));
        let mut figures = vec![
            ("loss/train", step.loss),
            ("rate", step.rate),
            ("gradient_norm", step.gradient_norm),
            ("speed/tokens_per_second", step.tokens_per_second),
            ("speed/flops_per_second", step.flops_per_second),
            ("seconds/step", step.seconds.step),
        ];
        figures.extend(parts.iter().map(|(name, seconds)| (name.as_str(), *seconds)));
        figures.extend(step.validation_loss.map(|loss| ("loss/validation", loss)));
        let board = self.board.as_mut();
        let board = board.map_or(Ok(()), |board| board.add(step.time, step.step, &figures));
        lines.and(board)
    }

    fn validation(&mut self, step: u64, loss: f64, time: f64) -> io::Result<()> {
        let line = Validated { step, validation_loss: loss, time };
        let lines = self.lines.as_mut().map_or(Ok(()), |lines| lines.write(&line));
        let board = self.board.as_mut();
        let board =
            board.map_or(Ok(()), |board| board.add(time, step, &[("loss/validation", loss)]));
        lines.and(board)
    }

    /// What is said of a failure, once.
    fn warning(&mut self, error: Option<&io::Error>) -> Option<String> {
        let error = error.filter(|_| !self.complained)?;
        self.complained = true;
        let folder = self.folder.display();
        Some(format!("metrics in {folder} miss something: {error}; the training goes on"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(step: u64) -> Event {
        Event::Step(Box::new(StepMetrics { step, loss: 1.0 / step as f64, ..Default::default() }))
    }

    fn folder(name: &str) -> PathBuf {
        let folder = std::env::temp_dir().join(format!("regatta-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&folder).unwrap();
        folder
    }

    #[test]
    fn a_run_that_goes_on_has_every_step_once() {
        let folder = folder("recorder");
        let (mut first, warning) = Recorder::open(&folder, true, 0, "here", 1e9);
        assert_eq!(warning, None);
        for n in 1..=5 {
            assert_eq!(first.record(&step(n), 1e9), None);
        }
        assert_eq!(first.record(&Event::Validation { step: 5, loss: 2.0 }, 1e9), None);
        let (mut second, warning) = Recorder::open(&folder, true, 3, "here", 1e9);
        assert_eq!(warning, None);
        (4..=6).for_each(|n| assert_eq!(second.record(&step(n), 1e9), None));
        let validation = Event::Validation { step: 6, loss: f64::NAN };
        assert_eq!(second.record(&validation, 1e9), None);
        let last = JsonLines::read(&folder.join(METRICS_FILE), 9).unwrap().pop();
        assert!(matches!(last, Some(Event::Validation { step: 6, loss }) if loss.is_nan()));
        let text = std::fs::read_to_string(folder.join(METRICS_FILE)).unwrap();
        let before = JsonLines::read(&folder.join(METRICS_FILE), 2).unwrap();
        let boards = std::fs::read_dir(folder.join(TENSORBOARD_FOLDER)).unwrap().count();
        std::fs::remove_dir_all(&folder).unwrap();
        let line = |line| serde_json::from_str::<StepMetrics>(line).unwrap().step;
        let steps = text.lines().filter(|line| !line.contains("validation"));
        assert_eq!(steps.map(line).collect::<Vec<_>>(), [1, 2, 3, 4, 5, 6]);
        assert_eq!(boards, 2);
        assert_eq!(before, [step(1), step(2)]);
    }

    #[test]
    fn a_full_disk_is_said_once_and_nothing_more() {
        let folder = folder("full");
        std::os::unix::fs::symlink("/dev/full", folder.join(METRICS_FILE)).unwrap();
        let (mut recorder, warning) = Recorder::open(&folder, false, 0, "here", 1e9);
        assert_eq!(warning, None);
        let said = recorder.record(&step(1), 1e9).unwrap();
        assert!(said.contains("No space left on device") && said.contains("goes on"), "{said}");
        assert_eq!(recorder.record(&step(2), 1e9), None);
        std::fs::remove_dir_all(&folder).unwrap();
    }

    #[test]
    fn a_folder_that_cannot_be_written_is_said_once() {
        let missing = Path::new("/proc/regatta-is-not-here");
        let (mut recorder, warning) = Recorder::open(missing, true, 0, "here", 1e9);
        assert!(warning.unwrap().contains("/proc/regatta-is-not-here"));
        assert_eq!(recorder.record(&step(1), 1e9), None);
    }
}
