//! Parses and writes a `tokenizer.json` of byte-level BPE. Unsupported components are refused by name.

use std::collections::{HashMap, HashSet};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::super::pre_tokenizer::PreTokenizer;
use super::{Bpe, Merges};

/// Maximum number of gaps in token ids.
const GAPS: usize = 1 << 16;

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    added_tokens: Vec<Added>,
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    model: Model,
}

#[derive(Deserialize)]
struct Added {
    id: u32,
    content: String,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

#[derive(Deserialize)]
struct Model {
    #[serde(rename = "type")]
    kind: Option<String>,
    vocab: HashMap<String, u32>,
    merges: Vec<Merge>,
    #[serde(default)]
    ignore_merges: bool,
    #[serde(default)]
    byte_fallback: bool,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Pair(String, String),
    Line(String),
}

impl Merge {
    fn pair(&self) -> Option<(&str, &str)> {
        match self {
            Self::Pair(left, right) => Some((left, right)),
            Self::Line(line) => line.split_once(' '),
        }
    }
}

/// Parses a file.
pub fn parse(bytes: &[u8]) -> Result<Bpe, String> {
    let file: File = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
    let words = pre_tokenizer(&file.pre_tokenizer)?;
    check(&file)?;
    let letters = byte_alphabet();
    let (tokens, by_number) = vocabulary(&file, &letters)?;
    let merges = merges(&file.model)?;
    let alphabet = std::array::from_fn(|byte| tokens.get(&[byte as u8][..]).copied());
    let mut added: Vec<(String, u32)> =
        file.added_tokens.into_iter().map(|added| (added.content, added.id)).collect();
    added.sort_by_key(|(content, _)| std::cmp::Reverse(content.len()));
    let mut added_begins = [false; 256];
    for (content, _) in &added {
        content.bytes().take(1).for_each(|byte| added_begins[usize::from(byte)] = true);
    }
    Ok(Bpe {
        file: bytes.to_vec(),
        bytes: by_number,
        tokens,
        alphabet: Box::new(alphabet),
        merges,
        whole_words: file.model.ignore_merges,
        added,
        added_begins: Box::new(added_begins),
        words,
    })
}

/// Refuses unsupported components.
fn check(file: &File) -> Result<(), String> {
    let model = &file.model;
    let has = |text: &Option<String>| text.as_ref().is_some_and(|text| !text.is_empty());
    match &model.kind {
        Some(kind) if kind != "BPE" => {
            return Err(format!("model type {kind} is not supported, only byte-level BPE"));
        }
        _ if model.byte_fallback => {
            return Err(
                "model.byte_fallback (BPE over characters, as in Llama 2) is not supported, only \
            byte-level BPE"
                    .to_owned(),
            );
        }
        _ if has(&model.continuing_subword_prefix) || has(&model.end_of_word_suffix) => {
            return Err("model.continuing_subword_prefix and end_of_word_suffix are not supported"
                .to_owned());
        }
        _ => {}
    }
    if !file.normalizer.is_null() {
        return Err(format!("normalizer {} is not supported", kind(&file.normalizer)));
    }
    let is_unsupported = |added: &&Added| added.single_word || added.lstrip || added.rstrip;
    match file.added_tokens.iter().find(|added| is_unsupported(added) || added.content.is_empty()) {
        Some(added) => Err(format!(
            "added token {:?} uses lstrip, rstrip or single_word, which are not supported",
            added.content
        )),
        None => Ok(()),
    }
}

/// Parses the pre-tokenizer.
fn pre_tokenizer(value: &Value) -> Result<PreTokenizer, String> {
    let unknown = || format!("pre_tokenizer {} is not supported", kind(value));
    let parts = match kind(value).as_str() {
        "ByteLevel" => std::slice::from_ref(value),
        "Sequence" => value["pretokenizers"].as_array().ok_or_else(unknown)?,
        _ => return Err(unknown()),
    };
    let (split, bytes) = match parts {
        [bytes] => (None, bytes),
        [split, bytes] => (Some(split), bytes),
        _ => return Err(unknown()),
    };
    if kind(bytes) != "ByteLevel" {
        return Err(unknown());
    }
    if bytes["add_prefix_space"] != false {
        return Err("pre_tokenizer.add_prefix_space is not supported".to_owned());
    }
    let own = bytes["use_regex"] != false;
    let split = match split {
        Some(split) => split,
        None if own => return Ok(PreTokenizer::Gpt2),
        None => {
            return Err("pre_tokenizer.use_regex false without a Split is not supported".to_owned());
        }
    };
    let plain = split["behavior"] == "Isolated" && split["invert"] != true;
    if kind(split) != "Split" || own || !plain {
        return Err(unknown());
    }
    let pattern = split["pattern"]["Regex"].as_str().ok_or_else(unknown)?;
    let words = PreTokenizer::of_pattern(pattern);
    words.ok_or_else(|| format!("pre_tokenizer pattern {pattern:?} is not supported"))
}

fn kind(value: &Value) -> String {
    value["type"].as_str().map_or_else(|| "null".to_owned(), str::to_owned)
}

type Tokens = (HashMap<Box<[u8]>, u32>, Vec<Option<Box<[u8]>>>);

/// Tokens by bytes, without added tokens, and bytes by token, with them.
fn vocabulary(file: &File, letters: &HashMap<char, u8>) -> Result<Tokens, String> {
    let model = file.model.vocab.iter().map(|(text, id)| (text.as_str(), *id));
    let added = file.added_tokens.iter().map(|added| (added.content.as_str(), added.id));
    let count = file.model.vocab.len() + file.added_tokens.len();
    let Some((text, last)) = model.clone().chain(added.clone()).max_by_key(|(_, id)| *id) else {
        return Err("its vocabulary is empty".to_owned());
    };
    if last as usize >= count + GAPS {
        return Err(format!("{text:?} has id {last}, but there are only {count} tokens"));
    }
    let mut by_number = vec![None; last as usize + 1];
    let mut tokens = HashMap::with_capacity(file.model.vocab.len());
    let special: HashSet<(&str, u32)> = added.clone().collect();
    for (text, id) in model {
        let bytes: Option<Box<[u8]>> = text.chars().map(|c| letters.get(&c).copied()).collect();
        let Some(bytes) = bytes else {
            // Added tokens are matched verbatim.
            match special.contains(&(text, id)) {
                true => continue,
                false => return Err(format!("token {text:?} is not in the byte-level alphabet")),
            }
        };
        if by_number[id as usize].replace(bytes.clone()).is_some() {
            return Err(format!("two tokens have id {id}"));
        }
        tokens.insert(bytes, id);
    }
    for (text, id) in added {
        let own: Box<[u8]> = text.as_bytes().into();
        let other = by_number[id as usize].replace(own.clone());
        if other.is_some_and(|other| other != own) {
            return Err(format!("{text:?} and another token have id {id}"));
        }
    }
    Ok((tokens, by_number))
}

fn merges(model: &Model) -> Result<Merges, String> {
    let learned = |merge: &Merge| {
        let (left, right) = merge.pair().ok_or("a merge is not a pair")?;
        let token = |text: &str| {
            let missing = || {
                format!(
                    "the merge of {left:?} and {right:?} needs token {text:?}, which does not exist"
                )
            };
            model.vocab.get(text).copied().ok_or_else(missing)
        };
        Ok(((token(left)?, token(right)?), token(&format!("{left}{right}"))?))
    };
    let all: Result<Vec<_>, String> = model.merges.iter().map(learned).collect();
    Ok(Merges::new(all?))
}

/// The byte-level alphabet: printable bytes stand for themselves, the others for characters from U+0100 on.
pub fn byte_alphabet() -> HashMap<char, u8> {
    let printable = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let others = (0..=255u8).filter(|byte| !printable(byte));
    let remapped = others.zip('\u{100}'..).map(|(byte, letter)| (letter, byte));
    (0..=255u8).filter(printable).map(|byte| (char::from(byte), byte)).chain(remapped).collect()
}

/// Writes a `tokenizer.json` that Hugging Face's `tokenizers` reads: the tokens by id, of which the first one is
/// special, and the merges by rank, each as two tokens separated by a space, which all versions read.
pub fn write(vocab: &[String], merges: &[String]) -> Vec<u8> {
    #[derive(Serialize)]
    struct WrittenFile<'a> {
        version: &'static str,
        truncation: Option<()>,
        padding: Option<()>,
        added_tokens: Value,
        normalizer: Option<()>,
        pre_tokenizer: Value,
        post_processor: Value,
        decoder: Value,
        model: WrittenModel<'a>,
    }
    #[derive(Serialize)]
    struct WrittenModel<'a> {
        #[serde(rename = "type")]
        kind: &'static str,
        dropout: Option<()>,
        unk_token: Option<()>,
        continuing_subword_prefix: Option<()>,
        end_of_word_suffix: Option<()>,
        fuse_unk: bool,
        byte_fallback: bool,
        ignore_merges: bool,
        vocab: ById<'a>,
        merges: &'a [String],
    }
    /// A map from token to id, ordered by id.
    struct ById<'a>(&'a [String]);
    impl Serialize for ById<'_> {
        fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
            serializer.collect_map(self.0.iter().zip(0..self.0.len()))
        }
    }
    let byte_level = json!({
        "type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": true,
    });
    let file = WrittenFile {
        version: "1.0",
        truncation: None,
        padding: None,
        added_tokens: json!([{
            "id": 0, "content": vocab.first(), "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true,
        }]),
        normalizer: None,
        pre_tokenizer: byte_level.clone(),
        post_processor: byte_level.clone(),
        decoder: byte_level,
        model: WrittenModel {
            kind: "BPE",
            dropout: None,
            unk_token: None,
            continuing_subword_prefix: None,
            end_of_word_suffix: None,
            fuse_unk: false,
            byte_fallback: false,
            ignore_merges: false,
            vocab: ById(vocab),
            merges,
        },
    };
    let mut json = serde_json::to_vec_pretty(&file)
        .unwrap_or_else(|_| unreachable!("serialising these types is infallible"));
    json.push(b'\n');
    json
}
