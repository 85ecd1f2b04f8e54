//! The file of `--plot`: its extension selects the format.

use std::path::Path;

use anyhow::{Context, Result, bail};

use crate::cli::FAINT;
use crate::output;

/// Formats of a plot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PlotFormat {
    Svg,
    Html,
}

/// The format of a file, to be checked before anything is measured.
pub fn format(path: &Path) -> Result<PlotFormat> {
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("svg") => Ok(PlotFormat::Svg),
        Some("html") => Ok(PlotFormat::Html),
        _ => bail!("--plot {}: the file extension must be .svg or .html", path.display()),
    }
}

/// Writes the plot and says so.
pub fn save(path: &Path, text: &str) -> Result<()> {
    output::write_file(path, text).context("--plot")?;
    output::eprint(&format!("{FAINT}plot: {}{FAINT:#}\n", path.display()));
    Ok(())
}
