//! The file that has the result, written after every size. One that has become long is written less
//! often: what is measured must not wait for the disk.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use regatta_model::{BenchResult, document};

use crate::output;

/// How often a long file is written anew, and how many bytes that is: thousands of sizes.
const EVERY: Duration = Duration::from_secs(1);
const LONG: usize = 1 << 20;

/// Where a result goes, and when it last went there.
pub struct Keep {
    out: Option<PathBuf>,
    written: Option<Instant>,
    /// How long it was then.
    bytes: usize,
    /// Whether there is more than was written.
    stale: bool,
    /// Why the file misses what was measured since.
    error: Option<anyhow::Error>,
}

impl Keep {
    /// Nothing is kept yet; without a path nothing ever is.
    pub fn new(out: Option<PathBuf>) -> Self {
        Self { out, written: None, bytes: 0, stale: false, error: None }
    }

    /// The file, if it is one.
    pub fn file(&self) -> Option<&Path> {
        self.out.as_deref().filter(|out| *out != Path::new("-"))
    }

    /// Whether the result goes to standard output.
    pub fn is_printed(&self) -> bool {
        self.out.is_some() && self.file().is_none()
    }

    /// There is more: written now, unless it is long and was written a moment ago. What is printed is
    /// printed once, at the end.
    pub fn more(&mut self, result: &BenchResult, now: Instant) {
        self.stale = true;
        let recent = self.written.is_some_and(|then| now.saturating_duration_since(then) < EVERY);
        if self.file().is_some() && !(recent && self.bytes > LONG) {
            self.all(result);
            self.written = Some(now);
        }
    }

    /// Writes what is not written yet. A full disk must not end the run.
    pub fn all(&mut self, result: &BenchResult) {
        let Some(out) = self.out.as_ref().filter(|_| self.stale) else { return };
        let text = document::to_json(result).map_err(anyhow::Error::from);
        self.bytes = text.as_ref().map_or(0, String::len);
        self.error = text.and_then(|text| output::write_file(out, &text)).err();
        self.stale = false;
    }

    /// Why the file is not what it should be.
    pub fn error(&mut self) -> Option<anyhow::Error> {
        self.error.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labelled(label: &str) -> BenchResult {
        BenchResult { label: label.to_owned(), ..BenchResult::default() }
    }

    #[test]
    fn a_short_one_is_written_each_time_and_a_long_one_now_and_then() {
        let name = format!("regatta-keep-{}.json", std::process::id());
        let file = std::env::temp_dir().join(name);
        let mut keep = Keep::new(Some(file.clone()));
        let has = |label: &str| {
            let text = std::fs::read_to_string(&file).unwrap();
            document::from_json::<BenchResult>(&text).unwrap().label == label
        };
        let (start, long) = (Instant::now(), "x".repeat(LONG));
        keep.more(&labelled("a"), start);
        keep.more(&labelled("b"), start);
        assert!(has("b"), "a short one is always written");
        keep.more(&labelled(&long), start);
        keep.more(&labelled("c"), start + EVERY / 2);
        assert!(has(&long), "a moment ago");
        keep.more(&labelled(&long), start + EVERY);
        keep.more(&labelled("d"), start + EVERY * 3 / 2);
        keep.all(&labelled("d"));
        assert!(has("d") && keep.error().is_none());
        std::fs::remove_file(&file).unwrap();
        keep.all(&labelled("d"));
        assert!(!file.exists(), "it was there");
    }

    #[test]
    fn what_cannot_be_written_is_said() {
        let mut keep = Keep::new(Some("/no/such/folder/x.json".into()));
        keep.more(&labelled("a"), Instant::now());
        assert!(keep.error().is_some());
    }
}
