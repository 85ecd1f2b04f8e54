//! Sequential write and read of a large file.

use std::fs::File;
use std::io::{Read, Seek, Write};
use std::path::Path;
use std::time::{Duration, Instant};

use regatta_model::{RateUnit, units};

use super::super::{Cases, Result, RooflineError, RooflineRow};
use super::page_cache;
use super::scratch::{ScratchFile, io_error};
use super::{DiskSettings, Samples};

/// Write and read.
pub(super) const CASES: usize = 2;

/// Bytes per write or read call.
const BLOCK_BYTES: u64 = 4 << 20;

/// Measures write and read bandwidth.
pub(super) fn measure(cases: &mut Cases<'_>, settings: &DiskSettings) -> Result {
    let mut scratch = ScratchFile::create(&settings.dir)?;
    check_free_space(&scratch.file, settings)?;
    let mut block = incompressible(settings.bytes.min(BLOCK_BYTES) as usize);
    let row = |timed: &Samples, what: &str, notes| {
        let gigabytes = settings.bytes as f64 / 1e9;
        let row = settings.row(timed, what, gigabytes, RateUnit::GigabytesPerSecond);
        Result::<_>::Ok(RooflineRow { notes, ..row })
    };
    let what = settings.case_name("write");
    cases.case(&what, || {
        let timed = repeat(settings, || write(&mut scratch, settings, &block))?;
        row(&timed, &what, vec!["write includes fsync".to_owned()])
    })?;
    let what = settings.case_name("read");
    cases.case(&what, || {
        let mut resident: f64 = 0.0;
        let timed = repeat(settings, || {
            resident = resident.max(page_cache::drop_pages(&scratch.file, settings.bytes));
            read(&mut scratch, settings, &mut block)
        })?;
        row(&timed, &what, page_cache::note(resident).into_iter().collect())
    })
}

/// Repeats a timed pass.
fn repeat(settings: &DiskSettings, mut once: impl FnMut() -> Result<Duration>) -> Result<Samples> {
    let mut times: Vec<Duration> = Vec::new();
    for _ in 0..settings.repetitions.max(1) {
        if times.iter().sum::<Duration>() > settings.time_limit {
            break;
        }
        times.push(once()?);
    }
    Ok(Samples::new(1, times))
}

/// Refuses to fill the disk.
fn check_free_space(file: &File, settings: &DiskSettings) -> Result {
    // If the file system does not report its free space, the write will.
    let Ok(found) = rustix::fs::fstatvfs(file) else { return Ok(()) };
    let left = found.f_bavail.saturating_mul(found.f_frsize);
    if found.f_blocks == 0 || settings.bytes <= left {
        return Ok(());
    }
    let (left, wanted) = (units::format_bytes(left), units::format_bytes(settings.bytes));
    let why = format!("{left} available, {wanted} required");
    Err(RooflineError::DiskFull { dir: settings.dir.clone(), why })
}

/// Rewrites the file and syncs it to disk.
fn write(scratch: &mut ScratchFile, settings: &DiskSettings, block: &[u8]) -> Result<Duration> {
    let ScratchFile { file, path, .. } = scratch;
    let emptied = file.set_len(0).and_then(|()| file.rewind());
    emptied.map_err(|error| io_error("empty", path, &settings.dir, error))?;
    let begin = Instant::now();
    fill(file, path, settings, block)?;
    file.sync_all().map_err(|error| io_error("write", path, &settings.dir, error))?;
    Ok(begin.elapsed())
}

/// Writes the file.
pub(super) fn fill(file: &mut File, path: &Path, settings: &DiskSettings, block: &[u8]) -> Result {
    let mut left = settings.bytes;
    while left > 0 {
        let part = &block[..left.min(block.len() as u64) as usize];
        file.write_all(part).map_err(|error| io_error("write", path, &settings.dir, error))?;
        left -= part.len() as u64;
    }
    Ok(())
}

/// Reads the whole file.
fn read(scratch: &mut ScratchFile, settings: &DiskSettings, block: &mut [u8]) -> Result<Duration> {
    let ScratchFile { file, path, .. } = scratch;
    file.rewind().map_err(|error| io_error("read", path, &settings.dir, error))?;
    let begin = Instant::now();
    let mut left = settings.bytes;
    while left > 0 {
        let part = left.min(block.len() as u64) as usize;
        let read = file.read_exact(&mut block[..part]);
        read.map_err(|error| io_error("read", path, &settings.dir, error))?;
        left -= part as u64;
    }
    Ok(begin.elapsed())
}

/// Incompressible bytes, because some file systems compress.
fn incompressible(bytes: usize) -> Vec<u8> {
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
