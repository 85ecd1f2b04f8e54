//! Bytes of a rank, expected and measured.

use serde::{Deserialize, Serialize};

use crate::moved::Moved;

/// Bytes that a rank holds of something, at most.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct HeldBytes {
    /// Of what, such as `gradients`.
    pub what: String,
    /// As `regatta train --explain` says.
    pub expected: u64,
    /// As was counted, in a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<u64>,
}

/// Bytes that a rank sends in a step on an axis.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SentBytes {
    /// The axis, such as `tensor`.
    pub axis: String,
    /// As `regatta train --explain` says.
    pub expected: u64,
    /// As was counted in a run, on the mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<u64>,
}

/// Bytes that a rank reads from disk or writes there in a step.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct MovedBytes {
    /// `read` or `written`.
    pub what: String,
    /// As `regatta train --explain` says.
    pub expected: u64,
    /// As was counted in a run, on the mean.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<u64>,
}

impl MovedBytes {
    /// Both ways, without those on which nothing goes.
    pub fn both(expected: Moved, measured: Option<Moved>) -> Vec<Self> {
        let way = |what: &str, of: fn(Moved) -> u64| {
            let (expected, measured) = (of(expected), measured.map(of));
            let is_some = expected > 0 || measured.is_some_and(|bytes| bytes > 0);
            is_some.then(|| Self { what: what.to_owned(), expected, measured })
        };
        let both = [way("read", |moved| moved.read), way("written", |moved| moved.written)];
        both.into_iter().flatten().collect()
    }
}
