//! Lists of configuration keys and presets, and the resolved configuration.

use std::process::ExitCode;

use anyhow::Result;
use regatta_train::config::{PRESETS, Resolved, keys_text};

use super::format::format_params;
use crate::cli::{FAINT, HEADING};
use crate::{output, table};

/// Explains the `~` before a number of parameters.
pub const ASSUMED_VOCABULARY: &str =
    "~ assumes a vocabulary of 65 characters; the actual size depends on the data";

/// Prints all configuration keys.
pub fn print_keys() -> Result<ExitCode> {
    let mut text = String::new();
    for line in keys_text().lines() {
        // Section headings are not indented; descriptions are indented below their key.
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
pub fn print_presets() -> Result<ExitCode> {
    let mut rows = Vec::new();
    for preset in PRESETS {
        let (parameters, is_exact) = preset.parameters()?;
        let tilde = if is_exact { "" } else { "~" };
        let parameters = format!("{tilde}{}", format_params(parameters as f64));
        rows.push(vec![preset.name.to_owned(), parameters, preset.description()]);
    }
    let mut text = table::table(&["preset", "parameters", "description"], &rows).join("\n") + "\n";
    text.push_str(&format!("{FAINT}{ASSUMED_VOCABULARY}{FAINT:#}\n"));
    output::print(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// Prints the resolved configuration.
pub fn print_config(resolved: &Resolved) -> Result<ExitCode> {
    output::print(&resolved.to_toml())?;
    Ok(ExitCode::SUCCESS)
}
