//! Tokenizers: characters, or byte-level BPE from a Hugging Face `tokenizer.json`.

mod word_level;

use std::fs::File;
use std::io::Write;
use std::path::Path;

use regatta_model::text::hex;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::beside;
use super::bpe::Bpe;
use super::error::{DataError, Result};
use crate::regular_file;

/// A tokenizer.
#[derive(Debug, Clone)]
pub enum Tokenizer {
    /// Character tokenizer.
    Char(CharVocab),
    /// Byte-level BPE.
    Bpe(Box<Bpe>),
}

/// Sorted characters; the token of a character is its index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CharVocab(Vec<char>);

/// File format of the character tokenizer.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct CharVocabFile {
    kind: String,
    characters: String,
}

/// Kind of the character tokenizer.
pub(super) const CHARACTERS: &str = "characters";

/// Maximum size of a tokenizer file. Those of the largest vocabularies have some 30 MB.
const MAX_TOKENIZER_BYTES: u64 = 1 << 30;

/// Names of the end-of-text token, by preference: GPT-2, Llama 3, Llama 2, Gemma, ours.
const END_OF_TEXT: [&str; 5] = ["<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|end|>"];

impl Tokenizer {
    /// A character tokenizer of these characters.
    pub fn from_characters(characters: impl IntoIterator<Item = char>) -> Self {
        let all: std::collections::BTreeSet<char> = characters.into_iter().collect();
        Self::Char(CharVocab(all.into_iter().collect()))
    }

    /// Loads a character tokenizer or a Hugging Face `tokenizer.json`.
    pub fn load(path: &Path) -> Result<Self> {
        let bytes = regular_file::read(path, MAX_TOKENIZER_BYTES);
        let bytes = bytes.map_err(DataError::io("read the tokenizer", path))?;
        Self::from_bytes(&bytes, path)
    }

    /// Parses a file; the path is for errors only.
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Self> {
        #[derive(Deserialize)]
        struct TokenizerKind {
            kind: Option<String>,
            model: Option<ModelKind>,
        }
        #[derive(Deserialize)]
        struct ModelKind {
            #[serde(rename = "type")]
            kind: Option<String>,
        }
        let json = |error: serde_json::Error| DataError::tokenizer(path, error.to_string());
        let TokenizerKind { kind, model } = serde_json::from_slice(bytes).map_err(json)?;
        let model = model.and_then(|model| model.kind);
        match kind {
            None if model.as_deref() == Some(word_level::MODEL_TYPE) => {
                let reason =
                    "its WordLevel model is not one of single characters as regatta exports it";
                let vocab = word_level::parse(bytes);
                vocab.map(Self::Char).ok_or_else(|| DataError::tokenizer(path, reason))
            }
            None => Ok(Self::Bpe(Box::new(Bpe::parse(bytes, path)?))),
            Some(kind) if kind == CHARACTERS => {
                let file: CharVocabFile = serde_json::from_slice(bytes).map_err(json)?;
                let characters: Vec<char> = file.characters.chars().collect();
                match characters.array_windows().find(|[one, next]| one >= next) {
                    Some([one, next]) => {
                        let reason = format!("characters are not sorted: {next:?} follows {one:?}");
                        Err(DataError::tokenizer(path, reason))
                    }
                    None if characters.is_empty() => {
                        Err(DataError::tokenizer(path, "its vocabulary is empty"))
                    }
                    None => Ok(Self::Char(CharVocab(characters))),
                }
            }
            Some(kind) => Err(DataError::tokenizer(path, format!("unknown kind {kind:?}"))),
        }
    }

    /// Contents of its file.
    pub fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Bpe(bpe) => bpe.file().to_vec(),
            Self::Char(CharVocab(all)) => {
                let characters = serde_json::Value::String(all.iter().collect());
                format!("{{\"kind\":\"{CHARACTERS}\",\"characters\":{characters}}}\n").into_bytes()
            }
        }
    }

    /// Contents of a `tokenizer.json` that the tokenizers library reads.
    pub fn to_hugging_face(&self) -> Vec<u8> {
        match self {
            Self::Bpe(bpe) => bpe.file().to_vec(),
            Self::Char(vocab) => format!("{:#}\n", word_level::document(vocab)).into_bytes(),
        }
    }

    /// Writes its file atomically. An identical file is left untouched, because others may be reading it.
    pub fn save(&self, path: &Path) -> Result<()> {
        let bytes = self.to_bytes();
        if regular_file::read(path, MAX_TOKENIZER_BYTES).is_ok_and(|there| there == bytes) {
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

    /// Encodes a text, without special tokens at its start or end.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        match self {
            Self::Char(characters) => characters.encode(text),
            Self::Bpe(bpe) => bpe.encode(text),
        }
    }

    /// Decodes tokens. Invalid UTF-8 becomes replacement characters.
    pub fn decode(&self, tokens: &[u32]) -> Result<String> {
        let mut bytes = Vec::new();
        for token in tokens {
            self.append(*token, &mut bytes)?;
        }
        Ok(String::from_utf8_lossy(&bytes).into_owned())
    }

    /// Vocabulary size.
    pub fn vocab_size(&self) -> usize {
        match self {
            Self::Char(CharVocab(all)) => all.len(),
            Self::Bpe(bpe) => bpe.vocab_size(),
        }
    }

    /// Length of each token in bytes; 0 for gaps in the ids.
    pub fn token_lens(&self) -> Vec<u64> {
        let mut bytes = Vec::new();
        let len = |token| {
            bytes.clear();
            // A gap has no bytes.
            let _ = self.append(token, &mut bytes);
            bytes.len() as u64
        };
        (0..self.vocab_size() as u32).map(len).collect()
    }

    /// Whether every token stands for the same bytes, so that a model of one reads the tokens of the other.
    pub fn has_same_tokens(&self, other: &Self) -> bool {
        let bytes = |tokenizer: &Self, token| {
            let mut bytes = Vec::new();
            tokenizer.append(token, &mut bytes).ok().map(|()| bytes)
        };
        self.vocab_size() == other.vocab_size()
            && (0..self.vocab_size() as u32).all(|token| bytes(self, token) == bytes(other, token))
    }

    /// The end-of-text token, if it has one.
    pub fn end_of_text(&self) -> Option<u32> {
        match self {
            Self::Char(_) => None,
            Self::Bpe(bpe) => END_OF_TEXT.iter().find_map(|name| bpe.added_token(name)),
        }
    }

    /// Fingerprint: the first 16 digits of the SHA-256 of its file.
    pub fn fingerprint(&self) -> String {
        let mut digits = hex(&Sha256::digest(self.to_bytes()));
        digits.truncate(16);
        digits
    }

    /// Kind, for messages.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Char(_) => CHARACTERS,
            Self::Bpe(_) => "BPE",
        }
    }

    /// An incremental decoder.
    pub fn stream(&self) -> StreamDecoder<'_> {
        StreamDecoder { tokenizer: self, bytes: Vec::new() }
    }

    /// Appends the bytes of a token, which may be part of a character.
    fn append(&self, token: u32, bytes: &mut Vec<u8>) -> Result<()> {
        let missing = || DataError::NoSuchToken { token, vocabulary: self.vocab_size() };
        match self {
            Self::Bpe(bpe) => bytes.extend_from_slice(bpe.bytes(token).ok_or_else(missing)?),
            Self::Char(CharVocab(all)) => {
                let character = all.get(token as usize).ok_or_else(missing)?;
                bytes.extend_from_slice(character.encode_utf8(&mut [0; 4]).as_bytes());
            }
        }
        Ok(())
    }
}

impl CharVocab {
    fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let (vocabulary, whose) = (self.0.len(), "that the model was trained on");
        let token = |(position, character)| {
            let unknown =
                |_| DataError::UnknownCharacter { character, position, vocabulary, whose };
            self.0.binary_search(&character).map(|token| token as u32).map_err(unknown)
        };
        text.chars().enumerate().map(token).collect()
    }
}

/// Decodes tokens incrementally: a character split over tokens is returned once complete.
#[derive(Debug, Clone)]
pub struct StreamDecoder<'a> {
    tokenizer: &'a Tokenizer,
    /// An incomplete character.
    bytes: Vec<u8>,
}

impl StreamDecoder<'_> {
    /// Adds a token, and returns the text it completes.
    pub fn push(&mut self, token: u32) -> Result<String> {
        self.tokenizer.append(token, &mut self.bytes)?;
        let complete = complete_len(&self.bytes);
        let text = String::from_utf8_lossy(&self.bytes[..complete]).into_owned();
        self.bytes.drain(..complete);
        Ok(text)
    }

    /// A replacement for an incomplete character at the end, if any.
    pub fn finish(self) -> String {
        String::from_utf8_lossy(&self.bytes).into_owned()
    }
}

/// Length without an incomplete character at the end.
fn complete_len(bytes: &[u8]) -> usize {
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

#[cfg(test)]
mod tests;
