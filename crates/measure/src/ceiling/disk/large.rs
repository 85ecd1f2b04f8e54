//! A large file: written to the disk, and read from it.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use regatta_model::units;

use super::super::{Cases, CeilingError, Row};
use super::cached;
use super::scratch::{ScratchFile, failed};
use super::{Settings, Timed};

/// To write and to read.
pub(super) const CASES: usize = 2;

/// Bytes of one call.
const BLOCK: usize = 4 << 20;

/// Measures both.
pub(super) fn measure(cases: &mut Cases<'_>, settings: &Settings) -> Result<(), CeilingError> {
    let mut scratch = ScratchFile::create(&settings.folder)?;
    check_room(&scratch.file, settings)?;
    let mut block = noise(BLOCK.min(usize::try_from(settings.bytes).unwrap_or(BLOCK)));
    let what = settings.sized("write");
    cases.case(&what, |stop| {
        let timed = repeat(settings, stop, || write(&mut scratch, settings, &block, stop))?;
        let notes = vec!["with fsync".to_owned()];
        Ok::<_, CeilingError>(timed.map(|timed| Row { notes, ..settings.moved(&timed, &what) }))
    })?;
    let what = settings.sized("read");
    cases.case(&what, |stop| {
        let mut kept: f64 = 0.0;
        let timed = repeat(settings, stop, || {
            kept = kept.max(cached::drop_pages(&scratch.file, settings.bytes));
            read(&mut scratch, settings, &mut block, stop)
        })?;
        let notes = cached::note(kept).into_iter().collect();
        Ok::<_, CeilingError>(timed.map(|timed| Row { notes, ..settings.moved(&timed, &what) }))
    })
}

/// Repeats something that takes so long; `None` is something that was stopped.
fn repeat(
    settings: &Settings,
    stop: &AtomicBool,
    mut once: impl FnMut() -> Result<Option<Duration>, CeilingError>,
) -> Result<Option<Timed>, CeilingError> {
    let mut times: Vec<Duration> = Vec::new();
    while times.len() < settings.repetitions.max(1) as usize && !stop.load(Ordering::Relaxed) {
        if times.iter().sum::<Duration>() > settings.case {
            break;
        }
        let Some(time) = once()? else { break };
        times.push(time);
    }
    Ok(Timed::new(1, times))
}

/// Refuses what would fill the disk: others need it, too.
fn check_room(file: &File, settings: &Settings) -> Result<(), CeilingError> {
    // A file system that does not know is not asked twice.
    let Ok(found) = rustix::fs::fstatvfs(file) else { return Ok(()) };
    let left = found.f_bavail.saturating_mul(found.f_frsize);
    if found.f_blocks == 0 || settings.bytes <= left {
        return Ok(());
    }
    let (left, wanted) = (units::bytes(left), units::bytes(settings.bytes));
    let why = format!("{left} are left, and {wanted} were to be written");
    Err(CeilingError::Full { folder: settings.folder.clone(), why })
}

/// Writes the file anew, to the disk.
fn write(
    scratch: &mut ScratchFile,
    settings: &Settings,
    block: &[u8],
    stop: &AtomicBool,
) -> Result<Option<Duration>, CeilingError> {
    let ScratchFile { file, path, .. } = scratch;
    let emptied = file.set_len(0).and_then(|()| file.rewind());
    emptied.map_err(|error| failed("empty", path, &settings.folder, error))?;
    let begin = Instant::now();
    if !fill(file, path, settings, block, stop)? {
        return Ok(None);
    }
    file.sync_all().map_err(|error| failed("write", path, &settings.folder, error))?;
    Ok(Some(begin.elapsed()))
}

/// Writes so many bytes; whether it came to the end.
pub(super) fn fill(
    file: &mut File,
    path: &Path,
    settings: &Settings,
    block: &[u8],
    stop: &AtomicBool,
) -> Result<bool, CeilingError> {
    let mut left = settings.bytes;
    while left > 0 {
        if stop.load(Ordering::Relaxed) {
            return Ok(false);
        }
        let part = &block[..usize::try_from(left).unwrap_or(block.len()).min(block.len())];
        file.write_all(part).map_err(|error| failed("write", path, &settings.folder, error))?;
        left -= part.len() as u64;
    }
    Ok(true)
}

/// Reads the whole file.
fn read(
    scratch: &mut ScratchFile,
    settings: &Settings,
    block: &mut [u8],
    stop: &AtomicBool,
) -> Result<Option<Duration>, CeilingError> {
    let ScratchFile { file, path, .. } = scratch;
    file.rewind().map_err(|error| failed("read", path, &settings.folder, error))?;
    let begin = Instant::now();
    let mut left = settings.bytes;
    while left > 0 {
        if stop.load(Ordering::Relaxed) {
            return Ok(None);
        }
        let part = usize::try_from(left).unwrap_or(block.len()).min(block.len());
        file.read_exact(&mut block[..part])
            .map_err(|error| failed("read", path, &settings.folder, error))?;
        left -= part as u64;
    }
    Ok(Some(begin.elapsed()))
}

/// Bytes that do not compress, for there are file systems that would.
fn noise(bytes: usize) -> Vec<u8> {
    let mut state = 0x853c_49e6_748f_ea9b_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let mut all: Vec<u8> = (0..bytes.div_ceil(8)).flat_map(|_| next()).collect();
    all.truncate(bytes);
    all
}
