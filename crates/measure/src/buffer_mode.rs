//! Out-of-place and in-place calls.

use regatta_comm::enum_names;
use regatta_model::{BenchRow, Measurement};
use serde::{Deserialize, Serialize};

/// Where a call writes its result.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BufferMode {
    /// To a separate buffer.
    OutOfPlace,
    /// Over its input.
    InPlace,
}

enum_names!(BufferMode, "Both modes, in the order of nccl-tests' columns and with its names.",
    OutOfPlace "out-of-place", InPlace "in-place");

impl BufferMode {
    /// The row's measurement in this mode.
    pub fn measurement(self, row: &BenchRow) -> Option<&Measurement> {
        match self {
            Self::OutOfPlace => row.out_of_place.as_ref(),
            Self::InPlace => row.in_place.as_ref(),
        }
    }

    /// The row's measurement in this mode, inserted if absent.
    pub fn measurement_mut(self, row: &mut BenchRow) -> &mut Measurement {
        let place = match self {
            Self::OutOfPlace => &mut row.out_of_place,
            Self::InPlace => &mut row.in_place,
        };
        place.get_or_insert_default()
    }
}
