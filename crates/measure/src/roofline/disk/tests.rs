use std::fs::{self, File, OpenOptions};
use std::path::Path;

use super::*;

/// A directory of a test, removed on drop.
struct TestDir(PathBuf);

impl TestDir {
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

impl Drop for TestDir {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

fn settings(dir: &Path) -> DiskSettings {
    let dir = dir.to_owned();
    DiskSettings { dir, bytes: 5 << 20, files: 20, repetitions: 2, ..DiskSettings::default() }
}

#[test]
fn all_operations_are_measured_and_all_files_removed() {
    let dir = TestDir::new("all");
    fs::write(dir.0.join("mine"), "precious").unwrap();
    let mut reported = 0;
    let rows = measure(&settings(&dir.0), &mut |_| reported += 1).unwrap();
    let names: Vec<&str> = rows.iter().map(|row| row.case.as_str()).collect();
    assert_eq!(names, ["write 5 MiB", "read 5 MiB", "create", "stat", "unlink"]);
    assert_eq!(reported, 10);
    for row in &rows {
        assert!(row.median > 0.0 && row.best >= row.median && row.repetitions == 2, "{row:?}");
        assert!(row.device.ends_with(dir.0.file_name().unwrap().to_str().unwrap()));
    }
    assert_eq!(rows[2].notes, ["create, stat, unlink: 20 empty files in one directory"]);
    assert_eq!(dir.names(), ["mine"]);
    assert_eq!(fs::read_to_string(dir.0.join("mine")).unwrap(), "precious");
}

#[test]
fn the_large_file_is_unlinked_while_in_use() {
    let dir = TestDir::new("nameless");
    let mut seen = Vec::new();
    let mut report = |progress: CaseProgress<'_>| {
        if progress.name.starts_with("read") {
            seen.push(dir.names());
        }
    };
    measure(&settings(&dir.0), &mut report).unwrap();
    assert_eq!(seen, [Vec::<String>::new(), Vec::new()]);
}

#[test]
fn an_invalid_directory_is_reported() {
    let dir = TestDir::new("none");
    let file = dir.0.join("file");
    fs::write(&file, "").unwrap();
    for path in [dir.0.join("gone"), file] {
        let error = measure(&settings(&path), &mut |_| ()).unwrap_err().to_string();
        assert!(error.contains(path.to_str().unwrap()), "{error}");
    }
    assert_eq!(dir.names(), ["file"]);
}

#[test]
fn a_file_larger_than_the_free_space_is_rejected() {
    let dir = TestDir::new("room");
    let settings = DiskSettings { bytes: u64::MAX / 2, ..settings(&dir.0) };
    let error = measure(&settings, &mut |_| ()).unwrap_err();
    assert!(matches!(&error, RooflineError::DiskFull { dir: full, .. } if *full == dir.0));
    assert!(error.to_string().contains("smaller size"), "{error}");
    assert_eq!(dir.names(), Vec::<String>::new());
}

#[test]
fn a_full_disk_is_reported_with_its_directory() {
    let mut full = OpenOptions::new().write(true).open("/dev/full").unwrap();
    let settings = settings(Path::new("/scratch"));
    let error = sequential::fill(&mut full, Path::new("/scratch/x"), &settings, &[1; 64]);
    let error = error.unwrap_err();
    assert!(matches!(&error, RooflineError::DiskFull { .. }), "{error:?}");
    assert!(
        error.to_string().starts_with("not enough space in /scratch: No space left"),
        "{error}"
    );
}

#[test]
fn running_out_of_inodes_is_reported_as_a_full_disk() {
    let dir = TestDir::new("inodes");
    let mut own = scratch::ScratchDir::create(&dir.0).unwrap();
    let full = |_: &Path| Err(std::io::ErrorKind::StorageFull.into());
    let error = metadata::for_each_file(&mut own, 3, ("create", full), |_| false).unwrap_err();
    assert!(matches!(&error, RooflineError::DiskFull { dir: named, .. } if *named == dir.0));
}

#[test]
fn a_scratch_directory_removes_only_its_own_files() {
    let dir = TestDir::new("own");
    let mut own = scratch::ScratchDir::create(&dir.0).unwrap();
    own.files = 3;
    File::create(own.file(1)).unwrap();
    let theirs = own.path.join("theirs");
    File::create(&theirs).unwrap();
    drop(own);
    assert!(theirs.exists());
    assert_eq!(fs::read_dir(theirs.parent().unwrap()).unwrap().count(), 1);
}

#[test]
fn scratch_names_are_unique() {
    let dir = TestDir::new("once");
    let made: Vec<_> = (0..20).map(|_| scratch::ScratchDir::create(&dir.0).unwrap()).collect();
    assert_eq!(dir.names().len(), 20);
    drop(made);
    assert_eq!(dir.names(), Vec::<String>::new());
}

#[test]
fn an_empty_file_is_rejected() {
    let none = DiskSettings { bytes: 0, ..DiskSettings::default() };
    assert!(measure(&none, &mut |_| ()).is_err());
}
