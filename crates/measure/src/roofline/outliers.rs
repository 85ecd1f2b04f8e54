//! Outlier detection: ranks that are slower than the others at the same metric, or lack it. No I/O.

use std::collections::BTreeSet;
use std::fmt;

use regatta_model::{RankRoofline, RateUnit, RooflineKind};

use super::RooflineRow;

/// Threshold in median absolute deviations: three standard deviations of 1.4826 MAD each, assuming
/// a normal distribution.
const OUTLIER_DEVIATIONS: f64 = 3.0 * 1.4826;

/// Identifies comparable rows.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct MetricKey {
    /// The benchmark.
    pub kind: RooflineKind,
    /// The case.
    pub case: String,
    /// The device; empty for disks, whose directories may differ between ranks.
    pub device: String,
    /// The unit.
    pub unit: RateUnit,
}

impl MetricKey {
    /// The key of a row.
    pub fn of(row: &RooflineRow) -> Self {
        let device = match row.kind {
            RooflineKind::Disk => String::new(),
            RooflineKind::Gemm | RooflineKind::Copy => row.device.clone(),
        };
        Self { kind: row.kind, case: row.case.clone(), device, unit: row.unit }
    }
}

impl fmt::Display for MetricKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.kind.label(&self.case))?;
        match self.device.as_str() {
            "" | "cpu" => Ok(()),
            device => write!(f, " on {device}"),
        }
    }
}

/// Distribution of a metric over all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct GroupStats {
    /// The metric.
    pub key: MetricKey,
    /// Upper median of the rates; the mean of two.
    pub median: f64,
    /// Rates below this are slow.
    pub threshold: f64,
}

/// A rank that is slow at a metric.
#[derive(Debug, Clone, PartialEq)]
pub struct SlowRank {
    /// The rank.
    pub rank: u32,
    /// Its host.
    pub host: String,
    /// The metric.
    pub key: MetricKey,
    /// Its rate.
    pub rate: f64,
    /// Rate relative to the median.
    pub ratio: f64,
}

impl fmt::Display for SlowRank {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, host, key, rate, ratio } = self;
        let (rate, unit, percent) = (format_rate(*rate), key.unit, ratio * 100.0);
        write!(f, "slow: rank {rank} on {host}: {key}: {rate} {unit}, {percent:.0} % of the median")
    }
}

/// A rank without metrics that most others have.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingMetrics {
    /// The rank.
    pub rank: u32,
    /// Its host.
    pub host: String,
    /// The missing metrics.
    pub keys: Vec<MetricKey>,
}

impl fmt::Display for MissingMetrics {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rank, host, keys } = self;
        let first = keys.first().map(MetricKey::to_string).unwrap_or_default();
        write!(f, "rank {rank} on {host}: no result for {first}")?;
        match keys.len() {
            0 | 1 => f.write_str(", which most ranks have"),
            more => write!(f, " and {} more, which most ranks have", more - 1),
        }
    }
}

/// The outliers among all ranks.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Outliers {
    /// All compared metrics.
    pub groups: Vec<GroupStats>,
    /// Slow ranks, the slowest first.
    pub slow: Vec<SlowRank>,
    /// Ranks with missing metrics.
    pub missing: Vec<MissingMetrics>,
}

impl Outliers {
    /// The statistics of a row's metric.
    pub fn group(&self, row: &RooflineRow) -> Option<&GroupStats> {
        let key = MetricKey::of(row);
        self.groups.iter().find(|group_stats| group_stats.key == key)
    }
}

/// Finds the outliers among the rows of all ranks; `ranks` also lists those without rows.
///
/// A rank is slow at a metric if its rate is below the median by more than the tolerance and by
/// more than the usual variation between ranks. Noisy metrics, such as those of a shared file
/// system, therefore need a larger deviation. Neither of two ranks is slow.
pub fn find(ranks: &[(u32, String)], rooflines: &[RankRoofline], tolerance: f64) -> Outliers {
    let by_key = by_key(rooflines);
    let mut outliers = Outliers { missing: find_missing(ranks, &by_key), ..Outliers::default() };
    for (key, members) in by_key {
        let rates: Vec<f64> = members.iter().map(|entry| entry.row.median).collect();
        let Some(group_stats) = group_stats(key, rates, tolerance) else { continue };
        for entry in members.iter().filter(|entry| entry.row.median < group_stats.threshold) {
            let (host, rate) = (entry.host.clone(), entry.row.median);
            let (key, ratio) = (group_stats.key.clone(), rate / group_stats.median);
            outliers.slow.push(SlowRank { rank: entry.rank, host, key, rate, ratio });
        }
        outliers.groups.push(group_stats);
    }
    outliers.slow.sort_by(|a, b| a.ratio.total_cmp(&b.ratio).then(a.rank.cmp(&b.rank)));
    outliers
}

/// A metric and the rows that have it.
type MetricGroup<'a> = (MetricKey, Vec<&'a RankRoofline>);

/// Groups rows by metric, in measurement order.
fn by_key(rooflines: &[RankRoofline]) -> Vec<MetricGroup<'_>> {
    let mut found: Vec<MetricGroup<'_>> = Vec::new();
    for entry in rooflines.iter().filter(|entry| entry.row.median.is_finite()) {
        let key = MetricKey::of(&entry.row);
        match found.iter_mut().find(|(known, _)| *known == key) {
            Some((_, members)) => members.push(entry),
            None => found.push((key, vec![entry])),
        }
    }
    found
}

/// Statistics of the rates; `None` without rates or if the median is 0.
fn group_stats(key: MetricKey, mut rates: Vec<f64>, tolerance: f64) -> Option<GroupStats> {
    rates.sort_by(f64::total_cmp);
    if let [low, high] = rates[..] {
        // Of two ranks neither is the usual one: noise cannot be told from a slow rank.
        let median = (low + high) / 2.0;
        return (median > 0.0).then_some(GroupStats { key, median, threshold: 0.0 });
    }
    // The upper median, so that a slow node with half of the ranks does not define the median.
    let median = *rates.get(rates.len() / 2).filter(|median| **median > 0.0)?;
    let mut deviations: Vec<f64> = rates.iter().map(|rate| (rate - median).abs()).collect();
    deviations.sort_by(f64::total_cmp);
    // The lower median of the deviations.
    let variation = OUTLIER_DEVIATIONS * deviations[(deviations.len() - 1) / 2];
    let threshold = median - (tolerance.max(0.0) * median).max(variation);
    Some(GroupStats { key, median, threshold })
}

/// Ranks without a metric that more than half of the ranks have.
fn find_missing(ranks: &[(u32, String)], by_key: &[MetricGroup<'_>]) -> Vec<MissingMetrics> {
    let having = |(key, members): &MetricGroup<'_>| {
        let have: BTreeSet<u32> = members.iter().map(|entry| entry.rank).collect();
        (key.clone(), have)
    };
    let mut common: Vec<(MetricKey, BTreeSet<u32>)> = by_key.iter().map(having).collect();
    common.retain(|(_, have)| have.len() * 2 > ranks.len());
    let missing = |(rank, host): &(u32, String)| {
        let lacks =
            |(key, have): &(MetricKey, BTreeSet<u32>)| (!have.contains(rank)).then(|| key.clone());
        let keys: Vec<MetricKey> = common.iter().filter_map(lacks).collect();
        (!keys.is_empty()).then(|| MissingMetrics { rank: *rank, host: host.clone(), keys })
    };
    ranks.iter().filter_map(missing).collect()
}

/// Three significant digits, or all digits before the point.
pub(super) fn format_rate(rate: f64) -> String {
    let decimals = match rate {
        r if r >= 100.0 => 0,
        r if r >= 10.0 => 1,
        r if r >= 1.0 => 2,
        _ => 4,
    };
    format!("{rate:.decimals$}")
}

#[cfg(test)]
#[path = "outliers_tests.rs"]
mod tests;
