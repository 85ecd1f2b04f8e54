//! How far a training is, from the end of its metrics.

use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use regatta_model::run_folder::{METRICS, Record, RunEvent};
use serde::{Deserialize, Serialize};

use super::open_regular;

/// Bytes to read from the end of a file of records, which may have millions of lines. The end of a training
/// is one line of up to 100 KB.
pub(super) const TAIL_BYTES: u64 = 256 << 10;
/// Bytes of metrics in which the last validation is searched.
const MAX_TAIL_BYTES: u64 = 64 << 20;

/// How far a training is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Progress {
    /// Last step recorded.
    pub step: u64,
    /// Steps of the training.
    pub steps: Option<u64>,
    /// Training loss of that step.
    pub loss: Option<f64>,
}

/// How far the training in a folder is. Cheap: it reads the end of one file.
pub fn progress(path: &Path) -> Option<Progress> {
    let last = LastMetrics::read(path);
    Some(Progress { step: last.step?, steps: last.steps, loss: last.loss })
}

/// The last values of the metrics.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct LastMetrics {
    /// Last step recorded.
    pub step: Option<u64>,
    /// Steps of the training.
    pub steps: Option<u64>,
    /// Training loss of that step.
    pub loss: Option<f64>,
    /// Last validation loss.
    pub val_loss: Option<f64>,
}

impl LastMetrics {
    /// From the end of the metrics in a folder.
    pub(super) fn read(path: &Path) -> Self {
        Self::of(tail(&path.join(METRICS), TAIL_BYTES))
    }

    /// Reads more of the end of the file until it includes a validation, which may be many steps ago.
    pub(super) fn with_validation(path: &Path) -> Self {
        let file = path.join(METRICS);
        let length = std::fs::metadata(&file).map_or(0, |found| found.len()).min(MAX_TAIL_BYTES);
        let mut bytes = TAIL_BYTES;
        loop {
            let last = Self::of(tail(&file, bytes));
            if last.val_loss.is_some() || bytes >= length {
                return last;
            }
            bytes *= 8;
        }
    }

    fn of(records: Vec<Record>) -> Self {
        let mut last = Self::default();
        for record in records {
            match record.event {
                RunEvent::Step(step) => {
                    (last.step, last.steps) = (Some(step.step), Some(step.steps));
                    last.loss = finite(step.loss).or(last.loss);
                    last.val_loss = step.val_loss.or(last.val_loss);
                }
                RunEvent::Validation { step, val_loss } => {
                    last.step = Some(step);
                    last.val_loss = finite(val_loss).or(last.val_loss);
                }
                _ => {}
            }
        }
        last
    }
}

fn finite(value: f64) -> Option<f64> {
    Some(value).filter(|value| value.is_finite())
}

/// The steps and validations of the training in a folder. Unreadable lines and files are skipped.
pub fn metrics(path: &Path) -> Vec<Record> {
    tail(&path.join(METRICS), u64::MAX)
}

/// The last complete records of a file. Unreadable lines and files are skipped.
pub(super) fn tail(path: &Path, bytes: u64) -> Vec<Record> {
    let read = || -> io::Result<Vec<u8>> {
        let Ok(Some(mut file)) = open_regular(path) else { return Ok(Vec::new()) };
        let length = file.metadata()?.len();
        file.seek(SeekFrom::Start(length.saturating_sub(bytes)))?;
        let mut text = Vec::new();
        file.take(bytes).read_to_end(&mut text)?;
        Ok(text)
    };
    let text = read().unwrap_or_default();
    text.split(|byte| *byte == b'\n').filter_map(|line| Record::parse(line).ok()).collect()
}
