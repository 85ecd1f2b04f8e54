//! Errors of hwloc files, each with its position and fix.

use std::fmt;

/// A position in the file, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextPosition {
    /// Line.
    pub line: u32,
    /// Column, in characters.
    pub column: u32,
}

impl fmt::Display for TextPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

impl From<roxmltree::TextPos> for TextPosition {
    fn from(pos: roxmltree::TextPos) -> Self {
        Self { line: pos.row, column: pos.col }
    }
}

/// Why a file cannot be read as an hwloc topology.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HwlocError {
    /// File too large.
    #[error(
        "the hwloc file has {bytes} bytes, limit {limit}; export one node's topology \
         with `lstopo --of xml`"
    )]
    TooLarge {
        /// File size.
        bytes: usize,
        /// Maximum size.
        limit: usize,
    },
    /// Not well-formed XML.
    #[error("{at}: not well-formed XML ({why}); export the file again with `lstopo --of xml`")]
    NotXml {
        /// Where.
        at: TextPosition,
        /// The parser's message.
        why: String,
    },
    /// Entity declarations, by which a small file could expand to a large one.
    #[error("{at}: the file declares XML entities, which hwloc never does; remove them")]
    Entities {
        /// Position of the first one.
        at: TextPosition,
    },
    /// Another XML format.
    #[error(
        "{at}: the root element is <{found}>, not hwloc's <topology>; pass a file written by \
         `lstopo --of xml`"
    )]
    NotHwloc {
        /// Position of the element.
        at: TextPosition,
        /// Name of the element.
        found: String,
    },
    /// Format of hwloc 1.
    #[error(
        "{at}: hwloc 1 format is not supported; export the topology with lstopo of hwloc 2 or newer"
    )]
    OldFormat {
        /// Position of the topology.
        at: TextPosition,
    },
    /// Unknown format version.
    #[error(
        "{at}: unknown hwloc format {version:?}; export the topology with `lstopo --of xml` of hwloc 2"
    )]
    UnknownFormat {
        /// Position of the version.
        at: TextPosition,
        /// The version.
        version: String,
    },
    /// A required attribute is missing.
    #[error(
        "{at}: the {object} has no {attribute:?}; export the file again with `lstopo --of xml`"
    )]
    Missing {
        /// Position of the object.
        at: TextPosition,
        /// Its type.
        object: String,
        /// The missing attribute.
        attribute: &'static str,
    },
    /// An invalid attribute value.
    #[error(
        "{at}: {attribute}={value:?} of the {object} is not {expected}; correct it or export the file again"
    )]
    BadValue {
        /// Position of the attribute.
        at: TextPosition,
        /// The object's type.
        object: String,
        /// The attribute.
        attribute: &'static str,
        /// Its value, truncated.
        value: String,
        /// The expected value.
        expected: &'static str,
    },
    /// Two objects with the same index.
    #[error("{at}: duplicate {what} {number}; export the file again")]
    Duplicate {
        /// Position of the second object.
        at: TextPosition,
        /// Object type.
        what: &'static str,
        /// Index.
        number: u64,
    },
    /// A limit was exceeded.
    #[error("{at}: more than {limit} {what}, too many for one node; export one node's topology")]
    TooMany {
        /// Position where the limit was exceeded.
        at: TextPosition,
        /// What was counted.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// An inconsistent distance matrix.
    #[error("{at}: inconsistent distance matrix ({why}); remove them or export the file again")]
    Distances {
        /// Position of the matrix.
        at: TextPosition,
        /// The inconsistency.
        why: String,
    },
    /// No processing unit (PU).
    #[error("{at}: the topology has no CPU (object type PU); export it without filters")]
    NoPu {
        /// Position of the topology.
        at: TextPosition,
    },
    /// Well-formed but inconsistent.
    #[error("the topology is inconsistent: {reason}; export the file again")]
    Inconsistent {
        /// The inconsistency.
        reason: String,
    },
}

/// Truncates untrusted text for an error message.
pub(super) fn truncated(text: &str) -> String {
    const MAX_CHARS: usize = 80;
    match text.char_indices().nth(MAX_CHARS) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
