//! Names of kinds, data types, algorithms and protocols in one file, escaped for JSON.

use std::collections::BTreeMap;
use std::fmt::Write;

use regatta_events::operation::Name;

/// The names that a file defines, escaped for JSON.
#[derive(Debug)]
pub(super) struct FileNames(BTreeMap<Name, String>);

impl FileNames {
    pub(super) fn new(names: &BTreeMap<Name, String>) -> Self {
        Self(names.iter().map(|(name, text)| (*name, escaped(text))).collect())
    }

    /// The name of a code, which may be built in.
    pub(super) fn name(&self, code: u8, built_in: Option<&'static str>) -> &str {
        built_in.unwrap_or_else(|| self.0.get(&Name(code)).map_or("?", String::as_str))
    }
}

/// Text inside of a JSON string.
pub(super) fn escaped(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '"' | '\\' => out.extend(['\\', c]),
            c if c.is_control() => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::escaped;

    #[test]
    fn control_characters_and_quotes_are_escaped() {
        assert_eq!(escaped("a\"b\\c\n\u{9f}é"), "a\\\"b\\\\c\\u000a\\u009fé");
    }
}
