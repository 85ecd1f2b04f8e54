//! Bytes of a rank, expected by the cost model and measured in a run.

use serde::{Deserialize, Serialize};

use crate::io_bytes::IoBytes;

/// Peak memory of one category.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct PeakBytes {
    /// The category, such as `gradients`.
    pub what: String,
    /// By the cost model.
    pub expected: u64,
    /// Measured in a run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<u64>,
}

/// Bytes sent per step on one axis.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct SentBytes {
    /// The axis, such as `tensor`.
    pub axis: String,
    /// By the cost model.
    pub expected: u64,
    /// Measured in a run, mean over steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<u64>,
}

/// Bytes read from or written to disk per step.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct DiskIoBytes {
    /// `read` or `written`.
    pub what: String,
    /// By the cost model.
    pub expected: u64,
    /// Measured in a run, mean over steps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<u64>,
}

impl DiskIoBytes {
    /// Reads and writes, without zero rows.
    pub fn rows(expected: IoBytes, measured: Option<IoBytes>) -> Vec<Self> {
        let row = |what: &str, bytes: fn(IoBytes) -> u64| {
            let (expected, measured) = (bytes(expected), measured.map(bytes));
            let is_used = expected > 0 || measured.is_some_and(|bytes| bytes > 0);
            is_used.then(|| Self { what: what.to_owned(), expected, measured })
        };
        let rows = [row("read", |io| io.read), row("written", |io| io.written)];
        rows.into_iter().flatten().collect()
    }
}
