//! Tokenizers against what others say and against themselves.

use proptest::prelude::*;

use super::*;
use crate::data::testing::Folder;

/// Learned from pages of the documentation by Hugging Face's `tokenizers` 0.22.2 (BpeTrainer,
/// ByteLevel, 384 tokens, `<|end|>` added).
const BPE: &str = include_str!("../../../tests/tokenizer/bpe.json");
/// What `Tokenizer::encode(text, false)` of the same crate says, line by line.
const GOLDEN: &str = include_str!("../../../tests/tokenizer/golden.jsonl");

/// The same tokens, with words cut as Llama 3 does and words that are tokens taken as they are.
fn llama3() -> Vec<u8> {
    let mut file: serde_json::Value = serde_json::from_str(BPE).unwrap();
    let pattern = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
    file["pre_tokenizer"] = serde_json::json!({"type": "Sequence", "pretokenizers": [
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
fn bpe_is_as_hugging_face_has_it() {
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
    assert_eq!((gpt2.vocabulary(), gpt2.kind()), (384, "BPE"));
}

#[test]
fn a_file_is_replaced_whole_and_only_by_another() {
    use std::os::unix::fs::MetadataExt;
    let folder = Folder::new();
    let path = folder.path().join("tokenizer.json");
    let (one, other) = (Tokenizer::of_characters("ab".chars()), of(BPE.as_bytes()).unwrap());
    one.save(&path).unwrap();
    let number = || std::fs::metadata(&path).unwrap().ino();
    // Held open, so that its number is not given to another file.
    let held = std::fs::File::open(&path).unwrap();
    let first = number();
    one.save(&path).unwrap();
    assert_eq!(number(), first, "it was written again for nothing");
    other.save(&path).unwrap();
    assert_ne!(number(), first, "it was written in place");
    assert_eq!(std::io::read_to_string(held).unwrap().into_bytes(), one.to_bytes());
    assert_eq!(std::fs::read(&path).unwrap(), other.to_bytes());
    let nowhere = folder.path().join("nowhere/tokenizer.json");
    let error = one.save(&nowhere).unwrap_err().to_string();
    assert!(error.contains("nowhere/tokenizer.json: No such file"), "{error}");
    assert_eq!(folder.names(), ["tokenizer.json"], "nothing else is left");
}

#[test]
fn characters_are_numbered_in_order() {
    let tokenizer = Tokenizer::of_characters("hello, Wörld".chars());
    assert_eq!(tokenizer.vocabulary(), 10);
    assert_eq!(tokenizer.encode("W, d").unwrap(), [2, 1, 0, 3]);
    assert_eq!(tokenizer.decode(&[2, 9]).unwrap(), "Wö");
    let error = tokenizer.encode("höx").unwrap_err().to_string();
    assert!(error.contains("'x' at position 2"), "{error}");
    let error = tokenizer.decode(&[10]).unwrap_err().to_string();
    assert_eq!(error, "there is no token 10 in a vocabulary of 10");
}

#[test]
fn files_are_read_again() {
    let folder = Folder::new();
    let all = [Tokenizer::of_characters("\"\\\n\u{1f6a3}ab".chars()), of(BPE.as_bytes()).unwrap()];
    for tokenizer in &all {
        let path = folder.path().join("tokenizer.json");
        tokenizer.save(&path).unwrap();
        let again = Tokenizer::load(&path).unwrap();
        assert_eq!(again.fingerprint(), tokenizer.fingerprint());
        assert_eq!(again.encode("ab\n").unwrap(), tokenizer.encode("ab\n").unwrap());
    }
    assert_ne!(all[0].fingerprint(), all[1].fingerprint());
    assert_eq!(all[0].fingerprint().len(), 16);
}

#[test]
fn other_tokenizers_are_refused_in_words() {
    let changed = |place: &str, value: serde_json::Value| {
        let mut file: serde_json::Value = serde_json::from_str(BPE).unwrap();
        *file.pointer_mut(place).unwrap() = value;
        of(file.to_string().as_bytes()).unwrap_err().to_string()
    };
    let wrong = [
        ("/model/type", serde_json::json!("Unigram"), "its model is Unigram"),
        ("/model/byte_fallback", serde_json::json!(true), "BPE of characters"),
        ("/model/end_of_word_suffix", serde_json::json!("</w>"), "marks parts of words"),
        ("/normalizer", serde_json::json!({"type": "NFC"}), "its normalizer NFC"),
        ("/pre_tokenizer", serde_json::json!(null), "its pre-tokenizer of no type"),
        ("/pre_tokenizer/use_regex", serde_json::json!(false), "where words end"),
        ("/pre_tokenizer/add_prefix_space", serde_json::json!(true), "add_prefix_space"),
        ("/added_tokens/0/lstrip", serde_json::json!(true), "\"<|end|>\" is matched"),
        ("/added_tokens/0/id", serde_json::json!(4_000_000_000u32), "token 4000000000 of only"),
        ("/added_tokens/0/id", serde_json::json!(9), "has the number 9, and another"),
        ("/model/merges/0", serde_json::json!(["a", "€"]), "which is no token"),
        ("/model/merges/0", serde_json::json!("ab"), "not a pair"),
        ("/model/vocab/e", serde_json::json!(7), "two tokens have the number 7"),
    ];
    for (place, value, reason) in wrong {
        let error = changed(place, value);
        assert!(error.starts_with("tokenizer.json cannot be used"), "{error}");
        assert!(error.contains(reason), "{place}: {error}");
    }
    for (text, reason) in [
        ("", "EOF"),
        ("{}", "missing field `model`"),
        ("{\"kind\":\"words\"}", "\"words\" is not known"),
        ("{\"kind\":\"characters\",\"characters\":\"ba\"}", "'a' is not behind 'b'"),
        ("{\"kind\":\"characters\",\"characters\":\"\"}", "no characters"),
    ] {
        let error = of(text.as_bytes()).unwrap_err().to_string();
        assert!(error.contains(reason), "{text}: {error}");
    }
}

#[test]
fn a_byte_without_a_token_is_named() {
    let mut file: serde_json::Value = serde_json::from_str(BPE).unwrap();
    file["model"]["vocab"] = serde_json::json!({"a": 0, "b": 1, "ab": 2});
    file["model"]["merges"] = serde_json::json!(["a b"]);
    file["added_tokens"] = serde_json::json!([]);
    let tokenizer = of(file.to_string().as_bytes()).unwrap();
    assert_eq!(tokenizer.encode("abba").unwrap(), [2, 1, 0]);
    let error = tokenizer.encode("ab cab").unwrap_err().to_string();
    assert!(error.contains("0x20 of \" cab\""), "{error}");
}

/// Merges of a token under a number that is another's would make that one's text.
#[test]
fn a_token_that_is_not_made_of_bytes_must_be_added_as_it_is() {
    let mut file: serde_json::Value = serde_json::from_str(BPE).unwrap();
    file["model"]["vocab"] = serde_json::json!({"a": 0, "b": 1, "€": 0, "€b": 2});
    file["model"]["merges"] = serde_json::json!(["€ b"]);
    file["added_tokens"] =
        serde_json::json!([{"id": 0, "content": "a"}, {"id": 2, "content": "zz"}]);
    let error = of(file.to_string().as_bytes()).unwrap_err().to_string();
    assert!(error.contains("is not made of bytes"), "{error}");
    file["model"]["vocab"] = serde_json::json!({"a": 0, "b": 1, "€": 2});
    file["model"]["merges"] = serde_json::json!([]);
    file["added_tokens"] = serde_json::json!([{"id": 2, "content": "€"}]);
    assert_eq!(of(file.to_string().as_bytes()).unwrap().encode("a€b").unwrap(), [0, 2, 1]);
}

#[test]
fn a_character_comes_when_it_is_whole() {
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
    fn what_is_encoded_is_decoded(text in "\\PC{0,30}[ \\n\\r\\t'a-z0-9]{0,30}") {
        for tokenizer in [of(BPE.as_bytes()).unwrap(), of(&llama3()).unwrap()] {
            let tokens = tokenizer.encode(&text).unwrap();
            prop_assert_eq!(tokenizer.decode(&tokens).unwrap(), text.as_str());
        }
    }

    #[test]
    fn a_stream_gives_what_decoding_gives(tokens in prop::collection::vec(0u32..384, 0..40)) {
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
