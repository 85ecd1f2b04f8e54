//! Parses results of nccl-tests, rccl-tests, the OSU micro-benchmarks and our own formats.
//!
//! Parsing is lossless: values are those printed, each row keeps its line, and comments are parsed
//! or kept.

use regatta_model::{BenchResult, DocumentError};

pub(crate) mod columns;
mod comments;
mod context;
mod csv;
mod detect;
mod json;
mod lines;
mod nccl_tests;
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
    /// No result in the file.
    #[error(
        "{file}: found no table of nccl-tests, rccl-tests or the OSU micro-benchmarks, and no \
         JSON or CSV result of regatta bench"
    )]
    NoResults { file: String },
}

type Result<T, E = ReadError> = std::result::Result<T, E>;

/// A line that does not match its table.
#[derive(Debug)]
struct LineError {
    line: usize,
    expected: String,
    found: String,
}

impl LineError {
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
        detect::read(name, text)?
    };
    if results.is_empty() {
        return Err(ReadError::NoResults { file: name.to_owned() });
    }
    Ok(results)
}
