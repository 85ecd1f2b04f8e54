//! Written results parse back, and parsed results are written unchanged.

use std::path::Path;

use proptest::collection::vec;
use proptest::option::{of, weighted};
use proptest::prelude::*;
use regatta_measure::read::read;
use regatta_measure::write::{CSV_HEADER, csv, nccl_tests};
use regatta_model::bench::{
    BenchDevice, BenchParameters, BenchProgram, BenchSummary, Operation, PairEndpoint,
    PairMatrices, SizeStep, TimeStats,
};
use regatta_model::document::{from_json, to_json};
use regatta_model::{BenchResult, BenchRow, BenchTable, Measurement, RankRoofline};

fn data(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/versions");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

#[test]
fn nccl_tests_format_is_reproduced_exactly() {
    let text = data("v2.19-all_reduce.txt");
    let mut all = read("x.txt", &text).unwrap();
    assert_eq!(all.len(), 1);
    assert_eq!(nccl_tests(&all.remove(0)), text);
}

#[test]
fn per_iteration_columns_are_written() {
    // Without timestamps.
    let text = data("v2.19-alltoall-iterations.txt");
    let found = nccl_tests(&read("x.txt", &text).unwrap()[0]);
    let trimmed = |text: &str| {
        let cut = |line: &str| {
            let end = line.find("timestamp").or(line.find("%Y-%m")).or(line.find("2026-"));
            line[..end.unwrap_or(line.len())].trim_end().to_owned()
        };
        text.lines().map(cut).collect::<Vec<_>>()
    };
    assert_eq!(trimmed(&found), trimmed(&text));
}

#[test]
fn several_operations_are_written_as_several_runs() {
    let measured = Measurement { busbw: Some(2.0), wrong: Some(3), ..Measurement::default() };
    let row = BenchRow { size_bytes: 8, out_of_place: Some(measured), ..BenchRow::default() };
    let rows = vec![row];
    let table = |operation| BenchTable { operation, rows: rows.clone(), ..BenchTable::default() };
    let tables = vec![table(Operation::AllReduce), table(Operation::SendRecv)];
    let result = BenchResult { tables, complete: true, ..BenchResult::default() };
    let text = nccl_tests(&result);
    let all = read("x.txt", &text).unwrap();
    let found: Vec<_> = all.iter().map(|run| run.tables[0].operation.clone()).collect();
    assert_eq!(found, [Operation::AllReduce, Operation::SendRecv]);
    assert!(all.iter().all(|run| run.summary.as_ref().unwrap().out_of_bounds == Some(3)), "{text}");
    assert_eq!(csv(&[result]).lines().count(), 3);
}

#[test]
fn the_average_over_no_bandwidths_is_zero() {
    let table = BenchTable { rows: vec![BenchRow::default()], ..BenchTable::default() };
    let result = BenchResult { tables: vec![table], complete: true, ..BenchResult::default() };
    assert!(nccl_tests(&result).contains("\n# Avg bus bandwidth    : 0 \n"));
}

#[test]
fn rooflines_and_pairs_have_their_own_csv_columns() {
    let roofline = vec![RankRoofline { rank: 3, host: "n,1".to_owned(), ..<_>::default() }];
    let endpoints = [0, 4].map(|rank| PairEndpoint { rank, host: "n".to_owned() }).to_vec();
    let bandwidth = vec![vec![None, Some(2.5)], vec![None, None]];
    let pairs = Some(PairMatrices { endpoints, bandwidth, ..<_>::default() });
    let expected = "label,rank,host,benchmark,case,device,unit,median,best,time_us,repetitions\n\
        ,3,\"n,1\",gemm,,,GFLOP/s,0,0,0,0\n\n\
        label,from_rank,from_host,to_rank,to_host,bandwidth_gb_s,latency_us,latency_median_us\n\
        ,0,n,4,n,2.5,,\n";
    assert_eq!(csv(&[BenchResult { roofline, pairs, ..<_>::default() }]), expected);
}

/// Values that fit nccl-tests' columns: two decimals.
fn short(max: u32) -> BoxedStrategy<Option<f64>> {
    weighted(0.9, (0..max).prop_map(|n| f64::from(n) / 100.0)).boxed()
}

fn any_value(_: u32) -> BoxedStrategy<Option<f64>> {
    let tiny = (0.0..1.0f64).prop_map(|x| x * 1e-12);
    weighted(0.9, prop_oneof![0.0..1e3f64, 0.0..1e18f64, tiny]).boxed()
}

type ValueStrategy = fn(u32) -> BoxedStrategy<Option<f64>>;

fn measurement(value: ValueStrategy, all_columns: bool) -> impl Strategy<Value = Measurement> {
    let time = move || value(999_999);
    let rest = move || if all_columns { time() } else { Just(None).boxed() };
    let stats = (time(), time(), time(), time(), rest(), rest(), rest());
    let stats = stats.prop_map(|(min_us, max_us, p99_us, cv_percent, p50_us, p90_us, p95_us)| {
        let stats = TimeStats { min_us, max_us, p99_us, cv_percent, p50_us, p90_us, p95_us };
        (stats != TimeStats::default()).then_some(stats)
    });
    let iterations = if all_columns { of(any::<u64>()).boxed() } else { Just(None).boxed() };
    let other = (of(0u64..999_999), stats, rest(), iterations);
    (time(), value(99_999), value(99_999), other).prop_map(|(time_us, algbw, busbw, other)| {
        let (wrong, call_stats, error, iterations) = other;
        let times = Measurement { time_us, algbw, busbw, call_stats, ..Measurement::default() };
        Measurement { wrong, error, iterations, ..times }
    })
}

fn row(value: ValueStrategy, all_columns: bool) -> impl Strategy<Value = BenchRow> {
    let measured = move || of(measurement(value, all_columns));
    let both = (measured(), measured());
    let both = both.prop_filter("something", |(a, b)| a.is_some() || b.is_some());
    (any::<u64>(), of(any::<u64>()), both).prop_map(|(size_bytes, count, both)| {
        let (out_of_place, in_place) = both;
        BenchRow { size_bytes, count, out_of_place, in_place, line: None }
    })
}

fn tables(value: ValueStrategy, all_columns: bool) -> impl Strategy<Value = Vec<BenchTable>> {
    let operation = (0..11usize).prop_map(|at| Operation::KNOWN[at].clone());
    let redop = of(prop_oneof![Just("sum".to_owned()), Just("none".to_owned())]);
    let rows = vec(vec(row(value, all_columns), 1..6), 1..4);
    (operation, redop, of(-1i64..9), rows).prop_map(|(operation, redop, root, rows)| {
        let dtypes = [Some("float".to_owned()), None, Some("int8".to_owned())];
        let one = |(rows, dtype)| {
            let (operation, redop) = (operation.clone(), redop.clone());
            BenchTable { operation, dtype, redop, root, rows }
        };
        rows.into_iter().zip(dtypes).map(one).collect()
    })
}

fn parameters() -> impl Strategy<Value = BenchParameters> {
    let step = prop_oneof![
        any::<u64>().prop_map(SizeStep::Factor),
        any::<u64>().prop_map(SizeStep::Bytes)
    ];
    let options = (of(any::<u64>()), of(any::<u64>()), of(any::<u64>()));
    (any::<[u64; 7]>(), step, options).prop_map(|(n, step, (agg_iters, graph, unalign))| {
        let [threads, devices, min_bytes, max_bytes, warmup, iterations, check] = n;

        let base =
            BenchParameters { threads, devices, min_bytes, max_bytes, step, ..<_>::default() };
        BenchParameters { warmup, iterations, agg_iters, check, graph, unalign, ..base }
    })
}

fn device() -> impl Strategy<Value = BenchDevice> {
    // Without "gfx" in the name, which makes the device an AMD GPU, and the program rccl-tests.
    let names = ("[a-z][a-z0-9-]{0,12}", "[0-9a-f:.]{1,9}", "[A-Z][a-fh-z ]{0,9}[a-z0-9]");
    let ids = (0u32..99, of(0u32..9), any::<u64>(), 0u32..16);
    (ids, names).prop_map(|((rank, group, pid, device), (host, bus, name))| BenchDevice {
        rank,
        group,
        pid,
        host,
        device,
        bus,
        name,
    })
}

/// A run as nccl-tests could have printed it.
fn printed(value: ValueStrategy) -> impl Strategy<Value = BenchResult> {
    let summary = (any::<u32>(), value(99_999), of(any::<bool>()));
    let summary = summary.prop_map(|(wrong, mean, average_ok)| {
        // A run without a mean is incomplete.
        let (out_of_bounds, average_busbw) = (Some(wrong.into()), Some(mean.unwrap_or(1.0)));
        BenchSummary { out_of_bounds, average_busbw, average_ok }
    });
    let notes = vec("# [A-Z][a-z ]{0,20}[a-z]", 0..3);
    let around = (of(parameters()), vec(device(), 0..4), notes, of(summary));
    (tables(value, false), around).prop_map(|(tables, (parameters, devices, notes, summary))| {
        let (complete, program) = (summary.is_some(), BenchProgram::NcclTests);
        let label = "x".to_owned();
        let result = BenchResult { program, label, tables, complete, ..BenchResult::default() };
        BenchResult { parameters, devices, notes, summary, ..result }
    })
}

/// Removes what only the text contains.
fn plain(mut result: BenchResult, like: &BenchResult) -> BenchResult {
    result.tables.iter_mut().flat_map(|t| &mut t.rows).for_each(|row| row.line = None);
    BenchResult { command: None, shape: like.shape.clone(), ..result }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 100, failure_persistence: None, ..<_>::default() })]

    #[test]
    fn nccl_tests_output_round_trips(result in printed(short)) {
        let text = nccl_tests(&result);
        let mut all = read("x.txt", &text).unwrap();
        prop_assert_eq!(all.len(), 1, "{}", text);
        prop_assert_eq!(plain(all.remove(0), &result), result, "{}", text);
    }

    #[test]
    fn rewriting_parsed_output_is_idempotent(result in printed(any_value)) {
        let text = nccl_tests(&result);
        let all = read("x.txt", &text).unwrap();
        prop_assert_eq!(nccl_tests(&all[0]), text);
    }

    #[test]
    fn csv_round_trips(
        tables in tables(any_value, true), label in ".{1,12}", backend in of("[a-z\", ]{1,5}"),
        ranks in of(1u32..9), nodes in of(1u32..9), text in "\\PC{0,9}",
    ) {
        let mut one = BenchResult { program: BenchProgram::Osu, label, tables, ..BenchResult::default() };
        (one.backend, one.shape.ranks, one.shape.nodes) = (backend, ranks, nodes);
        one.complete = true;
        let mut two = one.clone();
        two.label.push_str("\n2");
        two.tables[0].redop = Some(format!("r{text}"));
        let all = vec![one, two];
        prop_assert_eq!(read("x.csv", &csv(&all)).unwrap(), all);
    }

    #[test]
    fn json_documents_round_trip(tables in tables(any_value, true), label in ".*") {
        let result = BenchResult { label, tables, ..BenchResult::default() };
        let text = to_json(&result).unwrap();
        prop_assert_eq!(from_json::<BenchResult>(&text).unwrap(), result.clone());
        prop_assert_eq!(read("x.json", &text).unwrap(), vec![result]);
    }

    #[test]
    fn parsing_never_panics(text in "[#0-9a-z \t\n.,{}\"`:-]{0,300}", header in 0usize..5) {
        let headers = [
            "# size count type redop root time algbw busbw #wrong time algbw busbw #wrong\n",
            "# OSU MPI Latency Test v7\n# Size  Latency (us)\n",
            "size_bytes,time_us,place\n",
            "Message Size\tA\tB\n",
            "",
        ];
        if let Ok(all) = read("x", &format!("{}{text}", headers[header])) {
            for result in &all {
                let again = to_json(result).unwrap();
                prop_assert_eq!(&from_json::<BenchResult>(&again).unwrap(), result);
            }
        }
    }
}

#[test]
fn all_csv_columns_are_parsed() {
    let values = "1,osu,2,3,4,5,6,7,8,9,10,in-place,12,13,14,15,16,17,18,19,20,21,22,23,24";
    let text = format!("{CSV_HEADER}\n{values}\n");
    let all = read("x.csv", &text).unwrap();
    assert_eq!(csv(&all), text, "no column is ignored");
}
