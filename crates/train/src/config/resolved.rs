//! Applies configuration layers and records the origin of each value. No I/O.

use std::fmt;
use std::path::{Path, PathBuf};

use regatta_model::suggest::closest_match;
use serde::{Deserialize, Serialize};
use toml::de::{DeTable, DeValue};

use super::error::first_line;
use super::presets::CHAR_VOCAB_SIZE;
use super::value::{Quoting, RawValue, quoted};
use super::{
    Config, ConfigError, KEYS, Key, KeyHint, Preset, Result, SourceLocation, foreign_keys, presets,
};

/// Top-level key of a file: the preset it is based on.
const PRESET: &str = "preset";
/// What the preset or file may be given as, although it is an argument of its own.
const BASE_WORDS: [&str; 3] = [PRESET, "config", "model"];
/// Top-level key of a file: the name of the configuration, instead of the file name.
const NAME: &str = "name";

/// The layer that set a key. Later layers override earlier ones.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub enum Origin {
    /// Built-in default.
    Default,
    /// A preset.
    Preset(String),
    /// A file.
    File(PathBuf),
    /// The command line.
    CommandLine,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::Preset(name) => write!(f, "preset {name}"),
            Self::File(path) => write!(f, "{}", path.display()),
            Self::CommandLine => f.write_str("command line"),
        }
    }
}

/// A configuration and the origin of each value.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Resolved {
    /// The configuration.
    pub config: Config,
    /// Name: that of the preset, the `name` in the file, or the file name.
    pub name: String,
    /// Origin of each of [`KEYS`].
    origins: Vec<Origin>,
}

impl Default for Resolved {
    fn default() -> Self {
        let origins = vec![Origin::Default; KEYS.len()];
        Self { config: Config::default(), name: "default".to_owned(), origins }
    }
}

impl Resolved {
    /// All keys with their values as TOML and their origins.
    pub fn entries(&self) -> impl Iterator<Item = (&'static Key, String, &Origin)> {
        let value = |key: &'static Key| (key, key.get(&self.config));
        KEYS.iter().map(value).zip(&self.origins).map(|((key, value), origin)| (key, value, origin))
    }

    /// Origin of a key, by its full name.
    pub fn origin(&self, key: &str) -> Option<&Origin> {
        let at = KEYS.iter().position(|k| k.full_name() == key)?;
        Some(&self.origins[at])
    }

    /// Refuses a model with the vocabulary of a BPE tokenizer if the user named no data: almost all of the time
    /// would be spent on tokens that do not occur in the built-in text.
    pub fn check_data_given(&self) -> Result<()> {
        let vocab_size = self.config.model.vocab_size;
        let is_default = self.origin("data.source") == Some(&Origin::Default)
            && self.origin("data.tokenizer") == Some(&Origin::Default);
        if !is_default || vocab_size <= 4 * CHAR_VOCAB_SIZE {
            return Ok(());
        }
        Err(ConfigError::Inconsistent(format!(
            "{} has a vocabulary of {vocab_size} tokens and needs data: the built-in text is 1 MB of \
             Shakespeare with {CHAR_VOCAB_SIZE} characters. Prepare your own text (regatta data prepare \
             my.txt --bpe {vocab_size} -o my) and set data.source=my; for the built-in text, train a \
             character model (regatta train shakespeare-char). data.source=tinyshakespeare trains on it \
             nevertheless",
            self.name
        )))
    }

    /// Applies a preset.
    pub fn apply_preset(&mut self, preset: &Preset) -> Result<()> {
        self.apply_toml(&Origin::Preset(preset.name.to_owned()), preset.text)?;
        self.name = preset.name.to_owned();
        Ok(())
    }

    /// Applies a file, after the preset that it names, if any.
    pub fn apply_file(&mut self, path: &Path, text: &str) -> Result<()> {
        let own_name = self.apply_toml(&Origin::File(path.to_owned()), text)?;
        let stem = || path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        self.name = own_name.unwrap_or_else(stem);
        Ok(())
    }

    /// Applies `key=value` arguments.
    pub fn apply_args<S: AsRef<str>>(&mut self, args: &[S]) -> Result<()> {
        let location = SourceLocation { origin: Origin::CommandLine, line: None };
        for arg in args.iter().map(AsRef::as_ref) {
            let parts = arg.split_once('=').filter(|(key, _)| !key.trim().is_empty());
            let Some((key, text)) = parts else {
                return Err(not_key_value(arg));
            };
            if BASE_WORDS.contains(&key.trim()) {
                let hint =
                    format!("a preset or file is the first argument: `regatta train {text}`");
                let hint = KeyHint::Text(hint);
                let (location, key) = (location.clone(), key.to_owned());
                return Err(ConfigError::UnknownKey { location, key, hint });
            }
            let index = find(&expand_short_form(key.trim(), &location)?, &location)?;
            self.set(index, &RawValue { text: text.trim(), quoting: Quoting::Unknown }, &location)?;
        }
        self.resolve_batch(&Origin::CommandLine)
    }

    /// Applies a TOML document. Returns its `name`, if any.
    fn apply_toml(&mut self, origin: &Origin, text: &str) -> Result<Option<String>> {
        let location = |at: usize| {
            let before = text.get(..at).unwrap_or(text);
            SourceLocation { origin: origin.clone(), line: Some(1 + before.matches('\n').count()) }
        };
        let mut table = DeTable::parse(text)
            .map_err(|error| ConfigError::Toml {
                location: location(error.span().map_or(0, |span| span.start)),
                reason: first_line(error.message()),
            })?
            .into_inner();
        let mut own_name = None;
        if matches!(origin, Origin::File(_)) {
            if let Some(preset) = table.remove(PRESET) {
                let location = location(preset.span().start);
                let name = string(PRESET, preset.get_ref(), &location)?;
                let found = presets::find(name).map_err(|hint| ConfigError::UnknownPreset {
                    location,
                    name: name.to_owned(),
                    hint,
                });
                self.apply_preset(found?)?;
            }
            if let Some(name) = table.remove(NAME) {
                let location = location(name.span().start);
                own_name = Some(string(NAME, name.get_ref(), &location)?.to_owned());
            }
        }
        for (section, keys) in table.iter() {
            let DeValue::Table(keys) = keys.get_ref() else {
                return Err(unknown(section.get_ref(), &location(section.span().start)));
            };
            for (key, value) in keys.iter() {
                let location = location(key.span().start);
                let full_name = format!("{}.{}", section.get_ref(), key.get_ref());
                self.set_toml(find(&full_name, &location)?, value.get_ref(), &location)?;
            }
        }
        self.resolve_batch(origin)?;
        Ok(own_name)
    }

    /// train.batch and train.batch_per_replica are mutually exclusive: the later layer wins and the other
    /// is reset to 0.
    fn resolve_batch(&mut self, origin: &Origin) -> Result<()> {
        let set = |key| self.origin(key) == Some(origin);
        let (global, per_replica) = (set("train.batch"), set("train.batch_per_replica"));
        let train = &mut self.config.train;
        if train.batch == 0 || train.batch_per_replica == 0 {
            return Ok(());
        }
        if global && per_replica {
            return Err(ConfigError::Inconsistent(format!(
                "{origin}: train.batch is {} and train.batch_per_replica is {}: set only one of them",
                train.batch, train.batch_per_replica
            )));
        }
        if global {
            train.batch_per_replica = 0;
        } else {
            train.batch = 0;
        }
        Ok(())
    }

    fn set_toml(
        &mut self,
        index: usize,
        value: &DeValue<'_>,
        location: &SourceLocation,
    ) -> Result<()> {
        let (text, quoting) = match value {
            DeValue::String(text) => (text.to_string(), Quoting::Quoted),
            DeValue::Integer(number) => {
                let decimal = i128::from_str_radix(number.as_str(), number.radix());
                (decimal.map_or_else(|_| number.to_string(), |n| n.to_string()), Quoting::Bare)
            }
            DeValue::Float(number) => (number.as_str().to_owned(), Quoting::Bare),
            DeValue::Boolean(yes) => (yes.to_string(), Quoting::Bare),
            other => {
                let value = format!("a TOML {}", other.type_str());
                return Err(invalid(&KEYS[index], value, location));
            }
        };
        self.set(index, &RawValue { text: &text, quoting }, location)
    }

    fn set(&mut self, index: usize, raw: &RawValue<'_>, location: &SourceLocation) -> Result<()> {
        let key = &KEYS[index];
        if !(key.set)(&mut self.config, raw) {
            let value = match raw.quoting {
                Quoting::Quoted => quoted(raw.text),
                _ if raw.text.is_empty() => "empty".to_owned(),
                _ => raw.text.to_owned(),
            };
            return Err(invalid(key, value, location));
        }
        self.origins[index] = location.origin.clone();
        Ok(())
    }
}

/// A top-level key of a file, which must be a string.
fn string<'a>(key: &str, value: &'a DeValue<'_>, location: &SourceLocation) -> Result<&'a str> {
    let DeValue::String(text) = value else {
        let expected = if key == PRESET { "the name of a preset" } else { "a string" }.to_owned();
        let (location, key) = (location.clone(), key.to_owned());
        let value = format!("a TOML {}", value.type_str());
        return Err(ConfigError::InvalidValue { location, key, value, expected });
    };
    Ok(text)
}

/// Index in [`KEYS`] of a key, by its full name.
fn find(full_name: &str, location: &SourceLocation) -> Result<usize> {
    let index = KEYS.iter().position(|key| key.full_name() == full_name);
    index.ok_or_else(|| unknown(full_name, location))
}

/// The full name of a key given without its section, if only one section has it.
fn expand_short_form(key: &str, location: &SourceLocation) -> Result<String> {
    let all: Vec<String> = KEYS.iter().filter(|k| k.name == key).map(Key::full_name).collect();
    match all.as_slice() {
        [one] => Ok(one.clone()),
        [] => Ok(key.to_owned()),
        many => {
            let (location, candidates) = (location.clone(), many.join(" or "));
            Err(ConfigError::AmbiguousKey { location, key: key.to_owned(), candidates })
        }
    }
}

/// How to set a key whose name was given without a value.
pub(super) fn assignment_hint(word: &str) -> Option<String> {
    let is_key = KEYS.iter().any(|key| key.name == word || key.full_name() == word);
    is_key.then(|| format!("to set this key, write {word}=VALUE"))
}

fn not_key_value(arg: &str) -> ConfigError {
    let hint = match assignment_hint(arg) {
        Some(hint) => hint,
        None if presets::find(arg).is_ok() || arg.ends_with(".toml") => {
            "only one preset or file can be given, as the first argument".to_owned()
        }
        None => KeyHint::AnyKey.to_string(),
    };
    ConfigError::NotKeyValue { arg: arg.to_owned(), hint }
}

fn unknown(key: &str, location: &SourceLocation) -> ConfigError {
    let hint = match (foreign_keys::hint_for(key), similar_key(key)) {
        (Some(hint), _) => hint,
        (None, Some(similar)) => KeyHint::Similar(similar),
        (None, None) => KeyHint::AnyKey,
    };
    ConfigError::UnknownKey { location: location.clone(), key: key.to_owned(), hint }
}

/// The key that a misspelled one may have been meant to be: one of another section with the same name, or
/// the most similar.
fn similar_key(key: &str) -> Option<String> {
    let name = key.rsplit('.').next().unwrap_or(key);
    let by_name = |name: &str| KEYS.iter().find(|k| k.name == name).map(Key::full_name);
    let full: Vec<String> = KEYS.iter().map(Key::full_name).collect();
    let by_full_name = || closest_match(key, full.iter().map(String::as_str)).map(str::to_owned);
    let by_similar_name = || by_name(closest_match(name, KEYS.iter().map(|k| k.name))?);
    by_name(name).or_else(by_full_name).or_else(by_similar_name)
}

fn invalid(key: &Key, value: String, location: &SourceLocation) -> ConfigError {
    let (location, expected) = (location.clone(), key.expected());
    ConfigError::InvalidValue { location, key: key.full_name(), value, expected }
}
