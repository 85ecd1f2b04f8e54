//! Small files: created, looked at, removed.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::super::{Cases, CeilingError, Row};
use super::scratch::{ScratchFolder, failed};
use super::{Settings, Timed};

/// To create, to look at, to remove.
pub(super) const CASES: usize = 3;

/// What is done with each file, and in which words.
type Step = (&'static str, fn(&Path) -> io::Result<()>);

const STEPS: [Step; CASES] = [
    ("create", |path| create(path).map(drop)),
    ("stat", |path| std::fs::symlink_metadata(path).map(drop)),
    ("unlink", |path| std::fs::remove_file(path)),
];

fn create(path: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).create_new(true).open(path)
}

/// Measures all three.
pub(super) fn measure(cases: &mut Cases<'_>, settings: &Settings) -> Result<(), CeilingError> {
    let mut done = None;
    for (at, (what, _)) in STEPS.into_iter().enumerate() {
        cases.case(what, |stop| {
            // All are done in turn, file by file and round by round, with the first case.
            if done.is_none() {
                done = Some(rounds(settings, stop)?);
            }
            let Some((files, times)) = &done else { return Ok(None) };
            let timed = Timed::new(1, times.iter().map(|round| round[at]).collect());
            let notes = vec![format!("{files} empty files in one folder")];
            Ok::<_, CeilingError>(
                timed.map(|timed| Row { notes, ..settings.done(&timed, what, *files) }),
            )
        })?;
    }
    Ok(())
}

/// How many files there were, and the times of each round.
type Rounds = (u32, Vec<[Duration; CASES]>);

fn rounds(settings: &Settings, stop: &AtomicBool) -> Result<Rounds, CeilingError> {
    let mut folder = ScratchFolder::create(&settings.folder)?;
    let mut files = settings.files;
    let mut times: Vec<[Duration; CASES]> = Vec::new();
    for _ in 0..settings.repetitions.max(1) {
        if times.iter().flatten().sum::<Duration>() > settings.case {
            break;
        }
        let mut round = [Duration::ZERO; CASES];
        for (time, (what, step)) in round.iter_mut().zip(STEPS) {
            // Only the first round may cut the number of files, which all have in common.
            let most = if times.is_empty() { settings.case } else { Duration::MAX };
            let begin = Instant::now();
            let enough = |_| begin.elapsed() > most;
            let done = each(&mut folder, files, (what, step), stop, enough)?;
            *time = begin.elapsed();
            files = if what == "create" { done } else { files };
        }
        if stop.load(Ordering::Relaxed) {
            break;
        }
        times.push(round);
    }
    Ok((files, times))
}

/// Does something with each file, until it is enough; with how many it was done, which is one at
/// least.
pub(super) fn each(
    folder: &mut ScratchFolder,
    files: u32,
    (doing, step): Step,
    stop: &AtomicBool,
    enough: impl Fn(u32) -> bool,
) -> Result<u32, CeilingError> {
    for number in 0..files {
        if number > 0 && (stop.load(Ordering::Relaxed) || enough(number)) {
            return Ok(number);
        }
        let path = folder.file(number);
        folder.files = folder.files.max(number + 1);
        step(&path).map_err(|error| failed(doing, &path, &folder.inside, error))?;
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_takes_too_long_is_cut_short() {
        let mut folder = ScratchFolder::create(&std::env::temp_dir()).unwrap();
        let stop = AtomicBool::new(false);
        let done = each(&mut folder, 10, STEPS[0], &stop, |number| number >= 4).unwrap();
        assert_eq!((done, std::fs::read_dir(&folder.path).unwrap().count()), (4, 4));
        let stopped = AtomicBool::new(true);
        assert_eq!(each(&mut folder, 4, STEPS[2], &stopped, |_| false).unwrap(), 1);
        let path = folder.path.clone();
        drop(folder);
        assert!(!path.exists());
    }
}
