//! Results side by side, by operation and size, with ratios to the first.

use std::collections::{BTreeMap, BTreeSet};

use regatta_draw::table::{self, format_value};
use regatta_model::units::format_bytes;
use regatta_model::{BenchResult, BenchTable, Operation};
use serde::Serialize;

use crate::buffer_mode::BufferMode;
use crate::cases::same_key;
use crate::metric::Metric;

use crate::write::quoted;

/// Longer labels are replaced by numbers in the header.
const MAX_LABEL_CHARS: usize = 20;

/// One operation of several results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// The operation.
    pub operation: Operation,
    /// Data type of the first result.
    pub dtype: Option<String>,
    /// The compared metric.
    pub metric: Metric,
    /// Out of place or in place; a result that has only the other mode is shown with that.
    pub place: BufferMode,
    /// Labels of the results, in column order.
    pub labels: Vec<String>,
    /// One row per size of any result.
    pub rows: Vec<ComparedRow>,
}

/// One size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedRow {
    /// The message size.
    pub size_bytes: u64,
    /// The metric of each result; the mean if a size was measured several times.
    pub values: Vec<Option<f64>>,
    /// Each value divided by the first.
    pub ratios: Vec<Option<f64>>,
}

/// What to compare; `None` selects a default.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct CompareOptions {
    /// Default: the usual metric of the operation.
    pub metric: Option<Metric>,
    /// Default: out of place, or in place if only that is available everywhere.
    pub place: Option<BufferMode>,
}

/// Compares results: one comparison per table of the first result. A result without a matching
/// table leaves its column empty.
pub fn compare(results: &[BenchResult], options: CompareOptions) -> Vec<Comparison> {
    let Some(first) = results.first() else { return Vec::new() };
    let one = |table: &BenchTable| {
        let matching = |result| (result, matching_table(result, table));
        side_by_side(&results.iter().map(matching).collect::<Vec<_>>(), table, options)
    };
    let rows = |comparison: &Comparison| !comparison.rows.is_empty();
    first.tables.iter().map(one).filter(rows).collect()
}

/// The table of `result` that corresponds to `reference`: the only one of the operation, because
/// programs name types differently, or else the one with the same type, reduction and root.
fn matching_table<'a>(result: &'a BenchResult, reference: &BenchTable) -> Option<&'a BenchTable> {
    let mut same = result.tables.iter().filter(|table| table.operation == reference.operation);
    match (same.next()?, same.next()) {
        (only, None) => Some(only),
        _ => result.tables.iter().find(|table| same_key(table, reference)),
    }
}

/// A result and its table of the compared operation.
type Column<'a> = (&'a BenchResult, Option<&'a BenchTable>);

fn side_by_side(tables: &[Column<'_>], first: &BenchTable, options: CompareOptions) -> Comparison {
    let metric = options.metric.unwrap_or_else(|| Metric::default_for(&first.operation));
    let place = options.place.unwrap_or_else(|| common_mode(tables));
    let values = |(result, table): &Column<'_>| {
        table.map(|table| by_size(result, table, metric, place)).unwrap_or_default()
    };
    let columns: Vec<BTreeMap<u64, f64>> = tables.iter().map(values).collect();
    let sizes: BTreeSet<u64> = columns.iter().flat_map(|column| column.keys().copied()).collect();
    let row = |size_bytes: u64| {
        let value = |column: &BTreeMap<u64, f64>| column.get(&size_bytes).copied();
        let values: Vec<Option<f64>> = columns.iter().map(value).collect();
        let base = values.first().copied().flatten().filter(|value| *value > 0.0);
        let ratios = values.iter().map(|value| Some((*value)? / base?)).collect();
        ComparedRow { size_bytes, values, ratios }
    };
    Comparison {
        operation: first.operation.clone(),
        dtype: first.dtype.clone(),
        metric,
        place,
        labels: tables.iter().map(|(result, _)| result.label.clone()).collect(),
        rows: sizes.into_iter().map(row).collect(),
    }
}

/// Out of place, unless only in place is available in all tables.
fn common_mode(tables: &[Column<'_>]) -> BufferMode {
    let all_have = |place: BufferMode| {
        let mut present = tables.iter().filter_map(|(_, table)| *table);
        present.all(|table| table.rows.iter().any(|row| place.measurement(row).is_some()))
    };
    let in_place = !all_have(BufferMode::OutOfPlace) && all_have(BufferMode::InPlace);
    if in_place { BufferMode::InPlace } else { BufferMode::OutOfPlace }
}

/// The metric by size, in the requested mode or else in the other.
pub(crate) fn by_size(
    result: &BenchResult,
    table: &BenchTable,
    metric: Metric,
    place: BufferMode,
) -> BTreeMap<u64, f64> {
    let mut sums: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for row in &table.rows {
        let other = BufferMode::ALL.into_iter().find(|other| *other != place);
        let measured = place.measurement(row).or_else(|| other?.measurement(row));
        let value = measured.and_then(|m| metric.value(result, table, row.size_bytes, m));
        if let Some(value) = value {
            let (sum, count) = sums.entry(row.size_bytes).or_default();
            (*sum, *count) = (*sum + value, *count + 1.0);
        }
    }
    sums.into_iter().map(|(size, (sum, count))| (size, sum / count)).collect()
}

impl Comparison {
    /// Title of the table.
    pub fn title(&self) -> String {
        let dtype = self.dtype.as_ref().map(|dtype| format!(" of {dtype}")).unwrap_or_default();
        format!("{}{dtype}, {}, {}", self.operation, self.place, self.metric)
    }

    /// As an aligned text table.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", self.title());
        let mut header = vec!["size".to_owned()];
        // Numbers if a label is too long for a column.
        let long = self.labels.iter().any(|label| label.chars().count() > MAX_LABEL_CHARS);
        for (index, label) in self.labels.iter().enumerate() {
            let name = if long { format!("#{}", index + 1) } else { label.clone() };
            if long {
                text += &format!("{name}  {label}\n");
            }
            header.push(name);
            header.extend((index > 0).then(|| "ratio".to_owned()));
        }
        let rows: Vec<Vec<String>> = self.rows.iter().map(row_cells).collect();
        format!("{text}\n{}", table::align(&header, &rows, &[]))
    }
}

fn row_cells(row: &ComparedRow) -> Vec<String> {
    let mut cells = vec![format_bytes(row.size_bytes)];
    for (index, (value, ratio)) in row.values.iter().zip(&row.ratios).enumerate() {
        cells.push(format_value(*value));
        let ratio = || {
            ratio.map_or_else(|| "-".to_owned(), |ratio| format!("×{}", format_value(Some(ratio))))
        };
        cells.extend((index > 0).then(ratio));
    }
    cells
}

/// Comparisons as CSV: one line per size and result.
pub fn csv(comparisons: &[Comparison]) -> String {
    let mut text = "operation,type,place,metric,size_bytes,label,value,ratio\n".to_owned();
    let known = |value: Option<f64>| value.map(|v| v.to_string()).unwrap_or_default();
    for comparison in comparisons {
        let Comparison { operation, dtype, place, metric, .. } = comparison;
        let dtype = quoted(dtype.as_deref().unwrap_or_default());
        let (operation, metric) = (quoted(operation.to_string()), metric.name());
        for row in &comparison.rows {
            let pairs = row.values.iter().zip(&row.ratios).zip(&comparison.labels);
            for ((value, ratio), label) in pairs.filter(|((value, _), _)| value.is_some()) {
                let (label, value, ratio) = (quoted(label), known(*value), known(*ratio));
                let case = format!("{operation},{dtype},{place},{metric},{}", row.size_bytes);
                text += &format!("{case},{label},{value},{ratio}\n");
            }
        }
    }
    text
}
