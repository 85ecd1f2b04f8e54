//! What a run does.

use std::fmt;

use serde::{Deserialize, Serialize};

/// What a run does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RunKind {
    /// `regatta train`.
    Train,
    /// `regatta bench`.
    Bench,
    /// `regatta launch` of another program, and `regatta doctor`.
    Launch,
}

/// Its command.
impl fmt::Display for RunKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}
