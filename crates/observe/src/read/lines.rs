//! Follows a file of lines that another process appends to, truncates or replaces.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use super::{LineSplitter, ReadError, open_regular};

/// Longest line; longer ones are skipped. A record that names a million ranks is shorter.
const MAX_LINE: usize = 16 << 20;
/// Most bytes that a poll reads.
const MAX_POLL: u64 = 8 << 20;
/// Bytes before the position that must be unchanged. Records have times, so that no two lines are equal.
const MAX_ANCHOR: usize = 512;

/// New lines of a file.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct NewLines {
    /// Complete lines, without line breaks.
    pub lines: Vec<Vec<u8>>,
    /// Whether the file was truncated or replaced: what was read of it before is void, and it is read
    /// from its start again.
    pub restarted: bool,
    /// Lines that were skipped because they are too long.
    pub skipped: usize,
    /// Whether the poll ended before the end of the file: poll again.
    pub has_more: bool,
}

/// A position in a file of lines. The file is open only during a poll.
#[derive(Debug)]
pub struct LineFollower {
    path: PathBuf,
    /// Device and inode.
    identity: Option<(u64, u64)>,
    /// Bytes read.
    position: u64,
    /// The last bytes before the position.
    anchor: Vec<u8>,
    splitter: LineSplitter<MAX_LINE>,
}

impl LineFollower {
    /// Follows a file from its start. It may be created later.
    pub fn new(path: PathBuf) -> Self {
        Self {
            path,
            identity: None,
            position: 0,
            anchor: Vec::new(),
            splitter: LineSplitter::default(),
        }
    }

    /// Reads what was appended since the last poll. A file that does not exist has no lines; it may
    /// have been removed, and the next one with its name is read from its start.
    pub fn poll(&mut self) -> Result<NewLines, ReadError> {
        let Some(file) = open_regular(&self.path)? else { return Ok(NewLines::default()) };
        let read = self.read(&file).map_err(ReadError::io(&self.path));
        let Appended { identity, is_same, bytes } = read?;
        if !is_same {
            *self = Self::new(std::mem::take(&mut self.path));
        }
        self.identity = Some(identity);
        let has_more = bytes.len() as u64 == MAX_POLL;
        let mut new = NewLines { restarted: !is_same, has_more, ..NewLines::default() };
        self.advance(&bytes);
        self.splitter.push(&bytes, |line, is_complete| match is_complete {
            true => new.lines.push(line.to_vec()),
            false => new.skipped += 1,
        });
        Ok(new)
    }

    fn read(&self, mut file: &File) -> io::Result<Appended> {
        let metadata = file.metadata()?;
        let identity = (metadata.dev(), metadata.ino());
        let is_same = self.identity.is_none_or(|known| known == identity)
            && metadata.len() >= self.position
            && self.is_anchored(file)?;
        let position = if is_same { self.position } else { 0 };
        let mut bytes = Vec::new();
        file.seek(SeekFrom::Start(position))?;
        file.take(MAX_POLL).read_to_end(&mut bytes)?;
        Ok(Appended { identity, is_same, bytes })
    }

    /// Whether the bytes before the position are still those that were read. A resumed training
    /// truncates its metrics, and may have appended more than that since.
    fn is_anchored(&self, file: &File) -> io::Result<bool> {
        let mut found = vec![0; self.anchor.len()];
        let start = self.position - found.len() as u64;
        match file.read_exact_at(&mut found, start) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
            read => read.map(|()| found == self.anchor),
        }
    }

    fn advance(&mut self, bytes: &[u8]) {
        self.position += bytes.len() as u64;
        self.anchor.extend(&bytes[bytes.len().saturating_sub(MAX_ANCHOR)..]);
        let surplus = self.anchor.len().saturating_sub(MAX_ANCHOR);
        self.anchor.drain(..surplus);
    }
}

/// What a file has after a position, or from its start if it is another one.
struct Appended {
    identity: (u64, u64),
    is_same: bool,
    bytes: Vec<u8>,
}
