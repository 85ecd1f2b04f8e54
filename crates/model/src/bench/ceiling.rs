//! What the devices, memory and file system of a rank can do.

use serde::{Deserialize, Serialize};

/// What was measured.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "kebab-case")]
pub enum CeilingKind {
    /// Products of matrices.
    #[default]
    Gemm,
    /// Copies of memory.
    Copy,
    /// A file system.
    Disk,
}

impl CeilingKind {
    /// Its name, which is that of the command.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gemm => "gemm",
            Self::Copy => "copy",
            Self::Disk => "disk",
        }
    }

    /// What was measured of it, in full. The words for copies need no more.
    pub fn label(self, what: &str) -> String {
        match self {
            Self::Gemm | Self::Disk => format!("{} {what}", self.name()),
            Self::Copy => what.to_owned(),
        }
    }
}

/// What a rate counts.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
pub enum RateUnit {
    /// 10⁹ floating point operations a second.
    #[default]
    #[serde(rename = "GFLOP/s")]
    Gflops,
    /// 10⁹ bytes a second.
    #[serde(rename = "GB/s")]
    GigabytesPerSecond,
    /// Files a second.
    #[serde(rename = "files/s")]
    FilesPerSecond,
}

impl RateUnit {
    /// As it is written.
    pub fn name(self) -> &'static str {
        match self {
            Self::Gflops => "GFLOP/s",
            Self::GigabytesPerSecond => "GB/s",
            Self::FilesPerSecond => "files/s",
        }
    }
}

/// One rate that one rank reached.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct CeilingRow {
    /// What was measured.
    pub kind: CeilingKind,
    /// Of it, what: `f32 2048, 2 threads`. Rows of several ranks that say the same are comparable.
    pub what: String,
    /// On what: `cpu`, the model of a GPU, or a folder.
    pub device: String,
    /// The GPU's number, as the rank counts those that it sees.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_number: Option<u32>,
    /// What the rates count.
    pub unit: RateUnit,
    /// The rate of the fastest repetition.
    pub best: f64,
    /// The rate of the median repetition.
    pub median: f64,
    /// How long one product, copy or pass took in the median repetition, in microseconds.
    pub time_us: f64,
    /// How many repetitions were timed.
    pub repetitions: u32,
    /// What else there is to know of it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// One rate, and who reached it.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Ceiling {
    /// The rank.
    pub rank: u32,
    /// Its node.
    pub host: String,
    /// The rate.
    #[serde(flatten)]
    pub row: CeilingRow,
}

impl CeilingRow {
    /// What was measured, in full: `gemm f32 2048, 2 threads`.
    pub fn label(&self) -> String {
        self.kind.label(&self.what)
    }

    /// A figure that no measurement gives, if there is one.
    pub(super) fn impossible(&self) -> Option<f64> {
        let figures = [self.best, self.median, self.time_us];
        figures.into_iter().find(|figure| !figure.is_finite() || *figure < 0.0)
    }
}
