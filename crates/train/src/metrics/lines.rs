//! A file that grows line by line.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::{Event, number};

/// A file that is only added to. What could not be written whole is not there: the next piece goes
/// over it.
#[derive(Debug)]
pub(super) struct Growing {
    file: File,
    end: u64,
}

impl Growing {
    /// Begins behind what a file holds up to `end`.
    pub fn new(file: File, end: u64) -> Self {
        Self { file, end }
    }

    /// Adds bytes, all or none.
    pub fn add(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.file.write_all_at(bytes, self.end)?;
        self.end += bytes.len() as u64;
        Ok(())
    }
}

/// Lines of JSON, each flushed when it is written.
#[derive(Debug)]
pub struct JsonLines(Growing);

impl JsonLines {
    /// Opens a file of which the lines up to step `done` stay. Those of later steps, which will be
    /// done again, and one that was torn off are cut away, so that no step is there twice.
    pub fn open(path: &Path, done: u64) -> io::Result<Self> {
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(false).open(path)?;
        if !file.metadata()?.is_file() {
            return Ok(Self(Growing::new(file, 0)));
        }
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let end = kept(&text, done) as u64;
        file.set_len(end)?;
        Ok(Self(Growing::new(file, end)))
    }

    /// What a file tells of the steps up to `done`: steps and validations. Lines that say neither
    /// are skipped.
    pub fn read(path: &Path, done: u64) -> io::Result<Vec<Event>> {
        let text = std::fs::read(path)?;
        let lines = text[..kept(&text, done)].split(|byte| *byte == b'\n');
        Ok(lines.filter_map(event).collect())
    }

    /// Adds a line.
    pub fn write<T: Serialize>(&mut self, line: &T) -> io::Result<()> {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        self.0.add(&text)
    }
}

/// A line of a validation, beside those of steps.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Validated {
    pub step: u64,
    #[serde(with = "number")]
    pub validation_loss: f64,
    pub time: f64,
}

/// What a line says.
fn event(line: &[u8]) -> Option<Event> {
    let step = serde_json::from_slice(line).map(|step| Event::Step(Box::new(step)));
    step.ok().or_else(|| {
        let Validated { step, validation_loss: loss, .. } = serde_json::from_slice(line).ok()?;
        Some(Event::Validation { step, loss })
    })
}

/// How many bytes of a file are of steps up to `done`.
fn kept(text: &[u8], done: u64) -> usize {
    #[derive(Deserialize)]
    struct Line {
        step: u64,
    }
    let mut end = 0;
    for line in text.split_inclusive(|byte| *byte == b'\n') {
        let step = serde_json::from_slice::<Line>(line).map_or(0, |line| line.step);
        if step > done || !line.ends_with(b"\n") {
            break;
        }
        end += line.len();
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "{\"step\":1}\n{\"step\":2}\nbroken\n{\"step\":3,\"loss\":1}\n{\"st";

    #[test]
    fn steps_that_are_done_again_are_cut_away() {
        let kept = |done| &LINES[..super::kept(LINES.as_bytes(), done)];
        assert_eq!(kept(0), "");
        assert_eq!(kept(1), "{\"step\":1}\n");
        assert_eq!(kept(2), "{\"step\":1}\n{\"step\":2}\nbroken\n");
        assert_eq!(kept(9), &LINES[..LINES.len() - 4]);
    }

    #[test]
    fn lines_are_added_behind_those_that_stay() {
        let path = std::env::temp_dir().join(format!("regatta-lines-{}", std::process::id()));
        std::fs::write(&path, LINES).unwrap();
        let mut lines = JsonLines::open(&path, 1).unwrap();
        lines.write(&serde_json::json!({"step": 2, "loss": 0.5})).unwrap();
        lines.write(&serde_json::json!({"step": 3})).unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "{\"step\":1}\n{\"loss\":0.5,\"step\":2}\n{\"step\":3}\n");
    }

    #[test]
    fn what_is_half_written_is_written_over() {
        let path = std::env::temp_dir().join(format!("regatta-torn-{}", std::process::id()));
        let file = File::create(&path).unwrap();
        let mut growing = Growing::new(file, 0);
        growing.add(b"one\n").unwrap();
        growing.file.write_all_at(b"torn", growing.end).unwrap();
        growing.add(b"whole\n").unwrap();
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!(text, "one\nwhole\n");
    }
}
