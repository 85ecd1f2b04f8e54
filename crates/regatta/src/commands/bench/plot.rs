//! Plots of results.

use std::path::Path;

use anyhow::{Context, Result, bail};
use regatta_measure::buffer_mode::BufferMode;
use regatta_measure::{pairs, plot};
use regatta_model::BenchResult;
use regatta_model::bench::PairMatrices;

use crate::plot_file::{PlotFormat, format, save};

/// Checks that the format can hold this number of operations.
pub fn check_operations(path: &Path, count: usize) -> Result<()> {
    if format(path)? == PlotFormat::Svg && count != 1 {
        let path = path.display();
        bail!("--plot {path}: .svg holds one operation, but there are {count}; use .html");
    }
    Ok(())
}

/// Checks the file extension for pairs.
pub fn check_pairs(path: &Path) -> Result<()> {
    match format(path) {
        Ok(PlotFormat::Svg) => Ok(()),
        _ => bail!("--plot {}: pairs require .svg", path.display()),
    }
}

/// Plots results, in the requested mode or else in the one that all have.
pub fn draw(path: &Path, results: &[BenchResult], place: Option<BufferMode>) -> Result<()> {
    let text = match format(path)? {
        PlotFormat::Html => plot::html("regatta bench", results, place),
        PlotFormat::Svg => {
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
