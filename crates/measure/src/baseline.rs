//! Checks a result against a baseline result.

use std::fmt;
use std::str::FromStr;

use regatta_model::units::format_bytes;
use regatta_model::{BenchResult, BenchRow, BenchTable, Operation};
use serde::Serialize;

use crate::buffer_mode::BufferMode;
use crate::cases::same_key;
use crate::metric::Metric;

/// nccl-tests prints bandwidths below this with too few digits; the time is compared instead.
const MIN_PRECISE_BANDWIDTH: f64 = 1.0;

/// Allowed regression of a metric.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Tolerance {
    /// As a fraction of the baseline value.
    pub fraction: f64,
}

/// An invalid tolerance.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid tolerance {0:?}: expected a percentage from 0% to 100%, such as 10%")]
pub struct ParseToleranceError(pub String);

impl FromStr for Tolerance {
    type Err = ParseToleranceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ParseToleranceError(text.to_owned());
        let number = text.trim().strip_suffix('%').ok_or_else(error)?.trim_end();
        // `f64::from_str` also accepts "inf", "nan" and "+1".
        let percent: f64 = number.parse().map_err(|_| error())?;
        let plain = number.starts_with(|c: char| c.is_ascii_digit());
        match plain && (0.0..=100.0).contains(&percent) {
            true => Ok(Self { fraction: percent / 100.0 }),
            false => Err(error()),
        }
    }
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounded because 0.1 has no exact binary representation.
        write!(f, "{}%", (self.fraction * 1e6).round() / 1e4)
    }
}

/// The check of one size and buffer mode.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BaselineCheck {
    /// The operation.
    pub operation: Operation,
    /// The message size.
    pub size_bytes: u64,
    /// Out of place or in place.
    pub place: BufferMode,
    /// The metric that is compared.
    pub metric: Metric,
    /// The baseline value.
    pub expected: f64,
    /// The current value; `None` if it was not measured.
    pub measured: Option<f64>,
    /// Improvement over the baseline for any metric: above 1 is better.
    pub ratio: Option<f64>,
    /// Number of wrong elements.
    pub wrong: u64,
    /// Within the tolerance and without wrong elements.
    pub passed: bool,
}

/// All checks of a result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct BaselineReport {
    /// Allowed regression.
    pub tolerance: Tolerance,
    /// One check per baseline row and buffer mode, in the baseline's order.
    pub checks: Vec<BaselineCheck>,
}

/// Checks `result` against `baseline`: every baseline size must be present, correct and within the
/// tolerance. Rows of 0 bytes are skipped if the table has other rows: they have no bandwidth and
/// their time is noise.
pub fn check(result: &BenchResult, baseline: &BenchResult, tolerance: Tolerance) -> BaselineReport {
    let mut checks = Vec::new();
    for table in &baseline.tables {
        let current = matching(result, baseline, table);
        let sized = table.rows.iter().any(|row| row.size_bytes > 0);
        for old in table.rows.iter().filter(|row| !sized || row.size_bytes > 0) {
            let new = current
                .and_then(|current| current.rows.iter().find(|r| r.size_bytes == old.size_bytes));
            for place in BufferMode::BOTH {
                let pair = RowPair { result, baseline, table, current, old, new, place };
                checks.extend(pair.check(tolerance));
            }
        }
    }
    BaselineReport { tolerance, checks }
}

/// The table of `result` to compare with a baseline table: same type, reduction and root, or the
/// only table of the operation if both results have exactly one.
fn matching<'a>(
    result: &'a BenchResult,
    baseline: &BenchResult,
    table: &BenchTable,
) -> Option<&'a BenchTable> {
    let of_operation = |t: &&BenchTable| t.operation == table.operation;
    let is_unique = |of: &BenchResult| of.tables.iter().filter(of_operation).count() == 1;
    let found = result.tables.iter().find(|t| same_key(t, table));
    found.or_else(|| {
        let both = is_unique(result) && is_unique(baseline);
        result.tables.iter().find(of_operation).filter(|_| both)
    })
}

/// A baseline row with its current counterpart.
struct RowPair<'a> {
    result: &'a BenchResult,
    baseline: &'a BenchResult,
    table: &'a BenchTable,
    current: Option<&'a BenchTable>,
    old: &'a BenchRow,
    new: Option<&'a BenchRow>,
    place: BufferMode,
}

impl RowPair<'_> {
    fn check(&self, tolerance: Tolerance) -> Option<BaselineCheck> {
        self.place.measurement(self.old)?;
        let metric = self.choose_metric()?;
        let expected = self.baseline_value(metric)?;
        let measured = self.current_value(metric);
        let ratio = measured.and_then(|measured| improvement(metric, measured, expected));
        let wrong = self.new.and_then(|new| self.place.measurement(new)).and_then(|m| m.wrong);
        let wrong = wrong.unwrap_or_default();
        // Any value passes against a baseline bandwidth of 0.
        let no_baseline = metric.is_bandwidth() && expected == 0.0 && measured.is_some();
        let fast_enough =
            no_baseline || ratio.is_some_and(|ratio| within_tolerance(metric, ratio, tolerance));
        Some(BaselineCheck {
            operation: self.table.operation.clone(),
            size_bytes: self.old.size_bytes,
            place: self.place,
            metric,
            expected,
            measured,
            ratio,
            wrong,
            passed: fast_enough && wrong == 0,
        })
    }

    /// The metric to compare: available on both sides and printed with enough digits.
    fn choose_metric(&self) -> Option<Metric> {
        let default = Metric::default_for(&self.table.operation);
        let candidates = [default, Metric::BusBandwidth, Metric::AlgorithmBandwidth, Metric::Time];
        let available = |metric: &Metric| {
            self.baseline_value(*metric).is_some()
                && (self.new.is_none() || self.current_value(*metric).is_some())
        };
        let precise = |metric: &Metric| {
            let enough = |value: f64| !metric.is_bandwidth() || value >= MIN_PRECISE_BANDWIDTH;
            self.baseline_value(*metric).is_some_and(enough)
                && self.current_value(*metric).is_none_or(enough)
        };
        let best = candidates.iter().find(|metric| available(metric) && precise(metric));
        let any = best.or_else(|| candidates.iter().find(|metric| available(metric)));
        // Falls back to a metric of the baseline alone, which then counts as not measured.
        any.or_else(|| candidates.iter().find(|metric| self.baseline_value(**metric).is_some()))
            .copied()
    }

    fn baseline_value(&self, metric: Metric) -> Option<f64> {
        let measured = self.place.measurement(self.old)?;
        metric.value(self.baseline, self.table, self.old.size_bytes, measured)
    }

    fn current_value(&self, metric: Metric) -> Option<f64> {
        let (new, current) = (self.new?, self.current?);
        metric.value(self.result, current, new.size_bytes, self.place.measurement(new)?)
    }
}

/// Ratio of two values of a metric; above 1 is better.
fn improvement(metric: Metric, measured: f64, expected: f64) -> Option<f64> {
    let (over, under) = match metric.is_bandwidth() {
        true => (measured, expected),
        false => (expected, measured),
    };
    (under > 0.0).then(|| over / under)
}

/// A bandwidth may be lower by the tolerance, a time higher.
fn within_tolerance(metric: Metric, ratio: f64, tolerance: Tolerance) -> bool {
    match metric.is_bandwidth() {
        true => ratio >= 1.0 - tolerance.fraction,
        false => ratio * (1.0 + tolerance.fraction) >= 1.0,
    }
}

impl BaselineReport {
    /// Whether all checks passed. A report without checks fails.
    pub fn passed(&self) -> bool {
        !self.checks.is_empty() && self.checks.iter().all(|check| check.passed)
    }

    /// A message for each failed check.
    pub fn failures(&self) -> Vec<String> {
        let failed = self.checks.iter().filter(|check| !check.passed);
        failed.map(|check| check.message(self.tolerance)).collect()
    }
}

impl BaselineCheck {
    /// The check as a sentence, with both values and the ratio.
    pub fn message(&self, tolerance: Tolerance) -> String {
        let Self { operation, place, metric, expected, wrong, .. } = self;
        let what = format!(
            "{operation} of {} ({} B), {place}",
            format_bytes(self.size_bytes),
            self.size_bytes
        );
        let unit = metric.unit();
        let Some(measured) = self.measured else {
            return format!("{what}: not measured (baseline: {expected:.2} {unit})");
        };
        if *wrong > 0 {
            return format!("{what}: {wrong} wrong elements");
        }
        let ratio = self.ratio.map(|ratio| format!(", ×{ratio:.3}")).unwrap_or_default();
        let check = if self.passed { "within" } else { "outside" };
        format!(
            "{what}: {measured:.2} {unit}, baseline {expected:.2} {unit}{ratio}: {check} \
             the tolerance of {tolerance}"
        )
    }
}
