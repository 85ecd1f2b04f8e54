//! Text to tokens and back: single characters, or byte-level BPE as in a Hugging Face
//! `tokenizer.json`.

use std::fs::File;
use std::io::Write;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::beside;
use super::bpe::Bpe;
use super::error::{DataError, Result};

/// What a text's tokens are.
#[derive(Debug, Clone)]
pub enum Tokenizer {
    /// The characters of the text itself.
    Characters(Characters),
    /// Byte-level BPE.
    Bpe(Box<Bpe>),
}

/// Characters in order; a token is the number of one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Characters(Vec<char>);

/// Our own file of characters.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CharactersFile {
    kind: String,
    characters: String,
}

const CHARACTERS: &str = "characters";

impl Tokenizer {
    /// The characters of texts, sorted.
    pub fn of_characters(characters: impl IntoIterator<Item = char>) -> Self {
        let all: std::collections::BTreeSet<char> = characters.into_iter().collect();
        Self::Characters(Characters(all.into_iter().collect()))
    }

    /// Reads a file: one of ours, or a `tokenizer.json` of Hugging Face.
    pub fn load(path: &Path) -> Result<Self> {
        let bytes = std::fs::read(path).map_err(DataError::io("read the tokenizer", path))?;
        Self::from_bytes(&bytes, path)
    }

    /// Reads what is in a file; the path is for errors only.
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct Kind {
            kind: Option<String>,
        }
        let json = |error: serde_json::Error| DataError::tokenizer(path, error.to_string());
        match serde_json::from_slice::<Kind>(bytes).map_err(json)?.kind {
            None => Ok(Self::Bpe(Box::new(Bpe::parse(bytes, path)?))),
            Some(kind) if kind == CHARACTERS => {
                let file: CharactersFile = serde_json::from_slice(bytes).map_err(json)?;
                let characters: Vec<char> = file.characters.chars().collect();
                match characters.windows(2).find(|two| two[0] >= two[1]) {
                    Some(two) => {
                        let reason = format!("{:?} is not behind {:?}", two[1], two[0]);
                        Err(DataError::tokenizer(path, reason))
                    }
                    None if characters.is_empty() => {
                        Err(DataError::tokenizer(path, "it has no characters"))
                    }
                    None => Ok(Self::Characters(Characters(characters))),
                }
            }
            Some(kind) => {
                Err(DataError::tokenizer(path, format!("its kind {kind:?} is not known")))
            }
        }
    }

    /// What its file holds.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Bpe(bpe) => bpe.file().to_vec(),
            Self::Characters(Characters(all)) => {
                let characters = serde_json::Value::String(all.iter().collect());
                format!("{{\"kind\":\"{CHARACTERS}\",\"characters\":{characters}}}\n").into_bytes()
            }
        }
    }

    /// Writes it to a file, which is there whole or as it was before. One that has it already is
    /// left alone: others may read it at any time.
    pub fn save(&self, path: &Path) -> Result<()> {
        let bytes = self.to_bytes();
        if std::fs::read(path).is_ok_and(|there| there == bytes) {
            return Ok(());
        }
        let part = beside(path, "part");
        let write = || {
            let mut file = File::create(&part)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            std::fs::rename(&part, path)
        };
        write().map_err(|error| {
            let _ = std::fs::remove_file(&part);
            DataError::io("write the tokenizer", path)(error)
        })
    }

    /// The tokens of a text, without any that mark its begin or end.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self {
            Self::Characters(characters) => characters.encode(text),
            Self::Bpe(bpe) => bpe.encode(text),
        }
    }

    /// The text of tokens. Bytes that are no text become replacement characters.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let mut bytes = Vec::new();
        for token in tokens {
            self.append(*token, &mut bytes)?;
        }
        Ok(match String::from_utf8(bytes) {
            Ok(text) => text,
            Err(error) => String::from_utf8_lossy(error.as_bytes()).into_owned(),
        })
    }

    /// How many tokens there are; each is below that.
    pub fn vocabulary(&self) -> usize {
        match self {
            Self::Characters(Characters(all)) => all.len(),
            Self::Bpe(bpe) => bpe.vocabulary(),
        }
    }

    /// What tells it from others: the first 16 digits of its file's SHA-256.
    pub fn fingerprint(&self) -> String {
        let mut digits = hex(&Sha256::digest(self.to_bytes()));
        digits.truncate(16);
        digits
    }

    /// In a word, for people.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Characters(_) => CHARACTERS,
            Self::Bpe(_) => "BPE",
        }
    }

    /// A decoder of tokens that come one by one.
    pub fn stream(&self) -> Stream<'_> {
        Stream { tokenizer: self, bytes: Vec::new() }
    }

    /// Adds a token's bytes, which need not be whole characters.
    fn append(&self, token: u32, bytes: &mut Vec<u8>) -> Result<()> {
        let missing = || DataError::NoSuchToken { token, vocabulary: self.vocabulary() };
        match self {
            Self::Bpe(bpe) => bytes.extend_from_slice(bpe.bytes(token).ok_or_else(missing)?),
            Self::Characters(Characters(all)) => {
                let character = all.get(token as usize).ok_or_else(missing)?;
                bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        Ok(())
    }
}

impl Characters {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let number = |(position, character): (usize, char)| match self.0.binary_search(&character) {
            Ok(number) => Ok(number as u32),
            Err(_) => {
                let vocabulary = self.0.len();
                Err(DataError::UnknownCharacter { character, position, vocabulary })
            }
        };
        text.chars().enumerate().map(number).collect()
    }
}

/// Decodes tokens one by one: a character may be cut between tokens, and comes when it is whole.
#[derive(Debug, Clone)]
pub struct Stream<'a> {
    tokenizer: &'a Tokenizer,
    /// The begin of a character.
    bytes: Vec<u8>,
}

impl Stream<'_> {
    /// Takes a token, and gives the text that is complete with it.
    pub fn push(&mut self, token: u32) -> Result<String> {
        self.tokenizer.append(token, &mut self.bytes)?;
        let whole = whole(&self.bytes);
        let text = String::from_utf8_lossy(&self.bytes[..whole]).into_owned();
        self.bytes.drain(..whole);
        Ok(text)
    }

    /// What is left at the end: nothing, or a replacement for what is no whole character.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// How many bytes are not the begin of a character that may still become whole.
pub(super) fn whole(bytes: &[u8]) -> usize {
    let mut at = 0;
    while let Err(error) = std::str::from_utf8(&bytes[at..]) {
        at += error.valid_up_to();
        match error.error_len() {
            Some(wrong) => at += wrong,
            None => return at,
        }
    }
    bytes.len()
}

/// Bytes as hexadecimal digits.
pub(super) fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a string cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests;
