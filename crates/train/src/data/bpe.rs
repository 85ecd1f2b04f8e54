//! Byte-level BPE in a Hugging Face `tokenizer.json`, as used by GPT-2, Llama 3 and others.
//!
//! Text is split into words by a known pattern ([`super::pre_tokenizer`]); the bytes of a word are then merged by
//! rank.

mod file;
mod merge;
pub mod train;

use std::collections::HashMap;
use std::path::Path;

use super::error::{DataError, Result};
use super::pre_tokenizer::PreTokenizer;
use merge::Merges;

/// A byte-level BPE tokenizer.
#[derive(Debug, Clone)]
pub struct Bpe {
    /// The file, verbatim.
    file: Vec<u8>,
    /// The bytes of each token; None for gaps in the ids.
    bytes: Vec<Option<Box<[u8]>>>,
    /// Tokens by their bytes, without added tokens.
    tokens: HashMap<Box<[u8]>, u32>,
    /// The token of each byte.
    alphabet: Box<[Option<u32>; 256]>,
    merges: Merges,
    /// Whether a word in the vocabulary becomes one token without merges (`ignore_merges`).
    whole_words: bool,
    /// Added tokens, longest first.
    added: Vec<(String, u32)>,
    /// First bytes of added tokens.
    added_begins: Box<[bool; 256]>,
    words: PreTokenizer,
}

impl Bpe {
    /// Parses a file; the path is for errors only.
    pub fn parse(file: &[u8], path: &Path) -> Result<Self> {
        file::parse(file).map_err(|reason| DataError::tokenizer(path, reason))
    }

    /// The file, verbatim.
    pub fn file(&self) -> &[u8] {
        &self.file
    }

    /// Vocabulary size, including gaps.
    pub fn vocab_size(&self) -> usize {
        self.bytes.len()
    }

    /// The id of an added token, such as `<|endoftext|>`.
    pub fn added_token(&self, content: &str) -> Option<u32> {
        self.added.iter().find(|(text, _)| text == content).map(|(_, id)| *id)
    }

    /// The bytes of a token.
    pub fn bytes(&self, token: u32) -> Option<&[u8]> {
        self.bytes.get(token as usize)?.as_deref()
    }

    /// Encodes a text.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let mut tokens = Vec::with_capacity(text.len() / 3);
        let mut known = HashMap::new();
        let mut rest = text;
        while !rest.is_empty() {
            let (start, end, added) = self.next_added(rest);
            self.encode_words(&rest[..start], &mut known, &mut tokens)?;
            tokens.extend(added);
            rest = &rest[end..];
        }
        Ok(tokens)
    }

    /// Range and id of the first added token in a text.
    fn next_added(&self, text: &str) -> (usize, usize, Option<u32>) {
        for start in 0..text.len() {
            let rest = &text.as_bytes()[start..];
            if self.added_begins[usize::from(rest[0])] {
                let is_here = |(content, _): &&(String, u32)| rest.starts_with(content.as_bytes());
                if let Some((content, token)) = self.added.iter().find(is_here) {
                    return (start, start + content.len(), Some(*token));
                }
            }
        }
        (text.len(), text.len(), None)
    }

    /// Encodes a text without added tokens. Words are cached.
    fn encode_words<'a>(
        &self,
        text: &'a str,
        known: &mut HashMap<&'a str, Vec<u32>>,
        tokens: &mut Vec<u32>,
    ) -> Result<()> {
        for word in self.words.of(text) {
            match known.get(word) {
                Some(found) => tokens.extend_from_slice(found),
                None => {
                    let found = self.encode_word(word)?;
                    tokens.extend_from_slice(&found);
                    known.insert(word, found);
                }
            }
        }
        Ok(())
    }

    fn encode_word(&self, word: &str) -> Result<Vec<u32>> {
        if self.whole_words
            && let Some(token) = self.tokens.get(word.as_bytes())
        {
            return Ok(vec![*token]);
        }
        let token = |byte: &u8| {
            let missing =
                || DataError::UnknownByte { byte: *byte, text: word.chars().take(40).collect() };
            self.alphabet[usize::from(*byte)].ok_or_else(missing)
        };
        let bytes: Result<Vec<u32>> = word.as_bytes().iter().map(token).collect();
        Ok(self.merges.apply(bytes?))
    }
}
