//! Lists of configuration keys and presets.

use anyhow::Result;
use regatta_draw::table;
use regatta_model::units::format_params;
use regatta_train::config::{PRESETS, keys_text};

use crate::cli::{FAINT, HEADING};
use crate::output;

/// Explains the `~` before a number of parameters.
pub const ASSUMED_VOCABULARY: &str =
    "~ assumes a vocabulary of 65 characters; the actual size depends on the data";

/// Prints all configuration keys.
pub fn print_keys() -> Result<()> {
    // Section headings are not indented; descriptions are indented below their key.
    let styled = |line: &str| match line.len() - line.trim_start().len() {
        0 => format!("{HEADING}{line}{HEADING:#}\n"),
        6 => format!("{FAINT}{line}{FAINT:#}\n"),
        _ => format!("{line}\n"),
    };
    output::print(&keys_text().lines().map(styled).collect::<String>())
}

/// Prints the presets.
pub fn print_presets() -> Result<()> {
    let mut rows = Vec::new();
    for preset in PRESETS {
        let (parameters, is_exact) = preset.parameters()?;
        let tilde = if is_exact { "" } else { "~" };
        let parameters = format!("{tilde}{}", format_params(parameters as f64));
        rows.push(vec![preset.name.to_owned(), parameters, preset.description()]);
    }
    let table = table::table(&["preset", "parameters", "description"], &rows).join("\n");
    output::print(&format!("{table}\n{FAINT}{ASSUMED_VOCABULARY}{FAINT:#}\n"))
}
