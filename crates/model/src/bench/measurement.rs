//! One measurement and its statistics.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// One measurement. Values that the program does not print are absent, and so are non-finite ones,
/// such as the bandwidth of a call that took no time.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Measurement {
    /// Time per call, in microseconds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub time_us: Option<f64>,
    /// Algorithm bandwidth (size over time), in GB/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub algbw: Option<f64>,
    /// Bus bandwidth, in GB/s.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub busbw: Option<f64>,
    /// Wrong elements; absent if the result was not checked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wrong: Option<u64>,
    /// Maximum error, which early versions of nccl-tests print instead of wrong elements.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<f64>,
    /// Timed calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub iterations: Option<u64>,
    /// Statistics over the times of single calls.
    #[serde(alias = "spread", skip_serializing_if = "Option::is_none")]
    pub call_stats: Option<TimeStats>,
    /// Statistics over the mean times of the ranks.
    #[serde(alias = "rank_spread", skip_serializing_if = "Option::is_none")]
    pub rank_stats: Option<TimeStats>,
    /// Mean time by rank, in microseconds.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub rank_times_us: Vec<f64>,
    /// Other values, by column name: `Overlap(%)`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub other: BTreeMap<String, f64>,
}

/// Statistics over times in microseconds.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct TimeStats {
    /// Minimum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_us: Option<f64>,
    /// Median.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    /// 90th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p90_us: Option<f64>,
    /// 95th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p95_us: Option<f64>,
    /// 99th percentile.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    /// Maximum.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_us: Option<f64>,
    /// Coefficient of variation: standard deviation in percent of the mean.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cv_percent: Option<f64>,
}

impl Measurement {
    /// The first negative value.
    pub(super) fn negative(&self) -> Option<f64> {
        let values = [self.time_us, self.algbw, self.busbw, self.error];
        values.into_iter().flatten().find(|value| *value < 0.0)
    }
}
