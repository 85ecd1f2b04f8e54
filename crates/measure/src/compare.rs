//! Results side by side, by operation and size, with ratios to the first.

use std::collections::BTreeMap;

use regatta_model::units::bytes;
use regatta_model::{BenchResult, BenchTable, Operation};
use serde::Serialize;

use crate::figure::Figure;
use crate::place::Place;
use crate::write::quoted;

/// Longer names do not fit a column.
const LONG: usize = 20;

/// One operation of several results.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Comparison {
    /// What was measured.
    pub operation: Operation,
    /// The type of elements, where the first result tells it.
    pub dtype: Option<String>,
    /// The figure.
    pub figure: Figure,
    /// With one buffer or two; a result that has only the other is shown with that.
    pub place: Place,
    /// The results' names, in the order of columns.
    pub labels: Vec<String>,
    /// A row for each size that any result has.
    pub rows: Vec<ComparedRow>,
}

/// One size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct ComparedRow {
    /// The size.
    pub size_bytes: u64,
    /// The figure of each result; of several measurements the mean.
    pub values: Vec<Option<f64>>,
    /// Each value by the first one: of bandwidths more is better, of times less.
    pub ratios: Vec<Option<f64>>,
}

/// What to compare. What is not said is chosen.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Choice {
    /// The figure; else the one that users look at.
    pub figure: Option<Figure>,
    /// The place; else out of place, or in place if only that is what all have.
    pub place: Option<Place>,
}

/// Puts results side by side: a comparison for each table of the first result. Results that have
/// nothing of a table leave their column empty.
pub fn compare(results: &[BenchResult], choice: Choice) -> Vec<Comparison> {
    let Some(first) = results.first() else { return Vec::new() };
    let one = |table: &BenchTable| {
        let tables: Vec<(&BenchResult, Option<&BenchTable>)> =
            results.iter().map(|result| (result, alike(result, table))).collect();
        side_by_side(&tables, table, choice)
    };
    let rows = |comparison: &Comparison| !comparison.rows.is_empty();
    first.tables.iter().map(one).filter(rows).collect()
}

/// The table of a result that is of the same as another: of several the one of the same type and
/// reduction, of one alone that one, for programs name types in different ways.
fn alike<'a>(result: &'a BenchResult, wanted: &BenchTable) -> Option<&'a BenchTable> {
    let mut same = result.tables.iter().filter(|table| table.operation == wanted.operation);
    let (first, second) = (same.next()?, same.next());
    if second.is_none() {
        return Some(first);
    }
    let is_it = |table: &&BenchTable| {
        table.operation == wanted.operation
            && table.dtype == wanted.dtype
            && table.redop == wanted.redop
            && table.root == wanted.root
    };
    result.tables.iter().find(is_it)
}

fn side_by_side(
    tables: &[(&BenchResult, Option<&BenchTable>)],
    first: &BenchTable,
    choice: Choice,
) -> Comparison {
    let figure = choice.figure.unwrap_or_else(|| Figure::usual(&first.operation));
    let place = choice.place.unwrap_or_else(|| common_place(tables));
    let columns: Vec<BTreeMap<u64, f64>> = tables
        .iter()
        .map(|(result, table)| table.map(|t| by_size(result, t, figure, place)).unwrap_or_default())
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
        figure,
        place,
        labels: tables.iter().map(|(result, _)| result.label.clone()).collect(),
        rows: sizes.into_iter().map(row).collect(),
    }
}

/// The place that all have, out of place before in place.
fn common_place(tables: &[(&BenchResult, Option<&BenchTable>)]) -> Place {
    let all_have = |place: Place| {
        let mut present = tables.iter().filter_map(|(_, table)| *table);
        present.all(|table| table.rows.iter().any(|row| place.of(row).is_some()))
    };
    if !all_have(Place::OutOfPlace) && all_have(Place::InPlace) {
        return Place::InPlace;
    }
    Place::OutOfPlace
}

/// The figure by size: at the place wanted, or else at the other.
pub(crate) fn by_size(
    result: &BenchResult,
    table: &BenchTable,
    figure: Figure,
    place: Place,
) -> BTreeMap<u64, f64> {
    let mut sums: BTreeMap<u64, (f64, f64)> = BTreeMap::new();
    for row in &table.rows {
        let other = Place::BOTH.into_iter().find(|other| *other != place);
        let measured = place.of(row).or_else(|| other?.of(row));
        let value = measured.and_then(|m| figure.of(result, table, row.size_bytes, m));
        if let Some(value) = value {
            let (sum, count) = sums.entry(row.size_bytes).or_default();
            (*sum, *count) = (*sum + value, *count + 1.0);
        }
    }
    sums.into_iter().map(|(size, (sum, count))| (size, sum / count)).collect()
}

impl Comparison {
    /// What stands above the table.
    pub fn title(&self) -> String {
        let dtype = self.dtype.as_ref().map(|dtype| format!(" of {dtype}")).unwrap_or_default();
        format!("{}{dtype}, {}, {}", self.operation, self.place, self.figure)
    }

    /// As a table for people.
    pub fn text(&self) -> String {
        let mut cells = vec![self.heads()];
        cells.extend(self.rows.iter().map(cells_of));
        let columns = cells[0].len();
        let width = |column: usize| {
            cells.iter().map(|row| row[column].chars().count()).max().unwrap_or_default()
        };
        let widths: Vec<usize> = (0..columns).map(width).collect();
        let mut text = format!("{}\n", self.title());
        for (short, label) in self.short_names().iter().zip(&self.labels) {
            if short != label {
                text.push_str(&format!("{short}  {label}\n"));
            }
        }
        text.push('\n');
        for row in &cells {
            let padded: Vec<String> =
                row.iter().zip(&widths).map(|(cell, width)| format!("{cell:>width$}")).collect();
            text.push_str(padded.join("  ").trim_end());
            text.push('\n');
        }
        text
    }

    /// The results' names, or numbers where names are too long for a column.
    fn short_names(&self) -> Vec<String> {
        let long = self.labels.iter().any(|label| label.chars().count() > LONG);
        let number = |(index, label): (usize, &String)| match long {
            true => format!("#{}", index + 1),
            false => label.clone(),
        };
        self.labels.iter().enumerate().map(number).collect()
    }

    fn heads(&self) -> Vec<String> {
        let mut heads = vec!["size".to_owned()];
        for (index, name) in self.short_names().into_iter().enumerate() {
            heads.push(name);
            if index > 0 {
                heads.push("ratio".to_owned());
            }
        }
        heads
    }
}

fn cells_of(row: &ComparedRow) -> Vec<String> {
    let mut cells = vec![bytes(row.size_bytes)];
    let pairs = row.values.iter().zip(&row.ratios);
    for (index, (value, ratio)) in pairs.enumerate() {
        cells.push(value.map_or_else(|| "-".to_owned(), |value| format!("{value:.2}")));
        if index > 0 {
            cells.push(ratio.map_or_else(|| "-".to_owned(), |ratio| format!("×{ratio:.2}")));
        }
    }
    cells
}

/// Comparisons as values between commas: a line for each size and result.
pub fn csv(comparisons: &[Comparison]) -> String {
    let mut text = "operation,type,place,figure,size_bytes,label,value,ratio\n".to_owned();
    let known = |value: Option<f64>| value.map(|v| v.to_string()).unwrap_or_default();
    for comparison in comparisons {
        let Comparison { operation, dtype, place, figure, .. } = comparison;
        let dtype = quoted(dtype.as_deref().unwrap_or_default());
        let (operation, figure) = (quoted(operation.name()), figure.name());
        for row in &comparison.rows {
            let pairs = row.values.iter().zip(&row.ratios).zip(&comparison.labels);
            for ((value, ratio), label) in pairs.filter(|((value, _), _)| value.is_some()) {
                let (label, value, ratio) = (quoted(label), known(*value), known(*ratio));
                let size = row.size_bytes;
                text.push_str(&format!(
                    "{operation},{dtype},{place},{figure},{size},{label},{value},{ratio}\n"
                ));
            }
        }
    }
    text
}
