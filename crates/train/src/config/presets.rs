//! Built-in configurations.

use regatta_model::suggest::closest_match;

use super::{Base, Config, Result, resolve};

/// A built-in configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preset {
    /// Name.
    pub name: &'static str,
    /// Contents, as TOML.
    pub text: &'static str,
}

macro_rules! presets {
    ($($name:literal),* $(,)?) => {
        /// All presets; the first one is the default.
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

/// Vocabulary size assumed if it follows from the data: the characters of tinyshakespeare.
pub const CHAR_VOCAB_SIZE: usize = 65;

impl Preset {
    /// Description: the comment at the top of the file.
    pub fn description(&self) -> String {
        let lines = self.text.lines().map_while(|line| line.strip_prefix('#'));
        lines.map(str::trim).collect::<Vec<_>>().join(" ")
    }

    /// The configuration.
    pub fn config(&self) -> Result<Config> {
        resolve::<&str>(Some(Base::Preset(self.name.to_owned())), &[]).map(|all| all.config)
    }

    /// Number of parameters, and whether it is exact: if the vocabulary size follows from the data,
    /// `CHAR_VOCAB_SIZE` is assumed.
    pub fn parameters(&self) -> Result<(usize, bool)> {
        let config = self.config()?;
        let is_exact = config.model.vocab_size != 0;
        let vocab_size = if is_exact { config.model.vocab_size } else { CHAR_VOCAB_SIZE };
        Ok((config.shape(vocab_size)?.num_params(), is_exact))
    }
}

/// Finds a preset by name. The error is a hint.
pub(super) fn find(name: &str) -> Result<&'static Preset, String> {
    PRESETS.iter().find(|preset| preset.name == name).ok_or_else(|| {
        let near = closest_match(name, PRESETS.iter().map(|preset| preset.name));
        let listed = || "`regatta train --presets` lists the presets".to_owned();
        near.map_or_else(listed, |near| format!("did you mean {near}?"))
    })
}
