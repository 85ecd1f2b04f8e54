//! With two buffers or with one.

use std::fmt;

use regatta_model::{BenchRow, Measurement};
use serde::{Deserialize, Serialize};

/// Where the result of a call is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Place {
    /// To another buffer.
    OutOfPlace,
    /// Over the input.
    InPlace,
}

impl Place {
    /// Both, in the order of nccl-tests' columns.
    pub const BOTH: [Self; 2] = [Self::OutOfPlace, Self::InPlace];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Self::OutOfPlace => "out-of-place",
            Self::InPlace => "in-place",
        }
    }

    /// What a row has of it.
    pub fn of(self, row: &BenchRow) -> Option<&Measurement> {
        match self {
            Self::OutOfPlace => row.out_of_place.as_ref(),
            Self::InPlace => row.in_place.as_ref(),
        }
    }

    /// What a row has of it, to be filled in.
    pub fn of_mut(self, row: &mut BenchRow) -> &mut Measurement {
        let place = match self {
            Self::OutOfPlace => &mut row.out_of_place,
            Self::InPlace => &mut row.in_place,
        };
        place.get_or_insert_default()
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
