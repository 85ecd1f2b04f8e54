//! File with the secret by which the ranks of a job authenticate to each other, readable by its
//! owner only.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use regatta_wire::secret::Secret;

/// Environment variable with the path of the file.
pub const VARIABLE: &str = "REGATTA_SECRET_FILE";

/// The secret file. Dropping it removes the file.
#[derive(Debug)]
pub struct SecretFile(PathBuf);

impl SecretFile {
    /// Writes the ranks' secret, derived from the job's: a rank cannot impersonate an agent.
    pub fn write(dir: &Path, run: &str, job: &Secret) -> io::Result<Self> {
        let path = dir.join(format!("regatta-{run}-{}.secret", std::process::id()));
        // Fails on an existing file, which another user may have created.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let written = Self(path);
        file.write_all(job.derive("ranks").to_hex().as_bytes())?;
        Ok(written)
    }

    /// Path of the file.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for SecretFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn file_is_private_exclusive_and_removed_on_drop() {
        let job = Secret::generate().unwrap();
        let dir = std::env::temp_dir();
        let file = SecretFile::write(&dir, "a-test", &job).unwrap();
        let path = file.path().to_owned();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(Secret::from_hex(&text).is_ok() && text != job.to_hex());
        let again = SecretFile::write(&dir, "a-test", &job);
        assert!(again.is_err(), "an existing file is not overwritten");
        drop(file);
        assert!(!path.exists());
    }
}
