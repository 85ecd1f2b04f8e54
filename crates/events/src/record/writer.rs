//! Appends to the event file and writes the status file.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use super::settings::{Settings, file_stem};
use crate::file::{self, MAGIC};
use crate::status::{self, Status};

/// Why nothing is recorded.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum RecordError {
    /// The folder or a file cannot be created.
    #[error(
        "cannot create {path}: {source}; set REGATTA_PROFILE to a folder that this process can write"
    )]
    Create { path: PathBuf, source: io::Error },
    /// The thread cannot be created.
    #[error(
        "cannot create the thread that writes events: {0}; raise the process limit (ulimit -u)"
    )]
    Thread(io::Error),
}

/// The files of a process.
#[derive(Debug)]
pub(super) struct Writer {
    events: File,
    status: File,
    /// Length of the event file up to the last complete block.
    length: u64,
    /// Number of the next status.
    generation: u64,
}

impl Writer {
    pub(super) fn create(settings: &Settings) -> Result<Self, RecordError> {
        let folder = &settings.folder;
        let error = |path: &Path| {
            let path = path.to_owned();
            move |source| RecordError::Create { path, source }
        };
        std::fs::create_dir_all(folder).map_err(error(folder))?;
        let stem = file_stem(&settings.process);
        let create = |extension: &str| {
            let path = folder.join(format!("{stem}.{extension}"));
            // A process ID that was used before, in another container: the older files are replaced.
            let open = OpenOptions::new().write(true).create(true).truncate(true).open(&path);
            open.map_err(error(&path))
        };
        let (events, status) = (create(file::EXTENSION)?, create(status::EXTENSION)?);
        Ok(Self { events, status, length: 0, generation: 0 })
    }

    /// Writes the first bytes of the files. Both slots of the status are reserved: it has to be written
    /// also when nothing else can be. Like all writes this is done in the recorder's thread, which receives
    /// no signal if a file gets too long.
    pub(super) fn begin(&mut self) {
        // A full disk may have room later.
        let _ = self.append(&[]);
        let _ = self.status.write_all_at(&vec![0; 2 * status::SLOT], 0);
    }

    /// Appends a block. If that fails, nothing is appended, and the next block may succeed.
    pub(super) fn append(&mut self, block: &[u8]) -> io::Result<()> {
        let start = self.length;
        let mut end = start;
        let mut write = |bytes: &[u8]| -> io::Result<()> {
            self.events.write_all_at(bytes, end)?;
            end += bytes.len() as u64;
            Ok(())
        };
        let magic: &[u8] = if start == 0 { &MAGIC } else { &[] };
        match write(magic).and_then(|()| write(block)) {
            Ok(()) => {
                self.length = end;
                Ok(())
            }
            Err(error) => {
                // A reader must not find half a block.
                let _ = self.events.set_len(start);
                Err(error)
            }
        }
    }

    /// Writes the status, and returns whether that succeeded.
    pub(super) fn write_status(&mut self, status: &Status) -> bool {
        let slot = status::encode_slot(status, self.generation);
        let written = self.status.write_all_at(&slot, status::slot_offset(self.generation)).is_ok();
        self.generation += u64::from(written);
        written
    }
}
