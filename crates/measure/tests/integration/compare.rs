//! Comparison of results, baseline checks and plots.

use std::path::Path;

use proptest::prelude::*;
use regatta_measure::baseline::{Tolerance, check};
use regatta_measure::buffer_mode::BufferMode;
use regatta_measure::compare::{CompareOptions, Comparison, compare, csv};
use regatta_measure::metric::Metric;
use regatta_measure::plot::{html, svg};
use regatta_measure::read::read;
use regatta_measure::write;
use regatta_model::bench::BenchProgram;
use regatta_model::{BenchResult, BenchRow, BenchTable, Measurement, Operation};

fn talk() -> Vec<BenchResult> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data/frontier-rccl.txt");
    read("frontier-rccl.txt", &std::fs::read_to_string(path).unwrap()).unwrap()
}

/// The two-node runs: no plug-in, plug-in, plug-in with RDMA.
fn on_two_nodes() -> Vec<BenchResult> {
    let mut runs = talk();
    runs.retain(|run| run.program == BenchProgram::RcclTests && run.shape.nodes == Some(2));
    runs
}

fn column(comparison: &Comparison, index: usize) -> Vec<f64> {
    comparison.rows.iter().map(|row| row.values[index].unwrap()).collect()
}

#[test]
fn the_comparison_of_a_talk_is_reproduced() {
    let labels = ["No Plugin", "With Plugin", "With Plugin+GDR=3"];
    let chart = talk().into_iter().filter(|result| labels.contains(&result.label.as_str()));
    let all: Vec<BenchResult> = on_two_nodes().into_iter().chain(chart).collect();
    assert_eq!(all.len(), 6);
    let found = &compare(&all, CompareOptions::default())[0];
    assert_eq!((found.place, found.metric), (BufferMode::InPlace, Metric::BusBandwidth));
    assert_eq!((found.rows.len(), &found.operation), (17, &Operation::AllReduce));
    for index in 0..3 {
        assert_eq!(column(found, index), column(found, index + 3));
    }
    let last = &found.rows[16];
    assert_eq!(last.ratios[0], Some(1.0));
    assert_eq!(last.ratios[2], Some(109.01 / 8.03));
}

#[test]
fn comparisons_as_text_and_csv() {
    let options = CompareOptions { place: Some(BufferMode::InPlace), metric: None };
    let found = compare(&on_two_nodes(), options);
    let text = found[0].text();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "all-reduce of float, in-place, bus bandwidth in GB/s");
    // The label is too long for a column.
    assert_eq!(lines[2], "#2  RCCL Test Data - 2 Nodes with the Plugin");
    assert_eq!(lines.len(), 1 + 3 + 1 + 1 + 17);
    let cells: Vec<&str> = lines.last().unwrap().split_whitespace().collect();
    assert_eq!(cells, ["4", "GiB", "8.03", "56.85", "×7.08", "109.01", "×13.58"]);
    let values = csv(&found);
    assert_eq!(values.lines().count(), 1 + 3 * 17);
    assert!(values.ends_with(&format!(",109.01,{}\n", 109.01 / 8.03)), "{values}");
}

/// A result with one table.
fn result(label: &str, rows: &[(u64, Measurement)]) -> BenchResult {
    let row = |(size_bytes, measured): (u64, Measurement)| BenchRow {
        size_bytes,
        out_of_place: Some(measured),
        ..BenchRow::default()
    };
    let (operation, rows) = (Operation::AllReduce, rows.iter().cloned().map(row).collect());
    let table = BenchTable { operation, rows, ..BenchTable::default() };
    BenchResult { label: label.to_owned(), tables: vec![table], ..BenchResult::default() }
}

fn busbw(value: f64) -> Measurement {
    Measurement { busbw: Some(value), ..Measurement::default() }
}

fn timed(value: f64) -> Measurement {
    Measurement { time_us: Some(value), ..Measurement::default() }
}

#[test]
fn missing_sizes_stay_empty() {
    let a = result("a", &[(8, busbw(2.0)), (16, busbw(0.0))]);
    let b = result("b", &[(16, busbw(3.0)), (32, busbw(4.0)), (32, busbw(6.0))]);
    let found = compare(&[a, b], CompareOptions::default());
    let rows: Vec<_> = found[0].rows.iter().map(|row| (row.size_bytes, &row.values[..])).collect();
    // Repeated sizes are averaged.
    let expected = [(8, [Some(2.0), None]), (16, [Some(0.0), Some(3.0)]), (32, [None, Some(5.0)])];
    assert_eq!(rows, expected.each_ref().map(|(size, values)| (*size, &values[..])));
    assert!(found[0].rows.iter().all(|row| row.ratios[1].is_none()));
    assert!(compare(&[], CompareOptions::default()).is_empty());
}

#[test]
fn missing_bandwidths_are_derived_from_times() {
    let mut run = result("osu", &[(1000, timed(1.0))]);
    run.shape.ranks = Some(4);
    let found = compare(std::slice::from_ref(&run), CompareOptions::default());
    assert_eq!(found[0].rows[0].values, [Some(1.5)]);
    // OSU's all-gather size is one chunk.
    (run.program, run.tables[0].operation) = (BenchProgram::Osu, Operation::AllGather);
    assert!(compare(&[run], CompareOptions::default()).is_empty());
}

fn tolerance() -> Tolerance {
    "10%".parse().unwrap()
}

#[test]
fn tolerances_are_percentages() {
    assert_eq!(tolerance().fraction, 0.1);
    assert_eq!(" 2.5 %".parse::<Tolerance>().unwrap().to_string(), "2.5%");
    for bad in ["10", "", "%", "-1%", "101%", "nan%", "inf%", "ten%"] {
        let error = bad.parse::<Tolerance>().unwrap_err().to_string();
        assert!(error.contains("such as 10%"), "{error}");
    }
}

#[test]
fn the_baseline_check_passes_within_and_fails_outside_the_tolerance() {
    let old = result("old", &[(1 << 20, busbw(20.0)), (1 << 21, busbw(40.0))]);
    assert!(check(&old, &old, tolerance()).passed());
    let near = result("near", &[(1 << 20, busbw(18.0)), (1 << 21, busbw(50.0))]);
    assert!(check(&near, &old, tolerance()).passed());
    let slow = result("slow", &[(1 << 20, busbw(20.0)), (1 << 21, busbw(20.0))]);
    let report = check(&slow, &old, tolerance());
    assert!(!report.passed());
    assert_eq!(
        report.failures(),
        ["all-reduce of 2 MiB (2097152 B), out-of-place: 20.00 GB/s, baseline 40.00 GB/s: \
          0.500 x the baseline, tolerance 10%"]
    );
}

#[test]
fn low_bandwidths_are_compared_by_time() {
    let with_time = |value, time| Measurement { time_us: Some(time), ..busbw(value) };
    let old = result("old", &[(8, with_time(0.01, 10.0))]);
    let now = |time| check(&result("new", &[(8, with_time(0.0, time))]), &old, tolerance());
    assert_eq!(now(10.9).checks[0].metric, Metric::Time);
    assert!(now(10.9).passed() && !now(11.1).passed());
}

#[test]
fn missing_and_wrong_rows_fail_the_baseline_check() {
    let old = result("old", &[(8, timed(1.0)), (16, timed(2.0))]);
    let report = check(&result("cut", &[(8, timed(1.0))]), &old, tolerance());
    assert_eq!((report.passed(), report.failures().len()), (false, 1));
    assert!(report.failures()[0].contains("16 B, out-of-place: not measured in this run"));
    let wrong = Measurement { wrong: Some(3), ..timed(1.0) };
    let report = check(&result("bad", &[(8, wrong), (16, timed(2.0))]), &old, tolerance());
    assert_eq!(report.failures(), ["all-reduce of 8 B, out-of-place: 3 wrong elements"]);
    let nothing = BenchResult::default();
    assert!(!check(&old, &nothing, tolerance()).passed(), "an empty baseline never passes");
}

#[test]
fn rows_of_0_bytes_are_skipped_if_there_are_others() {
    let old = result("old", &[(0, timed(1.0)), (8, timed(1.0))]);
    let report = check(&result("new", &[(0, timed(9.0)), (8, timed(1.0))]), &old, tolerance());
    assert!(report.passed() && report.checks.len() == 1, "{report:?}");
    assert!(check(&result("new", &[(8, timed(1.0))]), &old, tolerance()).passed());
    // A barrier has only size 0.
    let old = result("old", &[(0, timed(1.0))]);
    assert!(!check(&result("new", &[(0, timed(9.0))]), &old, tolerance()).passed());
}

#[test]
fn rows_of_0_bytes_do_not_count_for_the_mean() {
    let result = result("run", &[(0, busbw(0.0)), (8, busbw(3.0))]);
    let text = write::footer(&result, &Operation::AllReduce);
    assert!(text.contains(": 3 \n"), "{text}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn baseline_checks_are_monotonic(
        old in 1.5f64..200.0, one in 1.5f64..200.0, other in 1.5f64..200.0, percent in 0u32..=100,
    ) {
        let tolerance: Tolerance = format!("{percent}%").parse().unwrap();
        let old = result("old", &[(8, busbw(old))]);
        let passes = |value| check(&result("new", &[(8, busbw(value))]), &old, tolerance).passed();
        prop_assert!(passes(one.max(other)) || !passes(one.min(other)));
    }

    #[test]
    fn labels_are_escaped_in_plots(label in "\\PC*|[<>&\"'\0-\u{1f}]*") {
        let runs = [result(&label, &[(8, busbw(1.0)), (0, busbw(2.0))])];
        for text in [svg(&runs, &Operation::AllReduce, None).unwrap(), html(&label, &runs, None)] {
            well_formed(&text);
        }
    }
}

/// Checks that tags are balanced and entities valid.
fn well_formed(text: &str) {
    let mut open: Vec<&str> = Vec::new();
    let mut rest = text;
    while let Some(start) = rest.find('<') {
        let end = start + rest[start..].find('>').unwrap();
        let tag = &rest[start + 1..end];
        assert!(!tag.contains('<'), "{tag}");
        let name = tag.split([' ', '/']).find(|word| !word.is_empty()).unwrap();
        match tag {
            _ if tag.starts_with('!') || tag.starts_with("meta") || tag.ends_with('/') => {}
            _ if tag.starts_with('/') => assert_eq!(open.pop(), Some(name)),
            _ => open.push(name),
        }
        rest = &rest[end + 1..];
    }
    assert!(open.is_empty(), "{open:?}");
    let entities = ["&amp;", "&lt;", "&gt;", "&quot;", "&#39;"];
    for (at, _) in text.match_indices('&') {
        assert!(entities.iter().any(|entity| text[at..].starts_with(entity)));
    }
    // The control characters that XML allows.
    assert!(!text.chars().any(|c| c.is_control() && !matches!(c, '\t' | '\n' | '\r')));
}

#[test]
fn a_plot_has_both_panels_and_all_runs() {
    let runs = on_two_nodes();
    let text = svg(&runs, &Operation::AllReduce, None).unwrap();
    well_formed(&text);
    assert!(text.contains(">bus bandwidth in GB/s<") && text.contains(">time<"));
    assert_eq!(text.matches("<polyline").count(), 6);
    assert_eq!(text.matches("class=\"mark").count(), 3 + 6 * 17);
    assert!(text.contains("role=\"img\"") && text.contains("prefers-color-scheme:dark"));
    assert!(svg(&runs, &Operation::Gather, None).is_none());
    let page = html("Frontier", &runs, None);
    well_formed(&page);
    assert_eq!(page.matches("<tr>").count(), 18);
    assert_eq!(page.matches("http://").count(), page.matches("xmlns=").count());
}

#[test]
fn a_plot_shows_the_requested_mode() {
    let mut runs = [result("run", &[(8, busbw(1.0)), (64, busbw(2.0))])];
    for row in runs[0].tables.iter_mut().flat_map(|table| &mut table.rows) {
        row.out_of_place = Some(busbw(1.0));
        row.in_place = Some(busbw(7.0));
    }
    let plots =
        |place| [svg(&runs, &Operation::AllReduce, place).unwrap(), html("x", &runs, place)];
    for (place, name, value) in [
        (None, "out-of-place", "1.00"),
        (Some(BufferMode::OutOfPlace), "out-of-place", "1.00"),
        (Some(BufferMode::InPlace), "in-place", "7.00"),
    ] {
        let [drawn, page] = plots(place);
        assert!(drawn.contains(&format!("all-reduce, {name}, by size")), "{drawn}");
        assert!(page.contains(&format!("all-reduce, {name}, by size")), "{page}");
        assert!(page.contains(&format!("<td>{value}</td>")), "{page}");
    }
}
