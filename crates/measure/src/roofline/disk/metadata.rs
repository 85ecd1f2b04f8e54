//! Metadata operations on small files: create, stat, unlink.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

use regatta_model::RateUnit;

use super::super::{Cases, Result, RooflineRow};
use super::scratch::{ScratchDir, io_error};
use super::{DiskSettings, Samples};

/// Create, stat, unlink.
pub(super) const CASES: usize = 3;

/// A metadata operation: its name and its call on one path.
type MetadataOp = (&'static str, fn(&Path) -> io::Result<()>);

const OPS: [MetadataOp; CASES] = [
    ("create", |path| create(path).map(drop)),
    ("stat", |path| std::fs::symlink_metadata(path).map(drop)),
    ("unlink", |path| std::fs::remove_file(path)),
];

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Measures all three operations.
pub(super) fn measure(cases: &mut Cases<'_>, settings: &DiskSettings) -> Result {
    let mut measured = None;
    for (at, (what, _)) in OPS.into_iter().enumerate() {
        cases.case(what, || {
            // The first case runs all rounds of all operations.
            let (files, times) = match measured.take() {
                Some(measured) => measured,
                None => rounds(settings)?,
            };
            let timed = Samples::new(1, times.iter().map(|round| round[at]).collect());
            let notes = vec![format!("create, stat, unlink: {files} empty files in one directory")];
            measured = Some((files, times));
            let row = settings.row(&timed, what, f64::from(files), RateUnit::FilesPerSecond);
            Result::<_>::Ok(RooflineRow { notes, ..row })
        })?;
    }
    Ok(())
}

/// Number of files, and the times of each round.
type Rounds = (u32, Vec<[Duration; CASES]>);

fn rounds(settings: &DiskSettings) -> Result<Rounds> {
    let mut dir = ScratchDir::create(&settings.dir)?;
    let mut files = settings.files;
    let mut times: Vec<[Duration; CASES]> = Vec::new();
    for _ in 0..settings.repetitions.max(1) {
        if times.iter().flatten().sum::<Duration>() > settings.time_limit {
            break;
        }
        let mut round = [Duration::ZERO; CASES];
        for (time, (what, op)) in round.iter_mut().zip(OPS) {
            // Only the first round may reduce the number of files, which all rounds share.
            let limit = if times.is_empty() { settings.time_limit } else { Duration::MAX };
            let begin = Instant::now();
            let enough = |_| begin.elapsed() > limit;
            let done = for_each_file(&mut dir, files, (what, op), enough)?;
            *time = begin.elapsed();
            files = if what == "create" { done } else { files };
        }
        times.push(round);
    }
    Ok((files, times))
}

/// Applies an operation to each file until `enough`; returns the number of files, at least one.
pub(super) fn for_each_file(
    dir: &mut ScratchDir,
    files: u32,
    (name, op): MetadataOp,
    enough: impl Fn(u32) -> bool,
) -> Result<u32> {
    for number in 0..files {
        if number > 0 && enough(number) {
            return Ok(number);
        }
        let path = dir.file(number);
        dir.files = dir.files.max(number + 1);
        op(&path).map_err(|error| io_error(name, &path, &dir.inside, error))?;
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_stops_at_the_time_limit() {
        let mut dir = ScratchDir::create(&std::env::temp_dir()).unwrap();
        let done = for_each_file(&mut dir, 10, OPS[0], |number| number >= 4).unwrap();
        assert_eq!((done, std::fs::read_dir(&dir.path).unwrap().count()), (4, 4));
        assert_eq!(for_each_file(&mut dir, 4, OPS[2], |_| true).unwrap(), 1);
        let path = dir.path.clone();
        drop(dir);
        assert!(!path.exists());
    }
}
