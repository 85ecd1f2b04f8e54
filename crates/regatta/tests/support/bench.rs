//! Runs `regatta bench` and loads its results.

use std::process::Command;

use regatta_model::{BenchResult, BenchRow, document};

use super::process::{regatta_in, run_command};
use super::{CommandOutput, TempDir};

/// `regatta bench` with the given arguments in a folder.
pub fn bench(folder: &TempDir, words: &str) -> Command {
    regatta_in(folder, &format!("bench {words}"))
}

/// Runs `regatta bench` to completion.
pub fn run(folder: &TempDir, words: &str) -> CommandOutput {
    run_command(&mut bench(folder, words))
}

/// Loads a result file.
pub fn load_result(folder: &TempDir, file: &str) -> BenchResult {
    document::from_json(&folder.read(file)).unwrap()
}

/// All rows of all tables.
pub fn rows(result: &BenchResult) -> Vec<&BenchRow> {
    result.tables.iter().flat_map(|table| &table.rows).collect()
}

/// Asserts that the result is complete and without wrong elements.
pub fn assert_complete_and_correct(result: &BenchResult, operations: usize, ranks: u32) {
    assert!(result.complete);
    assert_eq!(result.operations().len(), operations);
    assert_eq!((result.shape.ranks, result.devices.len()), (Some(ranks), ranks as usize));
    let rows = rows(result).into_iter();
    for one in rows.flat_map(|row| [&row.out_of_place, &row.in_place]).flatten() {
        assert_eq!(one.wrong, Some(0), "{one:?}");
        assert_eq!(one.rank_times_us.len(), ranks as usize);
        assert!(one.time_us.is_some_and(|time| time > 0.0), "{one:?}");
    }
}
