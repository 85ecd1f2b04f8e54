//! Reads what the user typed: a preset or a file, and words over it.

use std::path::{Path, PathBuf};

use super::{ConfigError, PRESETS, Resolved, presets};

/// What a configuration begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum First {
    /// The preset of this name.
    Preset(String),
    /// A file, and its text.
    File(PathBuf, String),
}

/// The configuration of `[CONFIG] [KEY=VALUE…]`: the first word may be a preset's name or a file;
/// without it there is the first of [`PRESETS`].
pub fn load<S: AsRef<str>>(words: &[S]) -> Result<Resolved, ConfigError> {
    let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
    let Some((first, rest)) = words.split_first() else { return resolve(None, &words) };
    let path = Path::new(first);
    let is_file = first.ends_with(".toml") && !first.contains('=') || path.is_file();
    if is_file && presets::find(first).is_err() {
        let text = std::fs::read_to_string(path)
            .map_err(|error| ConfigError::File { path: path.to_owned(), error })?;
        return resolve(Some(First::File(path.to_owned(), text)), rest);
    }
    match first.contains('=') {
        true => resolve(None, &words),
        false => resolve(Some(First::Preset((*first).to_owned())), rest),
    }
}

/// Defaults, under a preset or a file, under `key=value` words. No I/O.
pub fn resolve<S: AsRef<str>>(first: Option<First>, words: &[S]) -> Result<Resolved, ConfigError> {
    let mut resolved = Resolved::default();
    match first {
        None => resolved.put_preset(&PRESETS[0])?,
        Some(First::Preset(name)) => resolved.put_preset(presets::find(&name)?)?,
        Some(First::File(path, text)) => resolved.put_file(&path, &text)?,
    }
    resolved.put_words(words)?;
    Ok(resolved)
}
