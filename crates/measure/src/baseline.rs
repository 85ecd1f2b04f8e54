//! Checks a result against a baseline result.

use std::fmt;
use std::str::FromStr;

use regatta_model::units::format_bytes;
use regatta_model::{BenchResult, BenchRow, BenchTable, Operation};

use crate::buffer_mode::BufferMode;
use crate::cases::same_key;
use crate::metric::Metric;

/// nccl-tests prints bandwidths below this with too few digits; the time is compared instead.
const MIN_PRECISE_BANDWIDTH: f64 = 1.0;

/// Allowed regression of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// As a fraction of the baseline value.
    pub fraction: f64,
}

/// An invalid tolerance.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("expected 0% to 100%, such as 10%")]
pub struct ParseToleranceError;

impl FromStr for Tolerance {
    type Err = ParseToleranceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let number = text.trim().strip_suffix('%').ok_or(ParseToleranceError)?.trim_end();
        // `f64::from_str` also accepts "inf", "nan" and "+1".
        let percent: f64 = number.parse().map_err(|_| ParseToleranceError)?;
        let plain = number.starts_with(|c: char| c.is_ascii_digit());
        let valid = plain && (0.0..=100.0).contains(&percent);
        if valid { Ok(Self { fraction: percent / 100.0 }) } else { Err(ParseToleranceError) }
    }
}

impl fmt::Display for Tolerance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Rounded because 0.1 has no exact binary representation.
        write!(f, "{}%", (self.fraction * 1e6).round() / 1e4)
    }
}

/// The check of one size and buffer mode.
#[derive(Debug, Clone, PartialEq)]
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
    /// Number of wrong elements.
    pub wrong: u64,
    /// Within the tolerance and without wrong elements.
    pub passed: bool,
}

/// All checks of a result.
#[derive(Debug, Clone, PartialEq)]
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
        for row in table.rows.iter().filter(|row| !sized || row.size_bytes > 0) {
            let old = MeasuredRow { result: baseline, table, row };
            let new = current.and_then(|table| {
                let row = table.rows.iter().find(|new| new.size_bytes == row.size_bytes)?;
                Some(MeasuredRow { result, table, row })
            });
            let check = |place| check_row(&old, new.as_ref(), place, tolerance);
            checks.extend(BufferMode::ALL.into_iter().filter_map(check));
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

/// A row with its table and result.
struct MeasuredRow<'a> {
    result: &'a BenchResult,
    table: &'a BenchTable,
    row: &'a BenchRow,
}

impl MeasuredRow<'_> {
    fn value(&self, metric: Metric, place: BufferMode) -> Option<f64> {
        let measured = place.measurement(self.row)?;
        metric.value(self.result, self.table, self.row.size_bytes, measured)
    }
}

/// Checks a row against a baseline row that has a measurement in this mode.
fn check_row(
    old: &MeasuredRow<'_>,
    new: Option<&MeasuredRow<'_>>,
    place: BufferMode,
    tolerance: Tolerance,
) -> Option<BaselineCheck> {
    let metric = choose_metric(old, new, place)?;
    let expected = old.value(metric, place)?;
    let measured = new.and_then(|new| new.value(metric, place));
    let wrong = new.and_then(|new| place.measurement(new.row)?.wrong).unwrap_or_default();
    // A bandwidth may be lower by the tolerance, a time higher. Any value passes against a baseline
    // bandwidth of 0.
    let fast_enough = measured.is_some_and(|measured| match metric.is_bandwidth() {
        true => expected == 0.0 || measured / expected >= 1.0 - tolerance.fraction,
        false => measured > 0.0 && expected / measured * (1.0 + tolerance.fraction) >= 1.0,
    });
    let (operation, size_bytes) = (old.table.operation.clone(), old.row.size_bytes);
    let passed = fast_enough && wrong == 0;
    Some(BaselineCheck { operation, size_bytes, place, metric, expected, measured, wrong, passed })
}

/// The metric to compare: available on both sides and printed with enough digits.
fn choose_metric(
    old: &MeasuredRow<'_>,
    new: Option<&MeasuredRow<'_>>,
    place: BufferMode,
) -> Option<Metric> {
    let default = Metric::default_for(&old.table.operation);
    let candidates = [default, Metric::BusBandwidth, Metric::AlgorithmBandwidth, Metric::Time];
    let in_baseline = |metric: &&Metric| old.value(**metric, place).is_some();
    let available = |metric: &&Metric| {
        in_baseline(metric) && new.is_none_or(|new| new.value(**metric, place).is_some())
    };
    let precise = |metric: &&Metric| {
        let values = [Some(old), new].map(|row| row.and_then(|row| row.value(**metric, place)));
        let enough = |value: f64| !metric.is_bandwidth() || value >= MIN_PRECISE_BANDWIDTH;
        available(metric) && values.into_iter().flatten().all(enough)
    };
    let best = candidates.iter().find(precise).or_else(|| candidates.iter().find(available));
    // Falls back to a metric of the baseline alone, which then counts as not measured.
    best.or_else(|| candidates.iter().find(in_baseline)).copied()
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
    /// The check as a sentence, with both values and their ratio.
    pub fn message(&self, tolerance: Tolerance) -> String {
        let Self { operation, size_bytes, place, metric, expected, wrong, .. } = self;
        let (size, bytes) = (format_bytes(*size_bytes), format!("{size_bytes} B"));
        let size = if size == bytes { size } else { format!("{size} ({bytes})") };
        let what = format!("{operation} of {size}, {place}");
        let unit = metric.unit();
        let Some(measured) = self.measured else {
            return format!("{what}: not measured in this run (baseline {expected:.2} {unit})");
        };
        if *wrong > 0 {
            return format!("{what}: {wrong} wrong elements");
        }
        let values = format!("{measured:.2} {unit}, baseline {expected:.2} {unit}");
        let ratio = measured / expected;
        format!("{what}: {values}: {ratio:.3} x the baseline, tolerance {tolerance}")
    }
}
