//! Node roofline: peak rates of a rank's compute devices, memory and file system.

use std::fmt;

use serde::{Deserialize, Serialize};

/// The resource measured.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RooflineKind {
    /// Matrix multiplication.
    #[default]
    Gemm,
    /// Memory copy.
    Copy,
    /// File system.
    Disk,
}

impl fmt::Display for RooflineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

impl RooflineKind {
    /// Full label of a case. Cases of copies already name the operation.
    pub fn label(self, case: &str) -> String {
        match self {
            Self::Gemm | Self::Disk => format!("{self} {case}"),
            Self::Copy => case.to_owned(),
        }
    }
}

/// The unit of a rate.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum RateUnit {
    /// 10⁹ floating-point operations per second.
    #[default]
    #[serde(rename = "GFLOP/s")]
    Gflops,
    /// 10⁹ bytes per second.
    #[serde(rename = "GB/s")]
    GigabytesPerSecond,
    /// Files per second.
    #[serde(rename = "files/s")]
    FilesPerSecond,
}

impl fmt::Display for RateUnit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// One measured rate.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RooflineRow {
    /// The resource measured.
    pub kind: RooflineKind,
    /// The case: `f32 2048, 2 threads`. Rows of different ranks with the same case are comparable.
    #[serde(alias = "what")]
    pub case: String,
    /// The device: `cpu`, a GPU model, or a directory.
    pub device: String,
    /// Index of the GPU among those visible to the rank.
    #[serde(alias = "device_number", skip_serializing_if = "Option::is_none")]
    pub device_index: Option<u32>,
    /// Unit of the rates.
    pub unit: RateUnit,
    /// Rate of the fastest repetition.
    pub best: f64,
    /// Rate of the median repetition.
    pub median: f64,
    /// Time of one GEMM, copy or pass in the median repetition, in microseconds.
    pub time_us: f64,
    /// Timed repetitions.
    pub repetitions: u32,
    /// Remarks.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub notes: Vec<String>,
}

/// A measured rate with its rank.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct RankRoofline {
    /// The rank.
    pub rank: u32,
    /// Host name.
    pub host: String,
    /// The rate.
    #[serde(flatten)]
    pub row: RooflineRow,
}

impl RooflineRow {
    /// Full label: `gemm f32 2048, 2 threads`.
    pub fn label(&self) -> String {
        self.kind.label(&self.case)
    }

    /// The first value that is negative or not finite.
    pub(super) fn invalid_value(&self) -> Option<f64> {
        let values = [self.best, self.median, self.time_us];
        values.into_iter().find(|value| !value.is_finite() || *value < 0.0)
    }
}

/// A short measurement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Rate {
    /// What was measured.
    pub test: RateTest,
    /// The GPU; `None` for the CPUs.
    pub gpu: Option<u32>,
    /// Best repetition, in FLOP/s or bytes per second. Undisturbed by other processes.
    pub best: f64,
    /// Mean of all repetitions: also low where a cgroup or other processes take the CPUs away.
    pub sustained: f64,
}

/// A measured rate of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum RateTest {
    /// Matrix multiplication.
    Gemm,
    /// Memory copy.
    Copy,
    /// Copy from host memory to the GPU.
    HostToDevice,
    /// Copy from the GPU to host memory.
    DeviceToHost,
}
