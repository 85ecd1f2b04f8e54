//! Files and folders that nothing was named like, and that do not stay.

use std::fs::{File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::super::CeilingError;

/// So often is another name tried.
const TRIES: usize = 16;

/// What the system said of a path in the user's folder, in words that help.
pub(super) fn failed(
    doing: &'static str,
    path: &Path,
    folder: &Path,
    source: io::Error,
) -> CeilingError {
    let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::FileTooLarge];
    if full.contains(&source.kind()) {
        return CeilingError::Full { folder: folder.to_owned(), why: source.to_string() };
    }
    CeilingError::File { doing, path: path.to_owned(), source }
}

/// Makes something under a name of its own; `make` fails where there is something already.
fn make<T>(
    folder: &Path,
    doing: &'static str,
    make: impl Fn(&Path) -> io::Result<T>,
) -> Result<(PathBuf, T), CeilingError> {
    let mut last = None;
    for _ in 0..TRIES {
        let random = RandomState::new().build_hasher().finish();
        let path = folder.join(format!(".regatta-bench-{}-{random:016x}", std::process::id()));
        match make(&path) {
            Ok(made) => return Ok((path, made)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => last = Some((path, error)),
            Err(error) => return Err(failed(doing, &path, folder, error)),
        }
    }
    let (path, error) =
        last.unwrap_or_else(|| (folder.to_owned(), ErrorKind::AlreadyExists.into()));
    Err(failed(doing, &path, folder, error))
}

/// A file that is gone as soon as it is closed.
pub(super) struct ScratchFile {
    pub file: File,
    /// What it was named.
    pub path: PathBuf,
    named: bool,
}

impl ScratchFile {
    pub fn create(folder: &Path) -> Result<Self, CeilingError> {
        let create =
            |path: &Path| OpenOptions::new().read(true).write(true).create_new(true).open(path);
        let (path, file) = make(folder, "create a file as", create)?;
        // Where an open file cannot lose its name it does so at the end.
        let named = std::fs::remove_file(&path).is_err();
        Ok(Self { file, path, named })
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        if self.named {
            // Whoever removed it before us did what we want.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// A folder that goes with what was put into it, and with nothing else.
pub(super) struct ScratchFolder {
    pub path: PathBuf,
    /// The folder that it is in.
    pub inside: PathBuf,
    /// Files that may be there.
    pub files: u32,
}

impl ScratchFolder {
    pub fn create(folder: &Path) -> Result<Self, CeilingError> {
        let (path, ()) = make(folder, "create a folder as", |path| std::fs::create_dir(path))?;
        Ok(Self { path, inside: folder.to_owned(), files: 0 })
    }

    /// The path of a file.
    pub fn file(&self, number: u32) -> PathBuf {
        self.path.join(number.to_string())
    }
}

impl Drop for ScratchFolder {
    fn drop(&mut self) {
        for number in 0..self.files {
            drop(std::fs::remove_file(self.file(number)));
        }
        // It stays if somebody else put something into it.
        drop(std::fs::remove_dir(&self.path));
    }
}
