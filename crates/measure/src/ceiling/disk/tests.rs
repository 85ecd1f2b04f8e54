use std::fs::{self, File, OpenOptions};
use std::path::Path;
use std::sync::atomic::Ordering;

use super::*;

/// A folder of a test's own, which goes with it.
struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Self {
        let path = std::env::temp_dir().join(format!("regatta-disk-{name}-{}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Self(path)
    }

    fn names(&self) -> Vec<String> {
        let name = |entry: fs::DirEntry| entry.file_name().to_string_lossy().into_owned();
        let mut names: Vec<String> = fs::read_dir(&self.0).unwrap().flatten().map(name).collect();
        names.sort();
        names
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn settings(folder: &Path) -> Settings {
    let folder = folder.to_owned();
    Settings { folder, bytes: 5 << 20, files: 20, repetitions: 2, ..Settings::default() }
}

fn never() -> AtomicBool {
    AtomicBool::new(false)
}

#[test]
fn all_is_measured_and_nothing_stays() {
    let folder = Folder::new("all");
    fs::write(folder.0.join("mine"), "precious").unwrap();
    let mut told = 0;
    let rows = measure(&settings(&folder.0), &never(), &mut |_| told += 1).unwrap();
    let whats: Vec<&str> = rows.iter().map(|row| row.what.as_str()).collect();
    assert_eq!(whats, ["write 5 MiB", "read 5 MiB", "create", "stat", "unlink"]);
    assert_eq!(told, 10);
    for row in &rows {
        assert!(row.median > 0.0 && row.best >= row.median && row.repetitions == 2, "{row:?}");
        assert!(row.device.ends_with(folder.0.file_name().unwrap().to_str().unwrap()));
    }
    assert_eq!(rows[2].notes, ["20 empty files in one folder"]);
    assert_eq!(folder.names(), ["mine"]);
    assert_eq!(fs::read_to_string(folder.0.join("mine")).unwrap(), "precious");
}

#[test]
fn the_large_file_has_no_name() {
    let folder = Folder::new("nameless");
    let mut seen = Vec::new();
    let mut report = |progress: Progress<'_>| {
        if progress.what.starts_with("read") {
            seen.push(folder.names());
        }
    };
    measure(&settings(&folder.0), &never(), &mut report).unwrap();
    assert_eq!(seen, [Vec::<String>::new(), Vec::new()]);
}

#[test]
fn what_is_stopped_leaves_nothing_and_tells_what_it_has() {
    let folder = Folder::new("stop");
    // The times of small files are known all at once, so that those rows still come.
    let rows_after = [0, 1, 1, 2, 2, 3, 4, 4, 5];
    for (after, expected) in (1..).zip(rows_after) {
        let stop = never();
        let mut told = 0;
        let mut report = |_: Progress<'_>| {
            told += 1;
            stop.fetch_or(told == after, Ordering::Relaxed);
        };
        let rows = measure(&settings(&folder.0), &stop, &mut report).unwrap();
        assert_eq!(rows.len(), expected, "after {after}");
        assert_eq!(folder.names(), Vec::<String>::new());
    }
}

#[test]
fn a_folder_that_is_none_is_named() {
    let folder = Folder::new("none");
    let file = folder.0.join("file");
    fs::write(&file, "").unwrap();
    for path in [folder.0.join("gone"), file] {
        let error = measure(&settings(&path), &never(), &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
    }
    assert_eq!(folder.names(), ["file"]);
}

#[test]
fn more_than_there_is_room_for_is_not_begun() {
    let folder = Folder::new("room");
    let settings = Settings { bytes: u64::MAX / 2, ..settings(&folder.0) };
    let error = measure(&settings, &never(), &mut |_| ()).unwrap_err();
    assert!(matches!(&error, CeilingError::Full { folder: full, .. } if *full == folder.0));
    assert!(error.to_string().contains("smaller size"), "{error}");
    assert_eq!(folder.names(), Vec::<String>::new());
}

#[test]
fn a_disk_that_is_full_is_an_error_with_its_path() {
    let mut full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let settings = settings(Path::new("/scratch"));
    let error = large::fill(&mut full, Path::new("/scratch/x"), &settings, &[1; 64], &never());
    let error = error.unwrap_err();
    assert!(matches!(&error, CeilingError::Full { .. }), "{error:?}");
    assert!(error.to_string().starts_with("no room in /scratch: No space left"), "{error}");
}

#[test]
fn a_disk_without_room_for_another_file_is_full_too() {
    let folder = Folder::new("inodes");
    let mut own = scratch::ScratchFolder::create(&folder.0).unwrap();
    let full = |_: &Path| Err(std::io::ErrorKind::StorageFull.into());
    let error = small::each(&mut own, 3, ("create", full), &never(), |_| false).unwrap_err();
    assert!(matches!(&error, CeilingError::Full { folder: named, .. } if *named == folder.0));
}

#[test]
fn a_folder_goes_with_its_own_files_only() {
    let folder = Folder::new("own");
    let mut own = scratch::ScratchFolder::create(&folder.0).unwrap();
    own.files = 3;
    File::create(own.file(1)).unwrap();
    let theirs = own.path.join("theirs");
    File::create(&theirs).unwrap();
    drop(own);
    assert!(theirs.exists());
    assert_eq!(fs::read_dir(theirs.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn names_are_taken_once() {
    let folder = Folder::new("once");
    let made: Vec<_> =
        (0..20).map(|_| scratch::ScratchFolder::create(&folder.0).unwrap()).collect();
    assert_eq!(folder.names().len(), 20);
    drop(made);
    assert_eq!(folder.names(), Vec::<String>::new());
}

#[test]
fn nothing_to_write_is_refused() {
    let none = Settings { bytes: 0, ..Settings::default() };
    assert!(measure(&none, &never(), &mut |_| ()).is_err());
    let none = Settings { files: 0, ..Settings::default() };
    assert!(measure(&none, &never(), &mut |_| ()).is_err());
}
