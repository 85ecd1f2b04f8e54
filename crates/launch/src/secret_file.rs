//! File with the secret by which the ranks of a job authenticate to each other, readable by its
//! owner only.
//!
//! The process that writes the file holds a lock on it, which the kernel releases when that process
//! dies for any reason. An unlocked file is therefore stale, and the reaper or the next launch
//! removes it.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use regatta_wire::secret::Secret;
use rustix::process::geteuid;

use crate::process::EnvSetting;

/// Environment variable with the path of the file.
pub const VARIABLE: &str = "REGATTA_SECRET_FILE";

const PREFIX: &str = "regatta-ranks-";
const SUFFIX: &str = ".secret";
/// Number of random hexadecimal digits in the name.
const RANDOM_DIGITS: usize = 16;

/// The file could not be written.
#[derive(Debug, thiserror::Error)]
#[error(
    "cannot write the secret of the ranks to {path}: {source}; set TMPDIR to a directory that is \
     writable and not full"
)]
#[allow(missing_docs, reason = "the message explains the fields")]
pub struct SecretFileError {
    pub path: String,
    pub source: io::Error,
}

/// The secret file. Dropping it removes the file.
#[derive(Debug)]
pub struct SecretFile {
    path: PathBuf,
    /// Locked.
    _file: File,
}

/// The file of this process, for [`remove_own`].
static OWN: Mutex<Option<PathBuf>> = Mutex::new(None);

impl SecretFile {
    /// Writes the ranks' secret, derived from the job's: a rank cannot impersonate an agent. Removes
    /// stale files of this user in `dir`.
    pub fn write(dir: &Path, job: &Secret) -> Result<Self, SecretFileError> {
        remove_stale(dir);
        let error = |path: &Path| {
            let path = path.display().to_string();
            move |source| SecretFileError { path, source }
        };
        // The name is random, or another user could occupy it.
        let random = Secret::generate().map_err(error(dir))?.to_hex();
        let path = dir.join(format!("{PREFIX}{}{SUFFIX}", &random[..RANDOM_DIGITS]));
        let file = create_locked(&path, &job.derive("ranks").to_hex()).map_err(error(&path))?;
        *OWN.lock().unwrap_or_else(PoisonError::into_inner) = Some(path.clone());
        Ok(Self { path, _file: file })
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Creates the file under another name until it is locked and complete: [`remove_stale`] of another
/// launch would remove it.
fn create_locked(path: &Path, text: &str) -> io::Result<File> {
    let part = path.with_extension("part");
    // Fails on an existing file, which another user may have created.
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part)?;
    let mut write = || {
        file.try_lock()?;
        file.write_all(text.as_bytes())?;
        std::fs::rename(&part, path)
    };
    write().inspect_err(|_| drop(std::fs::remove_file(&part)))?;
    Ok(file)
}

/// The setting of [`VARIABLE`] for ranks. Without a file the variable is unset: an inherited value
/// names the secret of an outer job.
pub fn setting(file: Option<&SecretFile>) -> EnvSetting {
    (VARIABLE.to_owned(), file.map(|file| file.path.to_string_lossy().into_owned()))
}

/// Removes the secret files in `dir` that processes of this user left behind when they were killed.
pub fn remove_stale(dir: &Path) {
    let user = geteuid().as_raw();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(is_secret_name) {
            continue;
        }
        // Another user may have planted a link or a FIFO.
        let flags = libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let opened = OpenOptions::new().read(true).custom_flags(flags).open(entry.path());
        let Ok(file) = opened else { continue };
        let own = file.metadata().is_ok_and(|m| m.is_file() && m.uid() == user);
        if own && file.try_lock().is_ok() {
            let _ = std::fs::remove_file(entry.path());
        }
    }
}

/// Whether a file is one of ours: the user's own secret files may have similar names.
fn is_secret_name(name: &str) -> bool {
    let random = name.strip_prefix(PREFIX).and_then(|name| name.strip_suffix(SUFFIX));
    random.is_some_and(|r| r.len() == RANDOM_DIGITS && r.bytes().all(|b| b.is_ascii_hexdigit()))
}

/// Removes the secret file of this process, which exits without dropping it.
pub(crate) fn remove_own() {
    if let Some(path) = OWN.lock().unwrap_or_else(PoisonError::into_inner).take() {
        let _ = std::fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// A new empty directory.
    fn test_dir(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("regatta-{name}-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        dir
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = std::fs::read_dir(dir).unwrap().flatten();
        entries.map(|e| e.file_name().into_string().unwrap()).collect()
    }

    #[test]
    fn file_is_private_unpredictable_and_removed_on_drop() {
        let job = Secret::generate().unwrap();
        let dir = test_dir("secret");
        let file = SecretFile::write(&dir, &job).unwrap();
        let mode = std::fs::metadata(file.path()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = std::fs::read_to_string(file.path()).unwrap();
        assert!(Secret::from_hex(&text).is_ok() && text != job.to_hex());
        let other = SecretFile::write(&dir, &job).unwrap();
        assert_ne!(other.path(), file.path());
        assert_eq!(names(&dir).len(), 2, "a file in use is not stale");
        drop((file, other));
        assert_eq!(names(&dir), [""; 0]);
        std::fs::remove_dir(dir).unwrap();
    }

    #[test]
    fn stale_files_are_removed_and_others_are_kept() {
        let dir = test_dir("stale");
        let stale = dir.join("regatta-ranks-0123456789abcdef.secret");
        let kept = ["my.secret", "regatta-ranks-mine.secret"];
        for path in [&stale].into_iter().chain(&kept.map(|name| dir.join(name))) {
            std::fs::write(path, "x").unwrap();
        }
        // Opening a FIFO would block.
        let fifo = dir.join("regatta-ranks-0000000000000000.secret");
        rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, 0o600.into(), 0)
            .unwrap();
        drop(SecretFile::write(&dir, &Secret::generate().unwrap()).unwrap());
        assert!(!stale.exists() && fifo.exists());
        assert!(kept.iter().all(|name| dir.join(name).exists()));
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn error_names_the_path_and_the_variable_to_set() {
        let error = SecretFile::write(Path::new("/proc/none"), &Secret::generate().unwrap());
        let error = error.unwrap_err().to_string();
        assert!(error.contains("/proc/none/regatta-ranks-") && error.contains("TMPDIR"), "{error}");
        assert_eq!(setting(None), (VARIABLE.to_owned(), None));
    }
}
