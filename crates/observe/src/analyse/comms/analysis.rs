//! Combines the event files of a job.

mod rows;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};

use regatta_events::file::ReadEnd;
use regatta_events::operation::{Name, OperationKind};

use super::clocks::{Alignment, align};
use super::collector::{FileEnd, FileSummary};
use super::histogram::{Histogram, NameCode};
use super::matching::Matches;
use super::report::CommsReport;
use super::warnings;

/// Which attempts of a job to report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Attempts {
    /// The last one.
    #[default]
    Last,
    /// This one: 0 is the first, 1 the first restart.
    One(u32),
    /// All of them.
    All,
}

impl Attempts {
    /// Whether it is an attempt to report, where `last` is the last one.
    pub fn contains(self, attempt: u32, last: Option<u32>) -> bool {
        match self {
            Self::Last => Some(attempt) == last,
            Self::One(one) => attempt == one,
            Self::All => true,
        }
    }
}

/// The files of a job. The order in which they are added has no effect.
#[derive(Debug, Default)]
pub struct Analysis {
    files: Vec<FileSummary>,
    /// The histograms of the files, by attempt: they are merged at once to save memory.
    histograms: BTreeMap<u32, Histogram>,
    names: NameTable,
}

/// Names of all files.
#[derive(Debug, Default)]
pub(super) struct NameTable {
    codes: BTreeMap<String, NameCode>,
    names: Vec<String>,
}

/// The first code of names in the table. Lower codes are those of files.
const FIRST_CODE: NameCode = 256;

impl NameTable {
    fn intern(&mut self, name: &str) -> NameCode {
        if let Some(&code) = self.codes.get(name) {
            return code;
        }
        let Ok(code) = NameCode::try_from(usize::from(FIRST_CODE) + self.names.len()) else {
            return NameCode::MAX;
        };
        self.names.push(name.to_owned());
        self.codes.insert(name.to_owned(), code);
        code
    }

    /// The name of a code: built in, of the table, or `#N`.
    pub(super) fn name(
        &self,
        code: NameCode,
        built_in: impl Fn(u8) -> Option<&'static str>,
    ) -> String {
        let of_table = || self.names.get(usize::from(code.checked_sub(FIRST_CODE)?)).cloned();
        let known = u8::try_from(code).ok().and_then(built_in).map(str::to_owned);
        known.or_else(of_table).unwrap_or_else(|| format!("#{code}"))
    }
}

/// The name of a kind in a file that defines these names.
pub(super) fn kind_name(kind: OperationKind, names: &BTreeMap<Name, String>) -> String {
    match (kind.known_name(), kind) {
        (Some(name), _) => name.to_owned(),
        (None, OperationKind::Other(name)) if names.contains_key(&name) => names[&name].clone(),
        (None, kind) => format!("#{}", kind.code()),
    }
}

/// The files of the chosen attempts, on one time line.
#[derive(Debug)]
pub struct Selected<'a> {
    /// All attempts.
    pub attempts: Vec<u32>,
    /// The chosen ones.
    pub reported: Vec<u32>,
    /// The files, by attempt and rank.
    pub files: Vec<&'a FileSummary>,
    /// The clock of each file.
    pub clocks: Vec<usize>,
    /// Each clock: name of its host, and its alignment.
    pub hosts: Vec<&'a str>,
    /// Each clock's alignment.
    pub alignments: Vec<Alignment>,
    /// Files without a process, which have no attempt.
    unknown: Vec<&'a FileSummary>,
}

impl<'a> Selected<'a> {
    pub(super) fn damaged_files(&self) -> impl Iterator<Item = &'a FileSummary> {
        let is_damaged = |file: &&FileSummary| {
            matches!(file.end, FileEnd::Read(ReadEnd::Damaged { .. }) | FileEnd::Unreadable(_))
        };
        self.files.iter().chain(&self.unknown).copied().filter(is_damaged)
    }

    pub(super) fn all_files(&self) -> impl Iterator<Item = &'a FileSummary> {
        self.files.iter().chain(&self.unknown).copied()
    }

    /// The time of the first event, on the common time line.
    pub fn origin(&self) -> Option<i64> {
        self.spans().map(|(first, _)| first).min()
    }

    pub(super) fn spans(&self) -> impl Iterator<Item = (i64, i64)> {
        self.files.iter().zip(&self.clocks).filter_map(|(file, &clock)| {
            let (first, last) = file.span?;
            let alignment = &self.alignments[clock];
            Some((alignment.convert(first), alignment.convert(last)))
        })
    }
}

impl Analysis {
    /// Adds a file.
    pub fn add(&mut self, mut file: FileSummary) {
        let histogram = std::mem::take(&mut file.histogram);
        let codes: BTreeMap<NameCode, NameCode> = file
            .names
            .iter()
            .filter(|(name, _)| name.0 >= Name::CUSTOM)
            .map(|(name, text)| (NameCode::from(name.0), self.names.intern(text)))
            .collect();
        let rename = |code: NameCode| codes.get(&code).copied().unwrap_or(code);
        self.histograms.entry(file.restart()).or_default().merge(&histogram, rename);
        self.files.push(file);
    }

    /// The files of some attempts, on one time line.
    pub fn select(&self, attempts: Attempts) -> Selected<'_> {
        let (known, mut unknown): (Vec<&FileSummary>, Vec<&FileSummary>) =
            self.files.iter().partition(|file| file.process.is_some());
        let all: BTreeSet<u32> = known.iter().map(|file| file.restart()).collect();
        let is_chosen = |restart: u32| attempts.contains(restart, all.last().copied());
        let mut files: Vec<&FileSummary> =
            known.into_iter().filter(|file| is_chosen(file.restart())).collect();
        files.sort_by_key(|file| (file.restart(), file.rank(), &file.name));
        unknown.sort_by_key(|file| &file.name);
        let (clocks, hosts, realtime) = clocks(&files);
        let pairs = Matches::new(&files).clock_pairs(&clocks);
        Selected {
            attempts: all.iter().copied().collect(),
            reported: all.iter().copied().filter(|restart| is_chosen(*restart)).collect(),
            alignments: align(&realtime, &pairs),
            files,
            clocks,
            hosts,
            unknown,
        }
    }

    /// The report of selected files.
    pub fn report(&self, selected: &Selected<'_>) -> CommsReport {
        let mut histogram = Histogram::default();
        for attempt in &selected.reported {
            if let Some(part) = self.histograms.get(attempt) {
                histogram.merge(part, |code| code);
            }
        }
        let matches = Matches::new(&selected.files);
        let row = |kind: NameCode, ranks: u32, bytes: u64| {
            histogram.groups.get(&(kind, ranks)).map_or(bytes, |group| group.key(bytes))
        };
        let stats = matches.stats(&selected.clocks, &selected.alignments, row);
        CommsReport {
            attempts: selected.attempts.clone(),
            reported_attempts: selected.reported.clone(),
            summary: rows::summary(selected, &stats, matches.stride),
            histogram: rows::histogram(&histogram, &stats, &self.names),
            communicators: rows::communicators(selected),
            ranks: rows::ranks(selected, &stats),
            in_flight: rows::in_flight(selected),
            clocks: rows::clocks(selected),
            files: selected.all_files().map(rows::file).collect(),
            warnings: warnings::warnings(selected, &stats),
        }
    }
}

/// The clock of each file, and each clock's host and how far the real time is ahead of it.
fn clocks<'a>(files: &[&'a FileSummary]) -> (Vec<usize>, Vec<&'a str>, Vec<Option<i64>>) {
    let mut known: BTreeMap<(&str, &str), usize> = BTreeMap::new();
    let (mut hosts, mut realtime) = (Vec::new(), Vec::new());
    let mut clock_of = |file: &&'a FileSummary| {
        let boot = file.process.as_ref().map_or("", |process| process.boot_id.as_str());
        // Without a boot ID, the host's name identifies the clock; without both, the file.
        let key = match (boot, file.host()) {
            ("", "") => ("", file.name.as_str()),
            ("", host) => ("", host),
            (boot, _) => (boot, ""),
        };
        let clock = *known.entry(key).or_insert_with(|| {
            hosts.push(file.host());
            realtime.push(None);
            hosts.len() - 1
        });
        let closest: &mut Option<i64> = &mut realtime[clock];
        *closest = match (*closest, file.realtime_ahead) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        clock
    };
    let clocks = files.iter().map(&mut clock_of).collect();
    (clocks, hosts, realtime)
}
