//! Whether a result is as good as an earlier one.

use std::fmt;
use std::str::FromStr;

use regatta_model::units::bytes;
use regatta_model::{BenchResult, BenchRow, BenchTable, Operation};
use serde::Serialize;

use crate::figure::Figure;
use crate::place::Place;

/// Bandwidths below are printed with too few digits to be judged by: then the time is, if known.
const TOO_FEW_DIGITS: f64 = 1.0;

/// How much worse a figure may be.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Tolerance {
    /// As a fraction of the baseline's figure.
    pub fraction: f64,
}

/// A tolerance that is none.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no tolerance; write it in percent from 0% to 100%, such as 10%")]
pub struct ToleranceError(pub String);

impl FromStr for Tolerance {
    type Err = ToleranceError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ToleranceError(text.to_owned());
        let number = text.trim().strip_suffix('%').ok_or_else(error)?.trim_end();
        // Rust takes "inf", "nan" and "+1" for numbers.
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
        // Rounded, for a tenth is no binary fraction.
        write!(f, "{}%", (self.fraction * 1e6).round() / 1e4)
    }
}

/// What is said of one size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Verdict {
    /// What was measured.
    pub operation: Operation,
    /// The size.
    pub size_bytes: u64,
    /// With one buffer or two.
    pub place: Place,
    /// What is judged by.
    pub figure: Figure,
    /// What the baseline has.
    pub expected: f64,
    /// What was measured now; none if that is missing.
    pub measured: Option<f64>,
    /// How good it is by the baseline, whatever the figure: above 1 is better.
    pub ratio: Option<f64>,
    /// Wrong elements.
    pub wrong: u64,
    /// Whether it is good enough, and right.
    pub passed: bool,
}

/// What is said of a whole result.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Judgement {
    /// How much worse a figure may be.
    pub tolerance: Tolerance,
    /// Every size of the baseline, in its order.
    pub verdicts: Vec<Verdict>,
}

/// Judges a result by an earlier one: every size that the baseline has must be there, right, and
/// at most by the tolerance worse. Where there are others, size 0 is left out: no bytes have no
/// bandwidth, and the time of such a call is noise.
pub fn judge(result: &BenchResult, baseline: &BenchResult, tolerance: Tolerance) -> Judgement {
    let mut verdicts = Vec::new();
    for table in &baseline.tables {
        let now = matching(result, baseline, table);
        let sized = table.rows.iter().any(|row| row.size_bytes > 0);
        for old in table.rows.iter().filter(|row| !sized || row.size_bytes > 0) {
            let new = now.and_then(|now| now.rows.iter().find(|r| r.size_bytes == old.size_bytes));
            for place in Place::BOTH {
                let pair = Pair { result, baseline, table, now, old, new, place };
                verdicts.extend(pair.verdict(tolerance));
            }
        }
    }
    Judgement { tolerance, verdicts }
}

/// The table of a result to be judged by one of the baseline: that of the same type, reduction and
/// root, or where both have one of the operation, that one.
fn matching<'a>(
    result: &'a BenchResult,
    baseline: &BenchResult,
    table: &BenchTable,
) -> Option<&'a BenchTable> {
    let of_operation = |t: &&BenchTable| t.operation == table.operation;
    let exact = |t: &&BenchTable| {
        of_operation(t) && t.dtype == table.dtype && t.redop == table.redop && t.root == table.root
    };
    let alone = |of: &BenchResult| of.tables.iter().filter(of_operation).count() == 1;
    let found = result.tables.iter().find(exact);
    found.or_else(|| {
        let both = alone(result) && alone(baseline);
        result.tables.iter().find(of_operation).filter(|_| both)
    })
}

/// A size then and now.
struct Pair<'a> {
    result: &'a BenchResult,
    baseline: &'a BenchResult,
    table: &'a BenchTable,
    now: Option<&'a BenchTable>,
    old: &'a BenchRow,
    new: Option<&'a BenchRow>,
    place: Place,
}

impl Pair<'_> {
    fn verdict(&self, tolerance: Tolerance) -> Option<Verdict> {
        self.place.of(self.old)?;
        let usual = Figure::usual(&self.table.operation);
        let figure = self.figure(usual)?;
        let expected = self.then(figure)?;
        let measured = self.value(figure);
        let ratio = measured.and_then(|measured| goodness(figure, measured, expected));
        let wrong = self.new.and_then(|new| self.place.of(new)).and_then(|m| m.wrong);
        let wrong = wrong.unwrap_or_default();
        // Of nothing, anything is enough.
        let nothing = figure.is_bandwidth() && expected == 0.0 && measured.is_some();
        let enough = nothing || ratio.is_some_and(|ratio| is_enough(figure, ratio, tolerance));
        Some(Verdict {
            operation: self.table.operation.clone(),
            size_bytes: self.old.size_bytes,
            place: self.place,
            figure,
            expected,
            measured,
            ratio,
            wrong,
            passed: enough && wrong == 0,
        })
    }

    /// What can be judged by: what both have, and with enough digits.
    fn figure(&self, usual: Figure) -> Option<Figure> {
        let others = [usual, Figure::BusBandwidth, Figure::AlgorithmBandwidth, Figure::Time];
        let known = |figure: &Figure| {
            self.then(*figure).is_some() && (self.new.is_none() || self.value(*figure).is_some())
        };
        let fine = |figure: &Figure| {
            let enough = |value: f64| !figure.is_bandwidth() || value >= TOO_FEW_DIGITS;
            self.then(*figure).is_some_and(enough) && self.value(*figure).is_none_or(enough)
        };
        let best = others.iter().find(|figure| known(figure) && fine(figure));
        let any = best.or_else(|| others.iter().find(|figure| known(figure)));
        // What the baseline has and the result has not is missing.
        any.or_else(|| others.iter().find(|figure| self.then(**figure).is_some())).copied()
    }

    fn then(&self, figure: Figure) -> Option<f64> {
        let measured = self.place.of(self.old)?;
        figure.of(self.baseline, self.table, self.old.size_bytes, measured)
    }

    fn value(&self, figure: Figure) -> Option<f64> {
        let (new, now) = (self.new?, self.now?);
        figure.of(self.result, now, new.size_bytes, self.place.of(new)?)
    }
}

/// How good a figure is by another: above 1 is better.
fn goodness(figure: Figure, measured: f64, expected: f64) -> Option<f64> {
    let (over, under) = match figure.is_bandwidth() {
        true => (measured, expected),
        false => (expected, measured),
    };
    (under > 0.0).then(|| over / under)
}

/// A bandwidth may be less by the tolerance, a time more.
fn is_enough(figure: Figure, ratio: f64, tolerance: Tolerance) -> bool {
    match figure.is_bandwidth() {
        true => ratio >= 1.0 - tolerance.fraction,
        false => ratio * (1.0 + tolerance.fraction) >= 1.0,
    }
}

impl Judgement {
    /// Whether all is good enough. Of nothing, nothing is.
    pub fn passed(&self) -> bool {
        !self.verdicts.is_empty() && self.verdicts.iter().all(|verdict| verdict.passed)
    }

    /// What is not good enough, in sentences.
    pub fn failures(&self) -> Vec<String> {
        let failed = self.verdicts.iter().filter(|verdict| !verdict.passed);
        failed.map(|verdict| verdict.sentence(self.tolerance)).collect()
    }
}

impl Verdict {
    /// What is so, with both figures and the ratio.
    pub fn sentence(&self, tolerance: Tolerance) -> String {
        let Self { operation, place, figure, expected, wrong, .. } = self;
        let what =
            format!("{operation} of {} ({} B), {place}", bytes(self.size_bytes), self.size_bytes);
        let unit = figure.unit();
        let Some(measured) = self.measured else {
            return format!("{what}: not measured, the baseline has {expected:.2} {unit}");
        };
        if *wrong > 0 {
            return format!("{what}: {wrong} elements are wrong");
        }
        let ratio = self.ratio.map(|ratio| format!(", ×{ratio:.3}")).unwrap_or_default();
        let verdict = if self.passed { "within" } else { "beyond" };
        format!(
            "{what}: {measured:.2} {unit}, the baseline has {expected:.2} {unit}{ratio}: {verdict} \
             the tolerance of {tolerance}"
        )
    }
}
