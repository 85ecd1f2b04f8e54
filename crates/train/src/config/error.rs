//! Configuration errors: one sentence each, with the fix.

use std::fmt;
use std::path::PathBuf;

use super::Origin;

/// Where a key was set.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceLocation {
    /// The layer.
    pub origin: Origin,
    /// Line number, from 1.
    pub line: Option<usize>,
}

impl fmt::Display for SourceLocation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}, line {line}", self.origin),
            None => write!(f, "{}", self.origin),
        }
    }
}

/// An invalid configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The key does not exist.
    #[error("{location}: unknown key {key}: {hint}")]
    UnknownKey {
        /// Where it was set.
        location: SourceLocation,
        /// The key.
        key: String,
        /// The key to use instead, if one is known or similar.
        hint: String,
    },
    /// A short form that matches keys of several sections.
    #[error("{location}: {key} is ambiguous: use {candidates}")]
    AmbiguousKey {
        /// Where it was set.
        location: SourceLocation,
        /// The short form.
        key: String,
        /// The full names that match.
        candidates: String,
    },
    /// The value has the wrong type or is out of range.
    #[error("{location}: {key} is {value}, expected {expected}")]
    InvalidValue {
        /// Where it was set.
        location: SourceLocation,
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// Accepted values.
        expected: String,
    },
    /// A command-line argument without `=`.
    #[error("`{arg}` is not key=value, as in steps=100; `regatta train --keys` lists all keys")]
    NotKeyValue {
        /// The argument.
        arg: String,
    },
    /// Neither a preset nor a file.
    #[error("no preset or file named {name}: {hint}")]
    UnknownPreset {
        /// The name.
        name: String,
        /// The preset it may have been meant to be.
        hint: String,
    },
    /// The file is not valid TOML.
    #[error("{location}: invalid TOML: {reason}")]
    Toml {
        /// Where parsing failed.
        location: SourceLocation,
        /// The parser's message.
        reason: String,
    },
    /// The file could not be read.
    #[error("cannot read {}: {error}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Cause.
        error: std::io::Error,
    },
    /// Keys that contradict each other, the data or the number of ranks.
    #[error("{0}")]
    Inconsistent(String),
}

/// First line of the TOML parser's message; the rest quotes the source.
pub(super) fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_owned()
}
