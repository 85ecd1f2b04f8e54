//! Drawings of results, by the ending of the file's name.

use std::path::Path;

use anyhow::{Context, Result, bail};
use regatta_measure::{pairs, plot};
use regatta_model::bench::Pairs;
use regatta_model::{BenchResult, Operation};

use crate::output;

fn ending(path: &Path) -> &str {
    path.extension().and_then(|ending| ending.to_str()).unwrap_or_default()
}

/// Whether it can be drawn so, before anything is measured.
pub fn check(path: &Path) -> Result<()> {
    match ending(path) {
        "svg" | "html" => Ok(()),
        _ => bail!("--plot {}: the name must end in .svg or .html", path.display()),
    }
}

/// Whether so many operations can be drawn so.
pub fn check_operations(path: &Path, count: usize) -> Result<()> {
    check(path)?;
    if ending(path) == "svg" && count != 1 {
        bail!(
            "--plot {}: an .svg is of one operation, and these are {count}; take .html",
            path.display()
        );
    }
    Ok(())
}

/// Whether pairs can be drawn so.
pub fn check_pairs(path: &Path) -> Result<()> {
    match ending(path) {
        "svg" => Ok(()),
        _ => bail!("--plot {}: pairs are drawn into an .svg", path.display()),
    }
}

/// Draws results.
pub fn draw(path: &Path, results: &[BenchResult]) -> Result<()> {
    check(path)?;
    let text = match ending(path) {
        "html" => plot::html("regatta bench", results),
        _ => {
            let mut operations: Vec<&Operation> = Vec::new();
            for operation in results.iter().flat_map(BenchResult::operations) {
                if !operations.contains(&operation) {
                    operations.push(operation);
                }
            }
            check_operations(path, operations.len())?;
            let drawn = operations.first().and_then(|operation| plot::svg(results, operation));
            drawn.with_context(|| format!("--plot {}: nothing to draw", path.display()))?
        }
    };
    output::write_file(path, &text)
}

/// Draws the matrices of pairs.
pub fn draw_pairs(path: &Path, found: &Pairs) -> Result<()> {
    check_pairs(path)?;
    output::write_file(path, &pairs::svg::draw(found, "regatta bench --pairs"))
}
