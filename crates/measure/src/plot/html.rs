//! An HTML page with the plots and their values as tables.

use regatta_draw::html::Page;
use regatta_model::units::{format_bytes, pluralize};
use regatta_model::{BenchResult, Operation};

use super::svg;
use crate::buffer_mode::BufferMode;
use crate::compare::{CompareOptions, ComparedRow, Comparison, compare};

/// A self-contained page: for each operation its plot and its table, in the requested mode.
pub fn html(title: &str, results: &[BenchResult], place: Option<BufferMode>) -> String {
    let mut page = Page::new(title);
    page.list(results.iter().map(|result| (result.label.as_str(), details(result))));
    for operation in operations(results) {
        page.heading(&operation.to_string());
        page.drawing(&svg(results, operation, place).unwrap_or_default());
        for comparison in comparisons_of(results, operation, place) {
            add_table(&mut page, &comparison);
        }
    }
    page.finish()
}

/// Every operation of any result, once.
pub fn operations(results: &[BenchResult]) -> Vec<&Operation> {
    let mut found: Vec<&Operation> = Vec::new();
    for operation in results.iter().flat_map(BenchResult::operations) {
        if !found.contains(&operation) {
            found.push(operation);
        }
    }
    found
}

/// Comparisons of the results that have an operation.
fn comparisons_of(
    results: &[BenchResult],
    operation: &Operation,
    place: Option<BufferMode>,
) -> Vec<Comparison> {
    let mut having: Vec<BenchResult> = Vec::new();
    for result in results {
        let tables = result.tables.iter().filter(|t| t.operation == *operation).cloned();
        let tables: Vec<_> = tables.collect();
        if !tables.is_empty() {
            having.push(BenchResult { tables, ..result.clone() });
        }
    }
    compare(&having, CompareOptions { place, ..CompareOptions::default() })
}

/// Program, ranks, nodes, settings and versions of a result.
fn details(result: &BenchResult) -> String {
    let count = |n: Option<u32>, noun: &str| n.map(|n| pluralize(n as usize, noun));
    let backend = result.backend.clone();
    let shape = [count(result.shape.ranks, "rank"), count(result.shape.nodes, "node"), backend];
    let mut details = vec![result.program.to_string()];
    details.extend(shape.into_iter().flatten());
    details.extend(result.settings.iter().map(|(name, value)| format!("{name}={value}")));
    details.extend(result.versions.iter().map(|(name, value)| format!("{name} {value}")));
    details.join(", ")
}

/// A column per result, each but the first followed by its ratio to the first.
fn add_table(page: &mut Page, comparison: &Comparison) {
    let mut header = vec!["size".to_owned()];
    for label in &comparison.labels {
        header.extend([label.clone(), "ratio".to_owned()]);
    }
    let row = |row: &ComparedRow| {
        let mut cells = vec![format_bytes(row.size_bytes)];
        for (value, ratio) in row.values.iter().zip(&row.ratios) {
            cells.push(value.map(|value| format!("{value:.2}")).unwrap_or_default());
            cells.push(ratio.map(|ratio| format!("×{ratio:.2}")).unwrap_or_default());
        }
        cells
    };
    let mut rows: Vec<Vec<String>> = comparison.rows.iter().map(row).collect();
    // The first result has no ratio.
    rows.iter_mut().chain([&mut header]).for_each(|cells| drop(cells.remove(2)));
    let ratios: Vec<usize> = (3..header.len()).step_by(2).collect();
    page.table(&comparison.title(), &header, &rows, &ratios);
}
