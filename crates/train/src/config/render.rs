//! Renders configurations and keys: TOML, listings, the tables in the documentation. No I/O.

use std::fmt::Write;

use super::resolved::Origin;
use super::value::quoted;
use super::{Config, KEYS, Key, PRESETS, Resolved, Result};

impl Config {
    /// All keys as TOML.
    pub fn to_toml(&self) -> String {
        by_section(|key, text| {
            let _ = writeln!(text, "{} = {}", key.name, key.get(self));
        })
    }

    /// Parses the output of [`Config::to_toml`]; missing keys have their defaults. `path` is for
    /// errors.
    pub fn from_toml(path: &std::path::Path, text: &str) -> Result<Self> {
        let mut resolved = Resolved::default();
        resolved.apply_file(path, text)?;
        Ok(resolved.config)
    }
}

impl Resolved {
    /// The name and all keys as TOML, each with its origin in a comment.
    pub fn to_toml(&self) -> String {
        let mut entries = self.entries();
        let keys = by_section(|key, text| {
            let Some((_, value, origin)) = entries.next() else { return };
            let line = format!("{} = {value}", key.name);
            let default = key.default();
            let replaced = match origin {
                Origin::Default => String::new(),
                _ if default == value => String::new(),
                _ => format!(", default {default}"),
            };
            let _ = writeln!(text, "{line:<28}  # {}{replaced}", one_line(&origin.to_string()));
        });
        format!("name = {}\n\n{keys}", quoted(&self.name))
    }
}

/// Replaces control characters, which would end the comment.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// The section headers, and the keys as `write` writes them.
fn by_section(mut write: impl FnMut(&'static Key, &mut String)) -> String {
    let mut text = String::new();
    let mut section = "";
    for key in KEYS {
        if key.section != section {
            let gap = if section.is_empty() { "" } else { "\n" };
            let _ = writeln!(text, "{gap}[{}]", key.section);
            section = key.section;
        }
        write(key, &mut text);
    }
    text
}

/// All keys for a terminal: name, default, accepted values, description.
pub fn keys_text() -> String {
    by_section(|key, text| {
        let _ = writeln!(text, "  {} = {}  ({})", key.full_name(), key.default(), key.expected());
        let _ = writeln!(text, "      {}", key.description());
    })
}

/// All keys as a Markdown table.
pub fn keys_markdown() -> String {
    let mut text = String::from("| key | default | values | description |\n|---|---|---|---|\n");
    for key in KEYS {
        let (full, default, expected) = (key.full_name(), key.default(), key.expected());
        let _ = writeln!(text, "| `{full}` | `{default}` | {expected} | {} |", key.description());
    }
    text
}

/// All presets as a Markdown table.
pub fn presets_markdown() -> Result<String> {
    let mut text = String::from("| preset | parameters | description |\n|---|---|---|\n");
    for preset in PRESETS {
        let (parameters, is_exact) = preset.parameters()?;
        let about = if is_exact { "" } else { "about " };
        let (name, parameters) = (preset.name, grouped(parameters));
        let _ = writeln!(text, "| `{name}` | {about}{parameters} | {} |", preset.description());
    }
    Ok(text)
}

/// `124439808` as `124,439,808`.
fn grouped(number: usize) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}
