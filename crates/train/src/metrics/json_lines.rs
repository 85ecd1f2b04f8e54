//! Append-only JSON Lines files.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Event, finite_or_null};
use crate::regular_file;

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

    /// Reads steps and validations up to `last_step`. Other lines are skipped.
    pub fn read(path: &Path, last_step: u64) -> io::Result<Vec<Event>> {
        let mut text = Vec::new();
        regular_file::open(path)?.read_to_end(&mut text)?;
        let lines = text[..len_through(&text, last_step)].split(|byte| *byte == b'\n');
        Ok(lines.filter_map(parse_event).collect())
    }

    /// Appends a line.
    pub fn write<T: Serialize>(&mut self, line: &T) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.0.append(&text)
    }
}

/// A line for an evaluation.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct ValidationLine {
    pub step: u64,
    #[serde(with = "finite_or_null")]
    pub val_loss: f64,
    pub time: f64,
}

fn parse_event(line: &[u8]) -> Option<Event> {
    let step = serde_json::from_slice(line).map(|step| Event::Step(Box::new(step)));
    step.ok().or_else(|| {
        let ValidationLine { step, val_loss: loss, .. } = serde_json::from_slice(line).ok()?;
        Some(Event::Validation { step, loss })
    })
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
        lines.write(&serde_json::json!({"step": 2, "loss": 0.5})).unwrap();
        lines.write(&serde_json::json!({"step": 3})).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(text, "{\"step\":1}\n{\"loss\":0.5,\"step\":2}\n{\"step\":3}\n");
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
