//! A configuration layer by layer, and who set what. No I/O.

use std::fmt;
use std::path::{Path, PathBuf};

use toml::de::{DeTable, DeValue};

use super::error::first_line;
use super::nearest::nearest;
use super::value::{Quotes, Word, quoted};
use super::{Config, ConfigError, KEYS, Key, Place, Preset, presets};

/// The key of a file that names the preset under it.
const PRESET: &str = "preset";
/// The key of a file that says what it is called; else by its own name.
const NAME: &str = "name";

/// Who set a key; later ones over earlier ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Origin {
    /// Nobody.
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

/// A configuration, and who set what of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Resolved {
    /// The configuration.
    pub config: Config,
    /// What it is called: the preset's name, or what the file says, or the file's own.
    pub name: String,
    /// Who set each of [`KEYS`].
    origins: Vec<Origin>,
}

impl Default for Resolved {
    fn default() -> Self {
        let origins = vec![Origin::Default; KEYS.len()];
        Self { config: Config::default(), name: "default".to_owned(), origins }
    }
}

impl Resolved {
    /// All keys, with what they are as TOML, and who set them.
    pub fn entries(&self) -> impl Iterator<Item = (&'static Key, String, &Origin)> {
        let value = |key: &'static Key| (key, key.get(&self.config));
        KEYS.iter().map(value).zip(&self.origins).map(|((key, value), origin)| (key, value, origin))
    }

    /// Who set a key, by its whole name.
    pub fn origin(&self, key: &str) -> Option<&Origin> {
        let at = KEYS.iter().position(|k| k.full() == key)?;
        Some(&self.origins[at])
    }

    /// Puts a preset over what is there.
    pub fn put_preset(&mut self, preset: &Preset) -> Result<(), ConfigError> {
        self.put(&Origin::Preset(preset.name.to_owned()), preset.text)?;
        self.name = preset.name.to_owned();
        Ok(())
    }

    /// Puts a file over what is there, and under it the preset that it names, if it does.
    pub fn put_file(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        let own = self.put(&Origin::File(path.to_owned()), text)?;
        let stem = || path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        self.name = own.unwrap_or_else(stem);
        Ok(())
    }

    /// Puts `key=value` words over what is there.
    pub fn put_words<S: AsRef<str>>(&mut self, words: &[S]) -> Result<(), ConfigError> {
        let place = Place { origin: Origin::CommandLine, line: None };
        for word in words.iter().map(AsRef::as_ref) {
            let parts = word.split_once('=').filter(|(key, _)| !key.trim().is_empty());
            let Some((key, text)) = parts else {
                return Err(ConfigError::NotAKey { word: word.to_owned() });
            };
            let at = find(&full_name(key.trim(), KEYS, &place)?, &place)?;
            self.set(at, &Word { text: text.trim(), quotes: Quotes::Unknown }, &place)?;
        }
        self.settle_batch(&Origin::CommandLine)
    }

    /// Puts all keys of a TOML document over what is there. Returns what it calls itself.
    fn put(&mut self, origin: &Origin, text: &str) -> Result<Option<String>, ConfigError> {
        let place = |at: usize| {
            let before = text.get(..at).unwrap_or(text);
            Place { origin: origin.clone(), line: Some(1 + before.matches('\n').count()) }
        };
        let mut table = DeTable::parse(text)
            .map_err(|error| ConfigError::Toml {
                place: place(error.span().map_or(0, |span| span.start)),
                what: first_line(error.message()),
            })?
            .into_inner();
        let mut own = None;
        if matches!(origin, Origin::File(_)) {
            if let Some(preset) = table.remove(PRESET) {
                let place = place(preset.span().start);
                self.put_preset(presets::find(word(PRESET, preset.get_ref(), &place)?)?)?;
            }
            if let Some(name) = table.remove(NAME) {
                let place = place(name.span().start);
                own = Some(word(NAME, name.get_ref(), &place)?.to_owned());
            }
        }
        for (section, keys) in table.iter() {
            let DeValue::Table(keys) = keys.get_ref() else {
                return Err(unknown(section.get_ref(), &place(section.span().start)));
            };
            for (key, value) in keys.iter() {
                let place = place(key.span().start);
                let at = find(&format!("{}.{}", section.get_ref(), key.get_ref()), &place)?;
                self.set_toml(at, value.get_ref(), &place)?;
            }
        }
        self.settle_batch(origin)?;
        Ok(own)
    }

    /// One of train.batch and train.batch_per_rank says how large a step is: the one that was set
    /// later. The other becomes 0.
    fn settle_batch(&mut self, origin: &Origin) -> Result<(), ConfigError> {
        let set = |key| self.origin(key) == Some(origin);
        let (whole, each) = (set("train.batch"), set("train.batch_per_rank"));
        let train = &mut self.config.train;
        if train.batch == 0 || train.batch_per_rank == 0 {
            return Ok(());
        }
        if whole && each {
            return Err(ConfigError::Contradiction(format!(
                "{origin}: train.batch is {} and train.batch_per_rank is {}: set one of them",
                train.batch, train.batch_per_rank
            )));
        }
        if whole {
            train.batch_per_rank = 0;
        } else {
            train.batch = 0;
        }
        Ok(())
    }

    fn set_toml(
        &mut self,
        at: usize,
        value: &DeValue<'_>,
        place: &Place,
    ) -> Result<(), ConfigError> {
        let (text, quotes) = match value {
            DeValue::String(text) => (text.to_string(), Quotes::Quoted),
            DeValue::Integer(number) => {
                let decimal = i128::from_str_radix(number.as_str(), number.radix());
                (decimal.map_or_else(|_| number.to_string(), |n| n.to_string()), Quotes::Bare)
            }
            DeValue::Float(number) => (number.as_str().to_owned(), Quotes::Bare),
            DeValue::Boolean(yes) => (yes.to_string(), Quotes::Bare),
            other => {
                let value = format!("a TOML {}", other.type_str());
                return Err(wrong(&KEYS[at], value, place));
            }
        };
        self.set(at, &Word { text: &text, quotes }, place)
    }

    fn set(&mut self, at: usize, word: &Word<'_>, place: &Place) -> Result<(), ConfigError> {
        let key = &KEYS[at];
        if !(key.set)(&mut self.config, word) {
            let value = match word.quotes {
                Quotes::Quoted => quoted(word.text),
                _ if word.text.is_empty() => "empty".to_owned(),
                _ => word.text.to_owned(),
            };
            return Err(wrong(key, value, place));
        }
        self.origins[at] = place.origin.clone();
        Ok(())
    }
}

/// What a file says about itself, which must be a word.
fn word<'a>(key: &str, value: &'a DeValue<'_>, place: &Place) -> Result<&'a str, ConfigError> {
    let DeValue::String(text) = value else {
        let what = if key == PRESET { "the name of a preset" } else { "a text" };
        return Err(ConfigError::WrongValue {
            place: place.clone(),
            key: key.to_owned(),
            value: format!("a TOML {}", value.type_str()),
            expected: what.to_owned(),
        });
    };
    Ok(text)
}

/// Where in [`KEYS`] a key is, by its whole name.
fn find(full: &str, place: &Place) -> Result<usize, ConfigError> {
    KEYS.iter().position(|key| key.full() == full).ok_or_else(|| unknown(full, place))
}

/// The whole name of a key that may be written without its section, where only one has it.
pub(super) fn full_name(key: &str, keys: &[Key], place: &Place) -> Result<String, ConfigError> {
    let all: Vec<String> = keys.iter().filter(|k| k.name == key).map(Key::full).collect();
    match all.as_slice() {
        [one] => Ok(one.clone()),
        [] => Ok(key.to_owned()),
        many => Err(ConfigError::AmbiguousKey {
            place: place.clone(),
            key: key.to_owned(),
            all: many.join(" or "),
        }),
    }
}

fn unknown(key: &str, place: &Place) -> ConfigError {
    let full: Vec<String> = KEYS.iter().map(Key::full).collect();
    let by_name = |name| KEYS.iter().find(|k| k.name == name).map(Key::full);
    // What follows the last point may be right where the section is not, or is missing.
    let name = key.rsplit('.').next().unwrap_or(key);
    let near = nearest(key, full.iter().map(String::as_str)).map(str::to_owned);
    let near = near.or_else(|| by_name(nearest(name, KEYS.iter().map(|k| k.name))?));
    let hint = match near {
        Some(near) => format!("did you mean {near}?"),
        None => "`regatta train --keys` lists all".to_owned(),
    };
    ConfigError::UnknownKey { place: place.clone(), key: key.to_owned(), hint }
}

fn wrong(key: &Key, value: String, place: &Place) -> ConfigError {
    let (place, expected) = (place.clone(), key.expected());
    ConfigError::WrongValue { place, key: key.full(), value, expected }
}
