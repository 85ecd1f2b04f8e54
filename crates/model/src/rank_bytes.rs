//! Bytes of a rank, expected by the cost model and measured in a run.

use std::ops::{Add, AddAssign, Sub};

use serde::{Deserialize, Serialize};

/// Name of pinned host memory among the memory of a rank.
pub const PINNED: &str = "pinned host memory";

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

/// Bytes read from and written to disk.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
pub struct IoBytes {
    /// Read from disk.
    pub read: u64,
    /// Written to disk.
    pub written: u64,
}

impl Add for IoBytes {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { read: self.read + other.read, written: self.written + other.written }
    }
}

impl AddAssign for IoBytes {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for IoBytes {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { read: self.read - other.read, written: self.written - other.written }
    }
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
