//! TensorBoard event files: TFRecords of protocol buffer messages, encoded by hand.
//!
//! A record is the length, its masked CRC-32C, the message, its masked CRC-32C. The message `Event` has the fields 1
//! wall_time, 2 step, 3 file_version, 5 summary, 7 session_log; `Summary` repeats field 1, with 1
//! tag and 2 simple_value; `SessionLog` has 1 status.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use super::crc32c::masked;
use super::json_lines::AppendFile;

/// An event file.
#[derive(Debug)]
pub struct TensorBoard(AppendFile);

impl TensorBoard {
    /// Creates an event file; `time` is in seconds since the Unix epoch. If the directory has earlier files, a
    /// session start makes TensorBoard purge their steps after `last_step`, which will run again.
    pub fn create(folder: &Path, host: &str, time: f64, last_step: u64) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let is_resumed = last_step > 0 || std::fs::read_dir(folder)?.next().is_some();
        let file = create_new(folder, &format!("events.out.tfevents.{}.{host}", time as u64))?;
        let mut file = Self(AppendFile::new(file, 0));
        file.0.append(&record(&file_version(time)))?;
        if is_resumed {
            file.0.append(&record(&session_start(time, last_step + 1)))?;
        }
        Ok(file)
    }

    /// Adds scalars of a step. Values that are not finite are left out.
    pub fn add_scalars(&mut self, time: f64, step: u64, values: &[(&str, f64)]) -> io::Result<()> {
        let finite = values.iter().copied().filter(|(_, value)| value.is_finite());
        let values: Vec<_> = finite.collect();
        if values.is_empty() {
            return Ok(());
        }
        self.0.append(&record(&scalars(time, step, &values)))
    }
}

/// Creates a new file, with a numeric suffix if the name exists: a run may start twice within a second.
fn create_new(folder: &Path, name: &str) -> io::Result<File> {
    let create =
        |name: &str| OpenOptions::new().write(true).create_new(true).open(folder.join(name));
    let exists = |file: &io::Result<File>| {
        file.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists)
    };
    let others = (1..100).map(|n| create(&format!("{name}.{n}")));
    Some(create(name))
        .into_iter()
        .chain(others)
        .find(|file| !exists(file))
        .unwrap_or_else(|| create(name))
}

/// The first event of a file.
fn file_version(time: f64) -> Vec<u8> {
    event(time, None, 3, b"brain.Event:2")
}

/// An event with a content of some kind.
fn event(time: f64, step: Option<u64>, kind: u64, content: &[u8]) -> Vec<u8> {
    let mut event = Message::default();
    event.double(1, time);
    if let Some(step) = step {
        event.uint64(2, step);
    }
    event.bytes(kind, content);
    event.0
}

/// Purges earlier events from `step` on.
fn session_start(time: f64, step: u64) -> Vec<u8> {
    const START: u64 = 1;
    let mut session = Message::default();
    session.uint64(1, START);
    event(time, Some(step), 7, &session.0)
}

fn scalars(time: f64, step: u64, values: &[(&str, f64)]) -> Vec<u8> {
    let mut summary = Message::default();
    for (tag, value) in values {
        let mut scalar = Message::default();
        scalar.bytes(1, tag.as_bytes());
        scalar.float(2, *value as f32);
        summary.bytes(1, &scalar.0);
    }
    event(time, Some(step), 5, &summary.0)
}

/// A TFRecord.
fn record(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u64).to_le_bytes();
    let crcs = [masked(&length), masked(message)].map(u32::to_le_bytes);
    [&length[..], &crcs[0], message, &crcs[1]].concat()
}

/// A protocol buffer message under construction.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn tag(&mut self, field: u64, wire_type: u64) {
        self.varint(field << 3 | wire_type);
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn uint64(&mut self, field: u64, number: u64) {
        self.tag(field, 0);
        self.varint(number);
    }

    fn double(&mut self, field: u64, number: f64) {
        self.tag(field, 1);
        self.0.extend(number.to_le_bytes());
    }

    fn float(&mut self, field: u64, number: f32) {
        self.tag(field, 5);
        self.0.extend(number.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.tag(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TempDir;

    /// The same events by TensorBoard's own writer: fixtures/make_events.py.
    const EXPECTED: &[u8] = include_bytes!("fixtures/tensorboard.events");

    #[test]
    fn records_match_those_of_tensorboard() {
        let ours = [
            file_version(1_700_000_000.5),
            session_start(1_700_000_000.5, 3),
            scalars(1_700_000_001.25, 3, &[("loss/train", 2.5)]),
            scalars(1_700_000_002.0, 300, &[("loss/train", 1.75), ("loss/validation", 1.875)]),
            scalars(1_700_000_003.0, 5_000_000_000, &[("rate", 0.001)]),
        ];
        let ours: Vec<u8> = ours.iter().flat_map(|message| record(message)).collect();
        assert_eq!(ours, EXPECTED);
    }

    /// A run killed before its first checkpoint starts again from step 1.
    #[test]
    fn a_restart_from_the_first_step_purges_earlier_events() {
        let folder = TempDir::new();
        let create = |name: &str| {
            TensorBoard::create(&folder.0, "host", 1.5, 0).unwrap();
            std::fs::read(folder.0.join(name)).unwrap()
        };
        let first = create("events.out.tfevents.1.host");
        let second = create("events.out.tfevents.1.host.1");
        assert_eq!(first, record(&file_version(1.5)));
        assert_eq!(second, [record(&file_version(1.5)), record(&session_start(1.5, 1))].concat());
    }

    #[test]
    fn event_files_have_the_name_tensorboard_expects() {
        let folder = TempDir::new();
        let mut file = TensorBoard::create(&folder.0, "host", 1_700_000_000.5, 2).unwrap();
        file.add_scalars(1_700_000_001.25, 3, &[("loss/train", 2.5), ("rate", f64::NAN)]).unwrap();
        file.add_scalars(1_700_000_001.25, 4, &[("loss/train", f64::NAN)]).unwrap();
        let bytes = std::fs::read(folder.0.join("events.out.tfevents.1700000000.host")).unwrap();
        assert!(EXPECTED.starts_with(&bytes) && bytes.len() > 100, "{}", bytes.len());
    }
}
