//! What is printed without training: keys, presets, a configuration.

use std::process::ExitCode;

use anyhow::Result;
use regatta_train::config::{PRESETS, Resolved, keys_text};

use super::figures;
use crate::cli::{FAINT, HEADING};
use crate::{output, table};

/// Prints every key.
pub fn keys() -> Result<ExitCode> {
    let mut text = String::new();
    for line in keys_text().lines() {
        // Sections stand at the margin, what keys are for below them.
        let line = match line.len() - line.trim_start().len() {
            0 => format!("{HEADING}{line}{HEADING:#}"),
            6 => format!("{FAINT}{line}{FAINT:#}"),
            _ => line.to_owned(),
        };
        text.push_str(&(line + "\n"));
    }
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the presets.
pub fn presets() -> Result<ExitCode> {
    let mut rows = Vec::new();
    for preset in PRESETS {
        let (parameters, certain) = preset.parameters()?;
        let about = if certain { "" } else { "~" };
        let parameters = format!("{about}{}", figures::parameters(parameters as f64));
        rows.push(vec![preset.name.to_owned(), parameters, preset.about()]);
    }
    let mut text = table::table(&["preset", "parameters", "what it is"], &rows).join("\n") + "\n";
    text.push_str(&format!(
        "{FAINT}~ counted with 65 characters: the vocabulary comes from the data{FAINT:#}\n"
    ));
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints a configuration, with who set what.
pub fn configuration(resolved: &Resolved) -> Result<ExitCode> {
    output::print(&resolved.to_toml())?;
    Ok(ExitCode::SUCCESS)
}
