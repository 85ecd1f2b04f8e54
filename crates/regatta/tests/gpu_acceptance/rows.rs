//! Tables of cases: all rows run, several at a time, and all failures are reported together.

use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Checks every row of a table whose text contains `REGATTA_ACCEPTANCE_ROW`. A check returns a
/// description of the result, or of the failure; a panic is a failure, too.
///
/// # Panics
/// If a row fails, with all that failed.
pub fn check_rows<T: Sync>(
    rows: &[T],
    name: impl Fn(&T) -> String,
    check: impl Fn(&T) -> Result<String, String> + Sync,
) {
    let wanted = std::env::var("REGATTA_ACCEPTANCE_ROW").unwrap_or_default();
    let selected: Vec<(String, &T)> = rows.iter().map(|row| (name(row), row)).collect();
    let selected = selected.into_iter().filter(|(name, _)| name.contains(&wanted));
    let check = &check;
    let results: Vec<(String, Result<String, String>)> = std::thread::scope(|scope| {
        let start = |(name, row)| (name, scope.spawn(move || timed(|| check(row))));
        let running: Vec<_> = selected.map(start).collect();
        running.into_iter().map(|(name, row)| (name, row.join().unwrap())).collect()
    });
    let mut failures = String::new();
    for (name, result) in results {
        match result {
            Ok(text) => println!("ok      {name}: {text}"),
            Err(text) => writeln!(failures, "failed  {name}: {text}").unwrap(),
        }
    }
    assert!(failures.is_empty(), "\n{failures}");
}

/// The result with the time that it took.
fn timed(check: impl FnOnce() -> Result<String, String>) -> Result<String, String> {
    let start = Instant::now();
    let result = catch_unwind(AssertUnwindSafe(check)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().cloned();
        Err(text.unwrap_or_else(|| "panicked".to_owned()))
    });
    let seconds = start.elapsed().as_secs_f64();
    result.map(|text| format!("{text}, {seconds:.1} s"))
}

#[test]
fn all_failing_rows_of_a_table_are_reported() {
    let check = |row: &u32| match row {
        1 => Ok("fine".to_owned()),
        2 => Err("wrong".to_owned()),
        _ => panic!("panic of {row}"),
    };
    let checked = catch_unwind(|| check_rows(&[1, 2, 3], |row| format!("row {row}"), check));
    let text = checked.unwrap_err().downcast::<String>().unwrap();
    assert!(text.contains("failed  row 2: wrong\nfailed  row 3: panic of 3"), "{text}");
}
