//! What makes a report incomplete.

use std::collections::BTreeSet;

use regatta_events::file::ReadEnd;
use regatta_model::Warning;
use regatta_model::units::{format_ranges, format_ranks, pluralize};

use super::analysis::Selected;
use super::collector::{FileEnd, FileSummary};
use super::matching::MatchStats;

/// Most files that are named one by one.
const MAX_NAMED: usize = 8;

/// The ranks of some files, with their number.
fn describe<'a>(files: impl Iterator<Item = &'a FileSummary>) -> String {
    let files: Vec<&FileSummary> = files.collect();
    let mut ranks: Vec<u32> = files.iter().filter_map(|file| file.rank()).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let unknown = files.iter().filter(|file| file.rank().is_none()).count();
    match (ranks.is_empty(), unknown) {
        (true, _) => pluralize(unknown, "file"),
        (false, 0) => format_ranks(&ranks),
        (false, _) => format!("{} and {}", format_ranks(&ranks), pluralize(unknown, "file")),
    }
}

pub(super) fn warnings(selected: &Selected<'_>, matches: &MatchStats) -> Vec<Warning> {
    let mut all = Vec::new();
    attempts(selected, &mut all);
    damages(selected, &mut all);
    all.extend(open(selected));
    all.extend(lost(selected));
    all.extend(missing(selected));
    all.extend(repeated(selected));
    if matches.mismatched > 0 {
        let count = pluralize(matches.mismatched as usize, "collective");
        all.push(Warning::new(
            "mismatched",
            format!("{count} with the same number differ between ranks"),
            "events were lost, or ranks called different collectives; they are not matched",
        ));
    }
    if selected.alignments.iter().any(|alignment| alignment.uncertainty.is_none()) {
        all.push(Warning::new(
            "clocks",
            "clocks of hosts without a common collective are aligned by their real time only",
            "times of different hosts may be off by milliseconds in the trace",
        ));
    }
    all
}

fn attempts(selected: &Selected<'_>, all: &mut Vec<Warning>) {
    if selected.attempts.len() > 1 && selected.reported.len() < selected.attempts.len() {
        all.push(Warning::new(
            "attempts",
            format!(
                "the job has event files of attempts {}; this is attempt {}",
                format_ranges(&selected.attempts),
                format_ranges(&selected.reported)
            ),
            "--attempt NUMBER reports another one, --attempt all reports all",
        ));
    }
}

fn damages(selected: &Selected<'_>, all: &mut Vec<Warning>) {
    let mut unnamed = 0;
    for file in selected.damaged_files() {
        let (code, message) = match &file.end {
            FileEnd::Read(ReadEnd::Damaged { offset, why }) => {
                ("damaged", format!("{} is damaged at byte {offset}: {why}", file.name))
            }
            FileEnd::Unreadable(why) => ("unreadable", format!("cannot read {}: {why}", file.name)),
            FileEnd::Read(_) => continue,
        };
        if all.len() >= MAX_NAMED {
            unnamed += 1;
            continue;
        }
        let hint = match file.totals.calls {
            0 => "nothing of it is included".to_owned(),
            calls => format!("{} before are included", pluralize(calls as usize, "operation")),
        };
        all.push(Warning::new(code, message, hint));
    }
    if unnamed > 0 {
        let message = format!("{} more cannot be read to the end", pluralize(unnamed, "file"));
        all.push(Warning::new("damaged", message, "--json lists all files"));
    }
}

fn open(selected: &Selected<'_>) -> Option<Warning> {
    let open =
        || selected.files.iter().copied().filter(|file| file.end == FileEnd::Read(ReadEnd::Open));
    open().next()?;
    Some(Warning::new(
        "open",
        format!("the files of {} have no end", describe(open())),
        "their processes are running, or were killed; `regatta comms RUN --status` shows their last \
         collectives",
    ))
}

fn lost(selected: &Selected<'_>) -> Option<Warning> {
    let losers = || selected.files.iter().copied().filter(|file| !file.lost.is_empty());
    losers().next()?;
    let sum = |count: fn(&FileSummary) -> u64| losers().map(count).fold(0, u64::saturating_add);
    let events = sum(|file| file.lost.events);
    let operations = sum(|file| file.lost.operations);
    let unfinished = sum(|file| file.lost.unfinished);
    Some(Warning::new(
        "lost",
        format!(
            "{} lost {events} raw events and {operations} operations, and stored {unfinished} \
             operations without an end",
            describe(losers())
        ),
        "counts and times of these ranks are too small: the ring was full (record less with \
         REGATTA_PROFILE_LEVEL=operations), or the disk",
    ))
}

/// Ranks with several files: of several runs that recorded to one folder.
fn repeated(selected: &Selected<'_>) -> Option<Warning> {
    let mut seen = BTreeSet::new();
    let mut repeated = selected.files.to_vec();
    repeated.retain(|file| {
        let process = file.process.as_ref();
        let key = process.and_then(|p| Some((p.restart, p.source.name(), p.rank?)));
        key.is_some_and(|key| !seen.insert(key))
    });
    repeated.first()?;
    Some(Warning::new(
        "repeated",
        format!(
            "{} has several files: of several runs, which are added up",
            describe(repeated.into_iter())
        ),
        "use a folder for each run (REGATTA_PROFILE), or pass the files of one run",
    ))
}

/// Ranks of the job without a file.
fn missing(selected: &Selected<'_>) -> Option<Warning> {
    // Restarts may have another number of ranks.
    if selected.reported.len() != 1 {
        return None;
    }
    let world = selected.files.iter().filter_map(|file| file.process.as_ref()?.world_size).max()?;
    let mut ranks: Vec<u32> = selected.files.iter().filter_map(|file| file.rank()).collect();
    ranks.sort_unstable();
    ranks.dedup();
    let missing = (world as usize).checked_sub(ranks.len()).filter(|missing| *missing > 0)?;
    Some(Warning::new(
        "missing-ranks",
        format!("{missing} of {world} ranks have no event file"),
        "they did not load the profiler plug-in, use no NCCL, or write to another folder",
    ))
}
