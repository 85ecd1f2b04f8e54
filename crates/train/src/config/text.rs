//! Configurations and keys as text: TOML, listings, the tables of the documentation. No I/O.

use std::fmt::Write;

use super::layers::Origin;
use super::value::quoted;
use super::{Config, ConfigError, KEYS, Key, PRESETS, Resolved};

impl Config {
    /// All keys as TOML, to be read again.
    pub fn to_toml(&self) -> String {
        by_section(|key, text| {
            let _ = writeln!(text, "{} = {}", key.name, key.get(self));
        })
    }

    /// Reads what [`Config::to_toml`] wrote; keys that are missing have their defaults. `path` is
    /// for errors.
    pub fn from_toml(path: &std::path::Path, text: &str) -> Result<Self, ConfigError> {
        let mut resolved = Resolved::default();
        resolved.put_file(path, text)?;
        Ok(resolved.config)
    }
}

impl Resolved {
    /// What it is called, and all keys as TOML, each with a comment that says who set it.
    pub fn to_toml(&self) -> String {
        let mut entries = self.entries();
        let keys = by_section(|key, text| {
            let Some((_, value, origin)) = entries.next() else { return };
            let line = format!("{} = {value}", key.name);
            let default = key.default();
            let instead = match origin {
                Origin::Default => String::new(),
                _ if default == value => String::new(),
                _ => format!(", default {default}"),
            };
            let _ = writeln!(text, "{line:<28}  # {}{instead}", one_line(&origin.to_string()));
        });
        format!("name = {}\n\n{keys}", quoted(&self.name))
    }
}

/// A foreign text, such as a path, that stays inside of its comment.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { '?' } else { c }).collect()
}

/// Sections with their keys, one below the other.
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

/// All keys for a terminal: name, default, what it may be, what it is for.
pub fn keys_text() -> String {
    let mut text = String::new();
    let mut section = "";
    for key in KEYS {
        if key.section != section {
            let gap = if section.is_empty() { "" } else { "\n" };
            let _ = writeln!(text, "{gap}{}: {}", key.section, lower(key.heading()));
            section = key.section;
        }
        let _ = writeln!(text, "  {} = {}  ({})", key.full(), key.default(), key.expected());
        let _ = writeln!(text, "      {}", key.about());
    }
    text
}

/// The same as a table of Markdown.
pub fn keys_markdown() -> String {
    let mut text = String::from("| key | default | may be | what it is for |\n|---|---|---|---|\n");
    for key in KEYS {
        let (full, default) = (key.full(), key.default());
        let _ = writeln!(text, "| `{full}` | `{default}` | {} | {} |", key.expected(), key.about());
    }
    text
}

/// The presets as a table of Markdown.
pub fn presets_markdown() -> Result<String, ConfigError> {
    let mut text = String::from("| preset | parameters | what it is |\n|---|---|---|\n");
    for preset in PRESETS {
        let (parameters, certain) = preset.parameters()?;
        let about = if certain { "" } else { "about " };
        let parameters = grouped(parameters);
        let _ = writeln!(text, "| `{}` | {about}{parameters} | {} |", preset.name, preset.about());
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

/// With a small first letter, and without the full stop.
fn lower(sentence: &str) -> String {
    let mut letters = sentence.trim_end_matches('.').chars();
    letters.next().map_or_else(String::new, |first| first.to_lowercase().chain(letters).collect())
}
