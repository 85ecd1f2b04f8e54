//! File systems: type, free space, and a write test.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Instant;

use regatta_discover::Sysroot;

use super::{CollectOptions, with_limit};
use crate::facts::{DirectoryUse, FileSystem};

/// The write test needs this multiple of its size as free space.
const FREE_FACTOR: u64 = 4;
/// Bytes per write.
const CHUNK: usize = 1 << 20;
/// Bytes of the small file.
const SMALL: usize = 4096;

/// Tests all directories one after another, each once.
pub(super) fn collect(root: &Sysroot, options: &CollectOptions) -> Vec<FileSystem> {
    let mounts = root.read_text("/proc/self/mounts").unwrap_or_default();
    let mut tested: Vec<PathBuf> = Vec::new();
    let mut found = Vec::new();
    for (used_for, path) in &options.directories {
        let resolve = {
            let (path, used_for) = (path.clone(), *used_for);
            move || resolve(&path, used_for)
        };
        let outcome = match with_limit(options.limit, resolve).unwrap_or_else(|| timeout(options)) {
            Ok(real) if tested.contains(&real) => continue,
            Ok(real) => {
                tested.push(real.clone());
                test_within_limit(&real, &mounts, options)
            }
            Err(error) => failed(&error, FileSystem::default()),
        };
        let path = path.to_string_lossy().into_owned();
        found.push(FileSystem { path, used_for: *used_for, ..outcome });
    }
    found
}

/// The real path. A cache is created on first use: until then its first existing parent counts.
fn resolve(path: &Path, used_for: DirectoryUse) -> io::Result<PathBuf> {
    match path.canonicalize() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => match path.parent() {
            Some(parent) if used_for == DirectoryUse::Cache => resolve(parent, used_for),
            _ => Err(error),
        },
        result => result,
    }
}

fn timeout<T>(options: &CollectOptions) -> io::Result<T> {
    let text = format!("timed out after {} s", options.limit.as_secs_f64());
    Err(io::Error::new(io::ErrorKind::TimedOut, text))
}

fn test_within_limit(dir: &Path, mounts: &str, options: &CollectOptions) -> FileSystem {
    let canceled = Arc::new(AtomicBool::new(false));
    let kind = mount_type(mounts, &dir.to_string_lossy());
    let test = {
        let (dir, bytes, canceled) = (dir.to_owned(), options.write_bytes, Arc::clone(&canceled));
        move || test(&dir, bytes, &canceled)
    };
    let outcome = with_limit(options.limit, test).map_or_else(|| timeout(options), Ok);
    // The thread ends, and removes its file, as soon as its system call returns.
    canceled.store(true, Ordering::Relaxed);
    FileSystem { kind, ..outcome.unwrap_or_else(|error| failed(&error, FileSystem::default())) }
}

fn failed(error: &io::Error, found: FileSystem) -> FileSystem {
    let timed_out = error.kind() == io::ErrorKind::TimedOut;
    FileSystem { error: Some(error.to_string()), timed_out, ..found }
}

fn test(dir: &Path, bytes: u64, canceled: &AtomicBool) -> FileSystem {
    let mut found = FileSystem::default();
    if let Ok(stat) = rustix::fs::statvfs(dir) {
        found.free_bytes = stat.f_bavail.checked_mul(stat.f_frsize);
        found.total_bytes = stat.f_blocks.checked_mul(stat.f_frsize);
        // Some file systems create inodes on demand and count none.
        let counted = stat.f_files > 0;
        found.free_inodes = counted.then_some(stat.f_favail);
        found.total_inodes = counted.then_some(stat.f_files);
    }
    match sync_seconds(dir) {
        Ok(seconds) => found.sync_seconds = Some(seconds),
        Err(error) => found = failed(&error, found),
    }
    let has_room = found.free_bytes.is_some_and(|free| free / FREE_FACTOR >= bytes);
    if has_room && found.error.is_none() {
        match write_rate(dir, bytes, canceled) {
            Ok(rate) => found.write_rate = Some(rate),
            Err(error) => found = failed(&error, found),
        }
    }
    found
}

/// Time to create, write, sync and remove a small file.
fn sync_seconds(dir: &Path) -> io::Result<f64> {
    let start = Instant::now();
    let mut file = TestFile::create(dir)?;
    file.file.write_all(&[b'r'; SMALL])?;
    file.file.sync_all()?;
    file.remove()?;
    Ok(start.elapsed().as_secs_f64())
}

/// Bytes per second, with the sync at the end.
fn write_rate(dir: &Path, bytes: u64, canceled: &AtomicBool) -> io::Result<f64> {
    // Not zeros, which some file systems do not store; every chunk differs for those that find
    // equal blocks.
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut chunk: Vec<u8> = (0..CHUNK / 8).flat_map(|_| random().to_le_bytes()).collect();
    let mut file = TestFile::create(dir)?;
    let start = Instant::now();
    let mut left = bytes;
    while left > 0 && !canceled.load(Ordering::Relaxed) {
        chunk[..8].copy_from_slice(&random().to_le_bytes());
        let len = left.min(CHUNK as u64);
        file.file.write_all(&chunk[..len as usize])?;
        left -= len;
    }
    file.file.sync_all()?;
    let seconds = start.elapsed().as_secs_f64();
    file.remove()?;
    Ok(bytes as f64 / seconds.max(1e-9))
}

/// A file of a test, readable only by its user; removed on drop.
#[derive(Debug)]
pub(super) struct TestFile {
    file: File,
    path: PathBuf,
}

impl TestFile {
    pub(super) fn create(dir: &Path) -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        // Nodes share directories, and PIDs are not unique across nodes.
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        let path = dir.join(format!(".regatta-doctor-{host}-{}-{id}", std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(Self { file, path })
    }

    fn remove(&self) -> io::Result<()> {
        std::fs::remove_file(&self.path)
    }
}

impl Drop for TestFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.path);
    }
}

/// The type of the file system of a directory: that of the longest mount point above it, and of
/// equal ones the last, which hides the others.
fn mount_type(mounts: &str, dir: &str) -> Option<String> {
    let mount = |line: &str| {
        let mut words = line.split(' ').skip(1);
        let (point, kind) = (unescape(words.next()?), words.next()?.to_owned());
        let base = point.trim_end_matches('/');
        let rest = dir.strip_prefix(base)?;
        (rest.is_empty() || rest.starts_with('/')).then_some((base.len(), kind))
    };
    mounts.lines().filter_map(mount).max_by_key(|(len, _)| *len).map(|(_, kind)| kind)
}

/// A mount point with its octal escapes (`\040` is a space) replaced.
fn unescape(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, tail @ ..] = rest {
        let escaped = match rest {
            [b'\\', digits @ ..] => digits.get(..3).and_then(octal),
            _ => None,
        };
        bytes.push(escaped.unwrap_or(*first));
        rest = if escaped.is_some() { &rest[4..] } else { tail };
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn octal(digits: &[u8]) -> Option<u8> {
    let digit = |sum: Option<u32>, byte: &u8| match byte {
        b'0'..=b'7' => Some(sum? * 8 + u32::from(byte - b'0')),
        _ => None,
    };
    digits.iter().fold(Some(0), digit).and_then(|value| u8::try_from(value).ok())
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use proptest::prelude::*;

    use super::super::JobIdentity;
    use super::*;
    use crate::testing::TempTree;

    fn options(directories: Vec<(DirectoryUse, PathBuf)>) -> CollectOptions {
        let job = JobIdentity { pid: 1, uid: 0, scheduler_job: None };
        let limit = Duration::from_secs(600);
        CollectOptions { directories, write_bytes: 3 << 19, limit, job }
    }

    #[test]
    fn directories_are_tested_once_and_left_empty() {
        let tree = TempTree::new();
        tree.link("/link", tree.base.to_str().unwrap());
        let directories = vec![
            (DirectoryUse::Work, tree.base.clone()),
            (DirectoryUse::Given, tree.base.join("link")),
            (DirectoryUse::Given, tree.base.join("missing")),
        ];
        let found = collect(&Sysroot::live(), &options(directories));
        let [tested, missing] = &found[..] else { panic!("{found:?}") };
        assert_eq!((tested.used_for, &tested.error), (DirectoryUse::Work, &None));
        assert!(tested.write_rate.unwrap() > 0.0 && tested.sync_seconds.unwrap() > 0.0);
        assert!(tested.kind.is_some() && tested.total_bytes >= tested.free_bytes);
        assert!(missing.error.as_ref().unwrap().contains("No such file"), "{missing:?}");
        let names: Vec<_> = tree.root().list_dir("/");
        assert_eq!(names, ["link"], "test files are removed");
    }

    #[test]
    fn a_cache_is_tested_in_its_first_existing_parent() {
        let tree = TempTree::new();
        let path = tree.base.join("cache/regatta");
        let real = resolve(&path, DirectoryUse::Cache).unwrap();
        assert_eq!(real, tree.base.canonicalize().unwrap());
        assert!(resolve(&path, DirectoryUse::Work).is_err());
    }

    #[test]
    fn a_file_system_that_does_not_answer_is_told_from_one_that_refuses() {
        let late = timeout::<()>(&options(Vec::new())).unwrap_err();
        for (error, timed_out) in [
            (late, true),
            (io::Error::from_raw_os_error(libc::ETIMEDOUT), true),
            (io::Error::from_raw_os_error(libc::EROFS), false),
        ] {
            let found = failed(&error, FileSystem::default());
            assert_eq!((found.timed_out, found.error), (timed_out, Some(error.to_string())));
        }
    }

    #[test]
    fn a_canceled_write_test_ends() {
        let tree = TempTree::new();
        let canceled = AtomicBool::new(true);
        assert!(write_rate(&tree.base, u64::MAX, &canceled).is_ok());
        assert!(tree.root().list_dir("/").is_empty());
    }

    #[test]
    fn the_longest_mount_point_decides() {
        let mounts = "overlay / overlay rw 0 0\n\
                      /dev/sda1 /scratch xfs rw 0 0\n\
                      mds@tcp:/work /scratch/project lustre rw 0 0\n\
                      tmpfs /scratch/project tmpfs rw 0 0\n\
                      host:/a /my\\040data nfs4 rw 0 0\n";
        let kind = |dir: &str| mount_type(mounts, dir).unwrap();
        assert_eq!(kind("/scratch/project/run"), "tmpfs", "the last mount hides the first");
        assert_eq!(kind("/scratch/projects"), "xfs");
        assert_eq!(kind("/my data"), "nfs4");
        assert_eq!(kind("/"), "overlay");
        assert_eq!(mount_type("", "/"), None);
    }

    proptest! {
        #[test]
        fn mounts_never_panic(text in "[\\\\0-9a-z /\n]*", dir in "[a-z/]*") {
            let _ = mount_type(&text, &dir);
        }
    }
}
