//! `regatta data`: folders of token files, made, shown, replaced and refused.

#![allow(clippy::unwrap_used, reason = "a test's own functions may panic as it may")]

mod support;

use std::path::Path;

use serde_json::Value;
use support::{Folder, Run, command, line, regatta};

const TEXT: &str = "The wind came from the north-west.\nThe crew's oars were ready.\n";
const BPE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../train/tests/tokenizer/bpe.json");

/// A text of some lines, and the words that make a folder of it.
fn text(folder: &Folder) -> [String; 4] {
    let text = folder.write("text.txt", &TEXT.repeat(20));
    ["prepare".to_owned(), text, "-o".to_owned(), folder.file("out")]
}

fn data(words: &[String], more: &[&str]) -> Run {
    let words = words.iter().map(String::as_str);
    regatta(&["data"].into_iter().chain(words).chain(more.iter().copied()).collect::<Vec<_>>())
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn texts_become_tokens_and_can_be_shown() {
    let folder = Folder::new();
    let said = data(&text(&folder), &[]).ok();
    assert!(said.contains("prepared") && said.contains("1,134 to learn from"), "{said}");
    assert!(said.contains("126 for validation") && said.contains("data.source="), "{said}");
    let out = Path::new(&folder.file("out")).to_owned();
    let mut names: Vec<_> = out.read_dir().unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["prepared.json", "tokenizer.json", "train.tokens", "validation.tokens"]);
    assert_eq!(folder.names(), ["out", "text.txt"]);
    let shown = regatta(&["data", "show", &folder.file("out")]).ok();
    assert!(shown.contains("checksum right") && shown.contains("The wind came from"), "{shown}");
    let one = json(&regatta(&["data", "show", "--json", &folder.file("out/train.tokens")]).ok());
    assert_eq!(one["files"][0]["tokens"], 1134);
    assert_eq!(one["files"][0]["sha256"].as_str().unwrap().len(), 64);
}

#[test]
fn bpe_tokens_are_fewer() {
    let folder = Folder::new();
    let made =
        json(&data(&text(&folder), &["--tokenizer", BPE, "--json", "--validation", "0"]).ok());
    assert_eq!(made["format"], "regatta-prepared/1");
    assert_eq!((made["vocabulary"].as_u64(), made["tokenizer"].as_str()), (Some(384), Some("BPE")));
    assert!(made["train_tokens"].as_u64().unwrap() < 1000, "{made}");
    assert_eq!(made["validation_tokens"], 0);
    let copied = std::fs::read(folder.file("out/tokenizer.json")).unwrap();
    assert_eq!(copied, std::fs::read(BPE).unwrap());
}

#[test]
fn nothing_is_overwritten_unasked() {
    let folder = Folder::new();
    let words = text(&folder);
    data(&words, &[]).ok();
    let sentence = data(&words, &[]).sentence();
    assert!(sentence.contains("exists already") && sentence.contains("--force"), "{sentence}");
    data(&words, &["--force", "--validation", "0.5"]).ok();
    let shown = json(&regatta(&["data", "show", "--json", &folder.file("out")]).ok());
    assert_eq!(shown["prepared"]["validation_tokens"], 630);
    folder.write("out/notes.txt", "mine");
    let sentence = data(&words, &["--force"]).sentence();
    assert!(sentence.contains("notes.txt"), "{sentence}");
    assert!(folder.names() == ["out", "text.txt"], "{:?}", folder.names());
}

#[test]
fn harmed_files_are_named() {
    let folder = Folder::new();
    data(&text(&folder), &[]).ok();
    let path = folder.file("out/train.tokens");
    let whole = std::fs::read(&path).unwrap();
    let show = || regatta(&["data", "show", &folder.file("out")]).sentence();
    std::fs::write(&path, &whole[..whole.len() - 1]).unwrap();
    assert!(show().contains("train.tokens has 2395 bytes, and should have 2396"), "{}", show());
    let mut flipped = whole;
    flipped[1000] ^= 1;
    std::fs::write(&path, flipped).unwrap();
    assert!(show().contains("train.tokens are damaged"), "{}", show());
    std::fs::write(&path, "text").unwrap();
    assert!(show().contains("is no token file"), "{}", show());
}

#[test]
fn what_cannot_be_prepared_is_said() {
    let folder = Folder::new();
    let out = folder.file("out");
    let say = |input: &str, more: &[&str]| {
        let words = ["data", "prepare", input, "-o", &out];
        regatta(&words.iter().chain(more).collect::<Vec<_>>()).sentence()
    };
    assert!(say("nowhere.txt", &[]).contains("there is no data \"nowhere.txt\""));
    assert!(say("builtin", &[]).contains("there is nothing to prepare"));
    assert!(say(&folder.write("empty.txt", ""), &[]).contains("empty.txt is empty"));
    std::fs::write(folder.file("bad.txt"), b"ab\xff").unwrap();
    assert!(say(&folder.file("bad.txt"), &[]).contains("not UTF-8 text: byte 2"));
    let good = folder.write("good.txt", "abc");
    assert!(say(&good, &["--validation", "1"]).contains("from 0 to below 1"));
    let other = folder.write("tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
    assert!(say(&good, &["--tokenizer", &other]).contains("cannot be used as a tokenizer"));
    let refused = data(&text(&folder), &["--characters", "--tokenizer", &other]).refused();
    assert!(refused.contains("cannot be used with"), "{refused}");
    assert!(!folder.names().contains(&"out".to_owned()));
}

#[test]
fn a_named_set_is_looked_for_before_it_is_fetched() {
    let folder = Folder::new();
    folder.write("tinyshakespeare.txt", "not the bard");
    let mut command = command();
    command.args(["data", "prepare", "tinyshakespeare", "-o", &folder.file("out")]);
    let run = Run::from(command.env("REGATTA_DATA", folder.path()).output().unwrap());
    let sentence = run.sentence();
    assert!(sentence.contains("is not tinyshakespeare: SHA-256 is"), "{sentence}");
    assert!(sentence.contains("86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"));
}

#[test]
fn help_has_examples() {
    let text = line("data --help").ok();
    assert!(text.contains("regatta data prepare tinyshakespeare -o shakespeare"), "{text}");
    assert!(line("data prepare --help").ok().contains("--validation <SHARE>"));
}
