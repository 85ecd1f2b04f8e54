//! File formats: JSON with a `format` field that names kind and version, because a file of another
//! kind or version must be rejected with a clear message.

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

/// A type with its own file format.
pub trait Document: Serialize + DeserializeOwned {
    /// The kind in the `format` field: `machine`.
    const KIND: &'static str;
    /// Incremented whenever an older reader would misread a newer file.
    const VERSION: u32;
    /// The command that writes such a file.
    const WRITTEN_BY: &'static str = "regatta";
    /// Whether a file without a format field is of version 1, which had none at first.
    const FORMAT_IS_OPTIONAL: bool = false;

    /// The first inconsistency that the types do not rule out, such as a GPU on a NUMA node that
    /// does not exist.
    fn inconsistency(&self) -> Option<String> {
        None
    }
}

/// Why a file cannot be read as a document.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum DocumentError {
    /// Not JSON, or with other fields.
    #[error("not a file of kind {kind}: {source}; write it with `{writer}`")]
    Json { kind: &'static str, source: serde_json::Error, writer: &'static str },
    /// Another kind or version.
    #[error("format {found:?}, expected {expected:?}; write it with `{writer}` of this version")]
    WrongFormat { found: String, expected: String, writer: &'static str },
    /// Well-formed but inconsistent.
    #[error("inconsistent {kind} file: {reason}")]
    Inconsistent { kind: &'static str, reason: String },
}

#[derive(Serialize)]
struct Tagged<'a, T> {
    format: String,
    #[serde(flatten)]
    body: &'a T,
}

#[derive(Deserialize)]
struct Header {
    #[serde(default)]
    format: Option<String>,
}

fn format_tag<T: Document>() -> String {
    format!("regatta-{}/{}", T::KIND, T::VERSION)
}

/// Indented JSON with a trailing newline.
pub fn to_json<T: Document>(body: &T) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string_pretty(&Tagged { format: format_tag::<T>(), body })? + "\n")
}

/// One line of JSON with a trailing newline, for large documents.
pub fn to_json_line<T: Document>(body: &T) -> Result<String, serde_json::Error> {
    Ok(serde_json::to_string(&Tagged { format: format_tag::<T>(), body })? + "\n")
}

/// Parses a document and checks its consistency.
pub fn from_json<T: Document>(text: &str) -> Result<T, DocumentError> {
    let json = |source| DocumentError::Json { kind: T::KIND, source, writer: T::WRITTEN_BY };
    let Header { format } = serde_json::from_str(text).map_err(json)?;
    let found = match format {
        Some(format) => format,
        None if T::FORMAT_IS_OPTIONAL => format!("regatta-{}/1", T::KIND),
        None => return Err(json(serde::de::Error::missing_field("format"))),
    };
    if found != format_tag::<T>() {
        let (expected, writer) = (format_tag::<T>(), T::WRITTEN_BY);
        return Err(DocumentError::WrongFormat { found, expected, writer });
    }
    let body: T = serde_json::from_str(text).map_err(json)?;
    match body.inconsistency() {
        Some(reason) => Err(DocumentError::Inconsistent { kind: T::KIND, reason }),
        None => Ok(body),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run_folder::JobEnvironment;
    use crate::{Machine, Placement};

    #[test]
    fn wrong_kind_error_names_both_formats() {
        let text = to_json(&Machine::default()).unwrap();
        let error = from_json::<Placement>(&text).unwrap_err().to_string();
        assert!(error.contains("regatta-machine/1") && error.contains("regatta-placement/1"));
    }

    #[test]
    fn environment_without_a_format_is_of_version_1() {
        let environment = JobEnvironment { common: Vec::new(), ranks: [(0, Vec::new())].into() };
        let text = to_json(&environment).unwrap();
        assert!(text.contains("regatta-environment/1"), "{text}");
        for text in [&*text, r#"{"common": [], "ranks": {"0": []}}"#] {
            assert_eq!(from_json::<JobEnvironment>(text).unwrap(), environment);
        }
        assert!(
            from_json::<JobEnvironment>(&text.replace("\"regatta-environment/1\"", "3")).is_err()
        );
        let later = text.replace("environment/1", "environment/2");
        let error = from_json::<JobEnvironment>(&later).unwrap_err().to_string();
        assert!(error.contains("expected \"regatta-environment/1\""), "{error}");
        let error = from_json::<JobEnvironment>("[]").unwrap_err().to_string();
        assert!(error.starts_with("not a file of kind environment"), "{error}");
    }

    #[test]
    fn json_errors_have_a_position() {
        let error = from_json::<Machine>("{\n  \"format\": 3}").unwrap_err().to_string();
        assert!(error.contains("line 2"), "{error}");
    }
}
