//! Writes the trace of all ranks, file by file, in constant memory.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use regatta_events::file;
use regatta_observe::comms::analysis::Selected;
use regatta_observe::comms::trace::{FileTrace, TimeRange, TraceText, tracks};

use crate::cli::FAINT;
use crate::output;

/// Text that is written at once.
const CHUNK: usize = 1 << 18;

/// The range of some seconds.
pub fn range(from: Option<f64>, to: Option<f64>) -> TimeRange {
    let nanoseconds = |seconds: f64| (seconds * 1e9) as i64;
    TimeRange { from: from.map_or(i64::MIN, nanoseconds), to: to.map_or(i64::MAX, nanoseconds) }
}

/// Writes the trace of the selected files.
pub fn write(
    path: &Path,
    selected: &Selected<'_>,
    paths: &[PathBuf],
    range: TimeRange,
) -> Result<()> {
    let context = || format!("--trace: cannot write {}", path.display());
    if path == Path::new("-") {
        write_to(io::stdout().lock(), selected, paths, range).context("standard output")?;
        return Ok(());
    }
    let out = File::create(path).with_context(context)?;
    let events = write_to(out, selected, paths, range).with_context(context)?;
    let shown = path.display();
    output::eprint(&format!("{FAINT}trace: {shown}: {events} events{FAINT:#}\n"));
    Ok(())
}

/// Returns the number of events.
fn write_to(
    mut out: impl Write,
    selected: &Selected<'_>,
    paths: &[PathBuf],
    range: TimeRange,
) -> io::Result<u64> {
    let by_name: BTreeMap<String, &PathBuf> =
        paths.iter().map(|path| (path.display().to_string(), path)).collect();
    let origin = selected.origin().unwrap_or(0);
    let mut text = TraceText::new();
    for (position, track) in tracks(selected).into_iter().enumerate() {
        let Some(path) = by_name.get(&selected.files[position].name) else { continue };
        let mut writer = FileTrace::new(selected, position, track, origin, range);
        writer.begin(&mut text);
        let mut failed = None;
        // The file was readable before: what is not now is left out.
        let _ = File::open(path).and_then(|input| {
            file::read(input, |record| {
                writer.add(&record, &mut text);
                if text.len() > CHUNK && failed.is_none() {
                    failed = out.write_all(text.take().as_bytes()).err();
                }
            })
        });
        if let Some(error) = failed {
            return Err(error);
        }
    }
    text.finish();
    out.write_all(text.take().as_bytes())?;
    out.flush()?;
    Ok(text.events())
}
