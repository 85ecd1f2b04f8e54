//! `regatta data`: preparing, showing and overwriting datasets, and errors.

#![allow(clippy::unwrap_used, reason = "test helpers may panic")]

mod support;

use std::path::Path;

use serde_json::Value;
use support::{CommandOutput, TempDir, command, regatta, run_line};

const TEXT: &str = "The wind came from the north-west.\nThe crew's oars were ready.\n";
const BPE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../train/tests/tokenizer/bpe.json");

/// Arguments that prepare a text as a dataset.
fn prepare_args(folder: &TempDir) -> [String; 4] {
    let text = folder.write("text.txt", &TEXT.repeat(20));
    ["prepare".to_owned(), text, "-o".to_owned(), folder.file("out")]
}

fn data(words: &[String], more: &[&str]) -> CommandOutput {
    let words = words.iter().map(String::as_str);
    regatta(&["data"].into_iter().chain(words).chain(more.iter().copied()).collect::<Vec<_>>())
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

#[test]
fn prepare_writes_token_files_that_show_reads() {
    let folder = TempDir::new();
    let output = data(&prepare_args(&folder), &[]).ok();
    assert!(output.contains("prepared") && output.contains("1,134 training"), "{output}");
    assert!(output.contains("126 validation") && output.contains("data.source="), "{output}");
    let out = Path::new(&folder.file("out")).to_owned();
    let mut names: Vec<_> = out.read_dir().unwrap().map(|e| e.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["prepared.json", "tokenizer.json", "train.tokens", "validation.tokens"]);
    assert_eq!(folder.names(), ["out", "text.txt"]);
    let shown = regatta(&["data", "show", &folder.file("out")]).ok();
    assert!(shown.contains("checksum ok") && shown.contains("The wind came from"), "{shown}");
    let one = json(&regatta(&["data", "show", "--json", &folder.file("out/train.tokens")]).ok());
    assert_eq!(one["files"][0]["tokens"], 1134);
    assert_eq!(one["files"][0]["sha256"].as_str().unwrap().len(), 64);
}

#[test]
fn bpe_gives_fewer_tokens_than_characters() {
    let folder = TempDir::new();
    let made = json(
        &data(&prepare_args(&folder), &["--tokenizer", BPE, "--json", "--validation", "0"]).ok(),
    );
    assert_eq!(made["format"], "regatta-prepared/1");
    assert_eq!((made["vocabulary"].as_u64(), made["tokenizer"].as_str()), (Some(384), Some("BPE")));
    assert!(made["train_tokens"].as_u64().unwrap() < 1000, "{made}");
    assert_eq!(made["validation_tokens"], 0);
    let copied = std::fs::read(folder.file("out/tokenizer.json")).unwrap();
    assert_eq!(copied, std::fs::read(BPE).unwrap());
}

#[test]
fn overwriting_requires_force() {
    let folder = TempDir::new();
    let words = prepare_args(&folder);
    data(&words, &[]).ok();
    let error = data(&words, &[]).error_line();
    assert!(error.contains("already exists") && error.contains("--force"), "{error}");
    data(&words, &["--force", "--validation", "0.5"]).ok();
    let shown = json(&regatta(&["data", "show", "--json", &folder.file("out")]).ok());
    assert_eq!(shown["prepared"]["validation_tokens"], 630);
    folder.write("out/notes.txt", "mine");
    let error = data(&words, &["--force"]).error_line();
    assert!(error.contains("notes.txt"), "{error}");
    assert!(folder.names() == ["out", "text.txt"], "{:?}", folder.names());
}

#[test]
fn corrupt_files_are_reported() {
    let folder = TempDir::new();
    data(&prepare_args(&folder), &[]).ok();
    let path = folder.file("out/train.tokens");
    let intact = std::fs::read(&path).unwrap();
    let show = || regatta(&["data", "show", &folder.file("out")]).error_line();
    std::fs::write(&path, &intact[..intact.len() - 1]).unwrap();
    assert!(show().contains("train.tokens has 2395 bytes instead of 2396"), "{}", show());
    let mut flipped = intact;
    flipped[1000] ^= 1;
    std::fs::write(&path, flipped).unwrap();
    assert!(show().contains("train.tokens are damaged"), "{}", show());
    std::fs::write(&path, "text").unwrap();
    assert!(show().contains("is not a token file"), "{}", show());
}

#[test]
fn invalid_inputs_are_rejected() {
    let folder = TempDir::new();
    let out = folder.file("out");
    let error_of = |input: &str, more: &[&str]| {
        let words = ["data", "prepare", input, "-o", &out];
        regatta(&words.iter().chain(more).collect::<Vec<_>>()).error_line()
    };
    assert!(error_of("nowhere.txt", &[]).contains("no dataset \"nowhere.txt\""));
    assert!(error_of("builtin", &[]).contains("needs no preparation"));
    assert!(error_of(&folder.write("empty.txt", ""), &[]).contains("empty.txt is empty"));
    std::fs::write(folder.file("bad.txt"), b"ab\xff").unwrap();
    assert!(error_of(&folder.file("bad.txt"), &[]).contains("not UTF-8 text: byte 2"));
    let good = folder.write("good.txt", "abc");
    assert!(error_of(&good, &["--validation", "1"]).contains("expected a number in [0, 1)"));
    let other = folder.write("tokenizer.json", "{\"model\": {\"type\": \"Unigram\"}}");
    assert!(error_of(&good, &["--tokenizer", &other]).contains("tokenizer.json as a tokenizer"));
    let refused =
        data(&prepare_args(&folder), &["--characters", "--tokenizer", &other]).usage_error();
    assert!(refused.contains("cannot be used with"), "{refused}");
    assert!(!folder.names().contains(&"out".to_owned()));
}

#[test]
fn named_dataset_is_verified_by_checksum() {
    let folder = TempDir::new();
    folder.write("tinyshakespeare.txt", "not the bard");
    let mut command = command();
    command.args(["data", "prepare", "tinyshakespeare", "-o", &folder.file("out")]);
    let run = CommandOutput::from(command.env("REGATTA_DATA", folder.path()).output().unwrap());
    let error = run.error_line();
    assert!(error.contains("is not tinyshakespeare: SHA-256 is"), "{error}");
    assert!(error.contains("86c4e6aa9db7c042ec79f339dcb96d42b0075e16b8fc2e86bf0ca57e2dc565ed"));
}

#[test]
fn help_has_examples() {
    let text = run_line("data --help").ok();
    assert!(text.contains("regatta data prepare tinyshakespeare -o shakespeare"), "{text}");
    assert!(run_line("data prepare --help").ok().contains("--validation <FRACTION>"));
}
