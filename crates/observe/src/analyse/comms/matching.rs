//! The same collective on all of its ranks.

use regatta_events::operation::OperationKind;
use std::collections::BTreeMap;

use super::clocks::{Alignment, ClockPair};
use super::collector::{Arrival, FileSummary};
use super::histogram::NameCode;

/// A communicator of the job: its id, and the number of its ranks.
pub type CommunicatorKey = (u64, u32);

/// A rank's part of a collective.
#[derive(Debug, Clone, Copy)]
struct Part {
    communicator: CommunicatorKey,
    index: u64,
    file: usize,
    arrival: usize,
}

/// Collectives, each with the arrivals of its ranks.
#[derive(Debug)]
pub struct Matches<'a> {
    files: &'a [&'a FileSummary],
    /// Sorted by communicator and number.
    parts: Vec<Part>,
    /// Every `stride`-th collective was kept.
    pub stride: u64,
}

/// How a rank arrived at the collectives that all ranks recorded.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ArrivalStats {
    /// Collectives.
    pub collectives: u64,
    /// How long it waited for the last rank.
    pub waited_ns: u64,
    /// Collectives at which it arrived last.
    pub last: u64,
    /// How far it then was behind the median rank.
    pub delay_ns: u64,
}

/// The transfers of collectives of one size: from when the last rank has entered.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Transfers {
    /// Collectives.
    pub collectives: u64,
    /// Their bytes.
    pub bytes: u64,
    /// The shortest duration of each over its ranks, summed.
    pub time_ns: u64,
}

/// What all collectives say.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct MatchStats {
    /// Per file.
    pub arrivals: Vec<ArrivalStats>,
    /// By kind, ranks and row of the histogram.
    pub transfers: BTreeMap<(NameCode, u32, u64), Transfers>,
    /// Collectives that all ranks recorded.
    pub complete: u64,
    /// Collectives of which a rank is missing.
    pub incomplete: u64,
    /// Collectives whose ranks differ in kind or size.
    pub mismatched: u64,
}

impl<'a> Matches<'a> {
    /// Matches the collectives of these files.
    pub fn new(files: &'a [&'a FileSummary]) -> Self {
        let stride = files.iter().map(|file| file.stride).max().unwrap_or(1);
        let mut parts = Vec::new();
        for (file, summary) in files.iter().enumerate() {
            for (arrival, found) in summary.arrivals.iter().enumerate() {
                if found.index & (stride - 1) != 0 {
                    continue;
                }
                let (communicator, _) = &summary.communicators[found.communicator as usize];
                let communicator = (communicator.id, communicator.ranks);
                parts.push(Part { communicator, index: found.index, file, arrival });
            }
        }
        parts.sort_unstable_by_key(|part| (part.communicator, part.index, part.file, part.arrival));
        Self { files, parts, stride }
    }

    fn collectives(&self) -> impl Iterator<Item = &[Part]> {
        self.parts.chunk_by(|a, b| (a.communicator, a.index) == (b.communicator, b.index))
    }

    fn arrival(&self, part: &Part) -> &Arrival {
        &self.files[part.file].arrivals[part.arrival]
    }

    /// Whether all parts are the same operation.
    fn agree(&self, parts: &[Part]) -> bool {
        let key = |part: &Part| {
            let arrival = self.arrival(part);
            // In an all-to-all each rank may have another size.
            let bytes = if arrival.kind == OperationKind::AllToAll { 0 } else { arrival.bytes };
            (arrival.kind, bytes)
        };
        parts.windows(2).all(|pair| key(&pair[0]) == key(&pair[1]))
    }

    /// What collectives tell of the offsets between clocks, by pairs of clocks. `clocks` has the clock of
    /// each file.
    pub fn clock_pairs(&self, clocks: &[usize]) -> BTreeMap<(usize, usize), ClockPair> {
        let mut pairs: BTreeMap<(usize, usize), ClockPair> = BTreeMap::new();
        if clocks.windows(2).all(|pair| pair[0] == pair[1]) {
            return pairs;
        }
        // The last start and the first end on each clock.
        let mut spans: BTreeMap<usize, (i64, i64)> = BTreeMap::new();
        for parts in self.collectives().filter(|parts| self.agree(parts)) {
            spans.clear();
            for part in parts {
                let arrival = self.arrival(part);
                let end = arrival.start.saturating_add_unsigned(arrival.duration);
                let span = spans.entry(clocks[part.file]).or_insert((arrival.start, end));
                *span = (span.0.max(arrival.start), span.1.min(end));
            }
            let mut spans = spans.iter();
            let Some((&first, &of_first)) = spans.next() else { continue };
            for (&clock, &span) in spans {
                pairs.entry((first, clock)).or_default().add(of_first, span);
            }
        }
        pairs
    }

    /// Arrivals and transfers. `clocks` has the clock of each file, `row` the row of a size.
    pub fn stats(
        &self,
        clocks: &[usize],
        alignments: &[Alignment],
        row: impl Fn(NameCode, u32, u64) -> u64,
    ) -> MatchStats {
        let arrivals = vec![ArrivalStats::default(); self.files.len()];
        let mut stats = MatchStats { arrivals, ..MatchStats::default() };
        let mut starts = Vec::new();
        for parts in self.collectives() {
            let Some(first) = parts.first() else { continue };
            let ranks = first.communicator.1;
            if !self.agree(parts) || parts.len() > ranks as usize {
                stats.mismatched += 1;
                continue;
            }
            if parts.len() < ranks as usize {
                stats.incomplete += 1;
                continue;
            }
            stats.complete += 1;
            self.add_transfer(&mut stats, parts, &row);
            starts.clear();
            starts.extend(parts.iter().map(|part| {
                let clock = clocks[part.file];
                (clock, alignments[clock].convert(self.arrival(part).start))
            }));
            add_arrivals(&mut stats, parts, &starts, alignments);
        }
        stats
    }

    fn add_transfer(
        &self,
        stats: &mut MatchStats,
        parts: &[Part],
        row: &impl Fn(NameCode, u32, u64) -> u64,
    ) {
        let shortest = parts.iter().map(|part| self.arrival(part).duration).min();
        let (Some(first), Some(shortest)) = (parts.first(), shortest) else { return };
        let (kind, ranks) = (self.arrival(first).kind.code().into(), first.communicator.1);
        let bytes = self.arrival(first).bytes;
        let transfers = stats.transfers.entry((kind, ranks, row(kind, ranks, bytes))).or_default();
        transfers.collectives += 1;
        transfers.bytes = transfers.bytes.saturating_add(bytes);
        transfers.time_ns = transfers.time_ns.saturating_add(shortest);
    }
}

/// Attributes the wait of a collective to the rank that arrived last, unless the clocks do not show which
/// one that is. `starts` has the clock and the start of each part.
fn add_arrivals(
    stats: &mut MatchStats,
    parts: &[Part],
    starts: &[(usize, i64)],
    alignments: &[Alignment],
) {
    let last = starts.iter().enumerate().max_by_key(|(_, (_, start))| *start);
    let Some((position, &(last_clock, latest))) = last else { return };
    let is_aligned = |(clock, _): &(usize, i64)| alignments[*clock].uncertainty.is_some();
    if starts.iter().any(|one| one.0 != last_clock) && !starts.iter().all(is_aligned) {
        return;
    }
    for (part, (_, start)) in parts.iter().zip(starts) {
        let arrivals = &mut stats.arrivals[part.file];
        arrivals.collectives += 1;
        arrivals.waited_ns = arrivals.waited_ns.saturating_add(latest.abs_diff(*start));
    }
    let is_before = |&(clock, start): &(usize, i64)| {
        let [last, other] = [last_clock, clock].map(|clock| alignments[clock].deviation);
        clock == last_clock || latest.abs_diff(start) > last.saturating_add(other)
    };
    let mut sorted: Vec<i64> = starts.iter().map(|(_, start)| *start).collect();
    let middle = (sorted.len() - 1) / 2;
    let (_, median, _) = sorted.select_nth_unstable(middle);
    let delay = latest.abs_diff(*median);
    if delay > 0 && starts.iter().all(is_before) {
        let arrivals = &mut stats.arrivals[parts[position].file];
        arrivals.last += 1;
        arrivals.delay_ns = arrivals.delay_ns.saturating_add(delay);
    }
}
