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

/// What to write instead of an unknown key.
#[derive(Debug, thiserror::Error)]
pub enum KeyHint {
    /// This key: the other one is its name elsewhere.
    #[error("use {0}")]
    Use(String),
    /// This key, perhaps: its name is similar.
    #[error("did you mean {0}?")]
    Similar(String),
    /// Something else, in words.
    #[error("{0}")]
    Text(String),
    /// One of all keys: none is similar.
    #[error("`regatta train --keys` lists all keys")]
    AnyKey,
}

/// A result about configurations.
pub type Result<T, E = ConfigError> = std::result::Result<T, E>;

/// An invalid configuration.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs, reason = "each field is what the message shows")]
pub enum ConfigError {
    /// The key does not exist.
    #[error("{location}: unknown key {key}: {hint}")]
    UnknownKey { location: SourceLocation, key: String, hint: KeyHint },
    /// A short form that matches keys of several sections.
    #[error("{location}: {key} is ambiguous: use {candidates}")]
    AmbiguousKey { location: SourceLocation, key: String, candidates: String },
    /// The value has the wrong type or is out of range.
    #[error("{location}: {key} is {value}, expected {expected}")]
    InvalidValue { location: SourceLocation, key: String, value: String, expected: String },
    /// A command-line argument without `=`.
    #[error("`{arg}` is not key=value: {hint}")]
    NotKeyValue { arg: String, hint: String },
    /// Neither a preset nor a file.
    #[error("no preset or file named {name}: {hint}")]
    UnknownBase { name: String, hint: String },
    /// A file names a preset that does not exist.
    #[error("{location}: no preset named {name}: {hint}")]
    UnknownPreset { location: SourceLocation, name: String, hint: String },
    /// The file is not valid TOML.
    #[error("{location}: invalid TOML: {reason}")]
    Toml { location: SourceLocation, reason: String },
    /// The file could not be read.
    #[error("cannot read {}: {error}", path.display())]
    Read { path: PathBuf, error: std::io::Error },
    /// Keys that contradict each other, the data or the number of ranks.
    #[error("{0}")]
    Inconsistent(String),
}

/// First line of the TOML parser's message; the rest quotes the source.
pub(super) fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_owned()
}
