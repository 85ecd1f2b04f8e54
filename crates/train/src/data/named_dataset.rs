//! Datasets known by name (tinyshakespeare): found locally or downloaded, and verified by their checksum.

use std::fs::File;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::process::Command;

use regatta_model::text::hex;
use sha2::{Digest, Sha256};

use super::beside;
use super::error::{DataError, Result};
use super::source::DataDirs;
use crate::regular_file;

/// A named dataset.
#[derive(Debug, Clone, Copy)]
pub struct NamedDataset {
    /// Name.
    pub name: &'static str,
    /// URL.
    pub address: &'static str,
    /// SHA-256.
    pub sha256: &'static str,
}

/// All named datasets.
pub const DATASETS: [NamedDataset; 1] = [NamedDataset {
    name: "tinyshakespeare",
    address: "https://raw.githubusercontent.com/karpathy/char-rnn/master/data/tinyshakespeare/input.txt",
    sha256: "86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed",
}];

/// Downloads a URL to a file.
pub type Download<'a> = dyn Fn(&str, &Path) -> Result<(), String> + 'a;

/// The file of a dataset, downloaded if necessary.
pub fn find(named: &NamedDataset, dirs: &DataDirs, download: &Download) -> Result<PathBuf> {
    let file = format!("{}.txt", named.name);
    if let Some(path) = dirs.folders().map(|folder| folder.join(&file)).find(|p| p.exists()) {
        check(named, &path)?;
        return Ok(path);
    }
    let cache = dirs.cache()?;
    std::fs::create_dir_all(cache).map_err(DataError::io("create", cache))?;
    let path = cache.join(&file);
    // Ranks may download concurrently: each to its own file, and the last rename wins.
    let part = PartialDownload(beside(&path, "part"));
    let failed = |reason| DataError::Fetch {
        name: named.name.to_owned(),
        address: named.address.to_owned(),
        reason,
        path: path.clone(),
    };
    download(named.address, &part.0).map_err(failed)?;
    let (found, expected) = (sha256(&part.0, |_| Ok(()))?, named.sha256);
    if found != expected {
        return Err(failed(format!("SHA-256 of the download is {found} instead of {expected}")));
    }
    let synced = File::open(&part.0).and_then(|file| file.sync_all());
    synced.map_err(DataError::io("write", &part.0))?;
    std::fs::rename(&part.0, &path).map_err(DataError::io("rename to", &path))?;
    Ok(path)
}

/// A temporary file, removed unless renamed.
struct PartialDownload(PathBuf);

impl Drop for PartialDownload {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn check(named: &NamedDataset, path: &Path) -> Result<()> {
    let found = sha256(path, |_| Ok(()))?;
    if found == named.sha256 {
        return Ok(());
    }
    let (name, expected) = (named.name.to_owned(), named.sha256.to_owned());
    Err(DataError::WrongSet { name, path: path.to_owned(), expected, found })
}

/// SHA-256 of a file. `read` is called with the size of each chunk, and may abort.
pub fn sha256(path: &Path, mut read: impl FnMut(u64) -> Result<()>) -> Result<String> {
    let mut file = regular_file::open(path).map_err(DataError::io("open", path))?;
    let (mut sum, mut bytes) = (Sha256::new(), vec![0; 1 << 16]);
    loop {
        match file.read(&mut bytes).map_err(DataError::io("read", path))? {
            0 => return Ok(hex(&sum.finalize())),
            count => {
                sum.update(&bytes[..count]);
                read(count as u64)?;
            }
        }
    }
}

/// Downloads with curl or wget. There is no built-in client, because most compute nodes have no network access,
/// and the others have one of these configured for the site's proxy.
pub fn download(address: &str, to: &Path) -> Result<(), String> {
    let curl =
        ["--fail", "--silent", "--show-error", "--location", "--max-time", "600", "--output"];
    let wget = ["--quiet", "--timeout=60", "--tries=2", "-O"];
    let result = match run("curl", &curl, to, address) {
        Err(None) => run("wget", &wget, to, address),
        result => result,
    };
    let none = || "neither curl nor wget is installed".to_owned();
    result.map_err(|reason| reason.unwrap_or_else(none))
}

/// Runs a program; the error is None if it is not installed.
fn run(program: &str, options: &[&str], to: &Path, address: &str) -> Result<(), Option<String>> {
    let output = Command::new(program).args(options).arg(to).arg(address).output();
    match output {
        Err(error) if error.kind() == ErrorKind::NotFound => Err(None),
        Err(error) => Err(Some(format!("{program}: {error}"))),
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let stderr = stderr.trim().lines().next_back().unwrap_or_default();
            Err(Some(format!("{program} failed: {} {stderr}", output.status).trim().to_owned()))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::testing::TempDir;

    /// "abc".
    const SET: NamedDataset = NamedDataset {
        name: "letters",
        address: "https://example.org/letters",
        sha256: "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad",
    };

    fn dirs(folder: &TempDir, own: &str) -> DataDirs {
        let own = folder.0.join(own);
        DataDirs { folder: Some(own), cache: Some(folder.0.join("cache")) }
    }

    #[test]
    fn a_dataset_is_downloaded_once() {
        let folder = TempDir::new();
        let count = Cell::new(0);
        let download = |address: &str, to: &Path| {
            assert_eq!(address, SET.address);
            count.set(count.get() + 1);
            std::fs::write(to, "abc").map_err(|error| error.to_string())
        };
        let download = &download as &Download;
        let path = find(&SET, &dirs(&folder, "own"), download).unwrap();
        assert_eq!(path, folder.0.join("cache/letters.txt"));
        assert_eq!(find(&SET, &dirs(&folder, "own"), download).unwrap(), path);
        assert_eq!(count.get(), 1);
        // The folder named by the user has priority.
        std::fs::create_dir(folder.0.join("own")).unwrap();
        let own = folder.file("own/letters.txt", "abc");
        assert_eq!(find(&SET, &dirs(&folder, "own"), download).unwrap(), own);
    }

    #[test]
    fn a_wrong_checksum_is_refused_and_the_file_removed() {
        let folder = TempDir::new();
        let other = |_: &str, to: &Path| std::fs::write(to, "abd").map_err(|e| e.to_string());
        let error = find(&SET, &dirs(&folder, "own"), &other).unwrap_err().to_string();
        assert!(error.contains(SET.sha256), "{error}");
        assert!(error.contains("a52d159f262b2c6ddb724a61840befc36eb30c88877a4030b65cbe86298449c9"));
        assert_eq!(std::fs::read_dir(folder.0.join("cache")).unwrap().count(), 0);
        std::fs::create_dir(folder.0.join("own")).unwrap();
        folder.file("own/letters.txt", "abd");
        let error = find(&SET, &dirs(&folder, "own"), &other).unwrap_err();
        assert!(matches!(error, DataError::WrongSet { .. }), "{error}");
    }

    #[test]
    fn without_network_the_error_names_the_path() {
        let folder = TempDir::new();
        let none = |_: &str, _: &Path| Err("no route".to_owned());
        let error = find(&SET, &dirs(&folder, "own"), &none).unwrap_err().to_string();
        assert!(error.contains("no route") && error.contains("cache/letters.txt"), "{error}");
    }

    #[test]
    fn errors_of_the_downloader_are_reported() {
        let nowhere = Path::new("/nonexistent/file");
        assert_eq!(run("no-such-program", &[], nowhere, ""), Err(None));
        let stderr = run("ls", &["--"], nowhere, "x").unwrap_err().unwrap();
        assert!(stderr.starts_with("ls failed:"), "{stderr}");
    }
}
