//! Disk traffic of offloading.

use std::ops::{Add, AddAssign, Sub};

use serde::Serialize;

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
