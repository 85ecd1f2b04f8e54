//! Results side by side, by operation and size, with ratios to the first.

use std::collections::BTreeMap;

use regatta_model::units::format_bytes;
use regatta_model::{BenchResult, BenchTable, Operation};
use serde::Serialize;

use crate::buffer_mode::BufferMode;
use crate::cases::same_key;
use crate::metric::Metric;
use crate::text_table::{self, format_value};
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
        let tables: Vec<(&BenchResult, Option<&BenchTable>)> =
            results.iter().map(|result| (result, matching_table(result, table))).collect();
        side_by_side(&tables, table, options)
    };
    let rows = |comparison: &Comparison| !comparison.rows.is_empty();
    first.tables.iter().map(one).filter(rows).collect()
}

/// The table of `result` that corresponds to `reference`: the only one of the operation, because
/// programs name types differently, or else the one with the same type, reduction and root.
fn matching_table<'a>(result: &'a BenchResult, reference: &BenchTable) -> Option<&'a BenchTable> {
    let mut same = result.tables.iter().filter(|table| table.operation == reference.operation);
    let (first, second) = (same.next()?, same.next());
    if second.is_none() {
        return Some(first);
    }
    result.tables.iter().find(|table| same_key(table, reference))
}

fn side_by_side(
    tables: &[(&BenchResult, Option<&BenchTable>)],
    first: &BenchTable,
    options: CompareOptions,
) -> Comparison {
    let metric = options.metric.unwrap_or_else(|| Metric::default_for(&first.operation));
    let place = options.place.unwrap_or_else(|| common_mode(tables));
    let columns: Vec<BTreeMap<u64, f64>> = tables
        .iter()
        .map(|(result, table)| table.map(|t| by_size(result, t, metric, place)).unwrap_or_default())
        .collect();
    let mut sizes: Vec<u64> = columns.iter().flat_map(|column| column.keys().copied()).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let row = |size_bytes: u64| {
        let values: Vec<Option<f64>> =
            columns.iter().map(|column| column.get(&size_bytes).copied()).collect();
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
fn common_mode(tables: &[(&BenchResult, Option<&BenchTable>)]) -> BufferMode {
    let all_have = |place: BufferMode| {
        let mut present = tables.iter().filter_map(|(_, table)| *table);
        present.all(|table| table.rows.iter().any(|row| place.measurement(row).is_some()))
    };
    if !all_have(BufferMode::OutOfPlace) && all_have(BufferMode::InPlace) {
        return BufferMode::InPlace;
    }
    BufferMode::OutOfPlace
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
        let other = BufferMode::BOTH.into_iter().find(|other| *other != place);
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
        let mut cells = vec![self.header()];
        cells.extend(self.rows.iter().map(row_cells));
        let mut text = format!("{}\n", self.title());
        for (short, label) in self.column_names().iter().zip(&self.labels) {
            if short != label {
                text.push_str(&format!("{short}  {label}\n"));
            }
        }
        text.push('\n');
        text + &text_table::align(&cells, &[])
    }

    /// The labels, or numbers if a label is too long for a column.
    fn column_names(&self) -> Vec<String> {
        let long = self.labels.iter().any(|label| label.chars().count() > MAX_LABEL_CHARS);
        let column_name = |(index, label): (usize, &String)| match long {
            true => format!("#{}", index + 1),
            false => label.clone(),
        };
        self.labels.iter().enumerate().map(column_name).collect()
    }

    fn header(&self) -> Vec<String> {
        let mut header = vec!["size".to_owned()];
        for (index, name) in self.column_names().into_iter().enumerate() {
            header.push(name);
            if index > 0 {
                header.push("ratio".to_owned());
            }
        }
        header
    }
}

fn row_cells(row: &ComparedRow) -> Vec<String> {
    let mut cells = vec![format_bytes(row.size_bytes)];
    let pairs = row.values.iter().zip(&row.ratios);
    for (index, (value, ratio)) in pairs.enumerate() {
        cells.push(format_value(*value));
        if index > 0 {
            cells.push(ratio.map_or_else(|| "-".to_owned(), |ratio| format!("×{ratio:.2}")));
        }
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
        let (operation, metric) = (quoted(operation.name()), metric.name());
        for row in &comparison.rows {
            let pairs = row.values.iter().zip(&row.ratios).zip(&comparison.labels);
            for ((value, ratio), label) in pairs.filter(|((value, _), _)| value.is_some()) {
                let (label, value, ratio) = (quoted(label), known(*value), known(*ratio));
                let size = row.size_bytes;
                text.push_str(&format!(
                    "{operation},{dtype},{place},{metric},{size},{label},{value},{ratio}\n"
                ));
            }
        }
    }
    text
}
