//! What goes between memory and disk.

use std::ops::{Add, AddAssign, Sub};

use serde::Serialize;

/// Bytes that are read from disk, and written there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize)]
pub struct Moved {
    /// From disk.
    pub read: u64,
    /// To disk.
    pub written: u64,
}

impl Add for Moved {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { read: self.read + other.read, written: self.written + other.written }
    }
}

impl AddAssign for Moved {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sub for Moved {
    type Output = Self;

    fn sub(self, other: Self) -> Self {
        Self { read: self.read - other.read, written: self.written - other.written }
    }
}
