//! The secret by which the ranks of a job know each other, where each of a node's ranks can read it
//! and nobody else can.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use regatta_wire::secret::Secret;

/// The variable that tells ranks where it is.
pub const VARIABLE: &str = "REGATTA_SECRET_FILE";

/// A file with the secret, as long as this lives.
#[derive(Debug)]
pub struct SecretFile(PathBuf);

impl SecretFile {
    /// Writes the ranks' secret, which is made of the job's: who knows it cannot pass for an agent.
    pub fn write(folder: &Path, run: &str, job: &Secret) -> io::Result<Self> {
        let path = folder.join(format!("regatta-{run}-{}.secret", std::process::id()));
        // Never one that somebody else has put there.
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        let written = Self(path);
        file.write_all(job.derive("ranks").to_hex().as_bytes())?;
        Ok(written)
    }

    /// Where it is.
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
    fn it_is_the_owners_alone_and_goes() {
        let job = Secret::generate().unwrap();
        let folder = std::env::temp_dir();
        let file = SecretFile::write(&folder, "a-test", &job).unwrap();
        let path = file.path().to_owned();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(Secret::from_hex(&text).is_ok() && text != job.to_hex());
        assert!(SecretFile::write(&folder, "a-test", &job).is_err(), "never over another");
        drop(file);
        assert!(!path.exists());
    }
}
