//! Files that one stage writes and the next reads: JSON with a `format` line that says what it is,
//! so that a file of another kind or version is refused in words.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// Something Regatta writes to a file of its own.
pub trait Document: Serialize + DeserializeOwned {
    /// What it is, as the `format` field says: `machine`.
    const KIND: &'static str;
    /// Raised whenever an older reader would misunderstand a newer file.
    const VERSION: u32;

    /// Faults that the types cannot exclude, such as a GPU on a NUMA node that does not exist.
    fn fault(&self) -> Option<String> {
        None
    }
}

/// Why a text is not the document that was wanted.
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    /// Not JSON, or not of the right shape.
    #[error("not a {kind} file: {source}")]
    Json {
        /// What was wanted.
        kind: &'static str,
        /// What serde says, with line and column.
        source: serde_json::Error,
    },
    /// JSON, but of something else or of another version.
    #[error("this is {found:?}, wanted {wanted:?}; write it anew with this version of regatta")]
    WrongFormat {
        /// The `format` field found.
        found: String,
        /// The `format` field wanted.
        wanted: String,
    },
    /// Right in form, wrong in content.
    #[error("the {kind} contradicts itself: {fault}")]
    Fault {
        /// What was read.
        kind: &'static str,
        /// The contradiction.
        fault: String,
    },
}

#[derive(Serialize)]
struct Tagged<'a, T> {
    format: String,
    #[serde(flatten)]
    body: &'a T,
}

#[derive(Deserialize)]
struct Header {
    format: String,
}

fn tag<T: Document>() -> String {
    format!("regatta-{}/{}", T::KIND, T::VERSION)
}

/// The document as indented JSON with a line end.
pub fn to_json<T: Document>(body: &T) -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string_pretty(&Tagged { format: tag::<T>(), body })?;
    text.push('\n');
    Ok(text)
}

/// The document as one line of JSON, for large ones.
pub fn to_json_line<T: Document>(body: &T) -> Result<String, serde_json::Error> {
    let mut text = serde_json::to_string(&Tagged { format: tag::<T>(), body })?;
    text.push('\n');
    Ok(text)
}

/// Reads a document back and checks that it does not contradict itself.
pub fn from_json<T: Document>(text: &str) -> Result<T, DocumentError> {
    let json = |source| DocumentError::Json { kind: T::KIND, source };
    let header: Header = serde_json::from_str(text).map_err(json)?;
    if header.format != tag::<T>() {
        return Err(DocumentError::WrongFormat { found: header.format, wanted: tag::<T>() });
    }
    let body: T = serde_json::from_str(text).map_err(json)?;
    match body.fault() {
        Some(fault) => Err(DocumentError::Fault { kind: T::KIND, fault }),
        None => Ok(body),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Machine, Placement};

    #[test]
    fn another_kind_is_refused_by_name() {
        let text = to_json(&Machine::default()).unwrap();
        let error = from_json::<Placement>(&text).unwrap_err().to_string();
        assert!(error.contains("regatta-machine/1") && error.contains("regatta-placement/1"));
    }

    #[test]
    fn bad_json_has_a_position() {
        let error = from_json::<Machine>("{\n  \"format\": 3}").unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }
}
