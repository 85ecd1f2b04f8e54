//! Configurations that come with the program, as files.

use super::nearest::nearest;
use super::{Config, ConfigError, First, resolve};

/// A configuration that comes with the program.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// Its name.
    pub name: &'static str,
    /// The file.
    pub text: &'static str,
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        /// All of them; the first one is used if nobody says which.
        pub static PRESETS: &[Preset] = &[$(
            Preset { name: $name, text: include_str!(concat!("../../presets/", $name, ".toml")) },
        )*];
    };
}

presets![
    "tiny",
    "shakespeare-char",
    "shakespeare-char-large",
    "gpt2",
    "gpt2-medium",
    "gpt2-large",
    "gpt2-xl",
    "llama-tiny",
    "llama-1b",
    "llama-3b",
    "llama-7b",
    "llama-8b",
    "llama-70b",
    "mlp",
];

/// Characters of tinyshakespeare: what is assumed where the data is not known yet.
const CHARACTERS: usize = 65;

impl Preset {
    /// What it is for: the comment that its file begins with.
    pub fn about(&self) -> String {
        let lines = self.text.lines().map_while(|line| line.strip_prefix('#'));
        lines.map(str::trim).collect::<Vec<_>>().join(" ")
    }

    /// The configuration.
    pub fn config(&self) -> Result<Config, ConfigError> {
        resolve::<&str>(Some(First::Preset(self.name.to_owned())), &[]).map(|all| all.config)
    }

    /// How many parameters its model has, and whether that is for certain: the vocabulary may be
    /// the data's, and then is taken for 65 characters.
    pub fn parameters(&self) -> Result<(usize, bool), ConfigError> {
        let config = self.config()?;
        let certain = config.model.vocabulary != 0;
        let vocabulary = if certain { config.model.vocabulary } else { CHARACTERS };
        Ok((config.shape(vocabulary)?.parameters(), certain))
    }
}

/// The preset of a name.
pub(super) fn find(name: &str) -> Result<&'static Preset, ConfigError> {
    PRESETS.iter().find(|preset| preset.name == name).ok_or_else(|| {
        let hint = match nearest(name, PRESETS.iter().map(|preset| preset.name)) {
            Some(near) => format!("did you mean {near}?"),
            None => "`regatta train --presets` lists them; a file's name ends in .toml".to_owned(),
        };
        ConfigError::UnknownPreset { name: name.to_owned(), hint }
    })
}
