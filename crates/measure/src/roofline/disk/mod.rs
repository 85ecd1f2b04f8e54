//! File-system performance of this rank: bandwidth of one large file, and metadata operations per
//! second on small files.
//!
//! All files have new names and are removed at the end. The large file is unlinked right after it
//! is created, so that even SIGKILL leaves nothing behind. SIGKILL may leave the directory of the
//! small files, `.regatta-bench-…`.

mod metadata;
mod page_cache;
mod scratch;
mod sequential;

use std::path::PathBuf;
use std::time::Duration;

use regatta_model::{RateUnit, RooflineKind, units};

use super::timing::Samples;
use super::{CaseProgress, Cases, Result, RooflineError, RooflineRow};

/// What to measure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskSettings {
    /// The directory.
    pub dir: PathBuf,
    /// Size of the large file in bytes.
    pub bytes: u64,
    /// Number of small files.
    pub files: u32,
    /// Maximum number of repetitions.
    pub repetitions: u32,
    /// No repetition starts after this time, and the first one stops creating files.
    pub time_limit: Duration,
}

impl Default for DiskSettings {
    fn default() -> Self {
        Self {
            dir: PathBuf::from("."),
            bytes: 256 << 20,
            files: 1000,
            repetitions: 3,
            time_limit: Duration::from_secs(10),
        }
    }
}

impl DiskSettings {
    /// Validates the settings and canonicalises the directory.
    fn checked(&self) -> Result<Self> {
        if self.bytes == 0 {
            return Err(RooflineError::EmptyFile);
        }
        let error = |error| scratch::io_error("use directory", &self.dir, &self.dir, error);
        Ok(Self { dir: self.dir.canonicalize().map_err(error)?, ..self.clone() })
    }
}

/// Measures the file system of a directory.
pub fn measure(
    settings: &DiskSettings,
    report: &mut dyn FnMut(CaseProgress<'_>),
) -> Result<Vec<RooflineRow>> {
    let settings = &settings.checked()?;
    let mut cases = Cases::new(report);
    cases.total = sequential::CASES + metadata::CASES;
    sequential::measure(&mut cases, settings)?;
    metadata::measure(&mut cases, settings)?;
    Ok(cases.into_rows())
}

impl DiskSettings {
    fn row(&self, timed: &Samples, what: &str, amount: f64, unit: RateUnit) -> RooflineRow {
        let row = timed.row(RooflineKind::Disk, what.to_owned(), amount, unit);
        RooflineRow { device: self.dir.display().to_string(), ..row }
    }

    /// `write 256 MiB`.
    fn case_name(&self, what: &str) -> String {
        format!("{what} {}", units::format_bytes(self.bytes))
    }
}

#[cfg(test)]
#[path = "tests.rs"]
mod tests;
