//! Resolves the command line: a preset or a file, and `key=value` arguments.

use std::path::{Path, PathBuf};

use super::{ConfigError, PRESETS, Resolved, Result, presets, resolved};
use crate::regular_file;

/// Maximum size of a configuration file.
pub const MAX_CONFIG_BYTES: u64 = 1 << 20;

/// The layer on which command-line arguments are applied.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Base {
    /// The preset of this name.
    Preset(String),
    /// The path of a file and its contents.
    File(PathBuf, String),
}

/// Resolves `[CONFIG] [KEY=VALUE...]`. CONFIG is a preset or a file; without it, the first of
/// [`PRESETS`] is used.
pub fn load<S: AsRef<str>>(args: &[S]) -> Result<Resolved> {
    let args: Vec<&str> = args.iter().map(AsRef::as_ref).collect();
    let Some((first, rest)) = args.split_first() else { return resolve(None, &args) };
    let path = Path::new(first);
    let is_file = first.ends_with(".toml") && !first.contains('=') || path.is_file();
    if is_file && presets::find(first).is_err() {
        let text = regular_file::read_to_string(path, MAX_CONFIG_BYTES)
            .map_err(|error| ConfigError::Read { path: path.to_owned(), error })?;
        return resolve(Some(Base::File(path.to_owned(), text)), rest);
    }
    match first.contains('=') {
        true => resolve(None, &args),
        false => resolve(Some(Base::Preset((*first).to_owned())), rest),
    }
}

/// Applies the defaults, then a preset or file, then `key=value` arguments. No I/O.
pub fn resolve<S: AsRef<str>>(base: Option<Base>, args: &[S]) -> Result<Resolved> {
    let mut resolved = Resolved::default();
    match base {
        None => resolved.apply_preset(&PRESETS[0])?,
        Some(Base::Preset(name)) => {
            let unknown = |near| ConfigError::UnknownBase {
                hint: resolved::assignment_hint(&name).unwrap_or(near),
                name: name.clone(),
            };
            resolved.apply_preset(presets::find(&name).map_err(unknown)?)?;
        }
        Some(Base::File(path, text)) => resolved.apply_file(&path, &text)?,
    }
    resolved.apply_args(args)?;
    Ok(resolved)
}
