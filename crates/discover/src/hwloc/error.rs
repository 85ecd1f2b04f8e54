//! What can be wrong with an hwloc file, each with its place and what to do.

use std::fmt;

/// A place in the file, counted from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The line.
    pub line: u32,
    /// The column in that line, in characters.
    pub column: u32,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.line, self.column)
    }
}

impl From<roxmltree::TextPos> for Place {
    fn from(pos: roxmltree::TextPos) -> Self {
        Self { line: pos.row, column: pos.col }
    }
}

/// Why a text is no hwloc topology that Regatta can use.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HwlocError {
    /// The file is larger than any topology.
    #[error(
        "the hwloc file has {bytes} bytes, over the limit of {limit}; export one node's topology \
         with `lstopo --of xml`"
    )]
    TooLarge {
        /// Its size.
        bytes: usize,
        /// The largest size accepted.
        limit: usize,
    },
    /// Not well-formed XML.
    #[error("{at}: not well-formed XML ({why}); export the file again with `lstopo --of xml`")]
    NotXml {
        /// Where.
        at: Place,
        /// What the XML reader says.
        why: String,
    },
    /// It declares entities, which could make a small file large.
    #[error("{at}: the file declares XML entities, which hwloc never does; remove them")]
    Entities {
        /// Where the first one is.
        at: Place,
    },
    /// XML, but of something else.
    #[error(
        "{at}: the outermost element is <{found}>, not hwloc's <topology>; give a file written by \
         `lstopo --of xml`"
    )]
    NotHwloc {
        /// Where the element is.
        at: Place,
        /// Its name.
        found: String,
    },
    /// Written by hwloc 1.
    #[error(
        "{at}: this topology has the format of hwloc 1; export it with lstopo of hwloc 2 or newer"
    )]
    OldFormat {
        /// Where the topology starts.
        at: Place,
    },
    /// Written in a format that did not exist yet.
    #[error(
        "{at}: hwloc format {version:?} is unknown; export it with `lstopo --of xml` of hwloc 2"
    )]
    UnknownFormat {
        /// Where the version is.
        at: Place,
        /// The version.
        version: String,
    },
    /// An object without something that every such object has.
    #[error(
        "{at}: the {object} has no {attribute:?}; export the file again with `lstopo --of xml`"
    )]
    Missing {
        /// Where the object is.
        at: Place,
        /// Its type.
        object: String,
        /// What it lacks.
        attribute: &'static str,
    },
    /// An attribute that does not read as what it should be.
    #[error(
        "{at}: {attribute}={value:?} of the {object} is not {wanted}; correct it or export anew"
    )]
    BadValue {
        /// Where the attribute is.
        at: Place,
        /// The object's type.
        object: String,
        /// The attribute.
        attribute: &'static str,
        /// Its value, shortened.
        value: String,
        /// What was wanted.
        wanted: &'static str,
    },
    /// Two objects with one number.
    #[error("{at}: {what} {number} appears a second time; export the file again")]
    Twice {
        /// Where the second one is.
        at: Place,
        /// What it is.
        what: &'static str,
        /// Its number.
        number: u64,
    },
    /// More of something than any node has.
    #[error("{at}: more than {limit} {what}, too many for one node; export one node's topology")]
    TooMany {
        /// Where the limit was passed.
        at: Place,
        /// What there is too much of.
        what: &'static str,
        /// The limit.
        limit: usize,
    },
    /// A distance matrix that does not fit together.
    #[error(
        "{at}: the distances do not fit together ({why}); remove them or export the file again"
    )]
    Distances {
        /// Where the matrix is.
        at: Place,
        /// What does not fit.
        why: String,
    },
    /// No processing unit at all.
    #[error("{at}: the topology has no CPU (no object of type PU); export it without filters")]
    NoCpu {
        /// Where the topology starts.
        at: Place,
    },
    /// Every part can be read, but not all can be true.
    #[error("the topology contradicts itself: {fault}; export the file again")]
    Fault {
        /// The contradiction.
        fault: String,
    },
}

/// A foreign text short enough for a message.
pub(super) fn shortened(text: &str) -> String {
    const MOST: usize = 80;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
