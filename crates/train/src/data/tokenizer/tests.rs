//! Tokenizers against Hugging Face's and against themselves.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::*;
use crate::testing::TempDir;

/// Trained on pages of the documentation by Hugging Face's `tokenizers` 0.22.2 (BpeTrainer, ByteLevel, 384 tokens,
/// `<|end|>` added).
const BPE: &str = include_str!("../../../tests/tokenizer/bpe.json");
/// The output of `Tokenizer::encode(text, false)` of the same crate, line by line.
const GOLDEN: &str = include_str!("../../../tests/tokenizer/golden.jsonl");

/// The same vocabulary with the pre-tokenizer of Llama 3 and ignore_merges.
fn llama3() -> Vec<u8> {
    let mut file: Value = serde_json::from_str(BPE).unwrap();
    let pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    file["pre_tokenizer"] = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false},
    ]});
    file["model"]["ignore_merges"] = true.into();
    file.to_string().into_bytes()
}

fn of(bytes: &[u8]) -> Result<Tokenizer> {
    Tokenizer::from_bytes(bytes, Path::new("tokenizer.json"))
}

#[test]
fn bpe_matches_hugging_face() {
    let (gpt2, llama3) = (of(BPE.as_bytes()).unwrap(), of(&llama3()).unwrap());
    for line in GOLDEN.lines() {
        #[derive(Deserialize)]
        struct Golden {
            style: String,
            text: String,
            tokens: Vec<u32>,
        }
        let Golden { style, text, tokens } = serde_json::from_str(line).unwrap();
        let tokenizer = if style == "gpt2" { &gpt2 } else { &llama3 };
        assert_eq!(tokenizer.encode(&text).unwrap(), tokens, "{style} {text:?}");
        assert_eq!(tokenizer.decode(&tokens).unwrap(), text);
    }
    assert_eq!(GOLDEN.lines().count(), 16);
    assert_eq!((gpt2.vocab_size(), gpt2.kind()), (384, "BPE"));
}

#[test]
fn the_end_of_text_token_is_the_added_one_of_a_known_name() {
    for (name, expected) in [("<|end|>", Some(0)), ("<|endoftext|>", Some(0)), ("<|start|>", None)]
    {
        let tokenizer = of(BPE.replace("<|end|>", name).as_bytes()).unwrap();
        assert_eq!(tokenizer.end_of_text(), expected, "{name}");
    }
    assert_eq!(Tokenizer::from_characters("ab".chars()).end_of_text(), None);
}

#[test]
fn files_are_replaced_atomically_and_only_if_different() {
    use std::os::unix::fs::MetadataExt;
    let folder = TempDir::new();
    let path = folder.0.join("tokenizer.json");
    let (one, other) = (Tokenizer::from_characters("ab".chars()), of(BPE.as_bytes()).unwrap());
    one.save(&path).unwrap();
    let number = || std::fs::metadata(&path).unwrap().ino();
    // Held open, so that its inode is not reused.
    let held = std::fs::File::open(&path).unwrap();
    let first = number();
    one.save(&path).unwrap();
    assert_eq!(number(), first, "it was written again for nothing");
    other.save(&path).unwrap();
    assert_ne!(number(), first, "it was written in place");
    assert_eq!(std::io::read_to_string(held).unwrap().into_bytes(), one.to_bytes());
    assert_eq!(std::fs::read(&path).unwrap(), other.to_bytes());
    let nowhere = folder.0.join("nowhere/tokenizer.json");
    let error = one.save(&nowhere).unwrap_err().to_string();
    assert!(error.contains("nowhere/tokenizer.json: No such file"), "{error}");
    assert_eq!(folder.names(), ["tokenizer.json"], "nothing else is left");
}

#[test]
fn characters_are_sorted() {
    let tokenizer = Tokenizer::from_characters("hello, Wörld".chars());
    assert_eq!(tokenizer.vocab_size(), 10);
    assert_eq!(tokenizer.encode("W, d").unwrap(), [2, 1, 0, 3]);
    assert_eq!(tokenizer.decode(&[2, 9]).unwrap(), "Wö");
    let error = tokenizer.encode("höx").unwrap_err().to_string();
    let expected =
        "character 3, 'x', is not among the 10 characters that the model was trained on: remove it";
    assert_eq!(error, expected);
    let error = tokenizer.decode(&[10]).unwrap_err().to_string();
    assert_eq!(error, "token 10 is not in the vocabulary of 10 tokens");
}

#[test]
fn tokenizer_files_round_trip() {
    let folder = TempDir::new();
    let all =
        [Tokenizer::from_characters("\"\\\n\u{1f6a3}ab".chars()), of(BPE.as_bytes()).unwrap()];
    for tokenizer in &all {
        let path = folder.0.join("tokenizer.json");
        tokenizer.save(&path).unwrap();
        let again = Tokenizer::load(&path).unwrap();
        assert_eq!(again.fingerprint(), tokenizer.fingerprint());
        assert_eq!(again.encode("ab\n").unwrap(), tokenizer.encode("ab\n").unwrap());
    }
    assert_ne!(all[0].fingerprint(), all[1].fingerprint());
    assert_eq!(all[0].fingerprint().len(), 16);
}

#[test]
fn unsupported_tokenizers_are_refused_by_component() {
    let changed = |place: &str, value: Value| {
        let mut file: Value = serde_json::from_str(BPE).unwrap();
        *file.pointer_mut(place).unwrap() = value;
        of(file.to_string().as_bytes()).unwrap_err().to_string()
    };
    let wrong = [
        ("/model/type", json!("Unigram"), "model type Unigram is not supported"),
        ("/model/byte_fallback", json!(true), "model.byte_fallback"),
        ("/model/end_of_word_suffix", json!("</w>"), "end_of_word_suffix"),
        ("/normalizer", json!({"type": "NFC"}), "normalizer NFC is not supported"),
        ("/pre_tokenizer", json!(null), "pre_tokenizer null"),
        ("/pre_tokenizer/use_regex", json!(false), "pre_tokenizer.use_regex"),
        ("/pre_tokenizer/add_prefix_space", json!(true), "add_prefix_space"),
        ("/added_tokens/0/lstrip", json!(true), "\"<|end|>\" uses lstrip"),
        ("/added_tokens/0/id", json!(4_000_000_000u32), "has id 4000000000, but there are only"),
        ("/added_tokens/0/id", json!(9), "and another token have id 9"),
        ("/model/merges/0", json!(["a", "€"]), "which does not exist"),
        ("/model/merges/0", json!("ab"), "not a pair"),
        ("/model/vocab/e", json!(7), "two tokens have id 7"),
    ];
    for (place, value, reason) in wrong {
        let error = changed(place, value);
        assert!(error.starts_with("cannot use tokenizer.json as a tokenizer: "), "{error}");
        assert!(error.contains(reason), "{place}: {error}");
    }
    for (text, reason) in [
        ("", "EOF"),
        ("{}", "missing field `model`"),
        ("{\"kind\":\"words\"}", "unknown kind \"words\""),
        ("{\"kind\":\"characters\",\"characters\":\"ba\"}", "'a' follows 'b'"),
        ("{\"kind\":\"characters\",\"characters\":\"\"}", "vocabulary is empty"),
    ] {
        let error = of(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn a_byte_without_a_token_is_named() {
    let mut file: Value = serde_json::from_str(BPE).unwrap();
    file["model"]["vocab"] = json!({"a": 0, "b": 1, "ab": 2});
    file["model"]["merges"] = json!(["a b"]);
    file["added_tokens"] = json!([]);
    let tokenizer = of(file.to_string().as_bytes()).unwrap();
    assert_eq!(tokenizer.encode("abba").unwrap(), [2, 1, 0]);
    let error = tokenizer.encode("ab cab").unwrap_err().to_string();
    assert!(error.contains("0x20 of \" cab\""), "{error}");
}

/// Otherwise merges of one token would produce the text of another with the same id.
#[test]
fn tokens_outside_the_byte_level_alphabet_must_be_added_tokens() {
    let mut file: Value = serde_json::from_str(BPE).unwrap();
    file["model"]["vocab"] = json!({"a": 0, "b": 1, "€": 0, "€b": 2});
    file["model"]["merges"] = json!(["€ b"]);
    file["added_tokens"] = json!([{"id": 0, "content": "a"}, {"id": 2, "content": "zz"}]);
    let error = of(file.to_string().as_bytes()).unwrap_err().to_string();
    assert!(error.contains("is not in the byte-level alphabet"), "{error}");
    file["model"]["vocab"] = json!({"a": 0, "b": 1, "€": 2});
    file["model"]["merges"] = json!([]);
    file["added_tokens"] = json!([{"id": 2, "content": "€"}]);
    assert_eq!(of(file.to_string().as_bytes()).unwrap().encode("a€b").unwrap(), [0, 2, 1]);
}

#[test]
fn incomplete_characters_are_held_back() {
    let tokenizer = of(BPE.as_bytes()).unwrap();
    let tokens = tokenizer.encode("a\u{1f6a3}b").unwrap();
    assert_eq!(tokens.len(), 6);
    let mut stream = tokenizer.stream();
    let parts: Vec<String> = tokens.iter().map(|token| stream.push(*token).unwrap()).collect();
    assert_eq!(parts, ["a", "", "", "", "\u{1f6a3}", "b"]);
    assert_eq!(stream.finish(), "");
    let mut cut = tokenizer.stream();
    assert_eq!(cut.push(tokens[1]).unwrap(), "");
    assert_eq!(cut.push(tokens[5]).unwrap(), "\u{fffd}b");
    assert_eq!(cut.push(tokens[1]).unwrap() + &cut.finish(), "\u{fffd}");
}

proptest! {
    #[test]
    fn encode_and_decode_round_trip(text in "\\PC{0,30}[ \\n\\r\\t'a-z0-9]{0,30}") {
        for tokenizer in [of(BPE.as_bytes()).unwrap(), of(&llama3()).unwrap()] {
            let tokens = tokenizer.encode(&text).unwrap();
            prop_assert_eq!(tokenizer.decode(&tokens).unwrap(), text.as_str());
        }
    }

    #[test]
    fn streaming_equals_decoding(tokens in prop::collection::vec(0u32..384, 0..40)) {
        let tokenizer = of(BPE.as_bytes()).unwrap();
        let mut stream = tokenizer.stream();
        let mut text = String::new();
        for token in &tokens {
            text += &stream.push(*token).unwrap();
        }
        text += &stream.finish();
        prop_assert_eq!(text, tokenizer.decode(&tokens).unwrap());
    }
}

/// The form that `AutoTokenizer` of transformers 5.22 loads: encodes and decodes like the character
/// tokenizer, and refuses unknown characters.
#[test]
fn character_tokenizer_round_trips_through_the_format_of_the_tokenizers_library() {
    let ours = Tokenizer::from_characters("b a\n\u{e9}".chars());
    let file = ours.to_hugging_face();
    let found: Value = serde_json::from_slice(&file).unwrap();
    let split = json!({"Regex": "[\\s\\S]"});
    let expected = json!({
        "version": "1.0", "truncation": null, "padding": null, "added_tokens": [],
        "normalizer": null, "post_processor": null, "decoder": {"type": "Fuse"},
        "pre_tokenizer":
            {"type": "Split", "pattern": split, "behavior": "Isolated", "invert": false},
        "model": {
            "type": "WordLevel", "unk_token": "<unk>",
            "vocab": {"\n": 0, " ": 1, "a": 2, "b": 3, "\u{e9}": 4},
        },
    });
    assert_eq!(found, expected);
    let back = of(&file).unwrap();
    assert_eq!((back.fingerprint(), back.kind()), (ours.fingerprint(), "characters"));
    let mut words = found;
    words["model"]["vocab"] = json!({"two": 0, "words": 1});
    let error = of(words.to_string().as_bytes()).unwrap_err().to_string();
    assert!(error.contains("WordLevel model is not one of single characters"), "{error}");
    assert_eq!(of(BPE.as_bytes()).unwrap().to_hugging_face(), BPE.as_bytes());
}
