//! The rows of the report.

use std::collections::{BTreeMap, BTreeSet};

use regatta_events::file::ReadEnd;
use regatta_events::operation::{Algorithm, Communicator, DataType, OperationKind, Protocol};
use regatta_model::units::format_ranges;

use super::{NameTable, Selected, kind_name};
use crate::analyse::comms::bandwidth::{bus_factor, gigabytes_per_second};
use crate::analyse::comms::clocks::nanoseconds;
use crate::analyse::comms::collector::{FileEnd, FileSummary};
use crate::analyse::comms::histogram::{Histogram, NameCode, Row, SizeGroup, Totals, Variant};
use crate::analyse::comms::matching::{ArrivalStats, MatchStats, Transfers};
use crate::analyse::comms::report::{
    ClockRow, CommunicatorRow, FileRow, InFlight, RankRow, SizeRow, Summary, TransferRow,
    VariantRow,
};

fn seconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e9
}

fn microseconds(nanoseconds: u64) -> f64 {
    nanoseconds as f64 / 1e3
}

fn mean_us(total_ns: u64, count: u64) -> Option<f64> {
    (count > 0).then(|| microseconds(total_ns) / count as f64)
}

pub(super) fn summary(selected: &Selected<'_>, stats: &MatchStats, stride: u64) -> Summary {
    let mut totals = Totals::default();
    selected.files.iter().for_each(|file| totals.merge(&file.totals));
    let wall = selected.spans().reduce(|a, b| (a.0.min(b.0), a.1.max(b.1)));
    let shares: Vec<f64> = selected.files.iter().filter_map(|file| busy_share(file)).collect();
    let hosts: BTreeSet<&str> = selected.files.iter().map(|file| file.host()).collect();
    Summary {
        processes: processes(selected).len(),
        hosts: hosts.len(),
        calls: totals.calls,
        bytes: totals.bytes,
        wall_s: wall.map_or(0.0, |(first, last)| seconds(last.abs_diff(first))),
        time_s: seconds(totals.time_ns),
        busy_share: (!shares.is_empty()).then(|| shares.iter().sum::<f64>() / shares.len() as f64),
        matched_collectives: stats.complete,
        matched_stride: stride,
    }
}

/// Share of a file's time in which an operation ran.
fn busy_share(file: &FileSummary) -> Option<f64> {
    let (first, last) = file.span?;
    let wall = last.abs_diff(first);
    (wall > 0).then(|| file.busy_ns as f64 / wall as f64)
}

pub(super) fn histogram(
    histogram: &Histogram,
    stats: &MatchStats,
    names: &NameTable,
) -> Vec<SizeRow> {
    let all = histogram.groups.values().flat_map(|group| group.rows.values());
    let total = all.fold(0u64, |sum, row| sum.saturating_add(row.totals.time_ns));
    let mut groups: Vec<(String, NameCode, u32, &SizeGroup)> = histogram
        .groups
        .iter()
        .map(|(&(kind, ranks), group)| {
            let name = names.name(kind, |code| OperationKind::from_code(code).known_name());
            (name, kind, ranks, group)
        })
        .collect();
    // Built-in kinds in the order of their codes, then names in alphabetical order.
    groups.sort_by(|a, b| {
        let key = |group: &(String, NameCode, u32, &SizeGroup)| (group.1.min(256), group.2);
        let (one, other) = (key(a), key(b));
        (one.0, &a.0, one.1).cmp(&(other.0, &b.0, other.1))
    });
    let mut rows = Vec::new();
    for (name, kind, ranks, group) in groups {
        let known = u8::try_from(kind).map(OperationKind::from_code).ok();
        let factor = known.and_then(|kind| bus_factor(kind, ranks));
        for (&size, row) in &group.rows {
            let transfers = stats.transfers.get(&(kind, ranks, size)).copied();
            let share = (total > 0).then(|| row.totals.time_ns as f64 / total as f64);
            rows.push(SizeRow {
                operation: name.clone(),
                ranks: (ranks > 0).then_some(ranks),
                size_bytes: size,
                size_bucket: group.in_buckets,
                collectives: known.filter(|kind| !kind.is_p2p()).map(|_| collectives(row, ranks)),
                time_share: share,
                variants: variants(row, names),
                ..size_row(row, factor, transfers)
            });
        }
    }
    rows
}

/// Each collective has a call of its first rank, unless that rank's file is missing.
fn collectives(row: &Row, ranks: u32) -> u64 {
    row.root_calls.max(row.totals.calls.div_ceil(u64::from(ranks.max(1))))
}

fn size_row(row: &Row, factor: Option<f64>, transfers: Option<Transfers>) -> SizeRow {
    let bandwidths = |bytes: u64, time: u64| {
        let algbw = factor.and(gigabytes_per_second(bytes, time));
        (algbw, algbw.zip(factor).map(|(algbw, factor)| algbw * factor))
    };
    let (algbw_gb_s, busbw_gb_s) = bandwidths(row.timed_bytes, row.totals.time_ns);
    let quantile = |fraction: f64| {
        // Not above the longest duration, which is exact.
        row.durations.quantile(fraction).map(|value| microseconds(value.min(row.max_ns)))
    };
    let transfer = transfers.map(|transfers| {
        let (algbw_gb_s, busbw_gb_s) = bandwidths(transfers.bytes, transfers.time_ns);
        let mean_us = mean_us(transfers.time_ns, transfers.collectives).unwrap_or(0.0);
        TransferRow { collectives: transfers.collectives, mean_us, algbw_gb_s, busbw_gb_s }
    });
    SizeRow {
        max_size_bytes: row.max_bytes,
        calls: row.totals.calls,
        bytes: row.totals.bytes,
        time_s: seconds(row.totals.time_ns),
        mean_us: mean_us(row.totals.time_ns, row.durations.count()),
        median_us: quantile(0.5),
        p99_us: quantile(0.99),
        max_us: (row.durations.count() > 0).then(|| microseconds(row.max_ns)),
        algbw_gb_s,
        busbw_gb_s,
        transfer,
        ..SizeRow::default()
    }
}

fn variants(row: &Row, names: &NameTable) -> Vec<VariantRow> {
    let one = |(variant, calls): &(Variant, u64)| VariantRow {
        dtype: names.name(variant.dtype, |code| DataType::from_code(code).known_name()),
        algorithm: names.name(variant.algorithm, |code| Algorithm::from_code(code).known_name()),
        protocol: names.name(variant.protocol, |code| Protocol::from_code(code).known_name()),
        calls: *calls,
    };
    let mut all: Vec<VariantRow> = row.variants.iter().map(one).collect();
    all.sort_by(|a, b| (b.calls, a).cmp(&(a.calls, b)));
    all
}

pub(super) fn communicators(selected: &Selected<'_>) -> Vec<CommunicatorRow> {
    // Communicators without an id are told apart by their names.
    type Key<'a> = (u64, u32, &'a str);
    let mut all: BTreeMap<Key<'_>, (&Communicator, BTreeSet<u32>, Totals)> = BTreeMap::new();
    for file in &selected.files {
        for (communicator, totals) in &file.communicators {
            let name = if communicator.id == 0 { communicator.name.as_str() } else { "" };
            let key = (communicator.id, communicator.ranks, name);
            let (_, ranks, sum) = all
                .entry(key)
                .or_insert_with(|| (communicator, BTreeSet::new(), Totals::default()));
            ranks.extend(file.rank());
            sum.merge(totals);
        }
    }
    let row =
        |(communicator, ranks, totals): (&Communicator, BTreeSet<u32>, Totals)| CommunicatorRow {
            id: communicator.hex_id(),
            name: communicator.name.clone(),
            ranks: communicator.ranks,
            nodes: communicator.nodes,
            job_ranks: format_ranges(&ranks.into_iter().collect::<Vec<_>>()),
            calls: totals.calls,
            bytes: totals.bytes,
            time_s: seconds(totals.time_ns),
        };
    let mut rows: Vec<CommunicatorRow> = all.into_values().map(row).collect();
    rows.sort_by(|a, b| b.time_s.total_cmp(&a.time_s).then_with(|| a.id.cmp(&b.id)));
    rows
}

/// The files of each process, which has one per library.
fn processes<'a>(selected: &Selected<'a>) -> Vec<Vec<(usize, &'a FileSummary)>> {
    let mut all: BTreeMap<_, Vec<(usize, &FileSummary)>> = BTreeMap::new();
    for (position, file) in selected.files.iter().copied().enumerate() {
        let pid = file.process.as_ref().map_or(0, |process| process.pid);
        all.entry((file.restart(), file.rank(), file.host(), pid))
            .or_default()
            .push((position, file));
    }
    all.into_values().collect()
}

pub(super) fn ranks(selected: &Selected<'_>, stats: &MatchStats) -> Vec<RankRow> {
    let mut rows: Vec<(u64, RankRow)> = Vec::new();
    for files in processes(selected) {
        let mut arrivals = ArrivalStats::default();
        for (position, _) in &files {
            let file = &stats.arrivals[*position];
            arrivals.collectives += file.collectives;
            arrivals.last += file.last;
            arrivals.waited_ns = arrivals.waited_ns.saturating_add(file.waited_ns);
            arrivals.delay_ns = arrivals.delay_ns.saturating_add(file.delay_ns);
        }
        rows.push((arrivals.delay_ns, rank_row(&files, &arrivals)));
    }
    // Stable: ranks that caused no wait stay in order.
    rows.sort_by_key(|(delay, _)| std::cmp::Reverse(*delay));
    rows.into_iter().map(|(_, row)| row).collect()
}

fn rank_row(files: &[(usize, &FileSummary)], arrivals: &ArrivalStats) -> RankRow {
    let mut totals = Totals::default();
    let mut row = RankRow::default();
    for (_, file) in files {
        totals.merge(&file.totals);
        row.rank = file.rank();
        file.host().clone_into(&mut row.host);
        row.pid = file.process.as_ref().map_or(0, |process| process.pid);
        row.attempt = file.restart();
        row.unfinished += file.unfinished;
        row.lost = row.lost.saturating_add(file.lost.events).saturating_add(file.lost.operations);
        row.send_wait_s += seconds(file.network_wait_ns[0]);
        row.receive_wait_s += seconds(file.network_wait_ns[1]);
        // Libraries may run at the same time: the busier one counts.
        row.busy_share = busy_share(file).into_iter().chain(row.busy_share).reduce(f64::max);
    }
    RankRow {
        calls: totals.calls,
        bytes: totals.bytes,
        time_s: seconds(totals.time_ns),
        matched: arrivals.collectives,
        last: arrivals.last,
        mean_delay_us: mean_us(arrivals.delay_ns, arrivals.last),
        mean_wait_us: mean_us(arrivals.waited_ns, arrivals.collectives),
        ..row
    }
}

pub(super) fn in_flight(selected: &Selected<'_>) -> Vec<InFlight> {
    let mut rows = Vec::new();
    for file in &selected.files {
        for operation in &file.in_flight {
            let communicator = file
                .communicators
                .iter()
                .find(|(communicator, _)| communicator.index == operation.communicator);
            let last = file.span.map_or(0, |(_, last)| last);
            rows.push(InFlight {
                rank: file.rank(),
                host: file.host().to_owned(),
                communicator: communicator.map(|(c, _)| c.label()).unwrap_or_default(),
                operation: kind_name(operation.kind, &file.names),
                index: operation.index,
                peer: operation.peer,
                size_bytes: operation.bytes,
                age_s: seconds(last.saturating_sub(nanoseconds(operation.enqueued)).max(0) as u64),
            });
        }
    }
    rows
}

pub(super) fn clocks(selected: &Selected<'_>) -> Vec<ClockRow> {
    let processes = |clock: usize| selected.clocks.iter().filter(|c| **c == clock).count();
    let all = selected.hosts.iter().zip(&selected.alignments).enumerate();
    all.map(|(clock, (host, alignment))| ClockRow {
        host: (*host).to_owned(),
        processes: processes(clock),
        offset_s: alignment.offset as f64 / 1e9,
        uncertainty_us: alignment.uncertainty.map(microseconds),
        deviation_us: alignment.uncertainty.map(|_| microseconds(alignment.deviation)),
    })
    .collect()
}

pub(super) fn file(file: &FileSummary) -> FileRow {
    let (end, damaged_at) = match &file.end {
        FileEnd::Read(ReadEnd::Complete) => ("complete", None),
        FileEnd::Read(ReadEnd::Open) => ("open", None),
        FileEnd::Read(ReadEnd::Damaged { offset, .. }) => ("damaged", Some(*offset)),
        FileEnd::Unreadable(_) => ("unreadable", None),
    };
    FileRow {
        name: file.name.clone(),
        rank: file.rank(),
        attempt: file.restart(),
        end: end.to_owned(),
        damaged_at,
        calls: file.totals.calls,
    }
}
