//! The result file, rewritten after every size. Large files are rewritten less often, so that the
//! benchmark does not wait for the disk.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use regatta_model::{BenchResult, document};

use crate::output;

/// Files above [`LARGE_BYTES`] (thousands of sizes) are rewritten at most this often.
const LARGE_FILE_INTERVAL: Duration = Duration::from_secs(1);
const LARGE_BYTES: usize = 1 << 20;

/// Where the result is written.
pub struct ResultFile {
    out: Option<PathBuf>,
    written: Option<Instant>,
    /// Size when last written.
    bytes: usize,
    /// Whether the file is out of date.
    dirty: bool,
    /// The error of the last write.
    pub error: Option<anyhow::Error>,
}

impl ResultFile {
    /// An unwritten file; without a path nothing is written.
    pub fn new(out: Option<PathBuf>) -> Self {
        Self { out, written: None, bytes: 0, dirty: false, error: None }
    }

    /// The path, unless it is standard output.
    pub fn file(&self) -> Option<&Path> {
        self.out.as_deref().filter(|out| *out != Path::new("-"))
    }

    /// Whether the result goes to standard output.
    pub fn is_stdout(&self) -> bool {
        self.out.is_some() && self.file().is_none()
    }

    /// Writes an updated result, unless the file is large and was written recently. Standard output
    /// gets the result once, at the end.
    pub fn update(&mut self, result: &BenchResult, now: Instant) {
        self.dirty = true;
        let elapsed = self.written.map(|written| now.saturating_duration_since(written));
        let recent = elapsed.is_some_and(|elapsed| elapsed < LARGE_FILE_INTERVAL);
        if self.file().is_some() && !(recent && self.bytes > LARGE_BYTES) {
            self.flush(result);
            self.written = Some(now);
        }
    }

    /// Writes the result if the file is out of date. A full disk must not end the run.
    pub fn flush(&mut self, result: &BenchResult) {
        let Some(out) = self.out.as_ref().filter(|_| self.dirty) else { return };
        let text = document::to_json(result).map_err(anyhow::Error::from);
        self.bytes = text.as_ref().map_or(0, String::len);
        self.error = text.and_then(|text| output::write_file(out, &text)).err();
        self.dirty = false;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labelled(label: &str) -> BenchResult {
        BenchResult { label: label.to_owned(), ..BenchResult::default() }
    }

    #[test]
    fn small_files_are_written_on_each_update_and_large_ones_at_intervals() {
        let name = format!("regatta-result-{}.json", std::process::id());
        let path = std::env::temp_dir().join(name);
        let mut file = ResultFile::new(Some(path.clone()));
        let has = |label: &str| {
            let text = std::fs::read_to_string(&path).unwrap();
            document::from_json::<BenchResult>(&text).unwrap().label == label
        };
        let (start, long) = (Instant::now(), "x".repeat(LARGE_BYTES));
        file.update(&labelled("a"), start);
        file.update(&labelled("b"), start);
        assert!(has("b"), "small files are always written");
        file.update(&labelled(&long), start);
        file.update(&labelled("c"), start + LARGE_FILE_INTERVAL / 2);
        assert!(has(&long), "written recently");
        file.update(&labelled(&long), start + LARGE_FILE_INTERVAL);
        file.update(&labelled("d"), start + LARGE_FILE_INTERVAL * 3 / 2);
        file.flush(&labelled("d"));
        assert!(has("d") && file.error.is_none());
        std::fs::remove_file(&path).unwrap();
        file.flush(&labelled("d"));
        assert!(!path.exists(), "not dirty");
    }

    #[test]
    fn write_errors_are_reported() {
        let mut file = ResultFile::new(Some("/no/such/folder/x.json".into()));
        file.update(&labelled("a"), Instant::now());
        assert!(file.error.is_some());
    }
}
