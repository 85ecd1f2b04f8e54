//! Temporary files and directories with unique names.

use std::fs::File;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use super::super::{Result, RooflineError};

/// Attempts to find an unused name.
const MAX_ATTEMPTS: usize = 16;

/// Classifies an I/O error; a full disk or quota has its own variant.
pub fn io_error(doing: &'static str, path: &Path, dir: &Path, source: io::Error) -> RooflineError {
    let full = [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::FileTooLarge];
    if full.contains(&source.kind()) {
        return RooflineError::DiskFull { dir: dir.to_owned(), why: source.to_string() };
    }
    RooflineError::File { doing, path: path.to_owned(), source }
}

/// Creates a uniquely named entry; `make` must fail if the name exists.
fn make<T>(
    dir: &Path,
    doing: &'static str,
    make: impl Fn(&Path) -> io::Result<T>,
) -> Result<(PathBuf, T)> {
    let mut last = None;
    for _ in 0..MAX_ATTEMPTS {
        let random = RandomState::new().build_hasher().finish();
        let path = dir.join(format!(".regatta-bench-{}-{random:016x}", std::process::id()));
        match make(&path) {
            Ok(made) => return Ok((path, made)),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => last = Some((path, error)),
            Err(error) => return Err(io_error(doing, &path, dir, error)),
        }
    }
    let (path, error) = last.unwrap_or_else(|| (dir.to_owned(), ErrorKind::AlreadyExists.into()));
    Err(io_error(doing, &path, dir, error))
}

/// A temporary file, deleted when closed.
pub(super) struct ScratchFile {
    pub file: File,
    /// Its original path.
    pub path: PathBuf,
    named: bool,
}

impl ScratchFile {
    pub fn create(dir: &Path) -> Result<Self> {
        let (path, file) = make(dir, "create file", |path| File::create_new(path))?;
        // If unlinking an open file fails, it is unlinked on drop.
        let named = std::fs::remove_file(&path).is_err();
        Ok(Self { file, path, named })
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        if self.named {
            // It may already be gone.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

/// A temporary directory; its own files are removed with it, and nothing else.
pub(super) struct ScratchDir {
    pub path: PathBuf,
    /// Its parent directory.
    pub inside: PathBuf,
    /// Upper bound on the files created in it.
    pub files: u32,
}

impl ScratchDir {
    pub fn create(dir: &Path) -> Result<Self> {
        let (path, ()) = make(dir, "create directory", |path| std::fs::create_dir(path))?;
        Ok(Self { path, inside: dir.to_owned(), files: 0 })
    }

    pub fn file(&self, number: u32) -> PathBuf {
        self.path.join(number.to_string())
    }
}

impl Drop for ScratchDir {
    fn drop(&mut self) {
        for number in 0..self.files {
            drop(std::fs::remove_file(self.file(number)));
        }
        // Fails if the directory contains foreign files.
        drop(std::fs::remove_dir(&self.path));
    }
}
