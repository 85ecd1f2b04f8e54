//! What a file system does for this rank: how fast a large file is written and read, and how many
//! small files are created, looked at and removed in a second.
//!
//! Everything is written under names that nothing had before, and is gone at the end, however that
//! comes. The large file has no name from the start: not even a kill leaves it behind. Of the small
//! ones a kill may leave a folder named `.regatta-bench-…`.

mod cached;
mod large;
mod scratch;
mod small;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use regatta_model::{CeilingKind, RateUnit, units};

use super::timing::Timed;
use super::{Cases, CeilingError, Progress, Row};

/// What to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Settings {
    /// Where.
    pub folder: PathBuf,
    /// Bytes of the large file.
    pub bytes: u64,
    /// How many small files there are at a time.
    pub files: u32,
    /// How often each is done, at most.
    pub repetitions: u32,
    /// No repetition begins after this long, and a first one creates no more files.
    pub case: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            folder: PathBuf::from("."),
            bytes: 256 << 20,
            files: 1000,
            repetitions: 3,
            case: Duration::from_secs(10),
        }
    }
}

impl Settings {
    /// The same, with the folder in full, if they make sense.
    fn checked(&self) -> Result<Self, CeilingError> {
        let wrong = |what: &str| Err(CeilingError::Setting { what: what.to_owned() });
        if self.bytes == 0 {
            return wrong("a file of no bytes says nothing: choose a size of 1 or more");
        }
        if self.files == 0 {
            return wrong("no files say nothing: choose 1 or more");
        }
        let full = self.folder.canonicalize().map_err(|source| {
            let path = self.folder.clone();
            CeilingError::File { doing: "use the folder", path, source }
        });
        Ok(Self { folder: full?, ..self.clone() })
    }
}

/// Measures the file system that a folder is in. Once `stop` is set it returns what it has.
pub fn measure(
    settings: &Settings,
    stop: &AtomicBool,
    report: &mut dyn FnMut(Progress<'_>),
) -> Result<Vec<Row>, CeilingError> {
    let settings = &settings.checked()?;
    let mut cases = Cases::new(stop, report);
    cases.total = large::CASES + small::CASES;
    large::measure(&mut cases, settings)?;
    small::measure(&mut cases, settings)?;
    Ok(cases.finish())
}

impl Settings {
    /// The row of something that moves the large file once.
    fn moved(&self, timed: &Timed, what: &str) -> Row {
        let gigabytes = self.bytes as f64 / 1e9;
        let unit = RateUnit::GigabytesPerSecond;
        self.here(timed.row(CeilingKind::Disk, what.to_owned(), gigabytes, unit))
    }

    /// The row of something that is done with so many files.
    fn done(&self, timed: &Timed, what: &str, files: u32) -> Row {
        let unit = RateUnit::FilesPerSecond;
        self.here(timed.row(CeilingKind::Disk, what.to_owned(), f64::from(files), unit))
    }

    fn here(&self, row: Row) -> Row {
        Row { device: self.folder.display().to_string(), ..row }
    }

    /// `write 256 MiB`.
    fn sized(&self, what: &str) -> String {
        format!("{what} {}", units::bytes(self.bytes))
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
