use proptest::prelude::*;
use regatta_events::file::{Damage, Lost, Record};
use regatta_events::operation::{DataType, Name, OperationKind, Process, Timing};
use regatta_model::document;

use super::*;
use crate::analyse::comms::testing::{
    SECOND, all_reduce, all_reduces, file, file_with, process, sync, world,
};

fn analysis(files: Vec<FileSummary>) -> Analysis {
    let mut analysis = Analysis::default();
    files.into_iter().for_each(|file| analysis.add(file));
    analysis
}

fn report(files: Vec<FileSummary>) -> CommsReport {
    let analysis = analysis(files);
    analysis.report(&analysis.select(Attempts::Last))
}

fn codes(report: &CommsReport) -> Vec<&str> {
    report.warnings.iter().map(|warning| warning.code.as_str()).collect()
}

#[test]
fn rows_have_calls_collectives_times_and_bandwidths() {
    let report = report(vec![
        all_reduces(process(0, "a"), 2, &[(0, 4000, 0, 9000), (1, 4000, 10_000, 12_000)]),
        all_reduces(process(1, "a"), 2, &[(0, 4000, 0, 9000), (1, 4000, 11_000, 12_000)]),
    ]);
    let [row] = &report.histogram[..] else { panic!("{:?}", report.histogram) };
    assert_eq!((row.operation.as_str(), row.ranks, row.size_bytes), ("all-reduce", Some(2), 4000));
    assert_eq!((row.calls, row.collectives, row.bytes), (4, Some(2), 16_000));
    assert_eq!((row.time_s, row.mean_us, row.max_us), (21e-6, Some(5.25), Some(9.0)));
    // 16,000 bytes in 21 µs; the bus factor of an all-reduce of two ranks is 1.
    assert_eq!(row.algbw_gb_s, Some(16.0 / 21.0));
    assert_eq!(row.busbw_gb_s, row.algbw_gb_s);
    let transfer = row.transfer.as_ref().unwrap();
    assert_eq!((transfer.collectives, transfer.mean_us, transfer.busbw_gb_s), (1, 1.0, Some(4.0)));
    assert_eq!(row.variants[0].dtype, "f32");
    assert_eq!((report.summary.calls, report.summary.processes, report.summary.hosts), (4, 2, 1));
    assert_eq!(report.summary.wall_s, 12e-6);
    assert_eq!(codes(&report), [""; 0]);
    let json = document::to_json(&report).unwrap();
    assert_eq!(document::from_json::<CommsReport>(&json).unwrap(), report);
}

#[test]
fn the_last_rank_is_named_with_its_delay() {
    // Rank 2 is 5 µs late at the collectives 1 and 2, rank 0 by 1 µs at the third.
    let calls = |starts: [u64; 3]| {
        let call = |n: usize, start: u64| (n as u64 + 1, 8, start, 100_000 * (n as u64 + 1));
        starts.iter().enumerate().map(|(n, start)| call(n, *start)).collect::<Vec<_>>()
    };
    for last_host in ["a", "b"] {
        // Ends are simultaneous: also the clocks of two hosts tell who is late.
        let report = report(vec![
            all_reduces(process(0, "a"), 3, &calls([10_000, 110_000, 211_000])),
            all_reduces(process(1, "a"), 3, &calls([10_000, 110_000, 210_000])),
            all_reduces(process(2, last_host), 3, &calls([15_000, 115_000, 210_000])),
        ]);
        let found: Vec<_> =
            report.ranks.iter().map(|r| (r.rank, r.last, r.mean_delay_us)).collect();
        assert_eq!(found, [(Some(2), 2, Some(5.0)), (Some(0), 1, Some(1.0)), (Some(1), 0, None)]);
        assert_eq!(report.ranks[2].mean_wait_us, Some(11.0 / 3.0));
        assert_eq!((report.summary.matched_collectives, report.ranks[0].matched), (3, 3));
    }
}

#[test]
fn clocks_of_hosts_are_aligned_by_their_collectives() {
    // The clock of b is 5 s behind; the real-time clocks differ by 2 ms. Rank 1 is 300 µs late.
    let file = |host: &str, behind: u64, realtime: u64, late: u64| {
        let rank = u32::from(host == "b");
        let mut records =
            vec![Record::Communicator(world(rank, 2)), sync(10 * SECOND - behind, realtime)];
        for index in 0..10 {
            let start = 10 * SECOND + index * 1_000_000;
            let (start, end) = (start + late - behind, start + 310_000 - behind);
            records.push(Record::Operation(all_reduce(index, 8, start, end)));
        }
        file(process(rank, host), records)
    };
    let report = report(vec![
        file("a", 0, 1000 * SECOND, 0),
        file("b", 5 * SECOND, 1000 * SECOND + 2_000_000, 300_000),
    ]);
    let clock = &report.clocks[1];
    assert_eq!((clock.offset_s, clock.deviation_us), (5.0, Some(0.0)));
    assert_eq!(clock.uncertainty_us, Some(310.0));
    assert_eq!(report.summary.matched_collectives, 9);
    assert_eq!((report.summary.wall_s, report.ranks[0].rank), (0.009_31, Some(1)));
}

#[test]
fn the_last_attempt_is_reported_unless_another_is_asked_for() {
    let attempt = |restart: u32, calls: u64| {
        let calls: Vec<_> = (0..calls).map(|n| (n, 8, n * 100, n * 100 + 50)).collect();
        let process = Process { restart, ..process(0, "a") };
        all_reduces(process, 1, &calls)
    };
    let analysis = analysis(vec![attempt(2, 5), attempt(0, 3)]);
    let report = |attempts| analysis.report(&analysis.select(attempts));
    let last = report(Attempts::Last);
    assert_eq!(
        (last.summary.calls, &last.reported_attempts, &last.attempts),
        (5, &vec![2], &vec![0, 2])
    );
    assert_eq!(
        last.warnings[0].message,
        "the job has event files of attempts 0,2; this is attempt 2"
    );
    assert_eq!(report(Attempts::One(0)).summary.calls, 3);
    let all = report(Attempts::All);
    assert_eq!((all.summary.calls, all.ranks.len(), codes(&all)), (8, 2, vec![]));
    assert_eq!(report(Attempts::One(1)).summary.calls, 0);
}

#[test]
fn damages_losses_and_missing_ranks_are_warnings() {
    let mut damaged = all_reduces(Process { world_size: Some(4), ..process(0, "a") }, 2, &[]);
    damaged.end = FileEnd::Read(ReadEnd::Damaged { offset: 77, why: Damage::Checksum });
    let mut open =
        file(process(1, "a"), vec![Record::Lost(Lost { events: 5, operations: 0, unfinished: 1 })]);
    open.end = FileEnd::Read(ReadEnd::Open);
    let foreign = FileSummary {
        name: "x.events".to_owned(),
        end: FileEnd::Unreadable("permission denied".to_owned()),
        ..FileSummary::default()
    };
    let report = report(vec![damaged, open, foreign]);
    assert_eq!(codes(&report), ["damaged", "unreadable", "open", "lost", "missing-ranks"]);
    let messages: Vec<&str> = report.warnings.iter().map(|w| w.message.as_str()).collect();
    assert_eq!(messages[0], "a-1000 is damaged at byte 77: wrong checksum");
    assert_eq!(messages[1], "cannot read x.events: permission denied");
    assert_eq!(messages[2], "the files of rank 1 have no end");
    assert!(messages[3].starts_with("rank 1 lost 5 raw events"), "{}", messages[3]);
    assert_eq!(messages[4], "2 of 4 ranks have no event file");
    assert_eq!((report.files.len(), report.files[0].damaged_at), (3, Some(77)));
}

#[test]
fn names_of_files_are_told_apart() {
    let custom = |rank: u32, code: u8| {
        let kind = OperationKind::from_code(code);
        let operation =
            Operation { kind, dtype: DataType::from_code(code + 1), ..all_reduce(0, 8, 0, 5) };
        let names = [(code, "all-gather-v"), (code + 1, "complex64")];
        let mut records: Vec<Record> = names
            .iter()
            .map(|(code, text)| Record::Name(Name(*code), (*text).to_owned()))
            .collect();
        records.push(Record::Operation(operation));
        file(process(rank, "a"), records)
    };
    use regatta_events::operation::Operation;
    let report = report(vec![custom(0, 130), custom(1, 140)]);
    let [row] = &report.histogram[..] else { panic!("{:?}", report.histogram) };
    assert_eq!((row.operation.as_str(), row.calls, row.busbw_gb_s), ("all-gather-v", 2, None));
    assert_eq!((row.variants.len(), row.variants[0].dtype.as_str()), (1, "complex64"));
}

#[test]
fn operations_without_an_end_are_listed() {
    let mut hung = all_reduce(7, 64, 1000, 0);
    (hung.timing, hung.completed) = (Timing::None, false);
    let records = vec![
        Record::Communicator(world(0, 2)),
        Record::Operation(all_reduce(6, 64, 500, 2 * SECOND)),
        Record::Operation(hung),
    ];
    let report = report(vec![file(process(0, "a"), records)]);
    let [one] = &report.in_flight[..] else { panic!("{:?}", report.in_flight) };
    assert_eq!(
        (one.communicator.as_str(), one.operation.as_str(), one.index),
        ("world", "all-reduce", 7)
    );
    assert!((one.age_s - 2.0).abs() < 1e-5);
    assert_eq!((report.ranks[0].unfinished, report.histogram[0].calls), (1, 2));
    assert_eq!(report.histogram[0].mean_us, Some(1_999_999.5));
}

#[test]
fn collectives_that_differ_between_ranks_are_not_matched() {
    let report = report(vec![
        all_reduces(process(0, "a"), 2, &[(1, 8, 0, 10), (2, 8, 20, 30)]),
        all_reduces(process(1, "a"), 2, &[(1, 16, 0, 10), (2, 8, 20, 30)]),
    ]);
    assert_eq!(codes(&report), ["mismatched"]);
    assert_eq!(report.summary.matched_collectives, 1);
}

#[test]
fn few_arrivals_are_kept_and_still_match() {
    let rank = |rank: u32, max: usize| {
        let mut records = vec![Record::Communicator(world(rank, 2))];
        let call = |n: u64| all_reduce(n, 8, n * 100 + u64::from(rank), n * 100 + 50);
        records.extend((0..1000).map(|n| Record::Operation(call(n))));
        file_with(process(rank, "a"), records, max)
    };
    let (first, second) = (rank(0, 100), rank(1, 7));
    assert!(first.arrivals.len() <= 100 && second.arrivals.len() <= 7);
    assert_eq!((first.stride, second.stride), (16, 128));
    let report = report(vec![first, second]);
    assert_eq!((report.summary.matched_collectives, report.summary.matched_stride), (7, 128));
    assert_eq!((report.ranks[0].rank, report.ranks[0].last), (Some(1), 7));
    assert_eq!(report.histogram[0].calls, 2000);
}

proptest! {
    #[test]
    fn the_order_of_files_has_no_effect(
        calls in proptest::collection::vec(
            proptest::collection::vec((0u64..20, 0u64..1000, 0u64..10_000, 0u64..500), 0..20),
            1..6,
        ),
        seed in any::<u64>(),
    ) {
        let file = |rank: usize| {
            let mut calls = calls[rank].clone();
            calls.iter_mut().for_each(|call| call.3 += call.2);
            let host = if (seed >> rank) & 1 == 0 { "a" } else { "b" };
            all_reduces(process(rank as u32, host), 2, &calls)
        };
        let forward = report((0..calls.len()).map(file).collect());
        let backward = report((0..calls.len()).rev().map(file).collect());
        prop_assert_eq!(&forward, &backward);
        let total: u64 = forward.histogram.iter().map(|row| row.calls).sum();
        prop_assert_eq!(total, forward.summary.calls);
        prop_assert!(forward.ranks.iter().all(|rank| rank.busy_share.is_none_or(|s| s <= 1.0)));
    }
}
