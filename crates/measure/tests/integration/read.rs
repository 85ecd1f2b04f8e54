//! Parses outputs of real and synthetic runs without loss.

use std::collections::HashSet;
use std::path::Path;

use regatta_measure::buffer_mode::BufferMode;
use regatta_measure::bus_bandwidth::bandwidth;
use regatta_measure::read::{ReadError, read};
use regatta_model::bench::{BenchProgram, SizeStep};
use regatta_model::{BenchResult, BenchRow, Measurement, Operation, document};

fn data(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    std::fs::read_to_string(folder.join(name)).unwrap()
}

fn results(name: &str) -> Vec<BenchResult> {
    read(name, &data(name)).unwrap()
}

fn only(name: &str) -> BenchResult {
    let mut all = results(name);
    assert_eq!(all.len(), 1, "{name}");
    all.remove(0)
}

/// The out-of-place measurement of row `at` of the first table.
fn out_of_place(result: &BenchResult, at: usize) -> &Measurement {
    result.tables[0].rows[at].out_of_place.as_ref().unwrap()
}

/// The in-place measurement of row `at` of the first table.
fn in_place(result: &BenchResult, at: usize) -> &Measurement {
    result.tables[0].rows[at].in_place.as_ref().unwrap()
}

/// Values of a row, in the order of nccl-tests' columns.
fn values(row: &BenchRow) -> Vec<f64> {
    let of = |place: BufferMode| {
        let m = place.measurement(row).unwrap();
        [m.time_us.unwrap(), m.algbw.unwrap(), m.busbw.unwrap(), m.wrong.unwrap() as f64]
    };
    BufferMode::ALL.into_iter().flat_map(of).collect()
}

#[test]
fn tables_of_a_talk_are_parsed_without_loss() {
    let all = results("frontier-rccl.txt");
    let mut parsed: HashSet<String> = HashSet::new();
    let cells = |line: &str| line.split('\t').map(|c| c.trim().to_owned()).collect::<Vec<_>>();
    for result in &all {
        let rows = result.tables.iter().flat_map(|table| &table.rows);
        parsed.extend(rows.map(|row| cells(row.line.as_deref().unwrap()).join("\t")));
        parsed.extend(result.raw_tables.iter().flat_map(|s| &s.rows).map(|row| row.join("\t")));
        parsed.extend(result.raw_tables.iter().map(|sheet| sheet.title.clone()));
    }
    let text = data("frontier-rccl.txt");
    let is_header = |line: &str| line.contains("size (B)") || line.contains("algbw (GB/s)");
    let is_chart = |line: &str| line.starts_with("Message Size\t");
    let is_row = |line: &&str| line.contains('\t') && !is_header(line) && !is_chart(line);
    let is_lost =
        |line: &&str| !parsed.contains(&cells(line).join("\t")) && !parsed.contains(line.trim());
    let lost: Vec<_> = text.lines().filter(is_row).filter(is_lost).collect();
    assert!(lost.is_empty(), "{lost:#?}");
}

#[test]
fn rows_of_a_talk_have_the_printed_values() {
    let all = results("frontier-rccl.txt");
    let is_rccl = |result: &&BenchResult| result.program == BenchProgram::RcclTests;
    let runs: Vec<&BenchResult> = all.iter().filter(is_rccl).collect();
    assert_eq!(runs.len(), 4);
    let ranks: Vec<_> = runs.iter().map(|run| (run.shape.ranks, run.shape.nodes)).collect();
    assert_eq!(ranks[0], (Some(8), Some(1)));
    assert_eq!(ranks[1..], [(Some(16), Some(2)); 3]);
    assert_eq!(runs[3].settings.get("NCCL_NET_GDR_LEVEL").map(String::as_str), Some("3"));
    for run in runs {
        let table = &run.tables[0];
        assert_eq!((run.tables.len(), table.rows.len()), (1, 17), "{}", run.label);
        assert_eq!(table.operation, Operation::AllReduce);
        for row in &table.rows {
            let words: Vec<&str> = row.line.as_deref().unwrap().split_whitespace().collect();
            let counts = (words[0].parse().unwrap(), words[1].parse().ok());
            assert_eq!((row.size_bytes, row.count), counts);
            let written: Vec<f64> = words[5..].iter().map(|w| w.parse().unwrap()).collect();
            assert_eq!(values(row), written);
            agrees(run.shape.ranks.unwrap(), row);
        }
    }
}

/// Printed bandwidths match the formulas, within the printed precision.
fn agrees(ranks: u32, row: &BenchRow) {
    for measured in BufferMode::ALL.into_iter().filter_map(|place| place.measurement(row)) {
        let time = measured.time_us.unwrap();
        let found = bandwidth(&Operation::AllReduce, ranks, row.size_bytes, time).unwrap();
        let near = |mine: f64, printed: f64| (mine - printed).abs() <= 0.006 + printed * 0.002;
        assert!(near(found.algbw, measured.algbw.unwrap()), "{found:?} {row:?}");
        assert!(near(found.busbw, measured.busbw.unwrap()), "{found:?} {row:?}");
    }
}

#[test]
fn a_table_with_one_column_per_run_becomes_several_results() {
    let all = results("frontier-rccl.txt");
    let find = |label: &str| all.iter().find(|result| result.label == label).unwrap();
    let columns = ["No Plugin", "With Plugin", "With Plugin+GDR=3", "ALGO=Ring"];
    for (label, busbw) in columns.into_iter().zip([8.03, 56.85, 109.01, 90.45]) {
        let row = find(label).tables[0].rows.last().unwrap();
        let found = (row.size_bytes, row.in_place.as_ref().unwrap().busbw);
        assert_eq!(found, (4_294_967_296, Some(busbw)), "{label}");
    }
    assert_eq!(find("No Plugin").tables[0].operation, Operation::AllReduce);
    assert_eq!(find("ALGO=Ring").shape.ranks, Some(512));
    assert_eq!(find("No Plugin #2").tables, find("No Plugin").tables);
}

#[test]
fn other_tables_are_kept_cell_by_cell() {
    let all = results("frontier-rccl.txt");
    let images = all.iter().find(|result| result.label == "TensorFlow Example").unwrap();
    let header = ["", "No Plugin", "With the Plugin", "With the Plugin + GDR=3"];
    assert_eq!(images.raw_tables[0].rows[0], header);
    let last = ["64 nodes, 512 ranks", "388282.87", "477924.70", "508689.71"];
    assert_eq!(images.raw_tables[0].rows[3], last);
    let trained = results("cray-ex-nccl.txt");
    let sheets: Vec<_> = trained.iter().flat_map(|result| &result.raw_tables).collect();
    assert_eq!(sheets.len(), 2);
    assert_eq!(sheets[0].title, "Benchmark: resnet50 with batch size 32");
    assert_eq!(sheets[0].rows[6][..4], ["8 GPUs --", "2M/8G:", "p50:", "0.026s"]);
}

#[test]
fn a_complete_run_is_parsed_with_its_metadata() {
    let run = results("cray-ex-nccl.txt").remove(0);
    assert_eq!((run.program, run.complete), (BenchProgram::NcclTests, true));
    assert_eq!((run.shape.ranks, run.shape.nodes), (Some(8), Some(2)));
    assert_eq!(run.versions["nccl"], "2.20.5+cuda12.4");
    assert_eq!(run.settings["NCCL_ALGO"], "Tree");
    let parameters = run.parameters.unwrap();
    assert_eq!((parameters.iterations, parameters.step), (100, SizeStep::Factor(2)));
    let summary = run.summary.unwrap();
    assert_eq!((summary.out_of_bounds, summary.average_busbw), (Some(0), Some(103.965)));
    let rows = &run.tables[0].rows;
    assert_eq!(rows.len(), 14);
    rows.iter().for_each(|row| agrees(8, row));
    let both = |row| BufferMode::ALL.map(|place| place.measurement(row).unwrap().busbw.unwrap());
    let mean = rows.iter().flat_map(both).sum::<f64>() / 28.0;
    assert!((mean - 103.965).abs() < 0.01, "{mean}");
}

#[test]
fn versions_without_root_and_redop_are_parsed() {
    let run = only("versions/v2.0-all_reduce.txt");
    let table = &run.tables[0];
    assert_eq!((run.shape.ranks, table.root, table.redop.as_deref()), (Some(2), None, Some("sum")));
    let (out, inside) = (out_of_place(&run, 2), in_place(&run, 2));
    assert_eq!((out.time_us, out.error), (Some(10250.0), Some(1e-7)));
    assert_eq!((inside.error, inside.wrong), (None, None));
    let gather = only("versions/v2.0-all_gather.txt");
    assert_eq!(gather.tables[0].redop, None);
    assert_eq!(gather.tables[0].operation, Operation::AllGather);
    assert_eq!(gather.parameters.unwrap().step, SizeStep::Bytes(1024));
}

#[test]
fn launcher_labels_logs_and_interrupted_rows_are_handled() {
    let run = only("versions/v2.13-reduce_scatter-labelled.log");
    let types: Vec<_> = run.tables.iter().map(|t| (t.dtype.as_deref(), t.rows.len())).collect();
    assert_eq!(types, [(Some("int8"), 2), (Some("float"), 2)]);
    assert_eq!(run.tables[0].operation, Operation::ReduceScatter);
    assert_eq!(run.tables[0].rows[1].size_bytes, 2_097_152);
    let broken = in_place(&run, 1);
    assert_eq!((broken.time_us, broken.wrong), (Some(99.5), None));
    assert_eq!(run.shape.hosts, ["node1", "node2"]);
}

#[test]
fn several_runs_and_a_truncated_one_are_parsed() {
    let all = results("versions/v2.17-broadcast-twice.txt");
    assert_eq!((all.len(), all[0].complete, all[1].complete), (2, true, false));
    assert_eq!(all[1].label, "v2.17-broadcast-twice #2");
    assert_eq!(all[0].summary.as_ref().unwrap().average_ok, Some(false));
    assert!(all.iter().all(|run| out_of_place(run, 1).wrong == Some(1_000_000)));
    assert_eq!(all[1].tables[0].rows[1].in_place, None);
    assert!(all.iter().all(|run| run.tables[0].operation == Operation::Broadcast));
}

#[test]
fn per_iteration_columns_and_timestamps_are_parsed() {
    let run = only("versions/v2.19-alltoall-iterations.txt");
    assert_eq!(run.tables[0].operation, Operation::AllToAll);
    assert_eq!(run.versions["nccl-library"], "22907");
    let stats = in_place(&run, 0).call_stats.as_ref().unwrap();
    let found = [stats.min_us, stats.p99_us, stats.cv_percent];
    assert_eq!(found, [20.0, 29.8, 4.42].map(Some));
    let line = run.tables[0].rows[0].line.as_ref().unwrap();
    assert!(line.ends_with("2026-01-02 03:04:05"), "{line}");
    assert_eq!(run.notes.len(), 1, "{:?}", run.notes);
}

#[test]
fn rccl_tests_with_in_place_only_is_parsed() {
    // Library output before the table is ignored.
    let text = data("versions/rccl-in-place.txt");
    let noisy = text.replacen("# Using", "library banner\n# Using", 1);
    let run = only("versions/rccl-in-place.txt");
    assert_eq!(read("versions/rccl-in-place.txt", &noisy).unwrap()[0], run);
    assert_eq!(run.program, BenchProgram::RcclTests);
    assert_eq!(run.versions["rccl-tests"], "develop:ae3e635");
    assert_eq!(run.tables[0].rows[0].out_of_place, None);
    assert_eq!(in_place(&run, 0).busbw, Some(7.23));
    assert_eq!(run.tables[0].operation, Operation::AllReduce, "inferred from the counts");
}

#[test]
fn nccl_tests_json_is_parsed() {
    let run = only("versions/v2.19-all_gather.json");
    assert_eq!((run.shape.ranks, run.tables[0].root), (Some(2), Some(-1)));
    assert_eq!(run.tables[0].operation, Operation::AllGather);
    assert_eq!((run.settings.len(), run.settings["NCCL_ALGO"].as_str()), (1, "Ring"));
    let (out, inside) = (out_of_place(&run, 0), in_place(&run, 0));
    assert_eq!((out.time_us, out.wrong, inside.algbw), (Some(9.25), Some(0), None));
    assert_eq!(out.call_stats.as_ref().unwrap().p95_us, Some(10.5));
}

#[test]
fn osu_micro_benchmarks_are_parsed() {
    let latency = only("osu/osu_latency.txt");
    assert_eq!(latency.tables[0].operation, Operation::Latency);
    assert_eq!(latency.tables[0].rows.len(), 3);
    assert_eq!(out_of_place(&latency, 2).time_us, Some(420.55));
    let both = only("osu/osu_bibw.txt");
    assert_eq!((both.backend.as_deref(), both.versions["osu"].as_str()), (Some("mpi-cuda"), "7.4"));
    let last = out_of_place(&both, 1);
    assert_eq!((last.algbw, last.wrong), (Some(48.23197), Some(1)));
    let full = results("osu/osu_allreduce-full.txt");
    assert_eq!(full[1].tables[0].operation, Operation::Barrier);
    assert_eq!(out_of_place(&full[1], 0).time_us, Some(4.2));
    assert_eq!(full[0].shape.ranks, Some(64));
    assert_eq!(full[0].tables[0].dtype.as_deref(), Some("MPI_FLOAT"));
    let row = out_of_place(&full[0], 1);
    assert_eq!(row.rank_stats.as_ref().unwrap().max_us, Some(812.4));
    assert_eq!((row.iterations, row.call_stats.as_ref().unwrap().p99_us), (Some(100), Some(901.0)));
    let overlapped = only("osu/osu_iallreduce.txt");
    let row = out_of_place(&overlapped, 0);
    assert_eq!((row.time_us, row.other["Overlap(%)"]), (Some(12.5), 71.35));
    let rate = only("osu/osu_mbw_mr.txt");
    let row = out_of_place(&rate, 0);
    assert_eq!((row.algbw, row.other["Messages/s"]), (Some(0.03125), 31_250_000.0));
}

#[test]
fn pages_without_comment_signs_are_parsed() {
    let text = "> mpirun -np 4 \\\n>   -npernode 2 ./all_reduce_perf -b 8\n\n```\n\
                nThread 1 nGpus 1 minBytes 8 maxBytes 8 step: 2(factor) warmup iters: 5 iters: 20 \
                validation: 1\nUsing devices\n\
                Rank  0 Group  0 Pid  1 on  a device  0 [0000:04:00] NVIDIA H100\n\
                #  Rank  3 Group  0 Pid  1 on  b device  0 [0000:04:00] NVIDIA H100\n\
                some  aligned  words\n\
                #   size   count   type  redop  root  time  algbw  busbw #wrong\n\
                     8       2  float    sum    -1  1.50   0.01   0.01      0\n```\n\
                ```\na  b  c\nd  e  f\n```\n";
    let all = read("page.md", text).unwrap();
    assert_eq!((all.len(), all[0].devices.len(), all[0].shape.nodes), (2, 2, Some(2)));
    assert_eq!(all[0].command.as_deref(), Some("mpirun -np 4 -npernode 2 ./all_reduce_perf -b 8"));
    assert_eq!(out_of_place(&all[0], 0).time_us, Some(1.5));
    assert_eq!(all[1].raw_tables[0].rows.len(), 2);
}

#[test]
fn errors_name_file_line_and_expectation() {
    let text = data("cray-ex-nccl.txt").replace("   12174 ", "   12x74 ");
    let error = read("run.txt", &text).unwrap_err();
    let ReadError::Line { line, .. } = &error else { panic!("{error}") };
    assert!(text.lines().nth(line - 1).unwrap().contains("12x74"));
    let expected = "expected a time in microseconds, found \"12x74\"";
    assert_eq!(error.to_string(), format!("run.txt, line {line}: {expected}"));
    let text = data("cray-ex-nccl.txt").replace(" 2147483648     float", "    2.15e+9     float");
    let error = read("run.txt", &text).unwrap_err().to_string();
    assert!(error.ends_with("expected a count of elements, found \"2.15e+9\""), "{error}");
    let error = read("letter.txt", "dear all,\nit is fast\n").unwrap_err().to_string();
    assert!(error.starts_with("letter.txt: found no table of nccl-tests"), "{error}");
    assert!(error.contains("in lines 1 to 2"), "{error}");
    for (name, text) in
        [("Makefile", "all:\tbuild\nbuild:\tsources\n"), ("osu.txt", "# OSU MPI Latency Test v7\n")]
    {
        let error = read(name, text).unwrap_err().to_string();
        assert!(error.starts_with(&format!("{name}: found no table")), "{error}");
    }
    let error = read("a.json", "{\"format\": \"regatta-machine/1\"}").unwrap_err().to_string();
    assert!(error.contains("a.json") && error.contains("regatta-bench/1"), "{error}");
    let error = read("a.csv", "size_bytes,time_us\n8,fast\n").unwrap_err().to_string();
    assert_eq!(error, "a.csv, line 2: expected a number for time_us, found \"fast\"");
    let error = read("osu.txt", "# OSU MPI Latency Test v7\n# Size   Latency (us)\n8  x\n");
    assert_eq!(error.unwrap_err().to_string(), "osu.txt, line 3: expected a number, found \"x\"");
}

#[test]
fn a_list_of_documents_is_parsed() {
    let mut all = results("versions/v2.19-all_reduce.txt");
    all[0].label = "with ], [ and \"},{\"".to_owned();
    all.extend(results("versions/rccl-in-place.txt"));
    let texts: Vec<String> = all.iter().map(|one| document::to_json(one).unwrap()).collect();
    for text in [format!("[{}]", texts.join(",")), format!("\n [ {} ]\n", texts.join("\n,\n"))] {
        assert_eq!(read("all.json", &text).unwrap(), all);
    }
    let error = |text: &str| read("all.json", text).unwrap_err().to_string();
    let cut = format!("[{}", texts.join(","));
    for wrong in [&cut, "[{}, 3]", "[{}]", &format!("[{}]]", texts[0]), "[{"] {
        assert!(error(wrong).starts_with("all.json: not a "), "{}", error(wrong));
    }
    assert!(error("[]").contains("no table"), "{}", error("[]"));
    assert!(error("[0] rank 0 said").contains("no table"), "a launcher label is not a list");
}
