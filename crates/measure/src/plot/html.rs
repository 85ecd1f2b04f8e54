//! An HTML page with the plots and their values as tables.

use regatta_model::text::escape_xml;
use regatta_model::units::{format_bytes, pluralize};
use regatta_model::{BenchResult, Operation};

use super::svg;
use crate::buffer_mode::BufferMode;
use crate::compare::{CompareOptions, Comparison, compare};

/// Style sheet for light and dark mode.
const STYLE: &str = "\
:root{color-scheme:light dark}\
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;\
background:#fff;color:#222}\
svg{width:100%;height:auto}\
table{border-collapse:collapse;font-variant-numeric:tabular-nums}\
th,td{text-align:right;padding:.15rem .7rem;border-bottom:1px solid #ddd}\
.ratio{color:#666}\
@media (prefers-color-scheme:dark){body{background:#161616;color:#e6e6e6}\
th,td{border-color:#3a3a3a}.ratio{color:#a0a0a0}}";

/// A self-contained page: for each operation its plot and its table, in the requested mode.
pub fn html(title: &str, results: &[BenchResult], place: Option<BufferMode>) -> String {
    let title = escape_xml(title);
    let mut text = format!(
        "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n\
         <title>{title}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n<h1>{title}</h1>\n"
    );
    text += &run_list(results);
    for operation in operations(results) {
        text += &format!("<h2>{}</h2>\n", escape_xml(operation.name()));
        text += &svg(results, operation, place).unwrap_or_default();
        for comparison in comparisons_of(results, operation, place) {
            text += &table(&comparison);
        }
    }
    text += "</body>\n</html>\n";
    text
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

/// List of the results with their metadata.
fn run_list(results: &[BenchResult]) -> String {
    let mut text = String::from("<ul>\n");
    for result in results {
        let count = |n: Option<u32>, noun: &str| n.map(|n| pluralize(n as usize, noun));
        let backend = result.backend.clone();
        let shape = [count(result.shape.ranks, "rank"), count(result.shape.nodes, "node"), backend];
        let mut details = vec![result.program.name().to_owned()];
        details.extend(shape.into_iter().flatten());
        details.extend(result.settings.iter().map(|(name, value)| format!("{name}={value}")));
        details.extend(result.versions.iter().map(|(name, value)| format!("{name} {value}")));
        let (label, details) = (escape_xml(&result.label), escape_xml(&details.join(", ")));
        text += &format!("<li><b>{label}</b>: {details}</li>\n");
    }
    text += "</ul>\n";
    text
}

fn table(comparison: &Comparison) -> String {
    let mut text = format!(
        "<table>\n<caption>{}</caption>\n<thead><tr><th scope=\"col\">size</th>",
        escape_xml(&comparison.title())
    );
    for (index, label) in comparison.labels.iter().enumerate() {
        text += &format!("<th scope=\"col\">{}</th>", escape_xml(label));
        if index > 0 {
            text += "<th scope=\"col\" class=\"ratio\">ratio</th>";
        }
    }
    text += "</tr></thead>\n<tbody>\n";
    for row in &comparison.rows {
        text += &format!("<tr><th scope=\"row\">{}</th>", format_bytes(row.size_bytes));
        for (index, (value, ratio)) in row.values.iter().zip(&row.ratios).enumerate() {
            let value = value.map(|value| format!("{value:.2}")).unwrap_or_default();
            text += &format!("<td>{value}</td>");
            if index > 0 {
                let ratio = ratio.map(|ratio| format!("×{ratio:.2}")).unwrap_or_default();
                text += &format!("<td class=\"ratio\">{ratio}</td>");
            }
        }
        text += "</tr>\n";
    }
    text += "</tbody>\n</table>\n";
    text
}
