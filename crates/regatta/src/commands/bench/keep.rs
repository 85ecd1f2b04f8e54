//! The file that has the result. What is measured must not wait for the disk after every size, nor
//! be lost for long.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use regatta_model::{BenchResult, document};

use crate::output;

/// How often the file is written anew.
const EVERY: Duration = Duration::from_secs(1);

/// Where a result goes, and when it last went there.
pub struct Keep {
    out: Option<PathBuf>,
    written: Option<Instant>,
    /// Whether there is more than was written.
    stale: bool,
    /// Why the file misses what was measured since.
    error: Option<anyhow::Error>,
}

impl Keep {
    /// Nothing is kept yet; without a path nothing ever is.
    pub fn new(out: Option<PathBuf>) -> Self {
        Self { out, written: None, stale: false, error: None }
    }

    /// The file, if it is one.
    pub fn file(&self) -> Option<&Path> {
        self.out.as_deref().filter(|out| *out != Path::new("-"))
    }

    /// Whether the result goes to standard output.
    pub fn is_printed(&self) -> bool {
        self.out.is_some() && self.file().is_none()
    }

    /// There is more: written now, unless something was a moment ago. What is printed is printed
    /// once, at the end.
    pub fn more(&mut self, result: &BenchResult, now: Instant) {
        self.stale = true;
        let recent = self.written.is_some_and(|then| now.saturating_duration_since(then) < EVERY);
        if self.file().is_some() && !recent {
            self.all(result);
            self.written = Some(now);
        }
    }

    /// Writes what is not written yet. A full disk must not end the run.
    pub fn all(&mut self, result: &BenchResult) {
        let Some(out) = self.out.as_ref().filter(|_| self.stale) else { return };
        let text = document::to_json(result).map_err(anyhow::Error::from);
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
    fn it_is_written_at_once_then_now_and_then_and_at_the_end() {
        let name = format!("regatta-keep-{}.json", std::process::id());
        let file = std::env::temp_dir().join(name);
        let mut keep = Keep::new(Some(file.clone()));
        let has = |label: &str| {
            let text = std::fs::read_to_string(&file).unwrap();
            document::from_json::<BenchResult>(&text).unwrap().label == label
        };
        let start = Instant::now();
        keep.more(&labelled("a"), start);
        assert!(has("a"));
        keep.more(&labelled("b"), start + EVERY / 2);
        assert!(has("a"), "a moment ago");
        keep.more(&labelled("c"), start + EVERY);
        assert!(has("c"));
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
