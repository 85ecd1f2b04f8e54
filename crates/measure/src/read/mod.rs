//! Parses results of nccl-tests, rccl-tests, the OSU micro-benchmarks and our own formats.
//!
//! Parsing is lossless: values are those printed, each row keeps its line, and comments are parsed
//! or kept.

use regatta_model::{BenchResult, DocumentError};

mod context;
mod csv;
mod detect;
mod json;
mod lines;
pub(crate) mod nccl_tests;
mod osu;
mod tabular;

/// A file that cannot be parsed.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum ReadError {
    /// A line does not match its table.
    #[error("{file}, line {line}: expected {expected}, found {found:?}")]
    Line { file: String, line: usize, expected: String, found: String },
    /// An invalid document of our own.
    #[error("{file}: {source}")]
    Document { file: String, source: DocumentError },
    /// Invalid JSON of another program.
    #[error("{file}: invalid nccl-tests JSON (-J): {source}")]
    Json { file: String, source: serde_json::Error },
    /// Nothing in the file.
    #[error("{file} is empty: expected a result of regatta bench, or the output of a benchmark")]
    Empty { file: String },
    /// No result in the file.
    #[error(
        "{file}: found no table of nccl-tests, rccl-tests or the OSU micro-benchmarks with a row in \
         lines 1 to {lines}, and no JSON or CSV result of regatta bench"
    )]
    NoResults { file: String, lines: usize },
}

type Result<T, E = ReadError> = std::result::Result<T, E>;

/// A line that does not match its table.
#[derive(Debug, PartialEq, Eq)]
struct LineError {
    line: usize,
    expected: String,
    found: String,
}

impl LineError {
    fn new(line: usize, expected: &str, found: &str) -> Self {
        Self { line, expected: expected.to_owned(), found: found.to_owned() }
    }

    fn in_file(self, file: &str) -> ReadError {
        let Self { line, expected, found } = self;
        ReadError::Line { file: file.to_owned(), line, expected, found }
    }
}

/// Parses all results of a text in any known format. `name` is the file name, used in errors and as
/// the default label.
pub fn read(name: &str, text: &str) -> Result<Vec<BenchResult>> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let results = if text.trim_start().starts_with('{') {
        vec![json::read(name, text)?]
    } else if json::is_list(text) {
        json::read_list(name, text)?
    } else if csv::is_header(text.lines().next().unwrap_or_default()) {
        csv::read(name, text)?
    } else {
        let found = detect::read(name, text)?;
        if found.iter().any(has_rows) { found } else { Vec::new() }
    };
    if results.is_empty() {
        let (file, lines) = (name.to_owned(), text.lines().count());
        return Err(match text.trim().is_empty() {
            true => ReadError::Empty { file },
            false => ReadError::NoResults { file, lines },
        });
    }
    Ok(results)
}

/// Whether any row was recognised. Of a table without known columns, a row has a number: aligned
/// words or tabs alone are not a result.
fn has_rows(result: &BenchResult) -> bool {
    let mut cells = result.raw_tables.iter().flat_map(|table| &table.rows).flatten();
    let is_number = |cell: &String| matches!(parse_metric(cell), Ok(Some(_)));
    result.tables.iter().any(|table| !table.rows.is_empty()) || cells.any(is_number)
}

/// Parses a non-negative value; `None` if it is not finite.
fn parse_metric(word: &str) -> Result<Option<f64>, ()> {
    let plain = word.strip_prefix('-').unwrap_or(word);
    if plain.eq_ignore_ascii_case("nan") || word.eq_ignore_ascii_case("inf") {
        return Ok(None);
    }
    // `f64::from_str` also accepts words such as "infinity".
    if !word.starts_with(|c: char| c.is_ascii_digit() || c == '.') {
        return Err(());
    }
    word.parse().map(|value| Some(value).filter(|value: &f64| value.is_finite())).map_err(|_| ())
}
