//! Runs of `regatta bench`, and their results.

use std::process::Command;

use regatta_model::{BenchResult, BenchRow, Measurement, document};

use super::job::ended;
use super::{Folder, Run, command};

/// `regatta bench` with the words of a line, in a folder.
pub fn bench(folder: &Folder, words: &str) -> Command {
    let mut bench = command();
    // Secrets and such go there. Where there are GPUs, they are not what is tested here.
    bench.env("TMPDIR", folder.path()).current_dir(folder.path());
    bench.env("CUDA_VISIBLE_DEVICES", "").env("ROCR_VISIBLE_DEVICES", "");
    bench.arg("bench").args(words.split_whitespace());
    bench
}

/// Runs it to its end.
pub fn run(folder: &Folder, words: &str) -> Run {
    ended(&mut bench(folder, words))
}

/// The result that is in a file.
pub fn kept(folder: &Folder, file: &str) -> BenchResult {
    let text = std::fs::read_to_string(folder.path().join(file)).unwrap();
    document::from_json(&text).unwrap()
}

/// All sizes of all tables.
pub fn rows(result: &BenchResult) -> Vec<&BenchRow> {
    result.tables.iter().flat_map(|table| &table.rows).collect()
}

/// What was measured, with two buffers and with one.
fn measured(result: &BenchResult) -> Vec<&Measurement> {
    rows(result).into_iter().flat_map(|row| [&row.out_of_place, &row.in_place]).flatten().collect()
}

/// Asserts that all was measured, and is right.
pub fn assert_right(result: &BenchResult, operations: usize, ranks: u32) {
    assert!(result.complete);
    assert_eq!(result.operations().len(), operations);
    assert_eq!((result.shape.ranks, result.devices.len()), (Some(ranks), ranks as usize));
    for one in measured(result) {
        assert_eq!(one.wrong, Some(0), "{one:?}");
        assert_eq!(one.rank_times_us.len(), ranks as usize);
        assert!(one.time_us.is_some_and(|time| time > 0.0), "{one:?}");
    }
}
