//! What is wrong with a configuration, in one sentence with the fix.

use std::fmt;
use std::path::PathBuf;

use super::Origin;

/// Where something was written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// By whom.
    pub origin: Origin,
    /// In which line, from 1.
    pub line: Option<usize>,
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            Some(line) => write!(f, "{}, line {line}", self.origin),
            None => write!(f, "{}", self.origin),
        }
    }
}

/// What is wrong with a configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// A key that does not exist.
    #[error("{place}: unknown key {key}: {hint}")]
    UnknownKey {
        /// Where it stands.
        place: Place,
        /// The key.
        key: String,
        /// What it may have been meant to be.
        hint: String,
    },
    /// A key of several sections.
    #[error("{place}: {key} may be {all}: write which")]
    AmbiguousKey {
        /// Where it stands.
        place: Place,
        /// The key.
        key: String,
        /// The keys that it may be.
        all: String,
    },
    /// A value that a key cannot have.
    #[error("{place}: {key} is {value}, and must be {expected}")]
    WrongValue {
        /// Where it stands.
        place: Place,
        /// The key.
        key: String,
        /// The value.
        value: String,
        /// What the key takes.
        expected: String,
    },
    /// A word that is no `key=value`.
    #[error("{word} is not key=value, as in steps=100: `regatta train --keys` lists all keys")]
    NotAKey {
        /// The word.
        word: String,
    },
    /// A name that is neither a preset's nor a file's.
    #[error("there is no preset and no file {name}: {hint}")]
    UnknownPreset {
        /// The name.
        name: String,
        /// What it may have been meant to be.
        hint: String,
    },
    /// A file that is no TOML.
    #[error("{place}: {what}")]
    Toml {
        /// Where it ceases to be.
        place: Place,
        /// What is wrong.
        what: String,
    },
    /// A file that cannot be read.
    #[error("{}: {error}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        error: std::io::Error,
    },
    /// Keys that do not fit together.
    #[error("{0}")]
    Contradiction(String),
}

/// Only the first line of another's message, which may draw the place below.
pub(super) fn first_line(text: &str) -> String {
    text.lines().next().unwrap_or_default().trim().to_owned()
}
