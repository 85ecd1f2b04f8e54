//! Runs `regatta bench` and loads its results.

use std::process::Command;

use regatta_model::{BenchResult, BenchRow, Measurement, document};

use super::job::run_command;
use super::{CommandOutput, TempDir, command};

/// `regatta bench` with the given arguments in a folder.
pub fn bench(folder: &TempDir, words: &str) -> Command {
    let mut bench = command();
    // Temporary files stay in the folder. GPUs are hidden: only host backends are tested here.
    bench.env("TMPDIR", folder.path()).current_dir(folder.path());
    bench.env("CUDA_VISIBLE_DEVICES", "").env("ROCR_VISIBLE_DEVICES", "");
    bench.arg("bench").args(words.split_whitespace());
    bench
}

/// Runs `regatta bench` to completion.
pub fn run(folder: &TempDir, words: &str) -> CommandOutput {
    run_command(&mut bench(folder, words))
}

/// Loads a result file.
pub fn load_result(folder: &TempDir, file: &str) -> BenchResult {
    let text = std::fs::read_to_string(folder.path().join(file)).unwrap();
    document::from_json(&text).unwrap()
}

/// All rows of all tables.
pub fn rows(result: &BenchResult) -> Vec<&BenchRow> {
    result.tables.iter().flat_map(|table| &table.rows).collect()
}

/// All measurements, out of place and in place.
fn measurements(result: &BenchResult) -> Vec<&Measurement> {
    rows(result).into_iter().flat_map(|row| [&row.out_of_place, &row.in_place]).flatten().collect()
}

/// Asserts that the result is complete and without wrong elements.
pub fn assert_complete_and_correct(result: &BenchResult, operations: usize, ranks: u32) {
    assert!(result.complete);
    assert_eq!(result.operations().len(), operations);
    assert_eq!((result.shape.ranks, result.devices.len()), (Some(ranks), ranks as usize));
    for one in measurements(result) {
        assert_eq!(one.wrong, Some(0), "{one:?}");
        assert_eq!(one.rank_times_us.len(), ranks as usize);
        assert!(one.time_us.is_some_and(|time| time > 0.0), "{one:?}");
    }
}
