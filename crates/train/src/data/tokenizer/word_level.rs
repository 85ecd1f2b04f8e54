//! The character tokenizer as a `tokenizer.json` of the tokenizers library: a WordLevel model whose words are
//! single characters. No I/O.

use serde_json::{Map, Value, json};

use super::CharVocab;

/// Type of the model in the file.
pub const MODEL_TYPE: &str = "WordLevel";

/// The document. Its unknown token is not in the vocabulary, so that an unknown character is an error, as
/// here.
pub fn document(CharVocab(characters): &CharVocab) -> Value {
    let token = |(id, character): (usize, &char)| (character.to_string(), id.into());
    let vocab: Map<String, Value> = characters.iter().enumerate().map(token).collect();
    json!({
        "version": "1.0",
        "truncation": null,
        "padding": null,
        "added_tokens": [],
        "normalizer": null,
        "pre_tokenizer": {
            "type": "Split",
            "pattern": { "Regex": r"[\s\S]" },
            "behavior": "Isolated",
            "invert": false,
        },
        "post_processor": null,
        "decoder": { "type": "Fuse" },
        "model": { "type": MODEL_TYPE, "vocab": vocab, "unk_token": "<unk>" },
    })
}

/// The vocabulary of a document that [`document`] wrote.
pub fn parse(bytes: &[u8]) -> Option<CharVocab> {
    let found: Value = serde_json::from_slice(bytes).ok()?;
    let words = found.pointer("/model/vocab")?.as_object()?.keys();
    let mut characters: Vec<char> = words.filter_map(|word| word.chars().next()).collect();
    characters.sort_unstable();
    let vocab = CharVocab(characters);
    (document(&vocab) == found).then_some(vocab)
}
