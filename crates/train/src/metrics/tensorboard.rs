//! Event files of TensorBoard: records of a few protocol buffer messages, put together by hand.
//!
//! A record is the length, its sum, the message, its sum. The message `Event` has the fields 1
//! wall_time, 2 step, 3 file_version, 5 summary, 7 session_log; `Summary` repeats field 1, with 1
//! tag and 2 simple_value; `SessionLog` has 1 status.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;

use super::crc::masked;
use super::lines::Growing;

/// An event file.
#[derive(Debug)]
pub struct TensorBoard(Growing);

impl TensorBoard {
    /// Begins a file in a folder; `time` is in seconds since 1970. Where there are others, TensorBoard
    /// is told to forget what they say of steps that are not done: these come again, all of them if
    /// the run was ended before its first checkpoint.
    pub fn create(folder: &Path, host: &str, time: f64, done: u64) -> io::Result<Self> {
        std::fs::create_dir_all(folder)?;
        let goes_on = done > 0 || std::fs::read_dir(folder)?.next().is_some();
        let file = create_new(folder, &format!("events.out.tfevents.{}.{host}", time as u64))?;
        let mut board = Self(Growing::new(file, 0));
        board.0.add(&record(&version(time)))?;
        if goes_on {
            board.0.add(&record(&begin_again(time, done + 1)))?;
        }
        Ok(board)
    }

    /// Adds figures of a step. What is no number is left out.
    pub fn add(&mut self, time: f64, step: u64, figures: &[(&str, f64)]) -> io::Result<()> {
        let figures: Vec<_> =
            figures.iter().filter(|(_, value)| value.is_finite()).copied().collect();
        match figures.is_empty() {
            true => Ok(()),
            false => self.0.add(&record(&scalars(time, step, &figures))),
        }
    }
}

/// Creates a file that is not there yet, with a number behind its name if need be: a run may begin
/// twice in a second.
fn create_new(folder: &Path, name: &str) -> io::Result<File> {
    let create =
        |name: &str| OpenOptions::new().write(true).create_new(true).open(folder.join(name));
    let taken = |file: &io::Result<File>| {
        file.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::AlreadyExists)
    };
    let others = (1..100).map(|n| create(&format!("{name}.{n}")));
    Some(create(name))
        .into_iter()
        .chain(others)
        .find(|file| !taken(file))
        .unwrap_or_else(|| create(name))
}

/// The first event of a file.
fn version(time: f64) -> Vec<u8> {
    let mut event = Message::default();
    event.double(1, time);
    event.bytes(3, b"brain.Event:2");
    event.0
}

/// From this step on, what came before does not count.
fn begin_again(time: f64, step: u64) -> Vec<u8> {
    const START: u64 = 1;
    let mut session = Message::default();
    session.number(1, START);
    let mut event = Message::default();
    event.double(1, time);
    event.number(2, step);
    event.bytes(7, &session.0);
    event.0
}

fn scalars(time: f64, step: u64, figures: &[(&str, f64)]) -> Vec<u8> {
    let mut summary = Message::default();
    for (tag, value) in figures {
        let mut figure = Message::default();
        figure.bytes(1, tag.as_bytes());
        figure.float(2, *value as f32);
        summary.bytes(1, &figure.0);
    }
    let mut event = Message::default();
    event.double(1, time);
    event.number(2, step);
    event.bytes(5, &summary.0);
    event.0
}

/// A message with its length and the sums of both.
fn record(message: &[u8]) -> Vec<u8> {
    let length = (message.len() as u64).to_le_bytes();
    let sums = [masked(&length), masked(message)].map(u32::to_le_bytes);
    [&length[..], &sums[0], message, &sums[1]].concat()
}

/// A message of protocol buffers, field after field.
#[derive(Default)]
struct Message(Vec<u8>);

impl Message {
    fn key(&mut self, field: u64, kind: u64) {
        self.varint(field << 3 | kind);
    }

    fn varint(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn number(&mut self, field: u64, number: u64) {
        self.key(field, 0);
        self.varint(number);
    }

    fn double(&mut self, field: u64, number: f64) {
        self.key(field, 1);
        self.0.extend(number.to_le_bytes());
    }

    fn float(&mut self, field: u64, number: f32) {
        self.key(field, 5);
        self.0.extend(number.to_le_bytes());
    }

    fn bytes(&mut self, field: u64, bytes: &[u8]) {
        self.key(field, 2);
        self.varint(bytes.len() as u64);
        self.0.extend(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What TensorBoard's own writer makes of the same events: fixtures/make_events.py.
    const GOOD: &[u8] = include_bytes!("fixtures/tensorboard.events");

    #[test]
    fn records_are_those_of_tensorboard() {
        let ours = [
            version(1_700_000_000.5),
            begin_again(1_700_000_000.5, 3),
            scalars(1_700_000_001.25, 3, &[("loss/train", 2.5)]),
            scalars(1_700_000_002.0, 300, &[("loss/train", 1.75), ("loss/validation", 1.875)]),
            scalars(1_700_000_003.0, 5_000_000_000, &[("rate", 0.001)]),
        ];
        let ours: Vec<u8> = ours.iter().flat_map(|message| record(message)).collect();
        assert_eq!(ours, GOOD);
    }

    /// A run that is killed before its first checkpoint begins with its first step again.
    #[test]
    fn what_is_done_again_from_the_first_step_on_is_forgotten() {
        let folder = std::env::temp_dir().join(format!("regatta-again-{}", std::process::id()));
        let begin = |name: &str| {
            TensorBoard::create(&folder, "here", 1.5, 0).unwrap();
            std::fs::read(folder.join(name)).unwrap()
        };
        let first = begin("events.out.tfevents.1.here");
        let second = begin("events.out.tfevents.1.here.1");
        std::fs::remove_dir_all(&folder).unwrap();
        assert_eq!(first, record(&version(1.5)));
        assert_eq!(second, [record(&version(1.5)), record(&begin_again(1.5, 1))].concat());
    }

    #[test]
    fn files_are_named_as_tensorboard_looks_for_them() {
        let folder = std::env::temp_dir().join(format!("regatta-board-{}", std::process::id()));
        let mut board = TensorBoard::create(&folder, "here", 1_700_000_000.5, 2).unwrap();
        board.add(1_700_000_001.25, 3, &[("loss/train", 2.5), ("rate", f64::NAN)]).unwrap();
        board.add(1_700_000_001.25, 4, &[("loss/train", f64::NAN)]).unwrap();
        let bytes = std::fs::read(folder.join("events.out.tfevents.1700000000.here")).unwrap();
        std::fs::remove_dir_all(&folder).unwrap();
        assert!(GOOD.starts_with(&bytes) && bytes.len() > 100, "{}", bytes.len());
    }
}
