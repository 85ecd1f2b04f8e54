//! Errors of hwloc files, each with its position and fix.

/// A position in the file: row and column, from 1.
pub use roxmltree::TextPos as TextPosition;

/// Why a file cannot be read as an hwloc topology.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages explain the fields")]
pub enum HwlocError {
    /// File too large.
    #[error(
        "the hwloc file has {bytes} bytes, limit {limit}; export one node's topology \
         with `lstopo --of xml`"
    )]
    TooLarge { bytes: usize, limit: usize },
    /// Not well-formed XML.
    #[error("{at}: not well-formed XML ({why}); export the file again with `lstopo --of xml`")]
    NotXml { at: TextPosition, why: String },
    /// Entity declarations, by which a small file could expand to a large one.
    #[error("{at}: the file declares XML entities, which hwloc never does; remove them")]
    Entities { at: TextPosition },
    /// Another XML format.
    #[error(
        "{at}: the root element is <{found}>, not hwloc's <topology>; pass a file written by \
         `lstopo --of xml`"
    )]
    NotHwloc { at: TextPosition, found: String },
    /// Unknown format version.
    #[error(
        "{at}: unknown hwloc format {version:?}; export the topology with `lstopo --of xml` of hwloc 2"
    )]
    UnknownFormat { at: TextPosition, version: String },
    /// A required attribute is missing.
    #[error(
        "{at}: the {object} has no {attribute:?}; export the file again with `lstopo --of xml`"
    )]
    Missing { at: TextPosition, object: String, attribute: &'static str },
    /// An invalid attribute value.
    #[error(
        "{at}: {attribute}={value:?} of the {object} is not {expected}; correct it or export the file again"
    )]
    BadValue {
        at: TextPosition,
        object: String,
        attribute: &'static str,
        value: String,
        expected: &'static str,
    },
    /// Two objects with the same index.
    #[error("{at}: duplicate {what} {number}; export the file again")]
    Duplicate { at: TextPosition, what: &'static str, number: u64 },
    /// A limit was exceeded.
    #[error("{at}: more than {limit} {what}, too many for one node; export one node's topology")]
    TooMany { at: TextPosition, what: &'static str, limit: usize },
    /// An inconsistent distance matrix.
    #[error(
        "{at}: inconsistent distance matrix ({why}); remove the matrix, or export the file again"
    )]
    Distances { at: TextPosition, why: String },
    /// No processing unit (PU).
    #[error("{at}: the topology has no CPU (object type PU); export it without filters")]
    NoPu { at: TextPosition },
    /// Well-formed but inconsistent.
    #[error("the topology is inconsistent: {reason}; export the file again")]
    Inconsistent { reason: String },
}

pub(super) type Result<T> = std::result::Result<T, HwlocError>;

/// Truncates untrusted text for an error message.
pub(super) fn truncated(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
