//! Append-only JSON Lines files.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use regatta_model::run_folder::Record;
use serde::Deserialize;

/// An append-only file. A partially failed write is overwritten by the next one.
#[derive(Debug)]
pub(super) struct AppendFile {
    file: File,
    end: u64,
}

impl AppendFile {
    /// Appends at offset `end`.
    pub fn new(file: File, end: u64) -> Self {
        Self { file, end }
    }

    /// Appends all bytes or none.
    pub fn append(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(())
    }
}

/// A JSON Lines file, unbuffered.
#[derive(Debug)]
pub struct JsonLines(AppendFile);

impl JsonLines {
    /// Opens a file and truncates it after step `last_step`: later steps will run again, and each step
    /// must occur once. A partial last line is removed.
    pub fn open(path: &Path, last_step: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        if !file.metadata()?.is_file() {
            return Ok(Self(AppendFile::new(file, 0)));
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let end = len_through(&text, last_step) as u64;
        file.set_len(end)?;
        Ok(Self(AppendFile::new(file, end)))
    }

    /// Appends a record.
    pub fn write(&mut self, record: &Record) -> io::Result<()> {
        self.0.append(record.to_line()?.as_bytes())
    }
}

/// Length of the complete lines up to step `last_step`.
fn len_through(text: &[u8], last_step: u64) -> usize {
    #[derive(Deserialize)]
    struct StepNumber {
        step: u64,
    }
    let mut end = 0;
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let step = serde_json::from_slice::<StepNumber>(line).map_or(0, |line| line.step);
        if step > last_step || !line.ends_with(b"\n") {
            break;
        }
        end += line.len();
    }
    end
}

#[cfg(test)]
mod tests {
    use regatta_model::run_folder::RunEvent;

    use super::*;
    use crate::testing::TempDir;

    const LINES: &str = "{\"step\":1}\n{\"step\":2}\nbroken\n{\"step\":3,\"loss\":1}\n{\"st";

    #[test]
    fn steps_after_the_last_one_are_truncated() {
        let kept = |step| &LINES[..len_through(LINES.as_bytes(), step)];
        assert_eq!(kept(0), "");
        assert_eq!(kept(1), "{\"step\":1}\n");
        assert_eq!(kept(2), "{\"step\":1}\n{\"step\":2}\nbroken\n");
        assert_eq!(kept(9), &LINES[..LINES.len() - 4]);
    }

    #[test]
    fn lines_are_appended_after_truncation() {
        let dir = TempDir::new();
        let path = dir.file("lines", LINES);
        let mut lines = JsonLines::open(&path, 1).unwrap();
        let records = [2, 3].map(|step| {
            Record::of_metrics(step as f64, RunEvent::Validation { step, val_loss: 0.5 })
        });
        records.iter().for_each(|record| lines.write(record).unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        let [second, third] = records.map(|record| record.to_line().unwrap());
        assert_eq!(text, format!("{{\"step\":1}}\n{second}{third}"));
    }

    #[test]
    fn partial_writes_are_overwritten() {
        let dir = TempDir::new();
        let path = dir.0.join("lines");
        let file = File::create(&path).unwrap();
        let mut file = AppendFile::new(file, 0);
        file.append(b"one\n").unwrap();
        file.file.write_all_at(b"torn", file.end).unwrap();
        file.append(b"whole\n").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "one\nwhole\n");
    }
}
