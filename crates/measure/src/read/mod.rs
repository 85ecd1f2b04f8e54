//! Results of nccl-tests, rccl-tests, the OSU micro-benchmarks and our own, read from their text.
//!
//! Nothing of a table is lost: figures are the numbers as they were written, each row keeps its
//! line, comments are parsed or kept.

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

/// Why a file is no result.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// A line is not what its table wants.
    #[error("{file}, line {line}: expected {expected}, found {found:?}")]
    Line {
        /// The file.
        file: String,
        /// The line, from 1.
        line: usize,
        /// What belongs there.
        expected: String,
        /// What is there.
        found: String,
    },
    /// One of our own documents that cannot be read.
    #[error("{file}: {source}")]
    Document {
        /// The file.
        file: String,
        /// Why.
        source: DocumentError,
    },
    /// JSON of another program that cannot be read.
    #[error("{file}: not the JSON of nccl-tests (-J): {source}")]
    Json {
        /// The file.
        file: String,
        /// What serde says, with line and column.
        source: serde_json::Error,
    },
    /// There is nothing to be read.
    #[error(
        "{file}: no table of nccl-tests, rccl-tests or the OSU micro-benchmarks is in it, and it is \
         no result of regatta bench as JSON or CSV"
    )]
    NoResults {
        /// The file.
        file: String,
    },
}

/// Reads all results of a text, whatever of the known forms it has. The name is the file's, for
/// errors and, where nothing better is known, to call results by.
pub fn read(name: &str, text: &str) -> Result<Vec<BenchResult>, ReadError> {
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
    match results.is_empty() {
        true => Err(ReadError::NoResults { file: name.to_owned() }),
        false => Ok(results),
    }
}
