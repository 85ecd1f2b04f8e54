//! Plots of results; the file extension selects the format.

use std::path::Path;

use anyhow::{Context, Result, bail};
use regatta_measure::buffer_mode::BufferMode;
use regatta_measure::{pairs, plot};
use regatta_model::BenchResult;
use regatta_model::bench::PairMatrices;

use crate::cli::FAINT;
use crate::output;

fn extension(path: &Path) -> &str {
    path.extension().and_then(|extension| extension.to_str()).unwrap_or_default()
}

/// Checks the file extension before anything is measured.
pub fn check(path: &Path) -> Result<()> {
    match extension(path) {
        "svg" | "html" => Ok(()),
        _ => bail!("--plot {}: the file extension must be .svg or .html", path.display()),
    }
}

/// Checks that the format can hold this number of operations.
pub fn check_operations(path: &Path, count: usize) -> Result<()> {
    check(path)?;
    if extension(path) == "svg" && count != 1 {
        let path = path.display();
        bail!("--plot {path}: .svg holds one operation, but there are {count}; use .html");
    }
    Ok(())
}

/// Checks the file extension for pairs.
pub fn check_pairs(path: &Path) -> Result<()> {
    match extension(path) {
        "svg" => Ok(()),
        _ => bail!("--plot {}: pairs require .svg", path.display()),
    }
}

/// Plots results, in the requested mode or else in the one that all have.
pub fn draw(path: &Path, results: &[BenchResult], place: Option<BufferMode>) -> Result<()> {
    check(path)?;
    let text = match extension(path) {
        "html" => plot::html("regatta bench", results, place),
        _ => {
            let operations = plot::operations(results);
            check_operations(path, operations.len())?;
            let drawn =
                operations.first().and_then(|operation| plot::svg(results, operation, place));
            drawn.with_context(|| format!("--plot {}: nothing to plot", path.display()))?
        }
    };
    save(path, &text)
}

/// Plots the matrices of pairs.
pub fn draw_pairs(path: &Path, pairs: &PairMatrices) -> Result<()> {
    check_pairs(path)?;
    save(path, &pairs::svg::draw(pairs, "regatta bench --pairs"))
}

fn save(path: &Path, text: &str) -> Result<()> {
    output::write_file(path, text).context("--plot")?;
    output::eprint(&format!("{FAINT}plot: {}{FAINT:#}\n", path.display()));
    Ok(())
}
